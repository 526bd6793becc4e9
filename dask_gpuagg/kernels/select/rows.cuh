// What the kernels of selection share: the rows of a chunk, and pairs of words by group.
#pragma once

#include "sgb/order.cuh"

namespace gpuagg {

// Rows whose groups are numbered. A selection may go over several chunks, one after the other.
struct Chunk {
    Column values;
    const i32* codes;  // the number of each row's group, -1 for none
    u32 rows;
    u32 groups;
    u32 skips_nan;  // whether NaN is no value
};

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

// The group and the word of a row; NONE for a row that takes no part.
template <class T>
GPUAGG_INLINE u32 read_row(const Chunk& a, i64 row, typename Sortable<T>::Word& word) {
    const i32 code = __ldcs(a.codes + row);
    const T value = load<T>(a.values, row);
    word = Sortable<T>::of(value);
    const bool missing = (a.values.mask != nullptr && !is_valid(a.values, row)) ||
                         (a.skips_nan && is_nan(value));
    return code < 0 || missing ? NONE : static_cast<u32>(code);
}

// One row of each `stride`, a power of two, at a place that depends on nothing in the data; behind
// the last row there is none. Rows that take no part get the group behind all others.
template <class T>
__device__ void sample_rows(const Chunk& a, u32 stride, u32 samples,
                            typename Sortable<T>::Word* words, u32* of_row) {
    const u32 threads = gridDim.x * blockDim.x;
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < samples; i += threads) {
        const u64 row = i * stride + (scramble(i + 1) & (stride - 1));
        typename Sortable<T>::Word word = 0;
        u32 group = NONE;
        if (row < a.rows) group = read_row<T>(a, static_cast<i64>(row), word);
        words[i] = word;
        of_row[i] = group == NONE ? a.groups : group;
    }
}

// Every word, by the whole block; several are on their way at once.
template <class W, class F> GPUAGG_INLINE void each_word(const W* words, u32 n, F take) {
    constexpr u32 EACH = 4;
    for (u64 base = threadIdx.x; base < n; base += EACH * blockDim.x) {
        W word[EACH];
#pragma unroll
        for (u32 j = 0; j < EACH; ++j)
            if (base + j * blockDim.x < n) word[j] = __ldg(words + base + j * blockDim.x);
#pragma unroll
        for (u32 j = 0; j < EACH; ++j)
            if (base + j * blockDim.x < n) take(word[j]);
    }
}

// The most words that a group or a part has.
GPUAGG_INLINE void find_widest(const u32* starts, u32 count, u32* widest) {
    const u32 stride = gridDim.x * blockDim.x;
    u32 most = 0;
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const u32 n = starts[i + 1] - starts[i];
        most = n > most ? n : most;
    }
    if (most) atomicMax(widest, most);
}

}  // namespace gpuagg
