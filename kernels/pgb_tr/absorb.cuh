// Groups made beside the partitions join theirs. Hot keys have no rows in partitions, so their groups
// are appended. Those of rows that found their partition full are folded into the dense area where it
// has them already, and appended where it has not.
#pragma once

#include "pgb_tr/append.cuh"

namespace gpuagg {

// Folds the groups of a.target into those of the dense area, and marks them as taken.
template <class Q>
__global__ void __launch_bounds__(SMALL_BLOCK)
    absorb(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns) {
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

// Appends the groups of a.target that are not taken, to the dense area or to the columns.
template <class Q, class O, u32 KEY_TARGETS>
__global__ void __launch_bounds__(SMALL_BLOCK)
    append_others(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns,
                  const __grid_constant__ Targets<O, KEY_TARGETS> to) {
    if (not_final(a)) return;
    const u32 all = a.target.slots + EXTRA_SLOTS;
    const auto dense = Q::All::carve(a.table.cells, a.table.slots + EXTRA_SLOTS, 1);
    const auto other = Q::All::carve(a.target.cells, all, 1);
    const u32 lane = threadIdx.x % WARP;
    const u32 stride = gridDim.x * blockDim.x;
    // whole warps, which columns are written by
    for (u32 base = blockIdx.x * blockDim.x + threadIdx.x - lane; base < all; base += stride) {
        const u32 i = base + lane;
        const u64 word = i < all ? a.target.words[i] : EMPTY;
        const bool is_group = word != EMPTY && !(a.taken && a.taken[i]);
        auto value = Q::All::none();
        if (is_group) value = Q::All::read(other, {i, i});
        // the extra cells are used where the null key has no word, whose column then has nulls: so
        // there is a dense area
        const bool plain = is_group && i < a.target.slots;
        u32 at = 0;
        if (plain) at = atomicAdd(&a.counters->groups, 1u);
        put_group<Q, O, KEY_TARGETS>(a, columns, to, at, word, value, plain);
        count_outputs<typename Q::All>(O{}, a, value, is_group);
        if (is_group && !plain) {
            const u32 extra = i - a.target.slots, slot = a.table.slots + extra;
            const u32 before = atomicOr(&a.counters->extras, 1u << extra);
            if (before >> extra & 1u) Q::All::fold(value, Q::All::read(dense, {slot, slot}));
            a.table.words[slot] = word;
            Q::All::write(dense, {slot, slot}, value);
        }
    }
}

// Counts the nulls of every output again.
template <class Q, class O>
__global__ void __launch_bounds__(SMALL_BLOCK)
    recount(const __grid_constant__ Args a) {
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
