// Group-by with a table in the shared memory of each SM: HGB of Wu 2025 (section 4.2, Algorithm 1)
// in one pass over the input, with the shared-memory tables and the replicated accumulators of
// Karnagel 2015 (sections 4 and 5.1). kernels/README.md says what was changed and why.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

// A key that is farther from its first slot than this spills.
constexpr u32 SHARED_PROBES = 128;

// Accumulates straight into the table, of which `replicas` threads in a row each have a copy.
template <class Q> struct InTable {
    GPUAGG_INLINE InTable() {}
    GPUAGG_INLINE void update(const typename Q::All::Memory& m, u32 slot, u32 replicas, u32 share,
                              const typename Q::Values& row, u32 number) {
        Q::All::update(Shared{}, m, {slot, slot * replicas + share}, row, number);
    }
    GPUAGG_INLINE void finish(const typename Q::All::Memory&, u32, u32) {}
};

// Accumulates in registers as long as a thread's rows stay in one group.
template <class Q> struct InRegisters {
    typename Q::All::Value held;
    u32 at;
    GPUAGG_INLINE InRegisters() : held(Q::All::none()), at(NONE) {}
    GPUAGG_INLINE void update(const typename Q::All::Memory& m, u32 slot, u32 replicas, u32 share,
                              const typename Q::Values& row, u32 number) {
        if (slot != at) {
            finish(m, replicas, share);
            at = slot;
            held = Q::All::none();
        }
        Q::All::fold_row(held, row, number);
    }
    GPUAGG_INLINE void finish(const typename Q::All::Memory& m, u32 replicas, u32 share) {
        if (at != NONE) Q::All::add(Shared{}, m, {at, at * replicas + share}, held);
    }
};

template <class Q> GPUAGG_INLINE void clear_shared(u64* words, const typename Q::All::Memory& m,
                                                   u32 all, u32 replicas) {
    for (u32 i = threadIdx.x; i < all; i += blockDim.x) words[i] = EMPTY;
    // replicas also initialise the fields that a slot has once, several times with the same value
    for (u32 i = threadIdx.x; i < all * replicas; i += blockDim.x)
        Q::All::clear(m, {i / replicas, i});
}

// Adds the groups of a block's table to the global table.
template <class Q>
GPUAGG_INLINE void merge_block(const Args& a, const Column* columns, const u64* words,
                               const typename Q::All::Memory& m) {
    using K = typename Q::Key;
    const auto global = Q::All::carve(a.table.cells, a.table.slots + EXTRA_SLOTS, 1);
    for (u32 s = threadIdx.x; s < a.shared_slots + EXTRA_SLOTS; s += blockDim.x) {
        if (words[s] == EMPTY) continue;
        auto value = Q::All::read(m, {s, s * a.replicas});
        for (u32 r = 1; r < a.replicas; ++r)
            Q::All::fold(value, Q::All::read(m, {s, s * a.replicas + r}));
        const Probe probe = asked<K>(columns, words[s], s, a.shared_slots);
        const u32 slot = find<K>(a.table.words, a.table.slots, a.table.limit,
                                 &a.counters->claimed, a.probes, columns, probe);
        if (slot == NONE) atomicAdd(&a.counters->unplaced, 1u);
        else Q::All::add(Global{}, global, {slot, slot}, value);
    }
}

// A tile of WARP * UNROLL rows, one warp's. WHOLE: the input has all of its rows, so that all loads
// can be under way before the first is waited for. True if rows were spilled beyond the limit.
template <class Q, bool WHOLE, u32 UNROLL, class A>
GPUAGG_INLINE bool take_tile(const Args& a, const Column* columns, u64* words, u32* claimed,
                             const typename Q::All::Memory& memory, A& accumulate, u64 base) {
    using K = typename Q::Key;
    const u32 lane = threadIdx.x % WARP;
    const u32 share = threadIdx.x & (a.replicas - 1);
    typename Q::Values row[UNROLL];
    Probe probe[UNROLL];
    u32 slot[UNROLL];
    bool found[UNROLL];
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j) {
        const u64 i = base + j * WARP + lane;
        if (!WHOLE) probe[j] = {EMPTY, 0u, Kind::drop};
        if (WHOLE || i < a.rows) {
            probe[j] = K::probe(columns, static_cast<i64>(i));
            row[j].read(columns, static_cast<i64>(i));
        }
    }
    // finding is one phase and updating the next, with the warp together in between: lanes that
    // update while others still probe make the whole loop several times as long
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j)
        found[j] = find_first<K>(words, a.shared_slots, probe[j], slot[j]);
    // one loop for each row: in roomy tables few rows probe, and one loop for all took longer
    u32 lost = 0;
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j) {
        if (!found[j]) {
            slot[j] = find<K>(words, a.shared_slots, a.shared_limit, claimed, SHARED_PROBES,
                              columns, probe[j]);
            if (slot[j] == NONE && probe[j].kind != Kind::drop) lost |= 1u << j;
        }
    }
    __syncwarp();
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j)
        if (slot[j] != NONE)
            accumulate.update(memory, slot[j], a.replicas, share, row[j],
                              static_cast<u32>(base + j * WARP + lane));
    return list_lost<UNROLL>(a, lost, base + lane);
}

template <class Q, template <class> class Accumulate, u32 THREADS, u32 UNROLL>
__global__ void __launch_bounds__(THREADS, 1)
    hgb(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns) {
    extern __shared__ u64 words[];
    __shared__ u32 claimed;
    if (called_off(a)) return;
    const u32 all = a.shared_slots + EXTRA_SLOTS;
    const auto memory = Q::All::carve(reinterpret_cast<char*>(words + all), all, a.replicas);
    clear_shared<Q>(words, memory, all, a.replicas);
    if (threadIdx.x == 0) claimed = 0;
    __syncthreads();

    constexpr u32 TILE = WARP * UNROLL;
    const u32 warps = blockDim.x / WARP;
    const u64 stride = static_cast<u64>(gridDim.x) * warps * TILE;
    u64 base = (static_cast<u64>(blockIdx.x) * warps + threadIdx.x / WARP) * TILE + a.first;
    Accumulate<Q> accumulate;
    bool stop = false;
    // the trip count is the warp's, so that its lanes meet at every barrier
    for (; base + TILE <= a.rows && !stop; base += stride)
        stop = take_tile<Q, true, UNROLL>(a, columns, words, &claimed, memory, accumulate, base);
    if (base < a.rows && !stop) {
        take_tile<Q, false, UNROLL>(a, columns, words, &claimed, memory, accumulate, base);
        base += stride;
    }
    if (threadIdx.x % WARP == 0)
        a.resume[blockIdx.x * warps + threadIdx.x / WARP] =
            static_cast<u32>(base < a.rows ? base : a.rows);
    accumulate.finish(memory, a.replicas, threadIdx.x & (a.replicas - 1));
    __syncthreads();
    merge_block<Q>(a, columns, words, memory);
}

}  // namespace gpuagg
