// The passes that made words need: making them, and comparing rows of one word.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

template <class Q> __device__ void make_words(const Args& a, const Column* columns) {
    bool sure = true;
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; i < a.rows; i += stride)
        sure = Q::Key::make(columns, static_cast<i64>(i)) && sure;
    if (!sure) a.counters->doubt = 1;
}

// Compares every row that has a place in the global table with the first row of its group.
template <class Q> __device__ void verify(const Args& a, const Column* columns) {
    using K = typename Q::Key;
    const auto memory = Q::All::carve(a.table.cells, a.table.slots + EXTRA_SLOTS, 1);
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    bool sure = true;
    for (u64 i = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; i < a.rows; i += stride) {
        const Probe probe = K::probe(columns, static_cast<i64>(i));
        if (probe.kind != Kind::key) continue;
        u32 slot = first_slot(probe.home, a.table.slots);
        u32 probes = 0;
        while (a.table.words[slot] != probe.word && a.table.words[slot] != EMPTY &&
               ++probes < a.probes)
            if (++slot == a.table.slots) slot = 0;
        if (a.table.words[slot] != probe.word) continue;
        const auto value = Q::All::read(memory, {slot, slot});
        const u32 first = Nth<K::state, typename Q::All>::of(value).x;
        if (first != i && !K::Rows::equal_rows(columns, first, static_cast<i64>(i))) sure = false;
    }
    if (!sure) a.counters->doubt = 1;
}

}  // namespace gpuagg
