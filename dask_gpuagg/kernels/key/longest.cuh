// The length of the longest string of a column.
#pragma once

#include "core/types.cuh"

namespace gpuagg {

template <class Offset> __device__ void longest(const Column& strings, u32 rows, u32* most) {
    const Offset* offsets = static_cast<const Offset*>(strings.data) + strings.offset;
    u32 mine = 0;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < rows; i += gridDim.x * blockDim.x) {
        const Offset length = __ldcs(offsets + i + 1) - __ldcs(offsets + i);
        const u32 n = length > 0x7fffffff ? 0x7fffffffu : static_cast<u32>(length);
        mine = n > mine ? n : mine;
    }
    mine = __reduce_max_sync(ALL_LANES, mine);
    if (threadIdx.x % WARP == 0) atomicMax(most, mine);
}

}  // namespace gpuagg

extern "C" {

__global__ void __launch_bounds__(256)
    gpuagg_longest(const __grid_constant__ gpuagg::Column strings, gpuagg::u32 rows,
                   gpuagg::u32* most) {
    gpuagg::longest<gpuagg::i32>(strings, rows, most);
}

__global__ void __launch_bounds__(256)
    gpuagg_longest_large(const __grid_constant__ gpuagg::Column strings, gpuagg::u32 rows,
                         gpuagg::u32* most) {
    gpuagg::longest<gpuagg::i64>(strings, rows, most);
}

}  // extern "C"
