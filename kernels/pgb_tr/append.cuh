// The groups of a partition's table join those of other partitions: in a dense area, from which the
// output kernels write columns, or in the columns themselves.
#pragma once

#include "output/output.cuh"

namespace gpuagg {

// Whether groups that go into columns would not be final, because the scatter has left rows over: then
// there is nothing to do until there is a dense area. Nor is there where the scatter was called off.
GPUAGG_INLINE bool not_final(const Args& a) {
    return called_off(a) || (!a.table.words && a.counters->spilled != 0);
}

// One group of each lane that has one. Without a dense area the columns, which no null can be in,
// get it; a group that finds no room is still counted.
template <class Q, class O, u32 KEY_TARGETS, class V>
GPUAGG_INLINE void put_group(const Args& a, const Column* columns, const Target* to, u32 at,
                             u64 word, const V& value, bool is_group) {
    using K = typename Q::Key;
    const bool fits = is_group && at < a.table.slots;
    if (a.table.words) {
        if (!fits) return;
        const auto dense = Q::All::carve(a.table.cells, a.table.slots + EXTRA_SLOTS, 1);
        a.table.words[at] = word;
        Q::All::write(dense, {at, at}, value);
    } else {
        Probe probe{EMPTY, 0u, Kind::key};
        if (fits) probe = K::again(columns, word);
        write_key<typename Q::All>(K{}, columns, to, at, probe, value, fits);
        write_outputs<typename Q::All>(O{}, to + KEY_TARGETS, at, value, fits);
    }
}

// Appends the groups of a block's table, as far as there is room, and empties the table.
template <class Q, class O, u32 KEY_TARGETS, class T>
GPUAGG_INLINE void append_groups(const Args& a, const Column* columns, const Target* to,
                                 const T& table, u32 slots, u32* groups, u32* first) {
    const u32 lane = threadIdx.x % WARP;
    const u32 begin = threadIdx.x - lane;
    u32 mine = 0;
    for (u32 base = begin; base < slots; base += blockDim.x) {
        const u32 s = base + lane;
        mine += __popc(__ballot_sync(ALL_LANES, s < slots && table.has(s)));
    }
    u32 at = 0;
    if (lane == 0) at = atomicAdd(groups, mine);
    __syncthreads();
    if (threadIdx.x == 0) *first = atomicAdd(&a.counters->groups, *groups);
    __syncthreads();
    at = __shfl_sync(ALL_LANES, at, 0) + *first;
    for (u32 base = begin; base < slots; base += blockDim.x) {
        const u32 s = base + lane;
        const bool is_group = s < slots && table.has(s);
        const u32 occupied = __ballot_sync(ALL_LANES, is_group);
        if (occupied == 0) continue;
        auto value = Q::All::none();
        u64 word = EMPTY;
        if (is_group) {
            value = table.value(s);
            word = table.word(s);
            table.clear(s);
        }
        put_group<Q, O, KEY_TARGETS>(a, columns, to, at + __popc(occupied & ((1u << lane) - 1)),
                                     word, value, is_group);
        at += __popc(occupied);
        count_outputs<typename Q::All>(O{}, a, value, is_group);
    }
}

}  // namespace gpuagg
