// Of a partition that is folded: slots for its keys, and its rows counted by slot. A table that the
// keys of a partition do not fit takes several turns.
#pragma once

#include "pgb_tr/slots.cuh"

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
    using Key = typename W::Stored;
    Part part;
    Key* keys;
    u32 partition;
    static constexpr u32 key_bytes = sizeof(Key);
    GPUAGG_INLINE void start(const Args& a, u32 ticket) {
        partition = ticket / a.slices;
        part = {a.slices - 1, ticket % a.slices};
    }
    GPUAGG_INLINE void clear(u32 slot) { keys[slot] = static_cast<Key>(EMPTY); }
    GPUAGG_INLINE u64 word(const Partitions& p, u32 slot) const {
        return W::word(p.words, keys[slot]);
    }
    GPUAGG_INLINE u64 word_of_row(const Partitions& p, u32 at) const {
        return W::word(p.words, W::load(p.words, at));
    }
    // True if there is another one.
    GPUAGG_INLINE bool next(const Args& a) { return part.next(a.slices - 1, a.slices - 1); }
    // Slots for the keys of a tile. False once a row of the block found the table full.
    template <u32 UNROLL>
    GPUAGG_INLINE bool count(const Partitions& p, u32* counts, u32 slots, u16* places, u32 begin,
                             u32 base, u32 rows, u32* full) {
        Key key[UNROLL];
        u32 slot[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u32 i = base + j * WARP + threadIdx.x % WARP;
            key[j] = static_cast<Key>(EMPTY);
            if (i < rows) key[j] = W::load(p.words, begin + i);
        }
        u32 left = 0;
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 word = W::word(p.words, key[j]);
            if (!part.has(word)) key[j] = static_cast<Key>(EMPTY);
            slot[j] = first_slot(home_in_partition(word, p.count), slots);
            if (key[j] == static_cast<Key>(EMPTY)) slot[j] = NONE;
            else if (peek(keys + slot[j]) != key[j]) left |= 1u << j;
        }
        const bool stop = settle_keys(keys, slots, key, slot, left);
        __syncwarp();
        count_slots(slot, counts, places, base, rows);
        if (stop) *full = 1;
        return !__any_sync(ALL_LANES, stop || peek(full));
    }
};

// Keys that have slots of their own: as many of them at a time as the table has.
template <class Q> struct Turn<Q, Striped> {
    using Key = u32;
    Part part;
    Key* keys;
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
    GPUAGG_INLINE u64 word_of_row(const Partitions& p, u32 at) const {
        return word(p, Striped::load(p.words, at) - first);
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
