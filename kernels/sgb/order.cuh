// Values and keys as unsigned words that sort as they do.
#pragma once

#include "key/packed.cuh"

namespace gpuagg {

// -0.0 as 0.0, and every NaN alike, behind infinity, as
// libcudf has them.
template <class T, u32 Bytes = sizeof(T)> struct Sortable {
    using Word = u32;
    static constexpr u32 SIGN = Traits<T>::negative ? 1u << (8 * Bytes - 1) : 0u;
    static GPUAGG_INLINE Word of(T v) { return static_cast<u32>(KeyBits<T>::of(v)) ^ SIGN; }
    static GPUAGG_INLINE T back(Word w) { return static_cast<T>(w ^ SIGN); }
};
template <class T> struct Sortable<T, 8> {
    using Word = u64;
    static constexpr u64 SIGN = Traits<T>::negative ? 1ull << 63 : 0ull;
    static GPUAGG_INLINE Word of(T v) { return static_cast<u64>(v) ^ SIGN; }
    static GPUAGG_INLINE T back(Word w) { return static_cast<T>(w ^ SIGN); }
};
template <> struct Sortable<f32, 4> {
    using Word = u32;
    static GPUAGG_INLINE Word of(f32 v) {
        const u32 bits = is_nan(v) ? 0x7fc00000u : static_cast<u32>(KeyBits<f32>::of(v));
        return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
    }
    static GPUAGG_INLINE f32 back(Word w) {
        return KeyBits<f32>::back(w ^ (w >> 31 ? 0x80000000u : 0xffffffffu));
    }
};
template <> struct Sortable<f64, 8> {
    using Word = u64;
    static GPUAGG_INLINE Word of(f64 v) {
        const u64 bits = is_nan(v) ? 0x7ff8000000000000ull : KeyBits<f64>::of(v);
        return bits ^ (bits >> 63 ? ~0ull : 1ull << 63);
    }
    static GPUAGG_INLINE f64 back(Word w) {
        return KeyBits<f64>::back(w ^ (w >> 63 ? 1ull << 63 : ~0ull));
    }
};

// A row's key as a word that orders as the keys do, nulls last.
struct Ranked {
    u64 word;
    bool kept;  // the row belongs to a group
    bool odd;   // the null key of 64 bits, which has no such word
};

// Only keys that fit one word have such words.
template <class K> struct InOrder { static constexpr bool exists = false; };
template <bool KEEP, class... C> struct InOrder<Packed<KEEP, C...>> {
    static constexpr bool exists = true;
    template <class One> static GPUAGG_INLINE void append(const Column* from, i64 row, Ranked& to) {
        using T = typename One::T;
        const Column& column = from[One::column];
        const T value = load<T>(column, row);
        bool missing = is_nan(value);
        if constexpr (One::masked) missing = missing || !is_valid(column, row);
        if constexpr (One::nullable) {
            if constexpr (!KEEP) to.kept = to.kept && !missing;
            else if constexpr (Packed<KEEP, C...>::null_slot) to.odd = missing;
            else to.word = to.word << 1 | (missing ? 1ull : 0ull);
        }
        const u64 part = missing ? 0ull : static_cast<u64>(Sortable<T>::of(value));
        if constexpr (One::bits == 64) to.word = part;
        else to.word = to.word << One::bits | part;
    }
    static GPUAGG_INLINE Ranked of(const Column* from, i64 row) {
        Ranked made{0ull, true, false};
        (append<C>(from, row, made), ...);
        if (!made.kept) made.word = EMPTY;
        return made;
    }
};

}  // namespace gpuagg
