// Group-by with one table in global memory and linear probing: LPHGA of Luan and Chang 2022, the
// baseline of Wang 2025. For small inputs, and for rows that found no place elsewhere.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

template <class Q> __device__ void clear_table(const Table& t) {
    const u32 all = t.slots + EXTRA_SLOTS;
    const auto memory = Q::All::carve(t.cells, all, 1);
    for (u64 i = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; i < all;
         i += static_cast<u64>(gridDim.x) * blockDim.x) {
        t.words[i] = EMPTY;
        Q::All::clear(memory, {static_cast<u32>(i), static_cast<u32>(i)});
    }
}

template <class Q> __global__ void __launch_bounds__(SMALL_BLOCK) clear(const __grid_constant__ Args a) {
    clear_table<Q>(a.table);
    if (blockIdx.x == 0) {
        auto* words = reinterpret_cast<u32*>(a.counters);
        for (u32 i = threadIdx.x; i < sizeof(Counters) / 4 - 1; i += blockDim.x) words[i] = 0;
    }
}

template <class Q>
__global__ void __launch_bounds__(SMALL_BLOCK) clear_target(const __grid_constant__ Args a) {
    clear_table<Q>(a.target);
}

// Where there are millions of groups, an atomic on one address for each of them takes longer than
// all else, so the claims of a warp's tile are counted together. In a smaller table that would be
// too late to stop at its limit.
struct ClaimsOfTile {
    static constexpr u32 MILLION = 1u << 20;
    Limited each;
    u32 room, mine;
    GPUAGG_INLINE ClaimsOfTile(u32* claimed, u32 limit) : each{claimed, limit}, room(0), mine(0) {
        const u32 before = peek(claimed);
        if (before < limit) room = limit - before;
    }
    GPUAGG_INLINE bool may() const { return each.limit < MILLION ? each.may() : mine < room; }
    GPUAGG_INLINE void made() {
        if (each.limit < MILLION) each.made();
        else ++mine;
    }
    // by the whole warp
    GPUAGG_INLINE void count() const {
        const u32 all = __reduce_add_sync(ALL_LANES, mine);
        if (threadIdx.x % WARP == 0 && all) atomicAdd(each.claimed, all);
    }
};

// Rows of a range, of a list, or those that the warps of an earlier kernel left alone, in which
// case the grid is that kernel's.
template <class Q, u32 THREADS, u32 UNROLL>
__global__ void __launch_bounds__(THREADS, 1)
    lphga(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns) {
    using K = typename Q::Key;
    const auto memory = Q::All::carve(a.table.cells, a.table.slots + EXTRA_SLOTS, 1);
    const u32 lane = threadIdx.x % WARP;
    const u32 warps = blockDim.x / WARP;
    const u64 stride = static_cast<u64>(gridDim.x) * warps * (WARP * UNROLL);
    u64 base = (static_cast<u64>(blockIdx.x) * warps + threadIdx.x / WARP) * (WARP * UNROLL);
    if (!a.list) base += a.first;
    if (a.resume) base = a.resume[blockIdx.x * warps + threadIdx.x / WARP];
    u32 unplaced = 0;
    for (; base < a.rows; base += stride) {
        typename Q::Values row[UNROLL];
        u32 number[UNROLL], slot[UNROLL];
        Probe probe[UNROLL];
        ClaimsOfTile claims(&a.counters->claimed, a.table.limit);
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 i = base + j * WARP + lane;
            probe[j].kind = Kind::drop;
            if (i < a.rows) {
                number[j] = a.list ? a.list[i] : static_cast<u32>(i);
                if (a.list && !in_piece(a, number[j])) continue;
                probe[j] = K::probe(columns, number[j]);
                if (a.beside) probe[j] = beside(probe[j]);
                row[j].read(columns, number[j]);
            }
        }
        u32 left = 0;
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            if (probe[j].kind == Kind::key) {
                slot[j] = first_slot(probe[j].home, a.table.slots);
                left |= 1u << j;
            } else {
                slot[j] = find_extra(a.table.words, a.table.slots, probe[j].kind);
            }
        }
        SettledRows<K, ClaimsOfTile> rows{claims, columns};
        settle(rows, a.table.words, a.table.slots, a.probes, probe, slot, left);
        unplaced += __popc(rows.lost);
        __syncwarp();
        claims.count();
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j)
            if (slot[j] != NONE)
                Q::All::update(Global{}, memory, {slot[j], slot[j]}, row[j], number[j]);
    }
    if (unplaced) atomicAdd(&a.counters->unplaced, unplaced);
}

// Moves the groups of one table into a larger one.
template <class Q>
__global__ void __launch_bounds__(SMALL_BLOCK)
    transfer(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns) {
    using K = typename Q::Key;
    const u32 all = a.table.slots + EXTRA_SLOTS;
    const auto from = Q::All::carve(a.table.cells, all, 1);
    const auto to = Q::All::carve(a.target.cells, a.target.slots + EXTRA_SLOTS, 1);
    for (u64 i = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; i < all;
         i += static_cast<u64>(gridDim.x) * blockDim.x) {
        const u64 word = a.table.words[i];
        if (word == EMPTY) continue;
        const Probe probe = asked<K>(columns, word, static_cast<u32>(i), a.table.slots);
        const u32 slot = find<K>(a.target.words, a.target.slots, a.target.limit,
                                 &a.counters->claimed, a.probes, columns, probe);
        if (slot == NONE) {
            atomicAdd(&a.counters->unplaced, 1u);
            continue;
        }
        const auto value = Q::All::read(from, {static_cast<u32>(i), static_cast<u32>(i)});
        Q::All::add(Global{}, to, {slot, slot}, value);
    }
}

}  // namespace gpuagg
