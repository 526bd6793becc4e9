// A sample of the keys: distinct ones, those seen once and twice, the most frequent, how many pairs
// of segments share a key, and how often neighbours are equal. It decides which kernel runs, never what
// the answer is.
#pragma once

#include "core/query.cuh"
#include "estimate/range_of.cuh"
#include "estimate/segment.cuh"
#include "sgb/order.cuh"

namespace gpuagg {

constexpr u32 SEGMENT_SLOTS = 512;
constexpr u64 OTHER = EMPTY - 1;

// The host fills everything with ones before: words are then EMPTY, and all counts are one less
// than what they count.
// A count has the rows in its low bits and the segments above them: where equal keys lie side by
// side, rows of one segment are no independent draws, but segments are.
struct Sample {
    u64 words[SAMPLE_SLOTS];
    u32 counts[SAMPLE_SLOTS];
};

// One block a segment of the rows from `first` to `end`.
template <class Q>
__global__ void __launch_bounds__(SEGMENT)
    sample(const __grid_constant__ Columns<Q> columns, u32 first, u32 end, Sample* table,
           Summary* summary) {
    using K = typename Q::Key;
    __shared__ u64 words[SEGMENT_SLOTS];
    __shared__ u32 counts[SEGMENT_SLOTS];
    for (u32 i = threadIdx.x; i < SEGMENT_SLOTS; i += SEGMENT) {
        words[i] = EMPTY;
        counts[i] = 0;
    }
    __syncthreads();
    const u32 lane = threadIdx.x % WARP;
    const u64 row = sampled_row(first, end);
    Probe probe{0ull, 0u, Kind::drop};
    if (row < end) probe = K::probe(columns, static_cast<i64>(row));
    const bool counted = probe.kind != Kind::drop;
    // keys with a slot of their own count as one: this is an estimate
    u64 word = counted ? K::fingerprint(columns, probe) : 0ull;
    if (counted && (probe.kind != Kind::key || word == EMPTY)) word = OTHER;
    const bool plain = counted && probe.kind == Kind::key;
    u64 low = plain ? unmix(word) ^ (1ull << 63) : ~0ull, high = plain ? ~low : ~0ull;
    for (u32 d = WARP / 2; d > 0; d /= 2) {
        const u64 l = __shfl_xor_sync(ALL_LANES, low, d), h = __shfl_xor_sync(ALL_LANES, high, d);
        low = l < low ? l : low;
        high = h < high ? h : high;
    }
    if (lane == 0) {
        lower(Global{}, &summary->least, low);
        lower(Global{}, &summary->greatest, high);
    }
    if constexpr (MayFill<K>::value) RangesOf<K>::take(columns, row, row < end, summary->ranges);
    const u64 before = __shfl_up_sync(ALL_LANES, word, 1);
    const u32 repeats = __popc(__ballot_sync(ALL_LANES, counted && lane > 0 && before == word));
    const u32 grouped = __popc(__ballot_sync(ALL_LANES, counted));
    u32 descents = 1;  // keys without an order count as unsorted
    if constexpr (InOrder<K>::exists) {
        u64 rank = EMPTY;
        if (row < end) rank = InOrder<K>::of(columns, static_cast<i64>(row)).word;
        const u64 rank_before = __shfl_up_sync(ALL_LANES, rank, 1);
        descents = __popc(__ballot_sync(ALL_LANES, lane > 0 && rank < rank_before));
    }
    if (lane == 0) {
        if (descents) atomicAdd(&summary->descents, descents);
        if (repeats) atomicAdd(&summary->repeats, repeats);
        if (grouped) atomicAdd(&summary->rows, grouped);
    }
    // count within the block first, so that one frequent key is not added to 65,536 times
    if (counted) {
        for (u32 s = static_cast<u32>(scramble(word)) % SEGMENT_SLOTS;; s = (s + 1) % SEGMENT_SLOTS) {
            const u64 held = atomicCAS(words + s, EMPTY, word);
            if (held == EMPTY || held == word) {
                atomicAdd(counts + s, 1u);
                break;
            }
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < SEGMENT_SLOTS; i += SEGMENT) {
        if (words[i] == EMPTY) continue;
        for (u32 s = static_cast<u32>(scramble(words[i])) % SAMPLE_SLOTS;; s = (s + 1) % SAMPLE_SLOTS) {
            const u64 held = atomicCAS(table->words + s, EMPTY, words[i]);
            if (held == EMPTY || held == words[i]) {
                atomicAdd(table->counts + s, (1u << SEGMENTS_FROM_BIT) + counts[i]);
                break;
            }
        }
    }
}

}  // namespace gpuagg
