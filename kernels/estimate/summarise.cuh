// What the host reads of a sample.
#pragma once

#include "estimate/sample.cuh"

namespace gpuagg {

__global__ void __launch_bounds__(SMALL_BLOCK)
    summarise(const Sample* table, Summary* summary, HotSeen* hot) {
    const u32 lane = threadIdx.x % WARP;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < SAMPLE_SLOTS;
         i += gridDim.x * blockDim.x) {
        const u32 n = table->counts[i] + 1;
        const u32 segments = n >> SEGMENTS_FROM_BIT;
        const u32 distinct = __popc(__ballot_sync(ALL_LANES, n > 0));
        const u32 once = __popc(__ballot_sync(ALL_LANES, segments == 1));
        const u32 twice = __popc(__ballot_sync(ALL_LANES, segments == 2));
        const u32 rows = n & ((1u << SEGMENTS_FROM_BIT) - 1);
        if (rows >= HOT_ROWS && segments >= HOT_SEGMENTS && table->words[i] != OTHER) {
            const u32 at = atomicAdd(&summary->hot_keys, 1u) + 1;
            if (at < HOT_TOLD) {
                hot->words[at] = table->words[i];
                hot->counts[at] = n;
            }
        }
        const u32 pairs = __reduce_add_sync(ALL_LANES, segments ? segments * (segments - 1) : 0u);
        const u32 segment_keys = __reduce_add_sync(ALL_LANES, segments);
        u32 most = rows;
        for (u32 d = WARP / 2; d > 0; d /= 2) {
            const u32 other = __shfl_xor_sync(ALL_LANES, most, d);
            most = other > most ? other : most;
        }
        if (lane == 0 && distinct) {
            atomicAdd(&summary->distinct, distinct);
            if (pairs) atomicAdd(&summary->pairs, static_cast<u64>(pairs));
            atomicAdd(&summary->segment_keys, segment_keys);
            if (once) atomicAdd(&summary->once, once);
            if (twice) atomicAdd(&summary->twice, twice);
            atomicMax(&summary->most, static_cast<i32>(most));
        }
    }
}

}  // namespace gpuagg
