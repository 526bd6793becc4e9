// Groups made beside the partitions, of hot keys and of rows that found their partition full, join
// the dense area: those that it has already are folded in, the others are appended.
#pragma once

#include "output/output.cuh"

namespace gpuagg {

// Folds the groups of a.target into those of the dense area, and marks them as taken.
template <class Q> __device__ void absorb(const Args& a, const Column* columns) {
    using K = typename Q::Key;
    const auto dense = Q::All::carve(a.table.cells, a.table.slots + EXTRA_SLOTS, 1);
    const auto other = Q::All::carve(a.target.cells, a.target.slots + EXTRA_SLOTS, 1);
    const u32 stride = gridDim.x * blockDim.x;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.groups; i += stride) {
        const Probe probe = beside(K::again(columns, a.table.words[i]));
        u32 slot = first_slot(probe.home, a.target.slots);
        while (a.target.words[slot] != EMPTY && a.target.words[slot] != probe.word)
            if (++slot == a.target.slots) slot = 0;
        if (a.target.words[slot] == EMPTY) continue;
        auto value = Q::All::read(dense, {i, i});
        Q::All::fold(value, Q::All::read(other, {slot, slot}));
        Q::All::write(dense, {i, i}, value);
        a.taken[slot] = 1;
    }
}

// Appends the groups of a.target that the dense area does not have; it has room for them.
template <class Q> __device__ void append_others(const Args& a) {
    const u32 all = a.target.slots + EXTRA_SLOTS;
    const auto dense = Q::All::carve(a.table.cells, a.table.slots + EXTRA_SLOTS, 1);
    const auto other = Q::All::carve(a.target.cells, all, 1);
    const u32 stride = gridDim.x * blockDim.x;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < all; i += stride) {
        const u64 word = a.target.words[i];
        if (word == EMPTY || a.taken[i]) continue;
        auto value = Q::All::read(other, {i, i});
        u32 to;
        if (i < a.target.slots) {
            to = atomicAdd(&a.counters->groups, 1u);
            a.table.words[to] = word;
        } else {
            const u32 extra = i - a.target.slots;
            to = a.table.slots + extra;
            const u32 before = atomicOr(&a.counters->extras, 1u << extra);
            if (before >> extra & 1u) Q::All::fold(value, Q::All::read(dense, {to, to}));
            a.table.words[to] = word;
        }
        Q::All::write(dense, {to, to}, value);
    }
}

// Counts the nulls of every output again.
template <class Q, class O> __device__ void recount(const Args& a) {
    const auto memory = Q::All::carve(a.table.cells, a.table.slots + EXTRA_SLOTS, 1);
    const u32 lane = threadIdx.x % WARP;
    const u32 stride = gridDim.x * blockDim.x;
    for (u32 base = blockIdx.x * blockDim.x + threadIdx.x - lane; base < a.groups; base += stride) {
        const bool is_group = base + lane < a.groups;
        auto value = Q::All::none();
        if (is_group) {
            const u32 slot = slot_of_group(a, base + lane);
            value = Q::All::read(memory, {slot, slot});
        }
        count_outputs<typename Q::All>(O{}, a, value, is_group);
    }
}

}  // namespace gpuagg
