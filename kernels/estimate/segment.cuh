// The rows of a sample: one block a segment of neighbours. Segments share the rows evenly, and each lies
// at a place of its share that a hash tells: at equal distances all would see the same keys, where keys
// come in cycles.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

// The thread's row; at least `end` where it has none.
GPUAGG_INLINE u64 sampled_row(u64 first, u64 end) {
    const u64 share = (end - first) / gridDim.x;
    const u64 from = first + (end - first) * blockIdx.x / gridDim.x;
    const u64 room = share > SEGMENT ? share - SEGMENT : 0;
    return from + (((scramble(from) >> 32) * room) >> 32) + threadIdx.x;
}

}  // namespace gpuagg
