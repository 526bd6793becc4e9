// One table in global memory that may be filled to its last slot: SP-EGA of Wang 2025, section 4.1.
// First every row looks at one place only, and the losers are marked. Then, in rounds, the free slots
// are marked, and the losers look at one of them each, which settles about half of them; the last
// round lets the rest probe on through the free slots.
//
// Rounds are kernels of their own, so all free slots are marked before a row looks at one. All rows
// of a key have the same place in a round, and a slot is never given up: if one of them loses, the
// place was another key's before, and all lose.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

// Words of marks, and so 32 times as many rows, that a warp takes at once.
constexpr u32 MARKS = 16;
// Words of free slots that a round may look at, for all rows together: some milliseconds.
constexpr u64 MOST_LOOKS = 1ull << 31;

// Whether the key has this slot now.
template <class K>
GPUAGG_INLINE bool claim(u64* words, u32 slot, u64 held, const Column* columns,
                          const Probe& probe) {
    if (held == EMPTY) held = atomicCAS(words + slot, EMPTY, probe.word);
    return held == EMPTY || K::same(columns, held, probe);
}

template <class Q, u32 THREADS, u32 UNROLL>
__global__ void __launch_bounds__(THREADS, 1)
    first_place(const __grid_constant__ Args a, const __grid_constant__ Round r,
                const __grid_constant__ Columns<Q> columns) {
    using K = typename Q::Key;
    constexpr u32 TILE = WARP * UNROLL;
    const auto memory = Q::All::carve(a.table.cells, a.table.slots + EXTRA_SLOTS, 1);
    const u32 lane = threadIdx.x % WARP;
    const u64 stride = static_cast<u64>(gridDim.x) * (blockDim.x / WARP) * TILE;
    u64 base = (blockIdx.x * static_cast<u64>(blockDim.x / WARP) + threadIdx.x / WARP) * TILE;
    u32 lost = 0;
    for (; base < a.rows; base += stride) {
        typename Q::Values row[UNROLL];
        u32 slot[UNROLL];
        u64 held[UNROLL];
        Probe probe[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 i = base + j * WARP + lane;
            probe[j] = {EMPTY, 0u, Kind::drop};
            if (i < a.rows) {
                probe[j] = K::probe(columns, static_cast<u32>(i));
                row[j].read(columns, static_cast<u32>(i));
            }
        }
        // all places are looked at before the first of them is waited for
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            slot[j] = first_slot(probe[j].home, a.table.slots);
            if (probe[j].kind == Kind::key) held[j] = peek(a.table.words + slot[j]);
        }
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            bool loses = false;
            if (probe[j].kind == Kind::key)
                loses = !claim<K>(a.table.words, slot[j], held[j], columns, probe[j]);
            else
                slot[j] = find_extra(a.table.words, a.table.slots, probe[j].kind);
            if (loses) slot[j] = NONE;
            const u32 losers = __ballot_sync(ALL_LANES, loses);
            const u64 first = base + j * WARP;
            if (lane == 0 && first < a.rows) r.rows[first / WARP] = losers;
            lost += __popc(losers);
        }
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j)
            if (slot[j] != NONE)
                Q::All::update(Global{}, memory, {slot[j], slot[j]}, row[j],
                               static_cast<u32>(base + j * WARP + lane));
    }
    if (lane == 0 && lost) atomicAdd(r.lost, lost);
}

// Marks the slots that no key holds.
__global__ void __launch_bounds__(SMALL_BLOCK)
    mark_free(const __grid_constant__ Args a, const __grid_constant__ Round r) {
    if (*r.waiting == 0) return;
    const u32 lane = threadIdx.x % WARP;
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    u64 slot = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x;
    u32 found = 0;
    for (; slot - lane < a.table.slots; slot += stride) {
        const bool is_free = slot < a.table.slots && a.table.words[slot] == EMPTY;
        const u32 free = __ballot_sync(ALL_LANES, is_free);
        if (lane == 0) r.free[slot / WARP] = free;
        found += __popc(free);
    }
    if (lane == 0 && found) atomicAdd(r.found, found);
}

// The free slot after a slot, the first one after the last; NONE after so many words without one.
GPUAGG_INLINE u32 next_free(const u32* free, u32 words, u32 slot, u32& looks) {
    u32 word = slot / WARP;
    u32 bits = free[word] & ~((2u << slot % WARP) - 1);
    while (!bits && looks) {
        --looks;
        if (++word == words) word = 0;
        bits = free[word];
    }
    return bits ? word * WARP + __ffs(bits) - 1 : NONE;
}

// One of a word's free slots, chosen by a hash; without any the next one.
GPUAGG_INLINE u32 free_slot(const u32* free, u32 words, u32 word, u32 bits, u32 hash, u32& looks) {
    if (!bits) return next_free(free, words, word * WARP + WARP - 1, looks);
    for (u32 skip = first_slot(hash, __popc(bits)); skip; --skip) bits &= bits - 1;
    return word * WARP + __ffs(bits) - 1;
}

// Places for the marked rows; marks stay at those that lose. LAST: they look at all free slots.
template <class Q, bool LAST, u32 THREADS, u32 UNROLL>
__global__ void __launch_bounds__(THREADS, 1)
    next_place(const __grid_constant__ Args a, const __grid_constant__ Round r,
               const __grid_constant__ Columns<Q> columns) {
    using K = typename Q::Key;
    constexpr u32 TILE = WARP * UNROLL;
    __shared__ u16 offsets[THREADS / WARP][MARKS * WARP];
    __shared__ u32 losers[THREADS / WARP][MARKS];
    const auto memory = Q::All::carve(a.table.cells, a.table.slots + EXTRA_SLOTS, 1);
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 words = (a.table.slots + WARP - 1) / WARP;
    const u64 waiting = *r.waiting, all_marks = (a.rows + WARP - 1) / WARP;
    // where a table is full, many rows would search it all for its last slots
    if (waiting == 0 || words * waiting > MOST_LOOKS * *r.found) {
        if (blockIdx.x == 0 && threadIdx.x == 0) *r.lost = static_cast<u32>(waiting);
        return;
    }
    const u64 stride = static_cast<u64>(gridDim.x) * (THREADS / WARP) * MARKS;
    u64 first = (blockIdx.x * static_cast<u64>(THREADS / WARP) + warp) * MARKS;
    u32 lost = 0;
    for (; first < all_marks; first += stride) {
        const bool has_marks = lane < MARKS && first + lane < all_marks;
        const u32 marks = has_marks ? r.rows[first + lane] : 0u;
        u32 count = 0;
#pragma unroll
        for (u32 j = 0; j < MARKS; ++j) {
            const u32 of_word = __shfl_sync(ALL_LANES, marks, j);
            if (of_word >> lane & 1u)
                offsets[warp][count + __popc(of_word & ((1u << lane) - 1))] = j * WARP + lane;
            count += __popc(of_word);
        }
        if (count == 0) continue;
        if (lane < MARKS) losers[warp][lane] = 0;
        __syncwarp();
        for (u32 at = lane; at - lane < count; at += TILE) {
            typename Q::Values row[UNROLL];
            u32 number[UNROLL], slot[UNROLL], bits[UNROLL], hash[UNROLL], looks[UNROLL];
            u64 held[UNROLL];
            Probe probe[UNROLL];
#pragma unroll
            for (u32 j = 0; j < UNROLL; ++j) {
                probe[j] = {EMPTY, 0u, Kind::drop};
                if (at + j * WARP < count) {
                    number[j] = static_cast<u32>(first * WARP) + offsets[warp][at + j * WARP];
                    probe[j] = K::probe(columns, number[j]);
                    row[j].read(columns, number[j]);
                }
            }
#pragma unroll
            for (u32 j = 0; j < UNROLL; ++j) {
                slot[j] = NONE;
                if (probe[j].kind == Kind::drop) continue;
                const u64 mixed =
                    scramble(K::fingerprint(columns, probe[j]) + r.number * GOLDEN);
                hash[j] = static_cast<u32>(mixed);
                slot[j] = first_slot(static_cast<u32>(mixed >> 32), words);
                bits[j] = r.free[slot[j]];
            }
#pragma unroll
            for (u32 j = 0; j < UNROLL; ++j) {
                if (slot[j] == NONE) continue;
                looks[j] = words;
                slot[j] = free_slot(r.free, words, slot[j], bits[j], hash[j], looks[j]);
                held[j] = peek(a.table.words + slot[j]);
            }
#pragma unroll
            for (u32 j = 0; j < UNROLL; ++j) {
                if (slot[j] == NONE) continue;
                bool has = claim<K>(a.table.words, slot[j], held[j], columns, probe[j]);
                if constexpr (LAST) {
#pragma unroll 1
                    while (!has) {
                        slot[j] = next_free(r.free, words, slot[j], looks[j]);
                        if (slot[j] == NONE) break;
                        const u64 there = peek(a.table.words + slot[j]);
                        has = claim<K>(a.table.words, slot[j], there, columns, probe[j]);
                    }
                }
                if (!has) {
                    slot[j] = NONE;
                    const u32 offset = offsets[warp][at + j * WARP];
                    atomicOr(&losers[warp][offset / WARP], 1u << offset % WARP);
                }
            }
            __syncwarp();
#pragma unroll
            for (u32 j = 0; j < UNROLL; ++j)
                if (slot[j] != NONE)
                    Q::All::update(Global{}, memory, {slot[j], slot[j]}, row[j], number[j]);
        }
        __syncwarp();
        if (has_marks) {
            r.rows[first + lane] = losers[warp][lane];
            lost += __popc(losers[warp][lane]);
        }
    }
    lost = __reduce_add_sync(ALL_LANES, lost);
    if (lane == 0 && lost) atomicAdd(r.lost, lost);
}

}  // namespace gpuagg
