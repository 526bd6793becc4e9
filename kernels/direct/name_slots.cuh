// Words for the slots of a table that `direct` filled in global memory.
#pragma once

#include "direct/direct.cuh"

namespace gpuagg {

// Gives the slots of the keys that have occurred their words: then the table is like any other.
__global__ void __launch_bounds__(SMALL_BLOCK)
    name_slots(const __grid_constant__ Args a, const __grid_constant__ Window w) {
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < w.keys; i += gridDim.x * blockDim.x)
        if (w.present[i / 32] >> i % 32 & 1u) a.table.words[i << w.shift] = mix(w.base + i);
}

}  // namespace gpuagg
