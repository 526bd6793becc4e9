// What the kernels of selection share: the rows of a chunk, and pairs of words by group.
#pragma once

#include "sgb/order.cuh"

namespace gpuagg {

// Two words of a group: the ends of its bracket, or the values on either side of a quantile.
template <class W> struct alignas(2 * sizeof(W)) Pair {
    W low, high;
    // a bracket whose group is settled: no word lies in it
    static GPUAGG_INLINE Pair closed() { return {1, 0}; }
    static GPUAGG_INLINE Pair everything() { return {0, static_cast<W>(~W(0))}; }
    GPUAGG_INLINE bool is_closed() const { return low > high; }
};

// A read through the L1 cache, both words at once.
GPUAGG_INLINE Pair<u32> load_pair(const Pair<u32>* at) {
    const uint2 both = __ldg(reinterpret_cast<const uint2*>(at));
    return {both.x, both.y};
}
GPUAGG_INLINE Pair<u64> load_pair(const Pair<u64>* at) {
    const ulonglong2 both = __ldg(reinterpret_cast<const ulonglong2*>(at));
    return {both.x, both.y};
}

// Groups and words of rows at equal distances; NONE for those that take no part, or lie behind the
// last row. All loads are on their way before the first is waited for, so none of them is
// conditional.
template <class T, u32 ROWS>
GPUAGG_INLINE void read_rows(const Chunk& a, u64 first, u32 distance, u32 (&group)[ROWS],
                             typename Sortable<T>::Word (&word)[ROWS]) {
    i32 code[ROWS];
    T value[ROWS];
    u32 missing = 0;
#pragma unroll
    for (u32 j = 0; j < ROWS; ++j) {
        const u64 row = first + static_cast<u64>(j) * distance;
        const i64 at = static_cast<i64>(row < a.rows ? row : a.rows - 1);
        code[j] = __ldcs(a.codes + at);
        value[j] = load<T>(a.values, at);
        if (row >= a.rows) missing |= 1u << j;
    }
    if (a.values.mask != nullptr) {
#pragma unroll
        for (u32 j = 0; j < ROWS; ++j) {
            const u64 row = first + static_cast<u64>(j) * distance;
            if (!is_valid(a.values, static_cast<i64>(row < a.rows ? row : a.rows - 1)))
                missing |= 1u << j;
        }
    }
#pragma unroll
    for (u32 j = 0; j < ROWS; ++j) {
        word[j] = Sortable<T>::of(value[j]);
        const bool none = code[j] < 0 || missing >> j & 1u || (a.skips_nan && is_nan(value[j]));
        group[j] = none ? NONE : static_cast<u32>(code[j]);
    }
}

// One row of each `stride`, a power of two, at a place that depends on nothing in the data; behind
// the last row there is none. Rows that take no part get the group behind all others.
template <class T>
__global__ void __launch_bounds__(SMALL_BLOCK)
    sample_rows(const __grid_constant__ Chunk a, u32 stride, u32 samples,
                typename Sortable<T>::Word* words, u32* of_row) {
    const u32 threads = gridDim.x * blockDim.x;
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < samples; i += threads) {
        const u64 row = i * stride + (scramble(i + 1) & (stride - 1));
        typename Sortable<T>::Word word[1];
        u32 group[1];
        read_rows<T>(a, row, 0, group, word);
        words[i] = word[0];
        of_row[i] = group[0] == NONE ? a.groups : group[0];
    }
}

// Every word, by the whole block; several are on their way at once.
template <class W, class F> GPUAGG_INLINE void each_word(const W* words, u32 n, F take) {
    constexpr u32 EACH = 4;
    for (u64 base = threadIdx.x; base < n; base += EACH * blockDim.x) {
        W word[EACH];
#pragma unroll
        for (u32 j = 0; j < EACH; ++j) {
            const u64 at = base + j * blockDim.x;
            word[j] = __ldg(words + (at < n ? at : n - 1));
        }
#pragma unroll
        for (u32 j = 0; j < EACH; ++j)
            if (base + j * blockDim.x < n) take(word[j]);
    }
}

// The most words that a group or a part has.
__global__ void __launch_bounds__(SMALL_BLOCK)
    find_widest(const u32* starts, u32 count, u32* widest) {
    const u32 stride = gridDim.x * blockDim.x;
    u32 most = 0;
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const u32 n = starts[i + 1] - starts[i];
        most = n > most ? n : most;
    }
    if (most) atomicMax(widest, most);
}

}  // namespace gpuagg
