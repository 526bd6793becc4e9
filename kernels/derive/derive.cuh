// Columns computed from others, and a bit for each row that stays.
#pragma once

#include "core/types.cuh"

namespace gpuagg {

// Python rounds quotients of integers down; a remainder has the sign of the divisor.
template <class T> GPUAGG_INLINE T floor_divide(T a, T b) {
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
template <class T> GPUAGG_INLINE T modulo(T a, T b) {
    const T rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

// A product is rounded before it is added to anything.
template <class T> GPUAGG_INLINE T product(T a, T b) { return a * b; }
template <> GPUAGG_INLINE f32 product<f32>(f32 a, f32 b) { return __fmul_rn(a, b); }
template <> GPUAGG_INLINE f64 product<f64>(f64 a, f64 b) { return __dmul_rn(a, b); }

template <class T> GPUAGG_INLINE T absolute(T a) { return a < 0 ? -a : a; }
template <> GPUAGG_INLINE f32 absolute<f32>(f32 a) { return fabsf(a); }
template <> GPUAGG_INLINE f64 absolute<f64>(f64 a) { return fabs(a); }

template <class T> GPUAGG_INLINE bool is_nan(T a) { return a != a; }

// ``Columns`` reads the inputs of a row, writes its outputs, and says whether the row stays.
template <class Columns>
__global__ void __launch_bounds__(SMALL_BLOCK)
    derive(Columns columns, u32* bits, u32* staying, u64 rows) {
    const u32 lane = threadIdx.x % WARP;
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    u32 count = 0;
    // a warp goes on as long as one of its lanes has a row
    for (u64 row = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; row - lane < rows;
         row += stride) {
        const u32 word = __ballot_sync(ALL_LANES, row < rows && columns.row(row));
        if (bits && lane == 0) bits[row / WARP] = word;
        count += __popc(word);
    }
    if (bits && lane == 0 && count) atomicAdd(staying, count);
}

}  // namespace gpuagg
