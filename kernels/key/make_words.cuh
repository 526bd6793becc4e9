// The pass that makes words.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

// By: what the form needs beside the columns, the factors of hashes or the codes of values.
template <class Q, class By>
__global__ void __launch_bounds__(SMALL_BLOCK)
    make_words(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns,
               const __grid_constant__ By by) {
    bool sure = true;
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; i < a.rows; i += stride)
        sure = Q::Key::make(columns, by, static_cast<i64>(i)) && sure;
    if (!sure) a.counters->ambiguous = 1;
}

}  // namespace gpuagg
