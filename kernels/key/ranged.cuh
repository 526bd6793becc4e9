// Integer columns that together are wider than a word, but whose values, according to a sample,
// are not: what each has above its base, as the digits of one number, whose radixes are the sizes of the
// ranges. So keys that fill their ranges fill a range of numbers. A row with a value outside of its
// column's range raises a flag, on which the host starts again without ranges. An only column
// whose values are whole steps apart, such as days in nanoseconds, is a range of steps.
#pragma once

#include "key/packed.cuh"

namespace gpuagg {

// Which values of a range have a code: all of them.
struct EveryValue {
    template <class T> static GPUAGG_INLINE u64 code(const Column&, T value, u64 base) {
        return static_cast<u64>(static_cast<i64>(value)) - base;
    }
    template <class T> static GPUAGG_INLINE T value(const Column&, u64 code, u64 base) {
        return static_cast<T>(code + base);
    }
};

// Those that are a whole number of steps above the base. `step` has no memory: its `offset` is the step,
// an odd number times a power of two, `data` the inverse of that odd number modulo 2**64, and the
// mask the power. Of a multiple of the step the product with the inverse is the quotient, turned left;
// of other values it is more than any quotient, and so outside of the range (Granlund and Montgomery
// 1994, section 9).
struct EveryStep {
    template <class T> static GPUAGG_INLINE u64 code(const Column& step, T value, u64 base) {
        const u64 above = static_cast<u64>(static_cast<i64>(value)) - base;
        const u64 product = above * reinterpret_cast<u64>(step.data);
        const u32 power = static_cast<u32>(reinterpret_cast<u64>(step.mask));
        return (product >> power) | (product << ((64 - power) & 63));
    }
    template <class T> static GPUAGG_INLINE T value(const Column& step, u64 code, u64 base) {
        return static_cast<T>(code * static_cast<u64>(step.offset) + base);
    }
};

// RANGES: the first of as many columns without memory, of which `data` is the base, `offset` the
// number of codes, and the mask of the first one the flag's address. The column of a step lies before
// them. With KEEP_NULLS the code 0 of a nullable column stands for null.
template <class VALUES, bool KEEP_NULLS, u32 RANGES, class... K> struct RangedBy {
    using Values = VALUES;
    static constexpr bool by_row = false;
    static constexpr u32 columns = sizeof...(K);

    template <class C> static constexpr bool with_null = KEEP_NULLS && C::nullable;

    template <class C>
    static GPUAGG_INLINE void append(const Column* from, const Column& range, i64 row, u64& word,
                                     bool& dropped, bool& outside) {
        using T = typename C::T;
        const T value = load<T>(from[C::column], row);
        bool missing = is_nan(value);
        if constexpr (C::masked) missing = missing || !is_valid(from[C::column], row);
        const u64 codes = static_cast<u64>(range.offset);
        const u64 base = reinterpret_cast<u64>(range.data);
        u64 code = Values::template code<T>(*(&range - columns), value, base);
        outside = outside || (!missing && code >= codes - (with_null<C> ? 1 : 0));
        if constexpr (with_null<C>) code = missing ? 0ull : code + 1;
        else dropped = dropped || missing;
        word = word * codes + code;
    }

    // The word before it is mixed.
    static GPUAGG_INLINE u64 plain(const Column* from, i64 row, Kind& kind) {
        u64 word = 0;
        bool dropped = false, outside = false;
        u32 i = 0;
        (append<K>(from, from[RANGES + i++], row, word, dropped, outside), ...);
        if (outside && !dropped) {
            *const_cast<u32*>(from[RANGES].mask) = 1;
            dropped = true;
        }
        kind = dropped ? Kind::drop : Kind::key;
        return word;
    }

    static GPUAGG_INLINE Probe probe(const Column* from, i64 row) {
        Kind kind;
        const u64 word = plain(from, row, kind);
        const bool dropped = kind == Kind::drop;
        return of_word(dropped ? EMPTY : mix(word), dropped);
    }

    static GPUAGG_INLINE Probe of_word(u64 word, bool dropped) {
        // no key mixes to EMPTY: the host's numbers are smaller
        return {word, static_cast<u32>(word >> 32), dropped ? Kind::drop : Kind::key};
    }
    static GPUAGG_INLINE Probe again(const Column*, u64 word) { return of_word(word, false); }
    static GPUAGG_INLINE bool same(const Column*, u64 held, const Probe& wanted) {
        return held == wanted.word;
    }
    static GPUAGG_INLINE u64 fingerprint(const Column*, const Probe& probe) { return probe.word; }
};

template <bool KEEP_NULLS, u32 RANGES, class... K>
using Ranged = RangedBy<EveryValue, KEEP_NULLS, RANGES, K...>;
template <bool KEEP_NULLS, u32 STEP, class K>
using Stepped = RangedBy<EveryStep, KEEP_NULLS, STEP + 1, K>;

// Takes the columns of an unmixed word apart again, last one first.
template <class P> struct UnpackRanged {
    u64 word;
    const Column* range;  // behind the last one
    template <class C> GPUAGG_INLINE typename C::T next(bool& valid) {
        --range;
        const u64 codes = static_cast<u64>(range->offset);
        u64 code = word % codes;
        word /= codes;
        valid = true;
        if constexpr (P::template with_null<C>) {
            valid = code != 0;
            if (valid) --code;
        }
        const u64 base = reinterpret_cast<u64>(range->data);
        return P::Values::template value<typename C::T>(*(range - P::columns), code, base);
    }
};

}  // namespace gpuagg
