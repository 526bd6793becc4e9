// Sums without rounding, which are the same in whatever order atomics come: the policy of states.cuh for the state
// `xsum`. dask_gpuagg/exact_sums.py says what bins are, and has the sources.
#pragma once

#include "aggregate/states.cuh"

namespace gpuagg {

// Bins of a slot: bin j of the sum lies in bin j % EXACT_BINS.
constexpr u32 EXACT_BINS = 4;
// The lowest bin that has a bit in `used`, and the bit of values beyond the bins that have one: very small or very
// large ones, infinities and NaN, of which the bins hold nothing that is read.
constexpr u32 EXACT_LOWEST = 3;
constexpr u64 EXACT_UNUSUAL = 1ull << 63;

// Magnitude, sign and lowest bit of a value, counted from 2**-1074; false of what is not finite.
template <class T> GPUAGG_INLINE bool take_apart(T value, u64& magnitude, u32& start, bool& negative) {
    if constexpr (Traits<T>::floating) {
        const u64 bits = static_cast<u64>(__double_as_longlong(static_cast<f64>(value)));
        const u32 exponent = static_cast<u32>(bits >> 52) & 0x7ffu;
        magnitude = bits & 0xfffffffffffffull;
        if (exponent) magnitude |= 1ull << 52;
        start = exponent ? exponent - 1 : 0;
        negative = bits >> 63;
        return exponent != 0x7ffu;
    } else {
        negative = Traits<T>::negative && value < static_cast<T>(0);
        magnitude = static_cast<u64>(static_cast<i64>(value));
        if (negative) magnitude = 0ull - magnitude;
        start = 1074;
        return true;
    }
}

template <u32 I> struct ExactSum {
    // used: the bins between which values lie, as bits
    struct Value { u64 used, bins[EXACT_BINS]; };
    struct Memory {
        u64 *used, *bins;
        u64 all;
    };
    static GPUAGG_INLINE constexpr u32 bytes(u32 replicas) { return 8 + 8 * EXACT_BINS * replicas; }
    static GPUAGG_INLINE Memory carve(char* base, u32 slots, u32 replicas) {
        u64* used = reinterpret_cast<u64*>(base);
        return {used, used + slots, static_cast<u64>(slots) * replicas};
    }
    static GPUAGG_INLINE Value none() { return {0ull, {0ull, 0ull, 0ull, 0ull}}; }
    template <class R> static GPUAGG_INLINE bool take(const R& row, u32, Value& v) {
        u64 magnitude;
        u32 start;
        bool negative;
        const bool finite = take_apart(cell<I>(row).value, magnitude, start, negative);
        v = none();
        if (magnitude == 0) return cell<I>(row).valid;
        if (finite) {
            const u32 shift = start & 31u, first = start >> 5;
            const u32 last = (start + 63u - static_cast<u32>(__clzll(static_cast<i64>(magnitude)))) >> 5;
            const u64 lower = magnitude << shift;
            // in two steps: a shift by 64 bits is none
            u64 slice[3] = {lower & 0xffffffffull, lower >> 32, (magnitude >> 1) >> (63u - shift)};
#pragma unroll
            for (u32 i = 0; i < 3; ++i)
                if (negative) slice[i] = 0ull - slice[i];
#pragma unroll
            for (u32 k = 0; k < EXACT_BINS; ++k) {
                const u32 i = (k - first) % EXACT_BINS;
                v.bins[k] = i == 0 ? slice[0] : i == 1 ? slice[1] : i == 2 ? slice[2] : 0ull;
            }
            if (first >= EXACT_LOWEST && last < EXACT_LOWEST + 63u)
                v.used = 1ull << (first - EXACT_LOWEST) | 1ull << (last - EXACT_LOWEST);
        }
        if (v.used == 0) v.used = EXACT_UNUSUAL;
        return cell<I>(row).valid;
    }
    static GPUAGG_INLINE void fold(Value& a, const Value& b) {
        a.used |= b.used;
#pragma unroll
        for (u32 k = 0; k < EXACT_BINS; ++k) a.bins[k] += b.bins[k];
    }
    template <class S> static GPUAGG_INLINE void add(S s, const Memory& m, Place p, const Value& v) {
        // a look first: hardly any row has a bin that none of its group had
        if (v.used & ~peek(m.used + p.slot)) atomicOr(m.used + p.slot, v.used);
#pragma unroll
        for (u32 k = 0; k < EXACT_BINS; ++k)
            if (v.bins[k]) gpuagg::add(s, m.bins + k * m.all + p.replica, v.bins[k]);
    }
    static GPUAGG_INLINE Value read(const Memory& m, Place p) {
        Value v;
        v.used = m.used[p.slot];
#pragma unroll
        for (u32 k = 0; k < EXACT_BINS; ++k) v.bins[k] = m.bins[k * m.all + p.replica];
        return v;
    }
    static GPUAGG_INLINE void write(const Memory& m, Place p, const Value& v) {
        m.used[p.slot] = v.used;
#pragma unroll
        for (u32 k = 0; k < EXACT_BINS; ++k) m.bins[k * m.all + p.replica] = v.bins[k];
    }
};

}  // namespace gpuagg
