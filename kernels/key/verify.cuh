// The passes that made words need: making them, and comparing rows of one word.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

template <class Q>
__global__ void __launch_bounds__(SMALL_BLOCK)
    make_words(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns) {
    bool sure = true;
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; i < a.rows; i += stride)
        sure = Q::Key::make(columns, static_cast<i64>(i)) && sure;
    if (!sure) a.counters->ambiguous = 1;
}

template <class Q>
__global__ void __launch_bounds__(SMALL_BLOCK)
    make_codes(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns,
               const __grid_constant__ Codes codes) {
    bool sure = true;
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; i < a.rows; i += stride)
        sure = Q::Key::make(columns, codes, static_cast<i64>(i)) && sure;
    if (!sure) a.counters->ambiguous = 1;
}

// A slot of the index: word and first row of a group, then as many words of its key as slots have room
// for, so that a row which has found its slot has the bytes to compare at hand.
struct __align__(16) Indexed {
    u64 word;
    u32 row;
    u32 words;  // 0: the key has too many
};
constexpr u32 HEAD = sizeof(Indexed) / 8;

GPUAGG_INLINE u64* slot_of(const Index& index, u32 i) {
    return index.at + static_cast<u64>(i) * index.stride;
}
GPUAGG_INLINE Indexed look(const Index& index, u32 i) {
    const ulonglong2 both = __ldg(reinterpret_cast<const ulonglong2*>(slot_of(index, i)));
    return {both.x, static_cast<u32>(both.y), static_cast<u32>(both.y >> 32)};
}

// The words of the groups, and the first row and key of each, in a table to look them up in, all of
// whose bits are set before.
template <class Q>
__global__ void __launch_bounds__(SMALL_BLOCK)
    index_groups(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns,
                 const __grid_constant__ Index index) {
    const auto memory = Q::All::carve(a.table.cells, a.table.slots + EXTRA_SLOTS, 1);
    const u32 stride = gridDim.x * blockDim.x;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.groups; i += stride) {
        const u32 from = slot_of_group(a, i);
        const u64 word = a.table.words[from];
        u32 slot = first_slot(static_cast<u32>(word >> 32), index.slots);
        while (atomicCAS(slot_of(index, slot), EMPTY, word) != EMPTY)
            if (++slot == index.slots) slot = 0;
        const auto value = Q::All::read(memory, {from, from});
        const u32 row = Nth<Q::Key::state, typename Q::All>::of(value).x;
        u64* const made = slot_of(index, slot);
        const u64 words = Q::Key::Rows::put_key(columns, row, made + HEAD, index.stride - HEAD);
        made[1] = words << 32 | row;
    }
}

// Keys that the index has no room for are compared by a function of its own: inlined for each of a
// thread's rows, it would be most of the kernel's code.
template <class K> __noinline__ __device__ bool rows_are_equal(const Column* columns, i64 a, i64 b) {
    return K::equal_rows(columns, a, b);
}

// Compares every row with the key of its group, which the index has.
template <class Q, u32 UNROLL>
__global__ void __launch_bounds__(SMALL_BLOCK)
    verify(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns,
           const __grid_constant__ Index index) {
    using K = typename Q::Key;
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x * UNROLL;
    bool sure = true;
    for (u64 base = static_cast<u64>(blockIdx.x) * blockDim.x * UNROLL + threadIdx.x;
         base < a.rows; base += stride) {
        Probe probe[UNROLL];
        Indexed found[UNROLL];
        u32 slot[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 i = base + j * blockDim.x;
            probe[j] = {EMPTY, 0u, Kind::drop};
            if (i < a.rows) probe[j] = K::probe(columns, static_cast<i64>(i));
            slot[j] = first_slot(probe[j].home, index.slots);
        }
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) found[j] = look(index, slot[j]);
        // Every word has a place, before the first empty slot of its probe: half of the slots are
        // empty. Only if the columns were changed meanwhile there is none.
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            if (probe[j].kind != Kind::key) continue;
            while (found[j].word != probe[j].word && found[j].word != EMPTY) {
                if (++slot[j] == index.slots) slot[j] = 0;
                found[j] = look(index, slot[j]);
            }
            if (found[j].word != probe[j].word) {
                sure = false;
                probe[j].kind = Kind::drop;
            }
        }
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const i64 i = static_cast<i64>(base + j * blockDim.x);
            const i64 first = static_cast<i64>(found[j].row);
            if (probe[j].kind != Kind::key || first == i) continue;
            if (found[j].words)
                sure = K::Rows::has_key(columns, i, slot_of(index, slot[j]) + HEAD) && sure;
            else sure = rows_are_equal<typename K::Rows>(columns, first, i) && sure;
        }
    }
    if (!sure) a.counters->ambiguous = 1;
}

}  // namespace gpuagg
