// Whether a sample is like the one that a decision was made for. The host launches what it decided
// then without waiting to see this sample; here the device looks at it, and calls off what follows.
#pragma once

#include "estimate/sample.cuh"

namespace gpuagg {

// The work of one thread.
__global__ void __launch_bounds__(WARP)
    check(const Summary* summary, const __grid_constant__ Expected e, Counters* counters) {
    if (threadIdx.x != 0) return;
    const Summary& s = *summary;
    // counts start one below zero
    const u64 told[TOLD_NUMBERS] = {s.pairs + 1,   s.least,     s.greatest,     s.rows + 1,
                            s.distinct + 1, s.once + 1, s.twice + 1,    s.most < 0 ? 0ull : s.most,
                            s.repeats + 1, s.segment_keys + 1,   s.hot_keys + 1,     s.descents + 1};
    bool alike = true;
#pragma unroll
    for (u32 i = 0; i < TOLD_NUMBERS; ++i) alike = alike && e.least[i] <= told[i] && told[i] <= e.most[i];
#pragma unroll
    for (u32 i = 0; i < 2 * TOLD_COLUMNS; ++i) alike = alike && e.ends[i] <= s.ranges[i];
    if (!alike) counters->mismatch = 1;
}

// Each of them must be in the sample: a group is made of it whether it has rows or not. By one block.
__global__ void __launch_bounds__(HOT_AT_MOST)
    check_hot(const Sample* table, const __grid_constant__ ExpectedHot e, Counters* counters) {
    __shared__ u32 together;
    if (threadIdx.x == 0) together = 0;
    __syncthreads();
    bool seen = true;
    if (threadIdx.x < e.count) {
        const u64 word = e.words[threadIdx.x];
        u32 s = static_cast<u32>(scramble(word)) % SAMPLE_SLOTS;
        while (table->words[s] != word && table->words[s] != EMPTY) s = (s + 1) % SAMPLE_SLOTS;
        seen = table->words[s] == word;
        if (seen) atomicAdd(&together, (table->counts[s] + 1) & ((1u << SEGMENTS_FROM_BIT) - 1));
    }
    __syncthreads();
    if (!seen || (threadIdx.x == 0 && together < e.rows)) counters->mismatch = 1;
}

}  // namespace gpuagg
