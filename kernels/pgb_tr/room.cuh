// Room for the rows of skewed keys. How many rows a partition gets depends on which of the frequent
// keys it has, and the mean says little. So some of the rows are counted by partition, those of hot
// keys left out, and each partition gets the room that it is expected to need.
#pragma once

#include "pgb_tr/hot.cuh"
#include "pgb_tr/partitions.cuh"

namespace gpuagg {

// One in ROOM_OF rows is counted: a few side by side, as many as memory moves at once, of each stretch
// others, so that a period of the keys is not seen in full or not at all. Where equal keys lie in longer
// runs nothing is counted.
constexpr u32 ROOM_TOGETHER = 4;

template <class Q>
__global__ void __launch_bounds__(ROOM_THREADS)
    count_partitions(const __grid_constant__ Args a, const __grid_constant__ Partitions p,
                     const __grid_constant__ Columns<Q> columns,
                     const __grid_constant__ HotKeys keys, u32* counts) {
    constexpr u32 UNROLL = 8;
    extern __shared__ u64 room_memory[];
    if (called_off(a)) return;
    const HotIndex hot(room_memory, keys);
    u32* const own = hot.buckets + hot.bucket_count;
    for (u32 i = threadIdx.x; i < p.count; i += blockDim.x) own[i] = 0;
    __syncthreads();
    const u32 lane = threadIdx.x % WARP;
    const u32 warps = gridDim.x * blockDim.x / WARP;
    const u32 stretches = (a.rows - a.first - 1) / (WARP * ROOM_OF) + 1;
    const u32 first = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    for (u32 stretch = first; stretch < stretches; stretch += warps * UNROLL) {
        Probe probe[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 s = (stretch + static_cast<u64>(j) * warps) * (WARP / ROOM_TOGETHER) +
                          lane / ROOM_TOGETHER;
            const u64 row = (s * ROOM_OF + scramble(s) % ROOM_OF) * ROOM_TOGETHER +
                            lane % ROOM_TOGETHER + a.first;
            probe[j].kind = Kind::drop;
            if (row < a.rows) probe[j] = Q::Key::probe(columns, static_cast<i64>(row));
        }
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j)
            if (probe[j].kind == Kind::key && hot.find(probe[j]) == NONE)
                atomicAdd(own + partition_of(probe[j].word, p.count), 1u);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < p.count; i += blockDim.x)
        if (own[i]) atomicAdd(counts + i, own[i]);
}

// One partition behind the other, as far as there are places: by one block.
template <u32 THREADS>
__global__ void __launch_bounds__(THREADS)
    lay_out(const __grid_constant__ Partitions p, const u32* counts, u32* begins, u32 places) {
    __shared__ u64 upto[THREADS];
    const u32 each = p.count / THREADS + 1;  // one more than there are: where the last one ends
    const auto room = [&](u32 i) -> u64 {
        const u64 counted = i < p.count ? counts[i] : 0;
        const f32 deviation = ROOM_OF * sqrtf(static_cast<f32>(counted + 1));
        const u64 room = counted * ROOM_OF + static_cast<u64>(ROOM_SIGMAS * deviation) + ROOM_MORE;
        return room < p.most ? room : p.most;
    };
    u64 mine = 0;
    for (u32 i = threadIdx.x * each; i < (threadIdx.x + 1) * each; ++i) mine += room(i);
    upto[threadIdx.x] = mine;
    __syncthreads();
    for (u32 d = 1; d < THREADS; d *= 2) {
        const u64 before = threadIdx.x >= d ? upto[threadIdx.x - d] : 0;
        __syncthreads();
        upto[threadIdx.x] += before;
        __syncthreads();
    }
    u64 at = upto[threadIdx.x] - mine;
    for (u32 i = threadIdx.x * each; i < (threadIdx.x + 1) * each; ++i) {
        if (i <= p.count) begins[i] = static_cast<u32>(at < places ? at : places);
        at += room(i);
    }
}

}  // namespace gpuagg
