// The passes that make words.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

template <class Q>
__global__ void __launch_bounds__(SMALL_BLOCK)
    make_words(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns) {
    bool sure = true;
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; i < a.rows; i += stride)
        sure = Q::Key::make(columns, static_cast<i64>(i)) && sure;
    if (!sure) a.counters->ambiguous = 1;
}

template <class Q>
__global__ void __launch_bounds__(SMALL_BLOCK)
    make_codes(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns,
               const __grid_constant__ Codes codes) {
    bool sure = true;
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; i < a.rows; i += stride)
        sure = Q::Key::make(columns, codes, static_cast<i64>(i)) && sure;
    if (!sure) a.counters->ambiguous = 1;
}

}  // namespace gpuagg
