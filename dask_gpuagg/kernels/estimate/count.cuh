// All keys counted, where a sample says that they are too uneven for it to tell how many there are:
// HyperLogLog (Flajolet et al. 2007) in one pass over the keys.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

constexpr u32 REGISTERS_BITS = 12;
constexpr u32 REGISTERS = 1u << REGISTERS_BITS;

// The host clears the registers before.
template <class Q>
__device__ void count_keys(const Column* columns, u32 rows, u32* registers) {
    __shared__ u32 own[REGISTERS];
    for (u32 i = threadIdx.x; i < REGISTERS; i += blockDim.x) own[i] = 0;
    __syncthreads();
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
#pragma unroll 4
    for (u64 i = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; i < rows; i += stride) {
        const Probe probe = Q::Key::probe(columns, static_cast<i64>(i));
        if (probe.kind != Kind::key) continue;
        const u64 hash = scramble(Q::Key::fingerprint(columns, probe));
        const u32 rank = static_cast<u32>(__clzll(hash | (REGISTERS - 1))) + 1;
        raise(Shared{}, own + (hash & (REGISTERS - 1)), rank);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < REGISTERS; i += blockDim.x)
        if (own[i]) raise(Global{}, registers + i, own[i]);
}

}  // namespace gpuagg
