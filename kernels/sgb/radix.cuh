// A stable radix sort, least significant digit first, of words that move one more array with them:
// the sorting of SGB-TR (Wu 2025, section 4.1.3). Each pass reads and writes every row once, as in
// Onesweep (Adinets, Merrill 2022): all digits are counted before the first pass, and a tile learns
// by looking back at the tiles before it where its rows go.
#pragma once

#include "core/types.cuh"

namespace gpuagg {

constexpr u32 SORT_TILE = SORT_THREADS * SORT_ITEMS;
constexpr u32 SORT_WARPS = SORT_THREADS / WARP;

// What a tile has published of a digit so far, in the two high bits above the count.
constexpr u32 OWN_ROWS = 1u << 30;     // the rows of the tile itself
constexpr u32 ROWS_SO_FAR = 2u << 30;  // those of all tiles up to it
constexpr u32 ROWS_MASK = OWN_ROWS - 1;

template <class W> GPUAGG_INLINE u32 digit_of(W word, u32 shift) {
    return static_cast<u32>(word >> shift) & (DIGITS - 1);
}

// Rows of every value of the first `digits` digits.
template <class W>
__global__ void __launch_bounds__(SORT_THREADS)
    count_digits(const W* words, u32 rows, u32 digits, u32* counts) {
    constexpr u32 ALL = sizeof(W) * DIGITS;
    __shared__ u32 mine[ALL];
    for (u32 i = threadIdx.x; i < ALL; i += blockDim.x) mine[i] = 0;
    __syncthreads();
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
#pragma unroll 4
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows; i += stride) {
        const W word = __ldg(words + i);
#pragma unroll
        for (u32 d = 0; d < sizeof(W); ++d)
            if (d < digits) atomicAdd(mine + d * DIGITS + digit_of(word, 8 * d), 1u);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < digits * DIGITS; i += blockDim.x)
        if (mine[i]) atomicAdd(counts + i, mine[i]);
}

// The sum of the values of the block's first DIGITS threads before this one; all threads call it.
GPUAGG_INLINE u32 digits_before(u32 value, u32* warp_sums) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 sum = sum_to_lane(value);
    if (lane == WARP - 1 && warp < DIGITS / WARP) warp_sums[warp] = sum;
    __syncthreads();
    for (u32 w = 0; w < warp && w < DIGITS / WARP; ++w) sum += warp_sums[w];
    return sum - value;
}

// Counts to starts, one block of DIGITS threads for each digit; `same` marks the digits that
// all rows share, which need no pass.
__global__ void __launch_bounds__(DIGITS)
    scan_digits(u32* counts, u32 rows, u32* same) {
    __shared__ u32 warp_sums[DIGITS / WARP];
    u32* mine = counts + blockIdx.x * DIGITS + threadIdx.x;
    const u32 n = *mine;
    if (n == rows) same[blockIdx.x] = 1;
    *mine = digits_before(n, warp_sums);
}

// The rows of this tile's digit that lie in the tiles before it.
GPUAGG_INLINE u32 look_back(const Pass& a, u32 tile, u32 digit) {
    u32 before = 0;
    for (u32 t = tile; t-- > 0;) {
        const volatile u32* told = a.told + static_cast<u64>(t) * DIGITS + digit;
        u32 seen = *told;
        while (seen < OWN_ROWS) seen = *told;
        before += seen & ROWS_MASK;
        if (seen >= ROWS_SO_FAR) break;
    }
    return before;
}

GPUAGG_INLINE void publish(const Pass& a, u32 tile, u32 digit, u32 what) {
    *static_cast<volatile u32*>(a.told + static_cast<u64>(tile) * DIGITS + digit) = what;
}

// The lanes of equal digit: a vote for each bit takes less than __match_any_sync does.
GPUAGG_INLINE u32 lanes_of(u32 digit) {
    u32 lanes = ALL_LANES;
#pragma unroll
    for (u32 b = 1; b < DIGITS; b *= 2) {
        const u32 set = __ballot_sync(ALL_LANES, digit & b);
        lanes &= digit & b ? set : ~set;
    }
    return lanes;
}

// Ranks of a warp's words among those of equal digit, in the order of the rows.
template <class W>
GPUAGG_INLINE void rank(const W (&word)[SORT_ITEMS], u32 shift, u32* counts,
                        u32 (&place)[SORT_ITEMS]) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 j = 0; j < SORT_ITEMS; ++j) {
        const u32 digit = digit_of(word[j], shift);
        const u32 peers = lanes_of(digit);
        const u32 before = __popc(peers & ((1u << lane) - 1));
        u32 held = 0;
        if (before == 0) {
            held = counts[digit];
            counts[digit] = held + __popc(peers);
        }
        __syncwarp();
        place[j] = __shfl_sync(ALL_LANES, held, __ffs(peers) - 1) + before;
    }
}

// One digit of one tile a block, tiles by ticket so that those looked back at have begun. P is what
// moves along; its place in the tile's order of digits is that of its word.
template <class W, class P>
__global__ void __launch_bounds__(SORT_THREADS, SORT_BLOCKS)
    sort_pass(const __grid_constant__ Pass a) {
    extern __shared__ u64 buffer[];
    __shared__ u32 counts[SORT_WARPS * DIGITS];
    __shared__ u32 offset[DIGITS], warp_sums[DIGITS / WARP], ticket;
    if (threadIdx.x == 0) ticket = atomicAdd(a.ticket, 1u);
    for (u32 i = threadIdx.x; i < SORT_WARPS * DIGITS; i += SORT_THREADS) counts[i] = 0;
    __syncthreads();
    const u32 tile = ticket;
    const u64 first = static_cast<u64>(tile) * SORT_TILE;
    const u32 left = a.rows - static_cast<u32>(first);
    const u32 filled = left < SORT_TILE ? left : SORT_TILE;
    const u32 warp = threadIdx.x / WARP;
    // a warp has neighbouring rows, so that ranks follow the order of the rows
    const u32 begin = warp * WARP * SORT_ITEMS + threadIdx.x % WARP;
    W word[SORT_ITEMS];
    u32 place[SORT_ITEMS];
#pragma unroll
    for (u32 j = 0; j < SORT_ITEMS; ++j) {
        const u32 at = begin + j * WARP;
        // past the end: the last rows of the last digit
        word[j] = static_cast<W>(~0ull);
        if (at < left) word[j] = __ldcs(static_cast<const W*>(a.words) + first + at);
    }
    rank(word, a.shift, counts + warp * DIGITS, place);
    __syncthreads();
    u32 total = 0;
    if (threadIdx.x < DIGITS) {
#pragma unroll
        for (u32 w = 0; w < SORT_WARPS; ++w) total += counts[w * DIGITS + threadIdx.x];
        if (threadIdx.x == DIGITS - 1) total -= SORT_TILE - filled;
        publish(a, tile, threadIdx.x, total | (tile == 0 ? ROWS_SO_FAR : OWN_ROWS));
    }
    const u32 start = digits_before(total, warp_sums);
    if (threadIdx.x < DIGITS) {
        u32 next = start;
#pragma unroll
        for (u32 w = 0; w < SORT_WARPS; ++w) {
            const u32 n = counts[w * DIGITS + threadIdx.x];
            counts[w * DIGITS + threadIdx.x] = next;
            next += n;
        }
        const u32 before = look_back(a, tile, threadIdx.x);
        if (tile > 0) publish(a, tile, threadIdx.x, (before + total) | ROWS_SO_FAR);
        offset[threadIdx.x] = a.starts[threadIdx.x] + before - start;
    }
    __syncthreads();
    W* staged = reinterpret_cast<W*>(buffer);
#pragma unroll
    for (u32 j = 0; j < SORT_ITEMS; ++j) {
        place[j] += counts[warp * DIGITS + digit_of(word[j], a.shift)];
        staged[place[j]] = word[j];
    }
    __syncthreads();
    u32 to[SORT_ITEMS];
#pragma unroll
    for (u32 j = 0; j < SORT_ITEMS; ++j) {
        const u32 at = j * SORT_THREADS + threadIdx.x;
        if (at < filled) {
            const W held = staged[at];
            to[j] = offset[digit_of(held, a.shift)] + at;
            static_cast<W*>(a.words_to)[to[j]] = held;
        }
    }
    P moved[SORT_ITEMS];
#pragma unroll
    for (u32 j = 0; j < SORT_ITEMS; ++j) {
        const u32 at = begin + j * WARP;
        if (at < left) moved[j] = __ldcs(static_cast<const P*>(a.moved) + first + at);
    }
    __syncthreads();
    P* beside = reinterpret_cast<P*>(buffer);
#pragma unroll
    for (u32 j = 0; j < SORT_ITEMS; ++j) beside[place[j]] = moved[j];
    __syncthreads();
#pragma unroll
    for (u32 j = 0; j < SORT_ITEMS; ++j) {
        const u32 at = j * SORT_THREADS + threadIdx.x;
        if (at < filled) static_cast<P*>(a.moved_to)[to[j]] = beside[at];
    }
}

}  // namespace gpuagg
