// Outputs of exact sums: rounded once, to the nearest float64, and to the even one of two. `total` of
// dask_gpuagg/exact_sums.py gives the same bits.
#pragma once

#include "output/outputs.cuh"

namespace gpuagg {

// What moments.py takes for lost digits: of groups whose bins do not hold all of the sum.
constexpr f64 EXACT_LOSS = 1e300;

GPUAGG_INLINE u32 lowest_bin(u64 used) { return EXACT_LOWEST - 1 + static_cast<u32>(__ffsll(static_cast<i64>(used))); }

// Whether a group's values lie between bins that a slot has.
GPUAGG_INLINE bool holds_all(u64 used) {
    if (used == 0) return true;
    return (used & EXACT_UNUSUAL) == 0 && used >> (lowest_bin(used) - EXACT_LOWEST) < 1ull << EXACT_BINS;
}

// Of such a group.
template <class V> GPUAGG_INLINE f64 exact_total(const V& v) {
    if (v.used == 0) return 0.0;
    const u32 first = lowest_bin(v.used);
    // carries done: an integer of three words, with its sign
    u32 digit[EXACT_BINS];
    i64 carry = 0;
#pragma unroll
    for (u32 k = 0; k < EXACT_BINS; ++k) {
        u64 bin = 0;
#pragma unroll
        for (u32 j = 0; j < EXACT_BINS; ++j)
            if ((first + k) % EXACT_BINS == j) bin = v.bins[j];
        const i64 held = static_cast<i64>(bin) + carry;
        digit[k] = static_cast<u32>(held);
        carry = held >> 32;
    }
    u64 low = static_cast<u64>(digit[1]) << 32 | digit[0];
    u64 middle = static_cast<u64>(digit[3]) << 32 | digit[2];
    u64 high = static_cast<u64>(carry);
    const bool negative = carry < 0;
    if (negative) {
        low = 0ull - low;
        middle = ~middle + (low == 0 ? 1ull : 0ull);
        high = ~high + (low == 0 && middle == 0 ? 1ull : 0ull);
    }
    // its highest word that is not 0 becomes the first
    u32 start = 32 * first + 128;
#pragma unroll
    for (u32 i = 0; i < 2; ++i)
        if (high == 0) {
            high = middle;
            middle = low;
            low = 0;
            start -= 64;
        }
    if (high == 0) return 0.0;
    const u32 bits = 64 - static_cast<u32>(__clzll(static_cast<i64>(high)));
    const u64 upper = bits == 64 ? high : high << (64 - bits) | middle >> bits;
    const u64 beyond = bits == 64 ? middle : middle << (64 - bits);
    // 53 bits are kept; a carry out of the mantissa is one of the exponent
    const u64 kept = upper >> 11, rest = upper & 0x7ffull;
    const bool up = rest > 0x400ull || (rest == 0x400ull && ((kept & 1ull) || beyond || low));
    u64 made = (static_cast<u64>(start + bits - 53) << 52) + kept + (up ? 1ull : 0ull);
    constexpr u64 INFINITE = 0x7ff0000000000000ull;
    if (made > INFINITE) made = INFINITE;
    return __longlong_as_double(static_cast<i64>(made | (negative ? 1ull << 63 : 0ull)));
}

// The bins of an exact sum, and which of them are used.
template <u32 S, u32 K> struct ExactBin : Output<i64, false, S> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, i64& out) {
        out = static_cast<i64>(Nth<S, L>::of(v).bins[K]);
        return true;
    }
};
template <u32 S> struct ExactUsed : Output<i64, false, S> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, i64& out) {
        out = static_cast<i64>(Nth<S, L>::of(v).used);
        return true;
    }
};

// COUNT: the valid rows, where the column may have none.
template <u32 S, u32 COUNT> struct ExactTotal : Output<f64, COUNT != NO_STATE, S, COUNT> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, f64& out) {
        out = exact_total(Nth<S, L>::of(v));
        if constexpr (COUNT != NO_STATE) return Nth<COUNT, L>::of(v).x != 0;
        return true;
    }
};
template <u32 S, u32 COUNT, bool NULLABLE> struct ExactMean : Output<f64, NULLABLE, S, COUNT> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, f64& out) {
        const f64 n = static_cast<f64>(Nth<COUNT, L>::of(v).x);
        out = exact_total(Nth<S, L>::of(v)) / n;
        return n > 0.0;
    }
};
template <u32 S> struct ExactLoss : Output<f64, false, S> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, f64& out) {
        out = holds_all(Nth<S, L>::of(v).used) ? 0.0 : EXACT_LOSS;
        return true;
    }
};

}  // namespace gpuagg
