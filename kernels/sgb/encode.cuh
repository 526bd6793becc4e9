// The number of every row's group, from the table that a group-by left behind: the dictionary
// encoding of SGB-DE-TR (Wu 2025, section 4.4).
#pragma once

#include "core/query.cuh"

namespace gpuagg {

// Word and number side by side: one sector of memory answers for a row.
struct alignas(16) Entry {
    u64 word;
    u32 number;
    u32 unused;
};

__global__ void __launch_bounds__(SMALL_BLOCK)
    make_entries(const __grid_constant__ Args a, u32 groups, Entry* entries) {
    const u32 stride = gridDim.x * blockDim.x;
    const u32 all = a.table.slots + EXTRA_SLOTS;
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += stride)
        entries[i].word = a.table.words[i];
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < groups; i += stride)
        entries[a.order[i]].number = static_cast<u32>(i);
}

// The table is only read here, so that small ones stay in the L1 cache.
GPUAGG_INLINE Entry entry_at(const Entry* entries, u32 slot) {
    const uint4 raw = __ldg(reinterpret_cast<const uint4*>(entries + slot));
    return {static_cast<u64>(raw.y) << 32 | raw.x, raw.z, 0u};
}

// The number of a key's group, from the slot where it was looked for first on.
template <class K>
GPUAGG_INLINE u32 number_of(const Entry* entries, u32 slots, u32 probes, const Column* columns,
                            const Probe& probe, u32 slot, Entry entry) {
    if (probe.kind == Kind::drop) return NONE;
    if (probe.kind != Kind::key) return entry.number;
    for (u32 i = 0; i < probes && entry.word != EMPTY; ++i) {
        if (K::same(columns, entry.word, probe)) return entry.number;
        if (++slot == slots) slot = 0;
        entry = entry_at(entries, slot);
    }
    return NONE;
}

// Rows without a group get -1.
template <class Q, u32 UNROLL>
__global__ void __launch_bounds__(ENCODE_THREADS)
    encode(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns,
           const Entry* entries, i32* codes) {
    using K = typename Q::Key;
    const u32 slots = a.table.slots;
    const u32 lane = threadIdx.x % WARP;
    constexpr u32 TILE = WARP * UNROLL;
    const u64 stride = static_cast<u64>(gridDim.x) * (blockDim.x / WARP) * TILE;
    u64 base = (static_cast<u64>(blockIdx.x) * (blockDim.x / WARP) + threadIdx.x / WARP) * TILE;
    for (; base < a.rows; base += stride) {
        Probe probe[UNROLL];
        Entry entry[UNROLL];
        u32 slot[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 i = base + j * WARP + lane;
            probe[j] = {EMPTY, 0u, Kind::drop};
            if (i < a.rows) probe[j] = K::probe(columns, static_cast<i64>(i));
        }
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            slot[j] = first_slot(probe[j].home, slots);
            if (probe[j].kind == Kind::empty) slot[j] = slots;
            if (probe[j].kind == Kind::null) slot[j] = slots + 1;
            entry[j] = entry_at(entries, slot[j]);
        }
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 i = base + j * WARP + lane;
            const u32 number =
                number_of<K>(entries, slots, a.probes, columns, probe[j], slot[j], entry[j]);
            if (i < a.rows) codes[i] = static_cast<i32>(number);
        }
    }
}

}  // namespace gpuagg
