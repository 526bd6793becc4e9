// Keys from the words of `Coded`: key columns one by one, strings a tile of groups at a time.
#pragma once

#include "key/coded.cuh"
#include "output/output.cuh"

namespace gpuagg {

// The last digit, which is taken away. Most numbers fit 32 bits, which divide several times as fast.
GPUAGG_INLINE u64 last_digit(u64& number, u64 values) {
    const u64 before = number;
    if ((number | values) >> 32 == 0)
        number = static_cast<u32>(number) / static_cast<u32>(values);
    else
        number /= values;
    return before - number * values;
}

// The code that a word has for a column, as if there were no nulls.
GPUAGG_INLINE u64 code_of(u64 word, const ColumnCode& code, bool& valid) {
    u64 rest = word;
    if (code.scale != 1) last_digit(rest, code.scale);
    const u64 made = last_digit(rest, code.all);
    valid = !code.nullable || made != 0;
    return valid ? made - (code.nullable ? 1 : 0) : 0;
}
// The length comes last, which is taken away.
GPUAGG_INLINE u32 length_of(u64& made, const ColumnCode& code) {
    return static_cast<u32>(code.base + (code.range ? last_digit(made, code.range + 1) : 0));
}

// The characters of each tile; `scan_tiles` then makes their starts of them.
__global__ void __launch_bounds__(TEXT_TILE)
    measure_texts(const u64* words, u32 groups, const __grid_constant__ ColumnCode code,
                  u64* starts) {
    const u32 group = blockIdx.x * TEXT_TILE + threadIdx.x;
    bool valid = false;
    u64 made = group < groups ? code_of(words[group], code, valid) : 0;
    const u32 mine = valid ? length_of(made, code) : 0;
    const u32 of_warp = __reduce_add_sync(ALL_LANES, mine);
    __shared__ u32 all;
    if (threadIdx.x == 0) all = 0;
    __syncthreads();
    if (threadIdx.x % WARP == 0) atomicAdd(&all, of_warp);
    __syncthreads();
    if (threadIdx.x == 0) starts[blockIdx.x] = all;
}

GPUAGG_INLINE void put_offset(const Texts& to, u32 i, u64 offset) {
    if (to.large) static_cast<i64*>(to.offsets)[i] = static_cast<i64>(offset);
    else static_cast<i32*>(to.offsets)[i] = static_cast<i32>(offset);
}

__global__ void __launch_bounds__(TEXT_TILE)
    write_texts(const u64* words, u32 groups, const __grid_constant__ ColumnCode code,
                const __grid_constant__ Texts to) {
    __shared__ u64 staged[TEXT_TILE * PIECES + 1];
    __shared__ u32 of_warps[TEXT_TILE / WARP];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const u32 group = blockIdx.x * TEXT_TILE + threadIdx.x;
    const bool is_group = group < groups;
    bool valid = false;
    u64 made = is_group ? code_of(words[group], code, valid) : 0;
    const u32 length = valid ? length_of(made, code) : 0;
    const u32 sum = sum_to_lane(length);
    if (lane == WARP - 1) of_warps[warp] = sum;
    __syncthreads();
    u32 before = sum - length, total = 0;
    for (u32 w = 0; w < TEXT_TILE / WARP; ++w) {
        if (w < warp) before += of_warps[w];
        total += of_warps[w];
    }
    const u64 start = to.starts ? to.starts[blockIdx.x]
                                : static_cast<u64>(blockIdx.x) * TEXT_TILE * code.base;
    if (is_group) put_offset(to, group, start + before);
    if (is_group && group == groups - 1) put_offset(to, groups, start + before + length);
    put_mask({nullptr, to.mask}, group, valid, is_group);
    // bytes lie in the buffer as in the aligned words that they go to
    const u32 skipped = static_cast<u32>(start & 7ull);
    u8* text = reinterpret_cast<u8*>(staged) + skipped + before;
#pragma unroll 1
    for (u32 q = 2 * code.pieces; valid && q-- > 0;) {
        const Quad& quad = code.quad[q];
        u32 bytes = quad.least;
        if (quad.all != 1) {
            u32 value = static_cast<u32>(last_digit(made, quad.all));
            for (u32 i = 3; i > 0; --i) {
                bytes += value % quad.values[i - 1] << (8 * i);
                value /= quad.values[i - 1];
            }
            bytes += value;
        }
        for (u32 i = 0; i < 4; ++i)
            if (4 * q + i < length) text[4 * q + i] = static_cast<u8>(bytes >> (8 * i));
    }
    __syncthreads();
    u64* target = reinterpret_cast<u64*>(to.characters + (start - skipped));
    const u32 end = skipped + total;
    for (u32 i = threadIdx.x; 8 * i < end; i += TEXT_TILE) {
        if (8 * i >= skipped && 8 * i + 8 <= end) {
            target[i] = staged[i];
            continue;
        }
        for (u32 b = 8 * i; b < 8 * i + 8; ++b)
            if (b >= skipped && b < end)
                reinterpret_cast<u8*>(target)[b] = reinterpret_cast<const u8*>(staged)[b];
    }
}

template <class T>
GPUAGG_INLINE void write_integers_as(const u64* words, u32 groups, const ColumnCode& code,
                                     const Target& to) {
    const u32 stride = gridDim.x * blockDim.x;
    for (u32 base = blockIdx.x * blockDim.x; base < groups; base += stride) {
        const u32 group = base + threadIdx.x;
        const bool is_group = group < groups;
        bool valid = false;
        const u64 made = is_group ? code_of(words[group], code, valid) : 0;
        put(to, group, static_cast<T>(code.base + made), valid, is_group);
    }
}
__global__ void __launch_bounds__(SMALL_BLOCK)
    write_integers(const u64* words, u32 groups, const __grid_constant__ ColumnCode code,
                   const __grid_constant__ Target to, u32 bytes) {
    if (bytes == 8) write_integers_as<u64>(words, groups, code, to);
    else if (bytes == 4) write_integers_as<u32>(words, groups, code, to);
    else if (bytes == 2) write_integers_as<u16>(words, groups, code, to);
    else write_integers_as<u8>(words, groups, code, to);
}

}  // namespace gpuagg
