// Keys too frequent for any partition: a block keeps their states in its own shared memory, with
// several accumulators for each, and their rows are not scattered. The two keys that have slots of
// their own behind every table go the same way.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

constexpr u32 HOT_AT_MOST = 256;
// Rows of a thread whose values are read together.
constexpr u32 HOT_BATCH = 4;

struct HotKeys {
    u64 words[HOT_AT_MOST];
    u32 count;
    u32 slots;
    u32 replicas;  // of the accumulators: a power of two
};

template <class Q> struct HotTable {
    using K = typename Q::Key;
    u64* words;
    u32* touched;
    typename Q::All::Memory memory;
    u32 slots, replicas;

    GPUAGG_INLINE HotTable() {}
    GPUAGG_INLINE HotTable(char* at, const HotKeys& keys)
        : slots(keys.slots), replicas(keys.replicas) {
        const u32 all = slots + EXTRA_SLOTS;
        words = reinterpret_cast<u64*>(at);
        touched = reinterpret_cast<u32*>(words + all);
        memory = Q::All::carve(reinterpret_cast<char*>(touched + all), all, replicas);
        for (u32 i = threadIdx.x; i < all; i += blockDim.x) {
            words[i] = EMPTY;
            touched[i] = 0;
        }
        for (u32 i = threadIdx.x; i < all * replicas; i += blockDim.x)
            Q::All::clear(memory, {i / replicas, i});
        __syncthreads();
        for (u32 i = threadIdx.x; i < keys.count; i += blockDim.x) {
            u32 slot = first_slot(static_cast<u32>(keys.words[i] >> 32), slots);
            while (atomicCAS(words + slot, EMPTY, keys.words[i]) != EMPTY)
                if (++slot == slots) slot = 0;
        }
        __syncthreads();
    }

    // The slot of a hot key; NONE for all others. The table is never full.
    GPUAGG_INLINE u32 find(const Probe& probe) const {
        if (probe.kind == Kind::drop) return NONE;
        if (probe.kind != Kind::key) return slots + (probe.kind == Kind::null ? 1u : 0u);
        u32 slot = first_slot(probe.home, slots);
        for (;;) {
            const u64 held = words[slot];
            if (held == probe.word) return slot;
            if (held == EMPTY) return NONE;
            if (++slot == slots) slot = 0;
        }
    }

    GPUAGG_INLINE void update(u32 slot, const typename Q::Values& row, u32 number) {
        touched[slot] = 1;
        const u32 share = threadIdx.x & (replicas - 1);
        Q::All::update(Shared{}, memory, {slot, slot * replicas + share}, row, number);
    }

    // Adds what was gathered to a table that all blocks share.
    GPUAGG_INLINE void merge(const Args& a, const Column* columns) {
        __syncthreads();
        const auto global = Q::All::carve(a.target.cells, a.target.slots + EXTRA_SLOTS, 1);
        for (u32 s = threadIdx.x; s < slots + EXTRA_SLOTS; s += blockDim.x) {
            if (!touched[s]) continue;
            auto value = Q::All::read(memory, {s, s * replicas});
            for (u32 r = 1; r < replicas; ++r)
                Q::All::fold(value, Q::All::read(memory, {s, s * replicas + r}));
            const Probe probe = beside(asked<K>(columns, words[s], s, slots));
            const u32 slot = gpuagg::find<K>(a.target.words, a.target.slots, a.target.limit,
                                             &a.counters->claimed, a.probes, columns, probe);
            if (slot == NONE) atomicAdd(&a.counters->homeless, 1u);
            else Q::All::add(Global{}, global, {slot, slot}, value);
        }
    }
};

}  // namespace gpuagg
