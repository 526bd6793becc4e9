// One policy per kind of output: the type, the states it reads, the value and the validity of a
// group.
#pragma once

#include "aggregate/list.cuh"

namespace gpuagg {

constexpr u32 NO_STATE = ~0u;

// States of a list, as bits. Of longer lists the first ones: those are never asked about.
GPUAGG_INLINE constexpr u64 bit_of(u32 state) { return state < 64 ? 1ull << state : 0ull; }

// The type of an output, whether it may be null, and the states that it reads.
template <class T_, bool NULLABLE, u32... S> struct Output {
    using T = T_;
    static constexpr bool nullable = NULLABLE;
    static constexpr u64 reads = (bit_of(S) | ...);
};

// The field of a state as it is: counts, sums, products.
template <u32 S, class T> struct Field : Output<T, false, S> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, T& out) {
        out = static_cast<T>(Nth<S, L>::of(v).x);
        return true;
    }
};

// An output of one state S, null where no row was counted.
template <class O, u32 S, u32 COUNT> struct NullOfNone : Output<typename O::T, true, S, COUNT> {
    template <class L>
    static GPUAGG_INLINE bool make(const typename L::Value& v, typename O::T& out) {
        O::template make<L>(v, out);
        return Nth<COUNT, L>::of(v).x != 0;
    }
};
template <u32 S, u32 COUNT, class T> struct FieldOf : NullOfNone<Field<S, T>, S, COUNT> {};

// An extreme, back from its ordered bits. COUNT: the valid rows, where the column may have none.
// A group of NaN alone kept the identity, whose bits are those of a NaN.
template <u32 S, u32 COUNT, class T> struct Extreme : Output<T, COUNT != NO_STATE, S, COUNT> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, T& out) {
        out = Ordered<T>::back(Nth<S, L>::of(v).x);
        if constexpr (COUNT != NO_STATE) return Nth<COUNT, L>::of(v).x != 0;
        return true;
    }
};

// Numbers of rows to gather; where there is none the largest of all, which no table has. (-1 would
// not do: a gather takes it for the last row.)
template <u32 S, bool LAST> struct RowNumber : Output<i32, false, S> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, i32& out) {
        out = static_cast<i32>((Nth<S, L>::of(v).x - (LAST ? 1u : 0u)) & 0x7fffffffu);
        return true;
    }
};

template <u32 S> struct WideField : Output<i128, false, S> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, i128& out) {
        const auto& x = Nth<S, L>::of(v);
        out = static_cast<i128>((static_cast<u128>(x.high) << 64) | x.low);
        return true;
    }
};

template <u32 S, u32 COUNT> struct WideFieldOf : NullOfNone<WideField<S>, S, COUNT> {};

// A 128-bit sum of 64-bit values in two fields that sum in 64 bits again: below 2**31 partials of
// below 2**31 rows each, neither half overflows.
template <u32 S> struct WideUpper : Output<i64, false, S> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, i64& out) {
        const auto& x = Nth<S, L>::of(v);
        out = static_cast<i64>((x.high << 32) | (x.low >> 32));
        return true;
    }
};
template <u32 S> struct WideLower : Output<i64, false, S> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, i64& out) {
        out = static_cast<i64>(Nth<S, L>::of(v).low & 0xffffffffull);
        return true;
    }
};

// Fields of partial moments. A group of no values has mean NaN and second moment 0.
template <u32 S> struct MomentRows : Output<i64, false, S> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, i64& out) {
        out = static_cast<i64>(Nth<S, L>::of(v).n);
        return true;
    }
};
template <u32 S> struct MomentMean : Output<f64, false, S> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, f64& out) {
        out = Nth<S, L>::State::mean(Nth<S, L>::of(v));
        return true;
    }
};
template <u32 S> struct MomentM2 : Output<f64, false, S> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, f64& out) {
        const auto& x = Nth<S, L>::of(v);
        out = x.n == 0 ? 0.0 : Nth<S, L>::State::m2(x);
        return true;
    }
};
// How many times the second moment the second sum was, before what the pivot is off the mean was
// taken from it: this many times the rounding errors are larger. At most the number of rows.
template <u32 S> struct MomentLoss : Output<f64, false, S> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, f64& out) {
        const auto& x = Nth<S, L>::of(v);
        const bool centred = x.n == 0 || x.s1 == 0.0;
        out = centred ? 0.0
                      : x.s1 * (x.s1 / static_cast<f64>(x.n)) / Nth<S, L>::State::m2(x);
        return true;
    }
};

// Finished outputs. NULLABLE: groups may have no values.
template <u32 SUM, u32 COUNT, bool NULLABLE> struct Mean : Output<f64, NULLABLE, SUM, COUNT> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, f64& out) {
        const f64 n = static_cast<f64>(Nth<COUNT, L>::of(v).x);
        out = static_cast<f64>(Nth<SUM, L>::of(v).x) / n;
        return n > 0.0;
    }
};
// In the values' own unit, rounded towards zero as the division of integers is.
template <u32 SUM, u32 COUNT, class T, bool NULLABLE> struct WideMean : Output<T, NULLABLE, SUM, COUNT> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, T& out) {
        i128 sum;
        WideField<SUM>::template make<L>(v, sum);
        const i128 n = static_cast<i128>(Nth<COUNT, L>::of(v).x);
        out = static_cast<T>(n == 0 ? n : sum / n);
        return n != 0;
    }
};
template <u32 UPPER, u32 LOWER, u32 COUNT, class T> struct LimbMean : Output<T, true, UPPER, LOWER, COUNT> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, T& out) {
        const i128 upper = static_cast<i64>(Nth<UPPER, L>::of(v).x);
        const i128 lower = static_cast<i64>(Nth<LOWER, L>::of(v).x);
        const i128 n = static_cast<i128>(Nth<COUNT, L>::of(v).x);
        out = static_cast<T>(n == 0 ? n : (upper * (i128(1) << 32) + lower) / n);
        return n != 0;
    }
};
// Power 0: variance; 1: standard deviation; 2: standard error of the mean.
template <u32 S, i32 DDOF, u32 POWER> struct Spread : Output<f64, true, S> {
    template <class L> static GPUAGG_INLINE bool make(const typename L::Value& v, f64& out) {
        const auto& x = Nth<S, L>::of(v);
        const f64 n = static_cast<f64>(x.n);
        const f64 free = n - static_cast<f64>(DDOF);
        out = Nth<S, L>::State::m2(x) / free;
        if (POWER >= 1) out = sqrt(out);
        if (POWER == 2) out /= sqrt(n);
        return free > 0.0;
    }
};

}  // namespace gpuagg
