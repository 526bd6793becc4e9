// The number of distinct keys of a fourth of the rows, where the keys are too skewed for an estimate
// from the sample: HyperLogLog (Flajolet et al. 2007), for each of four parts of them. How the number
// grows from one part to two and to all four is extrapolated to all rows.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

constexpr u32 REGISTERS = 1u << REGISTERS_BITS;
// One in so many tiles is counted.
constexpr u32 COUNTED_OF = 4;

// The host clears the registers before. The number of blocks is a multiple of that of the parts, so
// that each block counts one part. Tiles of all parts lie evenly over the input.
template <class Q>
__global__ void __launch_bounds__(COUNT_KEYS_THREADS)
    count_keys(const __grid_constant__ Columns<Q> columns, u32 first, u32 end, u32* registers) {
    constexpr u32 UNROLL = 8;
    __shared__ u32 own[REGISTERS];
    for (u32 i = threadIdx.x; i < REGISTERS; i += blockDim.x) own[i] = 0;
    __syncthreads();
    const u64 tile = static_cast<u64>(blockDim.x) * UNROLL * COUNTED_OF;
    for (u64 base = first + blockIdx.x * tile; base < end; base += gridDim.x * tile) {
        Probe probe[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 i = base + j * blockDim.x + threadIdx.x;
            probe[j].kind = Kind::drop;
            if (i < end) probe[j] = Q::Key::probe(columns, static_cast<i64>(i));
        }
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            if (probe[j].kind != Kind::key) continue;
            const u64 hash = scramble(Q::Key::fingerprint(columns, probe[j]));
            const u32 rank = static_cast<u32>(__clzll(hash | (REGISTERS - 1))) + 1;
            raise(Shared{}, own + (hash & (REGISTERS - 1)), rank);
        }
    }
    __syncthreads();
    registers += blockIdx.x % COUNTED_PARTS * REGISTERS;
    for (u32 i = threadIdx.x; i < REGISTERS; i += blockDim.x)
        if (own[i]) raise(Global{}, registers + i, own[i]);
}

}  // namespace gpuagg
