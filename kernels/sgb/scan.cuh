// Counts of tiles to what comes before each tile.
#pragma once

#include "core/types.cuh"

namespace gpuagg {

// One block of WARP * WARP threads: each count becomes the sum of those before it, `all` that of all.
template <class T>
__global__ void __launch_bounds__(SCAN_THREADS)
    scan_tiles(T* counts, u32 tiles, T* all) {
    __shared__ T of_warps[WARP];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    T total = 0;
    for (u32 base = 0; base < tiles; base += WARP * WARP) {
        const u32 at = base + threadIdx.x;
        const T mine = at < tiles ? counts[at] : 0;
        const T sum = sum_to_lane(mine);
        if (lane == WARP - 1) of_warps[warp] = sum;
        __syncthreads();
        T before = total;
        for (u32 w = 0; w < WARP; ++w) {
            if (w < warp) before += of_warps[w];
            total += of_warps[w];
        }
        if (at < tiles) counts[at] = before + sum - mine;
        __syncthreads();
    }
    if (threadIdx.x == 0) *all = total;
}

}  // namespace gpuagg
