// Dictionary codes of keys from a narrow range, without a table of keys: one bit for each value that
// there might be, and the number of bits set before each word of bits. The codes follow the order of
// the keys.
#pragma once

#include "output/output.cuh"
#include "sgb/order.cuh"

namespace gpuagg {

struct alignas(8) Mark {
    u32 bits;
    u32 before;
};

template <class Q>
__global__ void __launch_bounds__(ENCODE_THREADS)
    find_range(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns,
               Range* range) {
    u64 low = EMPTY, high = 0;
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
#pragma unroll 4
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.rows; i += stride) {
        const Ranked key = InOrder<typename Q::Key>::of(columns, static_cast<i64>(i));
        if (!key.kept) continue;
        low = key.word < low ? key.word : low;
        high = key.word > high ? key.word : high;
    }
#pragma unroll
    for (u32 d = WARP / 2; d > 0; d /= 2) {
        const u64 other_low = __shfl_xor_sync(ALL_LANES, low, d);
        const u64 other_high = __shfl_xor_sync(ALL_LANES, high, d);
        low = other_low < low ? other_low : low;
        high = other_high > high ? other_high : high;
    }
    if (threadIdx.x % WARP == 0 && low <= high) {
        atomicMin(&range->low, low);
        atomicMax(&range->high, high);
    }
}

template <class Q>
__global__ void __launch_bounds__(ENCODE_THREADS)
    mark_keys(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns, u64 low,
              Mark* marks) {
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
#pragma unroll 4
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.rows; i += stride) {
        const Ranked key = InOrder<typename Q::Key>::of(columns, static_cast<i64>(i));
        if (!key.kept) continue;
        u32* bits = &marks[(key.word - low) / WARP].bits;
        const u32 bit = 1u << ((key.word - low) % WARP);
        if (!(peek(bits) & bit)) atomicOr(bits, bit);
    }
}

__global__ void __launch_bounds__(SMALL_BLOCK)
    count_marks(const Mark* marks, u32 count, u32* tiles) {
    const u32 tile = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    const u64 begin = static_cast<u64>(tile) * MARK_TILE;
    if (begin >= count) return;
    u32 sum = 0;
    for (u64 i = begin + threadIdx.x % WARP; i < begin + MARK_TILE && i < count; i += WARP)
        sum += __popc(marks[i].bits);
    sum = sum_to_lane(sum);
    if (threadIdx.x % WARP == WARP - 1) tiles[tile] = sum;
}

// `tiles`: the marks before each tile. Every mark's key goes to the place of its number.
__global__ void __launch_bounds__(SMALL_BLOCK)
    number_marks(Mark* marks, u32 count, const u32* tiles, u64 low, u64* keys) {
    const u32 tile = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    const u64 begin = static_cast<u64>(tile) * MARK_TILE;
    if (begin >= count) return;
    u32 before = tiles[tile];
    for (u64 base = begin; base < begin + MARK_TILE && base < count; base += WARP) {
        const u64 i = base + threadIdx.x % WARP;
        u32 bits = i < count ? marks[i].bits : 0;
        const u32 sum = sum_to_lane(__popc(bits));
        u32 number = before + sum - __popc(bits);
        if (i < count) marks[i].before = number;
        for (; bits; bits &= bits - 1) keys[number++] = low + i * WARP + (__ffs(bits) - 1);
        before += __shfl_sync(ALL_LANES, sum, WARP - 1);
    }
}

template <class Q>
__global__ void __launch_bounds__(ENCODE_THREADS)
    encode_range(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns,
                 u64 low, const Mark* marks, i32* codes) {
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
#pragma unroll 4
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.rows; i += stride) {
        const Ranked key = InOrder<typename Q::Key>::of(columns, static_cast<i64>(i));
        i32 code = -1;
        if (key.kept) {
            const uint2 raw =
                __ldg(reinterpret_cast<const uint2*>(marks + (key.word - low) / WARP));
            const u32 below = (1u << ((key.word - low) % WARP)) - 1;
            code = static_cast<i32>(raw.y + __popc(raw.x & below));
        }
        codes[i] = code;
    }
}

// Takes the columns of an ordered word without nulls apart, last one first.
struct UnpackOrdered {
    u64 word;
    template <class C> GPUAGG_INLINE typename C::T next(bool& valid) {
        using S = Sortable<typename C::T>;
        valid = true;
        u64 bits = word;
        if constexpr (C::bits < 64) {
            bits &= (1ull << C::bits) - 1;
            word >>= C::bits;
        }
        return S::back(static_cast<typename S::Word>(bits));
    }
};

template <bool KEEP, class... C>
GPUAGG_INLINE void write_ordered(Packed<KEEP, C...>, const u64* keys, u32 groups, const Target* to) {
    const u32 lane = threadIdx.x % WARP;
    const u32 stride = gridDim.x * blockDim.x;
    for (u64 base = blockIdx.x * blockDim.x + threadIdx.x - lane; base < groups; base += stride) {
        const u32 group = static_cast<u32>(base) + lane;
        const bool is_group = group < groups;
        UnpackOrdered unpack{is_group ? keys[group] : 0ull};
        write_parts<KEEP, Packed<KEEP, C...>, UnpackOrdered, C...>(unpack, to, group, is_group);
    }
}

template <class Q, class O, u32 KEY_TARGETS>
__global__ void __launch_bounds__(SMALL_BLOCK)
    write_range(const u64* keys, u32 groups, const __grid_constant__ Targets<O, KEY_TARGETS> to) {
    write_ordered(typename Q::Key{}, keys, groups, to);
}

}  // namespace gpuagg
