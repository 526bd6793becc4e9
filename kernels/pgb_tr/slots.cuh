// Slots of hashed keys in a partition's table, which has as many bits of a key as the partition.
#pragma once

#include "pgb_tr/partitions.cuh"

namespace gpuagg {

// A partition's table, which is full when a key has found no slot.
template <class T> struct SettledKeys {
    bool lost = false;
    GPUAGG_INLINE T nothing() const { return static_cast<T>(EMPTY); }
    GPUAGG_INLINE T word(T key) const { return key; }
    GPUAGG_INLINE bool same(T held, T key) const { return held == key; }
    GPUAGG_INLINE bool may() const { return true; }
    GPUAGG_INLINE void made() {}
    GPUAGG_INLINE void lose(u32) { lost = true; }
};

// Slots for keys of a partition, as `settle` finds them; true if the table was full for one.
template <class T, u32 UNROLL>
GPUAGG_INLINE bool settle_keys(T* keys, u32 slots, const T (&key)[UNROLL], u32 (&slot)[UNROLL],
                               u32 left) {
    SettledKeys<T> table;
    settle(table, keys, slots, PARTITION_PROBES, key, slot, left);
    return table.lost;
}

}  // namespace gpuagg
