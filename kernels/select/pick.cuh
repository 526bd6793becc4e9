// The words of given ranks in each group's part of an array. Where no group is large, by a radix
// selection (Alabi, Blanchard, Gordon, Steinbach 2012): one block for a group, in the digits from the
// highest bit on in which its words differ. A large group would be one SM's, so there the words are
// sorted and read.
#pragma once

#include "select/narrow.cuh"

namespace gpuagg {

constexpr u32 PICK_BITS = 8;
constexpr u32 PICK_DIGITS = 1u << PICK_BITS;
// So few words are ranked by comparing them with each other; a block has as many threads.
constexpr u32 FEW = 256;

template <class W> struct Picking {
    u32 counts[PICK_DIGITS];
    W few[FEW];
    W all, any, made;
    u32 digit, before, inside, taken;
};

GPUAGG_INLINE u32 bit_length(u32 x) { return 32 - __clz(static_cast<i32>(x)); }
GPUAGG_INLINE u32 bit_length(u64 x) { return 64 - __clzll(static_cast<i64>(x)); }

// Whether two words agree above their lowest bits.
template <class W> GPUAGG_INLINE bool agree(W a, W b, u32 lowest) {
    return lowest >= 8 * sizeof(W) || ((a ^ b) >> lowest) == 0;
}

// Bits that all words have, and those that any has.
template <class W> GPUAGG_INLINE void find_bits(const W* words, u32 n, Picking<W>& s) {
    W all = static_cast<W>(~W(0)), any = 0;
    each_word(words, n, [&](W word) {
        all &= word;
        any |= word;
    });
#pragma unroll
    for (u32 d = WARP / 2; d > 0; d /= 2) {
        all &= __shfl_xor_sync(ALL_LANES, all, d);
        any |= __shfl_xor_sync(ALL_LANES, any, d);
    }
    if (threadIdx.x == 0) {
        s.all = static_cast<W>(~W(0));
        s.any = 0;
    }
    __syncthreads();
    if (threadIdx.x % WARP == 0) {
        atomicAnd(&s.all, all);
        atomicOr(&s.any, any);
    }
    __syncthreads();
}

// The digit in which a rank falls, and how many words have a lower one; by one warp.
template <class W> GPUAGG_INLINE void find_digit(u32 rank, Picking<W>& s) {
    constexpr u32 EACH = PICK_DIGITS / WARP;
    const u32 first = threadIdx.x * EACH;
    u32 mine = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) mine += s.counts[first + i];
    u32 before = sum_to_lane(mine) - mine;
    if (rank < before || rank >= before + mine) return;
    u32 digit = first;
    while (rank >= before + s.counts[digit]) before += s.counts[digit++];
    s.digit = digit;
    s.before = before;
    s.inside = s.counts[digit];
}

// The word of a rank below n; all threads call it, and all get it.
template <class W> GPUAGG_INLINE W word_of_rank(const W* words, u32 n, u32 rank, Picking<W>& s) {
    find_bits(words, n, s);
    W known = s.all;
    u32 open = bit_length(static_cast<W>(s.all ^ s.any)), inside = n;
    while (open > 0 && inside > FEW) {
        const u32 bits = open < PICK_BITS ? open : PICK_BITS, shift = open - bits;
        const W digits = (W(1) << bits) - 1;
        for (u32 i = threadIdx.x; i < PICK_DIGITS; i += blockDim.x) s.counts[i] = 0;
        __syncthreads();
        each_word(words, n, [&](W word) {
            if (agree(word, known, open))
                atomicAdd(s.counts + static_cast<u32>(word >> shift & digits), 1u);
        });
        __syncthreads();
        if (threadIdx.x < WARP) find_digit(rank, s);
        __syncthreads();
        rank -= s.before;
        inside = s.inside;
        known = (known & ~(digits << shift)) | static_cast<W>(s.digit) << shift;
        open = shift;
    }
    if (open == 0) return known;
    if (threadIdx.x == 0) s.taken = 0;
    __syncthreads();
    each_word(words, n, [&](W word) {
        if (agree(word, known, open)) s.few[atomicAdd(&s.taken, 1u)] = word;
    });
    __syncthreads();
    if (threadIdx.x < inside) {
        const W mine = s.few[threadIdx.x];
        u32 before = 0;
        for (u32 i = 0; i < inside; ++i)
            before += s.few[i] < mine || (s.few[i] == mine && i < threadIdx.x);
        if (before == rank) s.made = mine;
    }
    __syncthreads();
    return s.made;
}

// The word of the rank behind one whose word is known.
template <class W>
GPUAGG_INLINE W word_behind(const W* words, u32 n, u32 rank, W known, Picking<W>& s) {
    u32 upto = 0;
    W least = static_cast<W>(~W(0));
    each_word(words, n, [&](W word) {
        if (word <= known) ++upto;
        else if (word < least) least = word;
    });
#pragma unroll
    for (u32 d = WARP / 2; d > 0; d /= 2) {
        upto += __shfl_xor_sync(ALL_LANES, upto, d);
        const W other = __shfl_xor_sync(ALL_LANES, least, d);
        least = other < least ? other : least;
    }
    // the others have read what was made before
    __syncthreads();
    if (threadIdx.x == 0) {
        s.taken = 0;
        s.made = static_cast<W>(~W(0));
    }
    __syncthreads();
    if (threadIdx.x % WARP == 0) {
        atomicAdd(&s.taken, upto);
        atomicMin(&s.made, least);
    }
    __syncthreads();
    return s.taken > rank + 1 ? known : s.made;
}

// Both words of every group that ranks are asked for; the others keep what they have.
template <class W>
__global__ void __launch_bounds__(ONE_BLOCK_THREADS)
    pick(const W* words, const u32* starts, const Ranks* ranks, u32 groups, Pair<W>* to) {
    __shared__ Picking<W> s;
    for (u32 g = blockIdx.x; g < groups; g += gridDim.x) {
        const Ranks wanted = ranks[g];
        if (wanted.low == NONE && wanted.high == NONE) continue;
        const W* mine = words + starts[g];
        const u32 n = starts[g + 1] - starts[g];
        const u32 first = wanted.low != NONE ? wanted.low : wanted.high;
        const W word = word_of_rank(mine, n, first, s);
        W behind = word;
        if (wanted.high != NONE && wanted.high == first + 1) {
            behind = word_behind(mine, n, first, word, s);
        } else if (wanted.high != NONE && wanted.high > first) {
            __syncthreads();
            behind = word_of_rank(mine, n, wanted.high, s);
        }
        if (threadIdx.x == 0) {
            if (wanted.low != NONE) to[g].low = word;
            if (wanted.high != NONE) to[g].high = behind;
        }
        __syncthreads();
    }
}

// The same of words that are sorted in each group.
template <class W>
__global__ void __launch_bounds__(SMALL_BLOCK)
    read_ranks(const W* words, const u32* starts, const Ranks* ranks, u32 groups, Pair<W>* to) {
    const u32 stride = gridDim.x * blockDim.x;
    for (u64 g = blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += stride) {
        if (ranks[g].low != NONE) to[g].low = words[starts[g] + ranks[g].low];
        if (ranks[g].high != NONE) to[g].high = words[starts[g] + ranks[g].high];
    }
}

}  // namespace gpuagg
