// Of a partition that is folded: slots for its keys, and its rows counted by slot. A table that the
// keys of a partition do not fit takes several turns.
#pragma once

#include "pgb_tr/partitions.cuh"

namespace gpuagg {

// Rows counted by slot, of a tile of WARP * UNROLL rows, one warp's.
template <u32 UNROLL>
GPUAGG_INLINE void count_slots(const u32 (&slot)[UNROLL], u32* counts, u16* places, u32 base,
                               u32 rows) {
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j) {
        const u32 i = base + j * WARP + threadIdx.x % WARP;
        if (slot[j] != NONE) atomicAdd(counts + slot[j], 1u);
        if (i < rows) places[i] = static_cast<u16>(slot[j]);
    }
}

// The keys of a turn of a partition, hashed: those that `part` has.
template <class Q, class W> struct Turn {
    Part part;
    u64* words;
    u32 partition;
    static constexpr u32 key_bytes = 8;
    GPUAGG_INLINE void start(const Args& a, u32 ticket) {
        partition = ticket / a.slices;
        part = {a.slices - 1, ticket % a.slices};
    }
    GPUAGG_INLINE void clear(u32 slot) { words[slot] = EMPTY; }
    GPUAGG_INLINE u64 word(const Partitions&, u32 slot) const { return words[slot]; }
    // True if there is another one.
    GPUAGG_INLINE bool next(const Args& a) { return part.next(a.slices - 1, a.slices - 1); }
    // Slots for the keys of a tile. False once a row of the block found the table full.
    template <u32 UNROLL>
    GPUAGG_INLINE bool count(const Partitions& p, u32* counts, u32 slots, u16* places, u32 begin,
                             u32 base, u32 rows, u32* full) {
        Probe probe[UNROLL];
        u32 slot[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u32 i = base + j * WARP + threadIdx.x % WARP;
            probe[j] = {EMPTY, 0u, Kind::key};
            if (i < rows) probe[j].word = W::load(p.words, begin + i);
        }
        u32 left = 0;
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            u64& wanted = probe[j].word;
            if (!part.has(wanted)) wanted = EMPTY;
            slot[j] = first_slot(home_in_partition(wanted, p.count), slots);
            if (wanted == EMPTY) slot[j] = NONE;
            else if (peek(words + slot[j]) != wanted) left |= 1u << j;
        }
        const bool stop = settle<typename Q::Key, UNROLL>(
            words, slots, PARTITION_PROBES, Unlimited{}, nullptr, probe, slot, left);
        __syncwarp();
        count_slots(slot, counts, places, base, rows);
        if (stop) *full = 1;
        return !__any_sync(ALL_LANES, stop || peek(full));
    }
};

// Keys that have slots of their own: as many of them at a time as the table has.
template <class Q> struct Turn<Q, Striped> {
    Part part;
    u64* words;
    u32 partition, first;
    static constexpr u32 key_bytes = 0;
    GPUAGG_INLINE void start(const Args& a, u32 ticket) {
        partition = ticket / a.slices;
        first = ticket % a.slices * a.shared_slots;
    }
    GPUAGG_INLINE void clear(u32) {}
    GPUAGG_INLINE u64 word(const Partitions& p, u32 slot) const {
        return Striped::word(p.words, partition, first + slot, p.count);
    }
    GPUAGG_INLINE bool next(const Args&) { return false; }
    template <u32 UNROLL>
    GPUAGG_INLINE bool count(const Partitions& p, u32* counts, u32 slots, u16* places, u32 begin,
                             u32 base, u32 rows, u32*) {
        u32 slot[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u32 i = base + j * WARP + threadIdx.x % WARP;
            slot[j] = NONE;
            if (i < rows) slot[j] = Striped::load(p.words, begin + i) - first;
            if (slot[j] >= slots) slot[j] = NONE;
        }
        count_slots(slot, counts, places, base, rows);
        return true;
    }
};

}  // namespace gpuagg
