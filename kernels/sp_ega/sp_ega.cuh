// One table in global memory that may be filled to its last slot: SP-EGA of Wang 2025, section 4.1.
// First every row looks at one place only, and the losers are set aside. Then, in rounds, the free
// slots are listed and the losers look at one place of that list, which again settles most of them;
// the last round lets the rest probe on through the list.
//
// Rounds are kernels of their own, so a list of free slots is whole before a row looks at it. All
// rows of a key have the same place in a round, and a slot is never given up: if one of them loses,
// the place was another key's before, and all lose.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

// Whether the key has this slot now.
template <class K>
GPUAGG_INLINE bool claim(u64* words, u32 slot, u64 held, const Column* columns,
                          const Probe& probe) {
    if (held == EMPTY) held = atomicCAS(words + slot, EMPTY, probe.word);
    return held == EMPTY || K::same(columns, held, probe);
}

// Lists the slots that no key holds, in any order.
__global__ void __launch_bounds__(SMALL_BLOCK)
    list_free(const __grid_constant__ Args a, const __grid_constant__ Round r) {
    constexpr u32 STEPS = 8;  // one atomic for so many times 32 slots
    if (*r.waiting == 0) return;
    const u32 lane = threadIdx.x % WARP;
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x * STEPS;
    u64 base = (blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x - lane) * STEPS;
    for (; base < a.table.slots; base += stride) {
        u32 empty[STEPS], all = 0, at = 0;
#pragma unroll
        for (u32 j = 0; j < STEPS; ++j) {
            const u64 slot = base + j * WARP + lane;
            empty[j] = __ballot_sync(ALL_LANES,
                                     slot < a.table.slots && a.table.words[slot] == EMPTY);
            all += __popc(empty[j]);
        }
        if (lane == 0 && all) at = atomicAdd(r.found, all);
        at = __shfl_sync(ALL_LANES, at, 0);
#pragma unroll
        for (u32 j = 0; j < STEPS; ++j) {
            const u32 to = at + __popc(empty[j] & ((1u << lane) - 1));
            if ((empty[j] >> lane & 1u) && to < r.room)
                r.free[to] = static_cast<u32>(base + j * WARP + lane);
            at += __popc(empty[j]);
        }
    }
}

// FIRST: all rows look at their first place in the table. Otherwise the rows that are left look at
// places of the list. A warp writes its losers where it read its rows, which are never fewer.
template <class Q, bool FIRST, u32 THREADS, u32 UNROLL>
__global__ void __launch_bounds__(THREADS, 1)
    place_rows(const __grid_constant__ Args a, const __grid_constant__ Round r,
               const __grid_constant__ Columns<Q> columns) {
    using K = typename Q::Key;
    constexpr u32 TILE = WARP * UNROLL;
    const auto memory = Q::All::carve(a.table.cells, a.table.slots + EXTRA_SLOTS, 1);
    const u32 lane = threadIdx.x % WARP;
    const u32 warps = gridDim.x * (blockDim.x / WARP);
    const u32 warp = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    u32* const rows = r.rows + static_cast<u64>(warp) * r.capacity;
    const u32 places = FIRST ? a.table.slots : *r.found < r.room ? *r.found : r.room;
    const u64 end = FIRST ? a.rows : r.left[warp];
    const u64 stride = FIRST ? static_cast<u64>(warps) * TILE : TILE;
    u64 base = FIRST ? static_cast<u64>(warp) * TILE : 0;
    u32 lost = 0;
    if (!FIRST && places == 0) {
        lost = static_cast<u32>(end);
        base = end;
    }
    for (; base < end; base += stride) {
        typename Q::Values row[UNROLL];
        u32 number[UNROLL], at[UNROLL], slot[UNROLL];
        u64 held[UNROLL];
        Probe probe[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 i = base + j * WARP + lane;
            probe[j] = {EMPTY, 0u, Kind::drop};
            if (i < end) {
                number[j] = FIRST ? static_cast<u32>(i) : rows[i];
                probe[j] = K::probe(columns, number[j]);
                row[j].read(columns, number[j]);
            }
        }
        // all places are looked at before the first of them is waited for
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            u32 home = probe[j].home;
            if (!FIRST)
                home = static_cast<u32>(
                    scramble(K::fingerprint(columns, probe[j]) + r.number * GOLDEN) >> 32);
            slot[j] = at[j] = first_slot(home, places);
            if (!FIRST && probe[j].kind == Kind::key) slot[j] = r.free[at[j]];
        }
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j)
            if (probe[j].kind == Kind::key) held[j] = peek(a.table.words + slot[j]);
        u32 without = 0;
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            if (probe[j].kind == Kind::drop) {
                slot[j] = NONE;
            } else if (probe[j].kind != Kind::key) {
                slot[j] = a.table.slots + (probe[j].kind == Kind::null ? 1u : 0u);
                a.table.words[slot[j]] = 0;  // every writer writes the same
            } else {
                bool has = claim<K>(a.table.words, slot[j], held[j], columns, probe[j]);
                if constexpr (!FIRST) {
#pragma unroll 1
                    for (u32 n = 1; !has && n < r.places && n < places; ++n) {
                        if (++at[j] == places) at[j] = 0;
                        slot[j] = r.free[at[j]];
                        has = claim<K>(a.table.words, slot[j], peek(a.table.words + slot[j]),
                                        columns, probe[j]);
                    }
                }
                if (!has) {
                    slot[j] = NONE;
                    without |= 1u << j;
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j)
            if (slot[j] != NONE)
                Q::All::update(Global{}, memory, {slot[j], slot[j]}, row[j], number[j]);
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const bool loses = without >> j & 1u;
            const u32 losers = __ballot_sync(ALL_LANES, loses);
            if (loses) rows[lost + __popc(losers & ((1u << lane) - 1))] = number[j];
            lost += __popc(losers);
        }
    }
    if (lane == 0) {
        r.left[warp] = lost;
        if (lost) atomicAdd(r.lost, lost);
    }
}

}  // namespace gpuagg
