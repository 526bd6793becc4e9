// Brings the rows of each partition together, the mixed key and every input column in one pass:
// the partitioning of PGB-TR (Wu 2025, section 4.2), whose passes over each column become one
// kernel. The order of the rows inside a partition is not kept.
#pragma once

#include "pgb_tr/partitions.cuh"

namespace gpuagg {

// Where the rows of a thread go: to `stage` in the tile's order of partitions, and from each place
// of that order to `target`. NONE: the row, or the place, has nothing to move.
template <u32 ITEMS> struct Route {
    u32 stage[ITEMS];
    u32 target[ITEMS];
};

// Writes a column that has been read into registers. The staging buffer is the block's only one,
// so it must be free first; `ahead` starts the loads of the next column before the stores.
template <u32 THREADS, u32 ITEMS, class T, class Ahead>
GPUAGG_INLINE void move_column(char* buffer, void* to, const Route<ITEMS>& route,
                               const T (&value)[ITEMS], Ahead ahead) {
    T* staged = reinterpret_cast<T*>(buffer);
    __syncthreads();
#pragma unroll
    for (u32 j = 0; j < ITEMS; ++j)
        if (route.stage[j] != NONE) staged[route.stage[j]] = value[j];
    __syncthreads();
    ahead();
#pragma unroll
    for (u32 j = 0; j < ITEMS; ++j)
        if (route.target[j] != NONE)
            static_cast<T*>(to)[route.target[j]] = staged[j * THREADS + threadIdx.x];
}

template <u32 THREADS, u32 ITEMS, class In>
GPUAGG_INLINE void read_input(const Column* columns, u64 first, const Route<ITEMS>& route,
                              typename In::T (&value)[ITEMS]) {
#pragma unroll
    for (u32 j = 0; j < ITEMS; ++j)
        if (route.stage[j] != NONE)
            value[j] = load<typename In::T>(columns[In::column],
                                            static_cast<i64>(first + j * THREADS));
}

// The inputs from I on, the first of which is in registers.
template <u32 THREADS, u32 ITEMS, u32 I, class In, class... Rest>
GPUAGG_INLINE void move_inputs(Cells<I, In, Rest...>*, char* buffer, const Column* columns,
                             const Column* to, u64 first, const Route<ITEMS>& route,
                             const typename In::T (&value)[ITEMS]) {
    void* target = const_cast<void*>(to[In::column].data);
    if constexpr (sizeof...(Rest) == 0) {
        move_column<THREADS>(buffer, target, route, value, [] {});
    } else {
        using Tail = Cells<I + 1, Rest...>;
        typename Inputs<Tail>::First::T next[ITEMS];
        move_column<THREADS>(buffer, target, route, value, [&] {
            read_input<THREADS, ITEMS, typename Inputs<Tail>::First>(columns, first, route, next);
        });
        move_inputs<THREADS, ITEMS>(static_cast<Tail*>(nullptr), buffer, columns, to, first, route,
                                  next);
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
template <u32 THREADS, u32 ITEMS, class Q>
GPUAGG_INLINE void move_all(const Partitions& p, const Column* columns, const Column* to,
                            char* buffer, u64 first, const Route<ITEMS>& route) {
    using Row = typename Q::Values;
    Row* const row = nullptr;
    if constexpr (Inputs<Row>::masked > 0) {
        using V = typename Bits<Inputs<Row>::masked>::Type;
        V bits[ITEMS];
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j) {
            bits[j] = 0;
            if (route.stage[j] != NONE)
                valid_bits<V, 0>(row, columns, static_cast<i64>(first + j * THREADS), bits[j]);
        }
        move_column<THREADS>(buffer, p.validity, route, bits, [] {});
    }
    if constexpr (Numbered<typename Q::All>::value) {
        u32 number[ITEMS];
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j) number[j] = static_cast<u32>(first + j * THREADS);
        move_column<THREADS>(buffer, p.numbers, route, number, [] {});
    }
    if constexpr (Inputs<Row>::count > 0) {
        using First = typename Inputs<Row>::First;
        typename First::T value[ITEMS];
        read_input<THREADS, ITEMS, First>(columns, first, route, value);
        move_inputs<THREADS, ITEMS>(row, buffer, columns, to, first, route, value);
    }
}

// The sum of the counts of all threads before this one, and of all.
template <u32 THREADS> GPUAGG_INLINE u32 sum_before(u32 mine, u32* warp_sums, u32& total) {
    static_assert(THREADS <= WARP * WARP, "one warp sums the warps");
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 sum = mine;
#pragma unroll
    for (u32 d = 1; d < WARP; d *= 2) {
        const u32 other = __shfl_up_sync(ALL_LANES, sum, d);
        if (lane >= d) sum += other;
    }
    if (lane == WARP - 1) warp_sums[warp] = sum;
    __syncthreads();
    u32 before = 0;
    total = 0;
#pragma unroll
    for (u32 w = 0; w < THREADS / WARP; ++w) {
        const u32 of_warp = warp_sums[w];
        if (w < warp) before += of_warp;
        total += of_warp;
    }
    return before + sum - mine;
}

GPUAGG_INLINE void list_spilled(const Args& a, u32 row) {
    const u32 at = atomicAdd(&a.counters->spilled, 1u);
    if (at < a.spill_limit) a.spill[at] = row;
}

// Rows that no partition takes are listed: those past its capacity, and those of the two keys that
// have a slot behind every table.
template <class Q, u32 THREADS, u32 ITEMS>
__device__ void scatter(const Args& a, const Partitions& p, const Column* columns,
                        const Column* to) {
    using K = typename Q::Key;
    using Row = typename Q::Values;
    constexpr u32 TILE = THREADS * ITEMS;
    extern __shared__ u64 shared[];
    __shared__ u32 warp_sums[WARP];
    char* buffer = reinterpret_cast<char*>(shared);
    u32* counts = reinterpret_cast<u32*>(buffer + TILE * Inputs<Row>::widest);
    u32* starts = counts + p.count;
    const u32 each = (p.count + THREADS - 1) / THREADS;

    for (u64 tile = static_cast<u64>(blockIdx.x) * TILE; tile < a.rows;
         tile += static_cast<u64>(gridDim.x) * TILE) {
        const u64 first = tile + threadIdx.x;
        Route<ITEMS> route;
        u64 word[ITEMS];
        for (u32 i = threadIdx.x; i < p.count; i += THREADS) counts[i] = 0;
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j) {
            route.stage[j] = NONE;
            const u64 row = first + j * THREADS;
            if (row < a.rows) {
                const Probe probe = K::probe(columns, static_cast<i64>(row));
                word[j] = probe.word;
                if (probe.kind == Kind::key) route.stage[j] = 0;
                else if (probe.kind != Kind::drop) list_spilled(a, static_cast<u32>(row));
            }
        }
        __syncthreads();
        // ranks among the tile's rows of the same partition
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j)
            if (route.stage[j] != NONE)
                route.stage[j] = atomicAdd(counts + partition_of(word[j], p.count), 1u);
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
                starts[at] = start;
                start += counts[at];
            }
        }
        __syncthreads();
        // the tile's places in each partition, counted from the start of its run in the buffer
        u32 base = 0;
        bool over = false;
        for (u32 i = threadIdx.x; i < p.count; i += THREADS) {
            const u32 n = counts[i];
            if (n) base = atomicAdd(p.rows + i, n);
            over = over || (n && base + n > p.capacity);
            counts[i] = base - starts[i];
        }
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j)
            if (route.stage[j] != NONE) {
                route.stage[j] += starts[partition_of(word[j], p.count)];
                shared[route.stage[j]] = word[j];
            }
        over = __syncthreads_or(over);
        if (over) {
#pragma unroll
            for (u32 j = 0; j < ITEMS; ++j)
                if (route.stage[j] != NONE &&
                    counts[partition_of(word[j], p.count)] + route.stage[j] >= p.capacity)
                    list_spilled(a, static_cast<u32>(first + j * THREADS));
        }
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j) {
            const u32 at = j * THREADS + threadIdx.x;
            route.target[j] = NONE;
            if (at < total) {
                const u64 moved = shared[at];
                const u32 partition = partition_of(moved, p.count);
                const u32 place = counts[partition] + at;
                if (place < p.capacity) {
                    route.target[j] = partition * p.capacity + place;
                    p.words[route.target[j]] = moved;
                }
            }
        }
        move_all<THREADS, ITEMS, Q>(p, columns, to, buffer, first, route);
        // the counters are read until here, by the slowest warp
        __syncthreads();
    }
}

}  // namespace gpuagg
