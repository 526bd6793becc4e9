// Distinct values of each group: its rows are divided by a hash of the value into parts that a table
// in shared memory holds, and a block counts the words that are new to the table.
#pragma once

#include "select/rows.cuh"

namespace gpuagg {

// Rows of each group in a sample.
__global__ void __launch_bounds__(SMALL_BLOCK)
    count_sampled(const u32* of_row, u32 samples, u32 groups, u32* counts) {
    const u32 stride = gridDim.x * blockDim.x;
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < samples; i += stride)
        if (of_row[i] < groups) atomicAdd(counts + of_row[i], 1u);
}

// How many parts each group gets: one for so many sampled rows, and one at least.
__global__ void __launch_bounds__(SMALL_BLOCK)
    divide_groups(u32* counts, u32 groups, u32 each) {
    const u32 stride = gridDim.x * blockDim.x;
    for (u64 g = blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += stride)
        counts[g] = counts[g] / each + 1;
}

// The word and the part of every row; rows that take no part get the part behind all others.
template <class T>
__global__ void __launch_bounds__(SMALL_BLOCK)
    find_parts(const __grid_constant__ Chunk a, const u32* firsts,
               typename Sortable<T>::Word* words, u32* parts) {
    constexpr u32 EACH = 4;
    const u32 stride = gridDim.x * blockDim.x;
    const u32 none = firsts[a.groups];
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.rows;
         i += static_cast<u64>(EACH) * stride) {
        typename Sortable<T>::Word word[EACH];
        u32 group[EACH], part[EACH];
        read_rows<T>(a, i, stride, group, word);
#pragma unroll
        for (u32 j = 0; j < EACH; ++j) {
            const u32 of = group[j] == NONE ? 0 : group[j];
            const u32 first = __ldg(firsts + of), count = __ldg(firsts + of + 1) - first;
            // the high bits of the hash; the tables go by the low ones
            part[j] = first + __umulhi(static_cast<u32>(scramble(word[j]) >> 32), count);
        }
#pragma unroll
        for (u32 j = 0; j < EACH; ++j) {
            const u64 row = i + static_cast<u64>(j) * stride;
            if (row >= a.rows) continue;
            words[row] = word[j];
            parts[row] = group[j] == NONE ? none : part[j];
        }
    }
}

GPUAGG_INLINE u32 claim(u32* slot, u32 word) { return atomicCAS(slot, ~0u, word); }
GPUAGG_INLINE u64 claim(u64* slot, u64 word) { return atomicCAS(slot, ~0ull, word); }

// Adds a word to a table of a power of two of slots. Whether it is new; `full` if it has no place.
template <class W> GPUAGG_INLINE bool is_new(W* table, u32 slots, W word, u32& full) {
    constexpr W FREE = static_cast<W>(~W(0));
    u32 at = static_cast<u32>(scramble(word)) & (slots - 1);
    for (u32 probes = 0; probes < slots; ++probes, at = (at + 1) & (slots - 1)) {
        W held = *static_cast<volatile W*>(table + at);
        if (held == FREE) held = claim(table + at, word);
        if (held == FREE) return true;
        if (held == word) return false;
    }
    full = 1;
    return false;
}

// Different words of each part. `full` is raised where a part has more than its table holds; then
// the counts are of no use.
template <class W>
__global__ void __launch_bounds__(PARTS_THREADS, PARTS_BLOCKS)
    count_parts(const W* words, const u32* starts, u32 parts, u32 slots_at_most, u32* counts,
                u32* full) {
    extern __shared__ u64 memory[];
    __shared__ u32 found, odd, over;
    W* table = reinterpret_cast<W*>(memory);
    for (u32 part = blockIdx.x; part < parts; part += gridDim.x) {
        const u32 first = starts[part], n = starts[part + 1] - first;
        u32 slots = WARP;
        while (slots < 2 * n && slots < slots_at_most) slots *= 2;
        for (u32 i = threadIdx.x; i < slots; i += blockDim.x) table[i] = static_cast<W>(~W(0));
        if (threadIdx.x == 0) found = odd = over = 0;
        __syncthreads();
        u32 mine = 0;
        each_word(words + first, n, [&](W word) {
            if (*static_cast<volatile u32*>(&over)) return;
            // the word that stands for a free slot
            if (word == static_cast<W>(~W(0))) odd = 1;
            else if (is_new(table, slots, word, over)) ++mine;
        });
        if (mine) atomicAdd(&found, mine);
        __syncthreads();
        if (threadIdx.x == 0) {
            counts[part] = found + odd;
            if (over) *full = 1;
        }
        __syncthreads();
    }
}

__global__ void __launch_bounds__(SMALL_BLOCK)
    sum_parts(const u32* counts, const u32* firsts, u32 groups, u64* to) {
    const u32 stride = gridDim.x * blockDim.x;
    for (u64 g = blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += stride) {
        u64 sum = 0;
        for (u32 part = firsts[g]; part < firsts[g + 1]; ++part) sum += counts[part];
        to[g] = sum;
    }
}

}  // namespace gpuagg
