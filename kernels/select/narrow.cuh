// From counts to brackets: where the wanted ranks of each group lie.
#pragma once

#include "output/output.cuh"
#include "output/quantile.cuh"
#include "select/count.cuh"

namespace gpuagg {

// Ranks among the words of a group that `pick` looks for; NONE for one that is not looked for.
struct Ranks {
    u32 low, high;
};

// The first brackets, by ranks among a sample's words: `errors` standard deviations of the rank of
// the quantile on either side, and `spare` ranks. A side on which the sample does not reach so far
// stays open.
template <class W>
__global__ void __launch_bounds__(SMALL_BLOCK)
    aim(const u32* starts, u32 groups, f64 q, f64 errors, f64 spare, Pair<W>* brackets,
        Ranks* ranks) {
    const u32 stride = gridDim.x * blockDim.x;
    for (u64 g = blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += stride) {
        const f64 n = static_cast<f64>(starts[g + 1] - starts[g]);
        const f64 middle = q * n - 0.5;
        const f64 margin = errors * sqrt(n * q * (1.0 - q)) + spare;
        const f64 low = floor(middle - margin), high = ceil(middle + margin);
        brackets[g] = Pair<W>::everything();
        ranks[g].low = low >= 0.0 ? static_cast<u32>(low) : NONE;
        ranks[g].high = high <= n - 1.0 ? static_cast<u32>(high) : NONE;
    }
}

// The side on which a rank lies, by how many rows there are up to each.
GPUAGG_INLINE Side side_of_rank(u64 rank, const u64 (&upto)[SIDES]) {
    u32 side = 0;
    while (side < SIDES - 1 && rank >= upto[side]) ++side;
    return static_cast<Side>(side);
}

// What one rank is: a word that is known, or a rank among the words that were kept.
template <class W>
GPUAGG_INLINE void settle(u64 rank, Side side, const u64 (&upto)[SIDES], const Pair<W>& bracket,
                          W& word, u32& among) {
    among = NONE;
    if (side == Side::at_low) word = bracket.low;
    else if (side == Side::at_high) word = bracket.high;
    else among = static_cast<u32>(rank - upto[static_cast<u32>(Side::at_low)]);
}

// A bracket that holds both ranks settles its group. Another one gives way, on the side where a rank
// is missing, to one that holds them for sure.
template <class W>
__global__ void __launch_bounds__(SMALL_BLOCK)
    narrow(const u64* counts, u32 groups, f64 q, Pair<W>* brackets, Pair<W>* found, Ranks* ranks,
           u64* sizes, u32* missed) {
    const u32 stride = gridDim.x * blockDim.x;
    for (u64 g = blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += stride) {
        const Pair<W> bracket = brackets[g];
        ranks[g] = {NONE, NONE};
        if (bracket.is_closed()) continue;
        u64 upto[SIDES], n = 0;
#pragma unroll
        for (u32 s = 0; s < SIDES; ++s) upto[s] = n += counts[static_cast<u64>(s) * groups + g];
        sizes[g] = n;
        brackets[g] = Pair<W>::closed();
        if (n == 0) continue;
        const RankOf place(q, n);
        const u64 lower = static_cast<u64>(place.lower), upper = static_cast<u64>(place.upper);
        const Side low = side_of_rank(lower, upto), high = side_of_rank(upper, upto);
        if (low != Side::below && high != Side::above) {
            settle(lower, low, upto, bracket, found[g].low, ranks[g].low);
            settle(upper, high, upto, bracket, found[g].high, ranks[g].high);
            continue;
        }
        Pair<W> wider = bracket;
        if (low == Side::below) wider.low = 0;
        else if (low == Side::above) wider.low = bracket.high;
        if (high == Side::above) wider.high = static_cast<W>(~W(0));
        else if (high == Side::below) wider.high = bracket.low;
        brackets[g] = wider;
        atomicAdd(missed, 1u);
    }
}

// Quantiles from the words on either side of them. H: what lies between two values.
template <class T, class H>
__global__ void __launch_bounds__(SMALL_BLOCK)
    quantiles_found(const Pair<typename Sortable<T>::Word>* found, const u64* sizes, u32 groups,
                    f64 q, Between between, const __grid_constant__ Target to, u32* nulls) {
    using Made = typename H::template Made<T>;
    const u32 lane = threadIdx.x % WARP;
    const u32 stride = gridDim.x * blockDim.x;
    for (u64 base = blockIdx.x * blockDim.x + threadIdx.x - lane; base < groups; base += stride) {
        const u32 group = static_cast<u32>(base) + lane;
        const bool is_group = group < groups;
        Made made{};
        bool valid = false;
        if (is_group && sizes[group] > 0) {
            valid = true;
            const T low = Sortable<T>::back(found[group].low);
            const T high = Sortable<T>::back(found[group].high);
            made = H::between(low, high, RankOf(q, sizes[group]), q, between);
        }
        const u32 missing = __ballot_sync(ALL_LANES, is_group && !valid);
        if (lane == 0 && missing) atomicAdd(nulls, __popc(missing));
        put(to, group, made, valid, is_group);
    }
}

}  // namespace gpuagg
