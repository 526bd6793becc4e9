// Brings the rows of each partition together, the mixed key and every input column in one pass:
// the partitioning of PGB-TR (Wu 2025, section 4.2), whose passes over each column become one
// kernel. The order of the rows inside a partition is not kept.
#pragma once

#include "pgb_tr/hot.cuh"
#include "pgb_tr/partitions.cuh"
#include "pgb_ur/moved.cuh"

namespace gpuagg {

// Rows of a thread that are in registers at once.
constexpr u32 BATCH = 8;
// No place in a tile's order, which has fewer than 2**16 rows.
constexpr u32 NOWHERE = 0xffffu;

// Where the rows of a thread go: to places in the tile's order of partitions, two to a register,
// and from each place of that order to `target`, NONE where there is nothing to move.
template <u32 ITEMS> struct Route {
    u32 places[ITEMS / 2];
    u32 target[ITEMS];
    GPUAGG_INLINE u32 place(u32 j) const { return places[j / 2] >> (j % 2 * 16) & NOWHERE; }
    GPUAGG_INLINE void set(u32 j, u32 at) {
        if (j % 2) places[j / 2] = (places[j / 2] & NOWHERE) | at << 16;
        else places[j / 2] = (places[j / 2] & ~NOWHERE) | at;
    }
};

// Moves one column: `read` gives the value of the thread's row j. The staging buffer is the block's
// only one, so it must be free before the first value goes in.
template <u32 THREADS, u32 ITEMS, class T, class Read>
GPUAGG_INLINE void move_column(char* buffer, void* to, const Route<ITEMS>& route, Read read) {
    T* staged = reinterpret_cast<T*>(buffer);
    T value[BATCH];
#pragma unroll
    for (u32 b = 0; b < ITEMS; b += BATCH) {
#pragma unroll
        for (u32 j = 0; j < BATCH; ++j) {
            value[j] = T{};
            if (route.place(b + j) != NOWHERE) value[j] = read(b + j);
        }
        if (b == 0) __syncthreads();
#pragma unroll
        for (u32 j = 0; j < BATCH; ++j)
            if (route.place(b + j) != NOWHERE) staged[route.place(b + j)] = value[j];
    }
    __syncthreads();
#pragma unroll
    for (u32 j = 0; j < ITEMS; ++j)
        if (route.target[j] != NONE)
            static_cast<T*>(to)[route.target[j]] = staged[j * THREADS + threadIdx.x];
}

template <u32 THREADS, u32 ITEMS, u32 I>
GPUAGG_INLINE void move_inputs(Cells<I>*, char*, const Column*, const Column*, i64,
                               const Route<ITEMS>&) {}
template <u32 THREADS, u32 ITEMS, u32 I, class In, class... Rest>
GPUAGG_INLINE void move_inputs(Cells<I, In, Rest...>*, char* buffer, const Column* columns,
                               const Column* to, i64 first, const Route<ITEMS>& route) {
    using T = typename In::T;
    move_column<THREADS, ITEMS, T>(
        buffer, const_cast<void*>(to[In::column].data), route,
        [&](u32 j) { return load<T>(columns[In::column], first + j * THREADS); });
    move_inputs<THREADS, ITEMS>(static_cast<Cells<I + 1, Rest...>*>(nullptr), buffer, columns, to,
                                first, route);
}

template <u32 THREADS, u32 ITEMS, class T>
GPUAGG_INLINE void move_values(char* buffer, void* to, const Column& from, i64 first,
                               const Route<ITEMS>& route) {
    move_column<THREADS, ITEMS, T>(buffer, to, route,
                                   [&](u32 j) { return load<T>(from, first + j * THREADS); });
}

// More columns in a loop over their widths: all of them unrolled would take seconds to compile, and
// four already more registers than there are.
constexpr u32 UNROLLED_COLUMNS = 2;
template <u32 THREADS, u32 ITEMS, class... In>
GPUAGG_INLINE void move_many(Cells<0, In...>*, char* buffer, const Column* columns,
                             const Column* to, i64 first, const Route<ITEMS>& route) {
    const u32 bytes[] = {static_cast<u32>(sizeof(typename In::T))..., 0u};
    const u32 places[] = {In::column..., 0u};
#pragma unroll 1
    for (u32 i = 0; i < sizeof...(In); ++i) {
        const Column from = columns[places[i]];
        void* const target = const_cast<void*>(to[places[i]].data);
        if (bytes[i] == 8) move_values<THREADS, ITEMS, u64>(buffer, target, from, first, route);
        else if (bytes[i] == 4) move_values<THREADS, ITEMS, u32>(buffer, target, from, first, route);
        else if (bytes[i] == 1) move_values<THREADS, ITEMS, u8>(buffer, target, from, first, route);
        else if (bytes[i] == 2) move_values<THREADS, ITEMS, u16>(buffer, target, from, first, route);
        else if constexpr (Inputs<Cells<0, In...>>::widest == 16)
            move_values<THREADS, ITEMS, i128>(buffer, target, from, first, route);
    }
}

template <class V, u32 BIT, u32 I>
GPUAGG_INLINE void valid_bits(Cells<I>*, const Column*, i64, V&) {}
template <class V, u32 BIT, u32 I, class In, class... Rest>
GPUAGG_INLINE void valid_bits(Cells<I, In, Rest...>*, const Column* columns, i64 row, V& bits) {
    if constexpr (In::masked)
        bits |= static_cast<V>(static_cast<V>(is_valid(columns[In::column], row)) << BIT);
    valid_bits<V, BIT + (In::masked ? 1 : 0)>(static_cast<Cells<I + 1, Rest...>*>(nullptr),
                                              columns, row, bits);
}

// Everything of the rows but their words.
template <class Q, u32 THREADS, u32 ITEMS>
GPUAGG_INLINE void move_rest(const Partitions& p, const Column* columns, const Column* to,
                             char* buffer, i64 first, const Route<ITEMS>& route) {
    using Row = typename Q::Values;
    using Copied = typename Moved<Q>::Columns;
    if constexpr (Inputs<Row>::masked > 0) {
        using V = typename Bits<Inputs<Row>::masked>::Type;
        move_column<THREADS, ITEMS, V>(buffer, p.validity, route, [&](u32 j) {
            V bits = 0;
            valid_bits<V, 0>(static_cast<Row*>(nullptr), columns, first + j * THREADS, bits);
            return bits;
        });
    }
    if constexpr (Moved<Q>::numbers)
        move_column<THREADS, ITEMS, u32>(buffer, p.numbers, route, [&](u32 j) {
            return static_cast<u32>(first + j * THREADS);
        });
    Copied* const copied = nullptr;
    if constexpr (Inputs<Copied>::count > UNROLLED_COLUMNS)
        move_many<THREADS, ITEMS>(copied, buffer, columns, to, first, route);
    else
        move_inputs<THREADS, ITEMS>(copied, buffer, columns, to, first, route);
}

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

// Rows that the block's own table takes. The values of all are read at once with the keys, though
// other rows' are read again when they are moved: to wait for the keys first took longer. Values
// that do not move may be few.
template <class Q, u32 THREADS, u32 N>
GPUAGG_INLINE void take_hot(HotTable<Q>& hot, const Column* columns, Probe (&probe)[N], i64 first,
                            u32 b, u32 left) {
    typename Q::Values row[N];
    u32 cell[N];
#pragma unroll
    for (u32 j = 0; j < N; ++j)
        if (!Q::untransformed && (b + j) * THREADS + threadIdx.x < left)
            row[j].read(columns, first + (b + j) * THREADS);
#pragma unroll
    for (u32 j = 0; j < N; ++j) cell[j] = hot.find(probe[j]);
#pragma unroll
    for (u32 j = 0; j < N; ++j)
        if (Q::untransformed && cell[j] != NONE)
            row[j].read(columns, first + (b + j) * THREADS);
#pragma unroll
    for (u32 j = 0; j < N; ++j)
        if (cell[j] != NONE) {
            hot.update(cell[j], row[j], static_cast<u32>(first) + (b + j) * THREADS);
            probe[j].kind = Kind::drop;
        }
}

// Rows that no partition takes are listed: those past its capacity, those whose word is not as narrow
// as the others, and those of the two keys that have a slot behind every table, unless a table of hot
// keys takes them.
template <class Q, u32 THREADS, u32 ITEMS, bool HOT, class W>
__device__ void scatter(const Args& a, const Partitions& p, const Column* columns,
                        const Column* to, const HotKeys& keys) {
    using K = typename Q::Key;
    using Copied = typename Moved<Q>::Columns;
    using Code = typename W::Code;
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

    for (u64 tile = static_cast<u64>(blockIdx.x) * TILE; tile < a.rows;
         tile += static_cast<u64>(gridDim.x) * TILE) {
        const i64 first = static_cast<i64>(tile) + threadIdx.x;
        const u32 left = static_cast<u32>(a.rows - tile);
        Route<ITEMS> route;
        typename W::Kept kept[ITEMS];
        for (u32 i = threadIdx.x; i < p.count; i += THREADS) counts[i] = 0;
        __syncthreads();
        // ranks among the tile's rows of the same partition
        constexpr u32 RANKED = HOT ? HOT_BATCH : BATCH;
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
            if constexpr (HOT) take_hot<Q, THREADS>(hot, columns, probe, first, b, left);
#pragma unroll
            for (u32 j = 0; j < RANKED; ++j) {
                u32 rank = NOWHERE;
                const Code code = W::code(p.words, probe[j].word, p.count);
                if (probe[j].kind == Kind::key && W::fits(p.words, probe[j].word))
                    rank = atomicAdd(counts + W::partition(code, p.count), 1u);
                else if (probe[j].kind != Kind::drop) odd |= 1u << j;
                kept[b + j] = W::keep(p.words, code);
                route.set(b + j, rank);
            }
            list_spilled<THREADS>(a, odd, first + b * THREADS);
        }
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
        // the tile's places in each partition, counted from where its run starts in the buffer
        bool over = false;
        for (u32 i = threadIdx.x; i < p.count; i += THREADS) {
            const u32 n = counts[i];
            if (n == 0) continue;
            const u32 base = atomicAdd(p.rows + i, n);
            over = over || base + n > p.capacity;
            counts[i] = base - starts[i];
        }
        // whole words had to leave the registers to those of later rows, so they are made again
#pragma unroll
        for (u32 b = 0; b < ITEMS; b += BATCH) {
            Code code[BATCH];
#pragma unroll
            for (u32 j = 0; j < BATCH; ++j) {
                code[j] = 0;
                if (W::kept || route.place(b + j) != NOWHERE)
                    code[j] = W::template again<K>(p.words, kept[b + j], columns,
                                                   first + (b + j) * THREADS);
            }
#pragma unroll
            for (u32 j = 0; j < BATCH; ++j)
                if (route.place(b + j) != NOWHERE) {
                    const u32 at = route.place(b + j) + starts[W::partition(code[j], p.count)];
                    codes[at] = code[j];
                    route.set(b + j, at);
                }
        }
        over = __syncthreads_or(over);
        if (over) {
            u32 lost = 0;
#pragma unroll
            for (u32 j = 0; j < ITEMS; ++j) {
                const u32 at = route.place(j);
                if (at != NOWHERE && counts[W::partition(codes[at], p.count)] + at >= p.capacity)
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
                const u32 place = counts[partition] + at;
                if (place < p.capacity) {
                    route.target[j] = partition * p.capacity + place;
                    static_cast<typename W::Stored*>(p.words.data)[route.target[j]] =
                        W::stored(p.words, code);
                }
            }
        }
        move_rest<Q, THREADS>(p, columns, to, buffer, first, route);
        // the slowest warp is done with buffer and counts
        __syncthreads();
    }
    if constexpr (HOT) hot.merge(a, columns);
}

}  // namespace gpuagg
