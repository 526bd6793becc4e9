// The least and the greatest value of each integer key column, in a sample of the rows.
#pragma once

#include "estimate/sample.cuh"

namespace gpuagg {

// One block a segment.
template <class Q>
__global__ void __launch_bounds__(SEGMENT)
    ranges(const __grid_constant__ Columns<Q> columns, u32 rows, u64* bounds) {
    const u64 row = sampled_row(0, rows);
    RangesOf<typename Q::Key>::take(columns, row, row < rows, bounds);
}

}  // namespace gpuagg
