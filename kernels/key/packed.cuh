// Fixed-width key columns packed into one 64-bit word, which a bijection mixes: tables hold and
// compare mixed words, and only the groups that come out are unmixed.
#pragma once

#include "key/probe.cuh"

namespace gpuagg {

// The canonical bits of one value: -0.0 as 0.0. A NaN key is a null one, as in cuDF.
template <class T, u32 Bytes = sizeof(T)> struct KeyBits;
template <class T> struct KeyBits<T, 1> {
    static GPUAGG_INLINE u64 of(T v) { return static_cast<u8>(v); }
    static GPUAGG_INLINE T back(u64 bits) { return static_cast<T>(bits); }
};
template <class T> struct KeyBits<T, 2> {
    static GPUAGG_INLINE u64 of(T v) { return static_cast<u16>(v); }
    static GPUAGG_INLINE T back(u64 bits) { return static_cast<T>(bits); }
};
template <class T> struct KeyBits<T, 4> {
    static GPUAGG_INLINE u64 of(T v) { return static_cast<u32>(v); }
    static GPUAGG_INLINE T back(u64 bits) { return static_cast<T>(bits); }
};
template <class T> struct KeyBits<T, 8> {
    static GPUAGG_INLINE u64 of(T v) { return static_cast<u64>(v); }
    static GPUAGG_INLINE T back(u64 bits) { return static_cast<T>(bits); }
};
template <> struct KeyBits<f32, 4> {
    static GPUAGG_INLINE u64 of(f32 v) { return static_cast<u32>(__float_as_int(v + 0.0f)); }
    static GPUAGG_INLINE f32 back(u64 bits) { return __int_as_float(static_cast<i32>(bits)); }
};
template <> struct KeyBits<f64, 8> {
    static GPUAGG_INLINE u64 of(f64 v) {
        return static_cast<u64>(__double_as_longlong(v + 0.0));
    }
    static GPUAGG_INLINE f64 back(u64 bits) {
        return __longlong_as_double(static_cast<i64>(bits));
    }
};

template <class T> GPUAGG_INLINE bool is_nan(T value) {
    if constexpr (Traits<T>::floating) return value != value;
    return false;
}

// One key column. Masked: the column has a null mask.
template <class T_, u32 COLUMN, bool MASKED> struct KeyColumn {
    using T = T_;
    static constexpr u32 column = COLUMN;
    static constexpr bool masked = MASKED;
    static constexpr bool nullable = MASKED || Traits<T>::floating;
    static constexpr u32 bits = 8 * sizeof(T);
};

// KEEP_NULLS: null keys form groups; then a null takes one bit of the word where there is room,
// and the null slot where the only key has 64 bits itself.
template <bool KEEP_NULLS, class... K> struct Packed {
    static constexpr bool by_row = false;
    static constexpr u32 columns = sizeof...(K);
    static constexpr u32 bits = (K::bits + ... + 0u);
    static constexpr u32 flags = KEEP_NULLS ? ((K::nullable ? 1u : 0u) + ... + 0u) : 0u;
    static constexpr bool null_slot = columns == 1 && bits + flags > 64;
    static_assert(bits + flags <= 64 || null_slot, "the key does not fit one word");

    template <class C> static GPUAGG_INLINE void append(const Column* from, i64 row, u64& word,
                                                        bool& dropped, bool& null) {
        const Column& column = from[C::column];
        const typename C::T value = load<typename C::T>(column, row);
        bool missing = is_nan(value);
        if constexpr (C::masked) missing = missing || !is_valid(column, row);
        const u64 part = missing ? 0ull : KeyBits<typename C::T>::of(value);
        if constexpr (C::bits == 64) word = part;
        else word = (word << C::bits) | part;
        if constexpr (C::nullable) {
            if constexpr (!KEEP_NULLS) dropped = dropped || missing;
            else if constexpr (null_slot) null = missing;
            else word = (word << 1) | (missing ? 1ull : 0ull);
        }
    }

    // The word before it is mixed.
    static GPUAGG_INLINE u64 plain(const Column* from, i64 row, Kind& kind) {
        u64 word = 0;
        bool dropped = false, null = false;
        (append<K>(from, row, word, dropped, null), ...);
        kind = dropped ? Kind::drop : null ? Kind::null : Kind::key;
        return word;
    }

    static GPUAGG_INLINE Probe probe(const Column* from, i64 row) {
        Kind kind;
        const u64 word = plain(from, row, kind);
        return of_word(mix(word), kind);
    }

    static GPUAGG_INLINE Probe of_word(u64 word, Kind kind) {
        if (kind != Kind::key) word = EMPTY;
        else if (word == EMPTY) kind = Kind::empty;
        return {word, static_cast<u32>(word >> 32), kind};
    }

    // What the rows of an occupied slot asked for.
    static GPUAGG_INLINE Probe again(const Column*, u64 word) { return of_word(word, Kind::key); }

    static GPUAGG_INLINE bool same(const Column*, u64 held, const Probe& wanted) {
        return held == wanted.word;
    }

    // 64 bits that tell keys apart, for the sample.
    static GPUAGG_INLINE u64 fingerprint(const Column*, const Probe& probe) { return probe.word; }
};

// Takes the columns of an unmixed word apart again, last one first.
template <bool KEEP_NULLS, class P> struct Unpack {
    u64 word;
    bool null;  // the whole key is the null slot's
    template <class C> GPUAGG_INLINE typename C::T next(bool& valid) {
        valid = !null;
        if constexpr (KEEP_NULLS && C::nullable && !P::null_slot) {
            valid = !(word & 1ull);
            word >>= 1;
        }
        const typename C::T value = KeyBits<typename C::T>::back(word);
        if constexpr (C::bits < 64) word >>= C::bits;
        return value;
    }
};

}  // namespace gpuagg
