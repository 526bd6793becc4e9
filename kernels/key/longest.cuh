// The length of the longest string of the first key column.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

template <class K> struct OffsetOf;
template <bool KEEP_NULLS, u32 WORDS, u32 STATE, class C, class... Rest>
struct OffsetOf<Hashed<KEEP_NULLS, WORDS, STATE, C, Rest...>> {
    using Type = typename C::T;
};

template <class Q>
__global__ void __launch_bounds__(SMALL_BLOCK)
    longest(const __grid_constant__ Columns<Q> columns, u32 rows, u32* most) {
    const Column& strings = columns[0];
    using Offset = typename OffsetOf<typename Q::Key>::Type;
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
