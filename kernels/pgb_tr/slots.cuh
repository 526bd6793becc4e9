// Slots of hashed keys in a partition's table, which has as many bits of a key as the partition.
#pragma once

#include "pgb_tr/partitions.cuh"

namespace gpuagg {

// Slots for the keys of a thread's rows, those whose bits are `left`, from where `slot` says that
// they are looked for first; NONE for those that found none, which is told. One loop for all of
// them: a warp takes as many turns as its unluckiest thread has probes in all, much less than its
// unluckiest rows have one after the other.
template <u32 UNROLL, class T>
GPUAGG_INLINE bool settle_keys(T* keys, u32 slots, const T (&key)[UNROLL], u32 (&slot)[UNROLL],
                               u32 left) {
    constexpr T NO_KEY = static_cast<T>(EMPTY);
    T wanted = NO_KEY;
    u32 at = 0, tries = 0;
    bool lost = false;
#pragma unroll
    for (u32 j = UNROLL; j-- > 0;)
        if (left >> j & 1u) {
            wanted = key[j];
            at = slot[j];
        }
    while (left) {
        count_look();
        T held = peek(keys + at);
        if (held == NO_KEY) {
            held = atomicCAS(keys + at, NO_KEY, wanted);
            if (held == NO_KEY) held = wanted;
        }
        const bool placed = held == wanted;
        if (!placed && ++tries < PARTITION_PROBES) {
            if (++at == slots) at = 0;
            continue;
        }
        const u32 done = __ffs(left) - 1;
        left &= left - 1;
        const u32 next = __ffs(left) - 1;
        const u32 result = placed ? at : NONE;
        lost = lost || !placed;
        tries = 0;
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            if (j == next) {
                wanted = key[j];
                at = slot[j];
            }
            if (j == done) slot[j] = result;
        }
    }
    return lost;
}

}  // namespace gpuagg
