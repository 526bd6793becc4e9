// Scatters rows to their partitions, the mixed key and every input column in one pass:
// the partitioning of PGB-TR (Wu 2025, section 4.2), whose passes over each column become one
// kernel. The order of the rows inside a partition is not kept.
#pragma once

#include "pgb_tr/hot.cuh"
#include "pgb_tr/move.cuh"

namespace gpuagg {

// The sum of the counts of all threads before this one, and of all.
template <u32 THREADS> GPUAGG_INLINE u32 sum_before(u32 mine, u32* warp_sums, u32& total) {
    static_assert(THREADS <= WARP * WARP, "one warp sums the warps");
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 sum = sum_to_lane(mine);
    if (lane == WARP - 1) warp_sums[warp] = sum;
    __syncthreads();
    const u32 of_warp = lane < THREADS / WARP ? warp_sums[lane] : 0;
    const u32 own = __shfl_sync(ALL_LANES, of_warp, warp);
    const u32 of_warps = sum_to_lane(of_warp);
    total = __shfl_sync(ALL_LANES, of_warps, WARP - 1);
    return __shfl_sync(ALL_LANES, of_warps, warp) - own + sum - mine;
}

// Lists the thread's rows whose bits are set.
template <u32 THREADS> GPUAGG_INLINE void list_spilled(const Args& a, u32 rows, i64 first) {
    if (rows == 0) return;
    u32 at = atomicAdd(&a.counters->spilled, __popc(rows));
    for (; rows; rows &= rows - 1, ++at)
        if (at < a.spill_limit)
            a.spill[at] = static_cast<u32>(first) + (__ffs(rows) - 1) * THREADS;
}

// Hot rows of a warp, listed by cell and place in the tile, so that all lanes have one to add: of the
// rows as they come only some are hot.
struct HotList {
    u32* rows;
    u32 count;
    // By a whole warp. NONE is no cell.
    GPUAGG_INLINE void add(u32 cell, u32 place) {
        const u32 hot = __ballot_sync(ALL_LANES, cell != NONE);
        const u32 before = __popc(hot & ((1u << threadIdx.x % WARP) - 1));
        if (cell != NONE) rows[count + before] = cell << 16 | place;
        count += __popc(hot);
    }
};

// Adds the rows of a warp's list to the block's own table.
template <class Q>
GPUAGG_INLINE void take_hot(HotTable<Q>& hot, const Column* columns, const HotList& list, i64 tile) {
    __syncwarp();
    for (u32 base = threadIdx.x % WARP; base < list.count; base += WARP * HOT_BATCH) {
        typename Q::Values row[HOT_BATCH];
        u32 entry[HOT_BATCH];
#pragma unroll
        for (u32 j = 0; j < HOT_BATCH; ++j) {
            entry[j] = NONE;
            if (base + j * WARP < list.count) entry[j] = list.rows[base + j * WARP];
        }
#pragma unroll
        for (u32 j = 0; j < HOT_BATCH; ++j)
            if (entry[j] != NONE) row[j].read(columns, tile + (entry[j] & NOWHERE));
#pragma unroll
        for (u32 j = 0; j < HOT_BATCH; ++j)
            if (entry[j] != NONE)
                hot.update(entry[j] >> 16, row[j], static_cast<u32>(tile) + (entry[j] & NOWHERE));
    }
}

// The same for rows as they come, of states so few that their update takes no longer than a list.
template <class Q, u32 THREADS, u32 N>
GPUAGG_INLINE void take_at_once(HotTable<Q>& hot, const Column* columns, const u32 (&cell)[N],
                                i64 first, u32 b, u32 left) {
    // one value of each row is held easily
    constexpr u32 EACH = Inputs<typename Q::Values>::count > 1 ? HOT_BATCH : N;
#pragma unroll
    for (u32 i = 0; i < N; i += EACH) {
        typename Q::Values row[EACH];
#pragma unroll
        for (u32 j = 0; j < EACH; ++j)
            if (Q::untransformed ? cell[i + j] != NONE
                                 : (b + i + j) * THREADS + threadIdx.x < left)
                row[j].read(columns, first + (b + i + j) * THREADS);
#pragma unroll
        for (u32 j = 0; j < EACH; ++j)
            if (cell[i + j] != NONE)
                hot.update(cell[i + j], row[j],
                           static_cast<u32>(first) + (b + i + j) * THREADS);
    }
}

// Stages the codes of rows in the tile's order; ranks in their partitions become places of that order.
template <class K, u32 THREADS, class W, class R>
GPUAGG_INLINE void stage_codes(const Partitions& p, const Column* columns, typename W::Code* codes,
                               typename W::Kept (&kept)[R::ITEMS], const u16* starts, i64 first,
                               R& route) {
    using Code = typename W::Code;
    // whole words had to leave the registers to those of later rows, so they are made again
#pragma unroll
    for (u32 b = 0; b < R::ITEMS; b += BATCH) {
        Code code[BATCH];
#pragma unroll
        for (u32 j = 0; j < BATCH; ++j) {
            const i64 row = first + (b + j) * THREADS;
            code[j] = 0;
            if (W::kept || route.place(b + j) != NOWHERE)
                code[j] = W::template again<K>(p.words, kept[b + j], columns, row);
        }
#pragma unroll
        for (u32 j = 0; j < BATCH; ++j) {
            if (route.place(b + j) == NOWHERE) continue;
            const u32 at = route.place(b + j) + starts[W::partition(code[j], p.count)];
            codes[at] = code[j];
            route.set(b + j, at);
        }
    }
}

// Rows that no partition takes are listed: those past its room, those whose word is not as narrow as
// the others, and those of the two keys that have a slot behind every table, unless a table of hot
// keys takes them.
template <class Q, u32 THREADS, u32 ITEMS, bool HOT, class W>
GPUAGG_INLINE void scatter_rows(const Args& a, const Partitions& p, const Column* columns,
                                const Column* to, const HotKeys& keys) {
    using K = typename Q::Key;
    using Copied = typename Moved<Q>::Columns;
    using Code = typename W::Code;
    using R = Route<THREADS, ITEMS>;
    constexpr bool LISTED =
        HOT && (Q::All::bytes(1) > LISTED_FROM || Inputs<typename Q::Values>::count > 2);
    constexpr u32 TILE = THREADS * ITEMS;
    static_assert(TILE < NOWHERE && ITEMS % BATCH == 0 && ITEMS <= 32, "whole batches; bits");
    if (called_off(a)) return;
    extern __shared__ u64 shared[];
    __shared__ u32 warp_sums[WARP];
    char* buffer = reinterpret_cast<char*>(shared);
    Code* codes = reinterpret_cast<Code*>(shared);
    u32* counts = reinterpret_cast<u32*>(buffer + TILE * Inputs<Copied>::widest);
    u16* starts = reinterpret_cast<u16*>(counts + p.count);
    const u32 each = (p.count + THREADS - 1) / THREADS;
    const u32 used = (TILE * Inputs<Copied>::widest + 6 * p.count + 7) / 8 * 8;
    HotTable<Q> hot = HOT ? HotTable<Q>(buffer + used, keys) : HotTable<Q>();

    for (u64 tile = static_cast<u64>(blockIdx.x) * TILE + a.first; tile < a.rows;
         tile += static_cast<u64>(gridDim.x) * TILE) {
        const i64 first = static_cast<i64>(tile) + threadIdx.x;
        const u32 left = static_cast<u32>(a.rows - tile);
        R route;
        typename W::Kept kept[ITEMS];
        for (u32 i = threadIdx.x; i < p.count; i += THREADS) counts[i] = 0;
        __syncthreads();
        // the buffer has room for all rows in the warps' lists
        HotList list{reinterpret_cast<u32*>(buffer) + threadIdx.x / WARP * WARP * ITEMS, 0};
        // ranks among the tile's rows of the same partition
        constexpr u32 RANKED = HOT ? HOT_RANKED : BATCH;
#pragma unroll
        for (u32 b = 0; b < ITEMS; b += RANKED) {
            Probe probe[RANKED];
            u32 odd = 0;
#pragma unroll
            for (u32 j = 0; j < RANKED; ++j) {
                probe[j] = {EMPTY, 0u, Kind::drop};
                if ((b + j) * THREADS + threadIdx.x < left)
                    probe[j] = W::template probe<K>(p.words, columns, first + (b + j) * THREADS);
            }
            if constexpr (HOT) {
                u32 cell[RANKED];
#pragma unroll
                for (u32 j = 0; j < RANKED; ++j) {
                    cell[j] = hot.index.find(probe[j]);
                    if constexpr (LISTED) list.add(cell[j], (b + j) * THREADS + threadIdx.x);
                    if (cell[j] != NONE) probe[j].kind = Kind::drop;
                }
                if constexpr (!LISTED) take_at_once<Q, THREADS>(hot, columns, cell, first, b, left);
            }
#pragma unroll
            for (u32 j = 0; j < RANKED; ++j) {
                u32 rank = NOWHERE;
                const Code code = W::code(p.words, probe[j].word, p.count);
                const bool fits = W::keep(p.words, probe[j].word, code, kept[b + j]);
                if (probe[j].kind == Kind::key && fits)
                    rank = atomicAdd(counts + W::partition(code, p.count), 1u);
                else if (probe[j].kind != Kind::drop) odd |= 1u << j;
                route.set(b + j, rank);
            }
            list_spilled<THREADS>(a, odd, first + b * THREADS);
        }
        if constexpr (LISTED) take_hot<Q>(hot, columns, list, static_cast<i64>(tile));
        __syncthreads();
        u32 mine = 0, total;
        for (u32 i = 0; i < each; ++i) {
            const u32 at = threadIdx.x * each + i;
            if (at < p.count) mine += counts[at];
        }
        u32 start = sum_before<THREADS>(mine, warp_sums, total);
        for (u32 i = 0; i < each; ++i) {
            const u32 at = threadIdx.x * each + i;
            if (at < p.count) {
                starts[at] = static_cast<u16>(start);
                start += counts[at];
            }
        }
        __syncthreads();
        // the tile's places in each partition, counted from where its run starts in the tile's order;
        // past the partition's end none is its own
        bool over = false;
        for (u32 i = threadIdx.x; i < p.count; i += THREADS) {
            const u32 n = counts[i];
            if (n == 0) continue;
            const u32 begin = begin_of(p, i), room = room_of(p, i);
            const u32 base = atomicAdd(p.rows + i, n);
            over = over || base + n > room;
            counts[i] = begin + (base < room ? base : room) - starts[i];
        }
        stage_codes<K, THREADS, W>(p, columns, codes, kept, starts, first, route);
        over = __syncthreads_or(over);
        if (over) {
            u32 lost = 0;
#pragma unroll
            for (u32 j = 0; j < ITEMS; ++j) {
                const u32 at = route.place(j);
                if (at == NOWHERE) continue;
                const u32 partition = W::partition(codes[at], p.count);
                if (counts[partition] + at >= begin_of(p, partition) + room_of(p, partition))
                    lost |= 1u << j;
            }
            list_spilled<THREADS>(a, lost, first);
        }
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j) {
            const u32 at = j * THREADS + threadIdx.x;
            route.target[j] = NONE;
            if (at < total) {
                const Code code = codes[at];
                const u32 partition = W::partition(code, p.count);
                const u32 to_row = counts[partition] + at;
                if (!over || to_row < begin_of(p, partition) + room_of(p, partition)) {
                    route.target[j] = to_row;
                    static_cast<typename W::Stored*>(p.words.data)[to_row] =
                        W::stored(p.words, code);
                }
            }
        }
        move_rest<Q>(p, columns, to, buffer, first, route);
        // the slowest warp is done with buffer and counts
        __syncthreads();
    }
    if constexpr (HOT) hot.merge(a, columns);
}

template <class Q, u32 THREADS, u32 ITEMS, class W>
__global__ void __launch_bounds__(THREADS, 1)
    scatter(const __grid_constant__ Args a, const __grid_constant__ Partitions p,
            const __grid_constant__ Columns<Q> columns, const __grid_constant__ Columns<Q> to) {
    scatter_rows<Q, THREADS, ITEMS, false, W>(a, p, columns, to, HotKeys{});
}

// With a table of hot keys beside the tile.
template <class Q, u32 THREADS, u32 ITEMS, class W>
__global__ void __launch_bounds__(THREADS, 1)
    scatter_hot(const __grid_constant__ Args a, const __grid_constant__ Partitions p,
                const __grid_constant__ Columns<Q> columns, const __grid_constant__ Columns<Q> to,
                const __grid_constant__ HotKeys hot) {
    scatter_rows<Q, THREADS, ITEMS, true, W>(a, p, columns, to, hot);
}

}  // namespace gpuagg
