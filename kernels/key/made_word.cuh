// Keys wider than one word: a separate pass makes a word of every row's key, and all kernels group
// by these words. That rows of one word have one key is checked by a second word: both together are
// the key, or two hashes of it. Whatever is in doubt raises a flag, on which the host starts again with keys by row.
#pragma once

#include "aggregate/list.cuh"
#include "key/by_row.cuh"

namespace gpuagg {

// WORDS: the column of the words; EMPTY for rows of no group.
template <u32 WORDS> struct MadeWord {
    static constexpr bool by_row = false;

    static GPUAGG_INLINE Probe of_word(u64 word) {
        return {word, static_cast<u32>(word >> 32), word == EMPTY ? Kind::drop : Kind::key};
    }
    static GPUAGG_INLINE Probe probe(const Column* from, i64 row) {
        return of_word(load<u64>(from[WORDS], row));
    }
    static GPUAGG_INLINE Probe again(const Column*, u64 word) { return of_word(word); }
    static GPUAGG_INLINE bool same(const Column*, u64 held, const Probe& wanted) {
        return held == wanted.word;
    }
    static GPUAGG_INLINE u64 fingerprint(const Column*, const Probe& probe) { return probe.word; }
    static GPUAGG_INLINE void put_word(const Column* columns, i64 row, u64 word) {
        static_cast<u64*>(const_cast<void*>(columns[WORDS].data))[row] = word;
    }
};

// 128 bits. The word and the witness, a column that is an input of the states too, are a bijection of
// them; the groups' witnesses are kept by state STATE.
template <u32 WORDS, u32 WITNESSES, u32 STATE> struct TwoWords : MadeWord<WORDS> {
    static constexpr u32 state = STATE;

    // False if the row's word or witness is one that has another meaning.
    static GPUAGG_INLINE bool put(const Column* columns, i64 row, u128 all, bool dropped) {
        const u64 high = static_cast<u64>(all >> 64);
        const u64 witness = scramble(high ^ GOLDEN);
        // multiplications alone: the grids that several columns make stay evenly spread
        const u64 word = mix(static_cast<u64>(all)) + mix_high(high);
        MadeWord<WORDS>::put_word(columns, row, dropped ? EMPTY : word);
        static_cast<u64*>(const_cast<void*>(columns[WITNESSES].data))[row] = witness;
        return dropped || (word != EMPTY && is_witness(witness));
    }

    static GPUAGG_INLINE u128 key(u64 word, u64 witness) {
        const u64 high = unscramble(witness) ^ GOLDEN;
        const u64 low = unmix(word - mix_high(high));
        return (static_cast<u128>(high) << 64) | low;
    }
};

// Keys of up to 128 bits.
template <bool KEEP_NULLS, u32 WORDS, u32 WITNESSES, u32 STATE, class... K>
struct Wide : TwoWords<WORDS, WITNESSES, STATE> {
    static constexpr u32 bits = (K::bits + ... + 0u);
    static constexpr u32 flags = KEEP_NULLS ? ((K::nullable ? 1u : 0u) + ... + 0u) : 0u;
    static_assert(bits + flags <= 128, "the key does not fit two words");

    template <class C>
    static GPUAGG_INLINE void append(C, const Column* from, i64 row, u128& all, bool& dropped) {
        using T = typename C::T;
        const T value = load<T>(from[C::column], row);
        bool missing = is_nan(value);
        if constexpr (C::masked) missing = missing || !is_valid(from[C::column], row);
        u128 part = 0;
        if constexpr (C::bits == 128) part = static_cast<u128>(value);
        else part = KeyBits<T>::of(value);
        if (missing) part = 0;
        if constexpr (C::bits == 128) all = part;
        else all = (all << C::bits) | part;
        if constexpr (C::nullable) {
            if constexpr (KEEP_NULLS) all = (all << 1) | (missing ? 1u : 0u);
            else dropped = dropped || missing;
        }
    }

    static GPUAGG_INLINE bool make(const Column* from, const Factors&, i64 row) {
        u128 all = 0;
        bool dropped = false;
        (append(K{}, from, row, all, dropped), ...);
        return TwoWords<WORDS, WITNESSES, STATE>::put(from, row, all, dropped);
    }
};

// Integers that together have more bits than that, but whose values, according to a sample, have not:
// what each has above its base, in the bits that its range needs. RANGES: the first of as many columns
// without memory, of which `data` is the base and `offset` the number of bits, less than 64. With
// KEEP_NULLS the code 0 of a nullable column stands for null.
template <bool KEEP_NULLS, u32 WORDS, u32 WITNESSES, u32 STATE, u32 RANGES, class... K>
struct WideRanged : TwoWords<WORDS, WITNESSES, STATE> {
    static constexpr u32 columns = sizeof...(K);

    template <class C> static constexpr bool with_null = KEEP_NULLS && C::nullable;

    template <class C>
    static GPUAGG_INLINE void append(const Column* from, const Column& range, i64 row, u128& all,
                                     bool& dropped, bool& outside) {
        using T = typename C::T;
        bool missing = false;
        if constexpr (C::masked) missing = !is_valid(from[C::column], row);
        const u64 base = reinterpret_cast<u64>(range.data);
        const u32 bits = static_cast<u32>(range.offset);
        u64 code = static_cast<u64>(static_cast<i64>(load<T>(from[C::column], row))) - base;
        if constexpr (with_null<C>) code = missing ? 0ull : code + 1;
        else dropped = dropped || missing;
        // a value just below the base would have the code of null
        outside = outside || (!missing && ((code >> bits) != 0 || (with_null<C> && code == 0)));
        all = (all << bits) | (code & ((1ull << bits) - 1));
    }

    // False for a value outside of its range too.
    static GPUAGG_INLINE bool make(const Column* from, const Factors&, i64 row) {
        u128 all = 0;
        bool dropped = false, outside = false;
        u32 i = 0;
        (append<K>(from, from[RANGES + i++], row, all, dropped, outside), ...);
        const bool sure = TwoWords<WORDS, WITNESSES, STATE>::put(from, row, all, dropped);
        return sure && (dropped || !outside);
    }
};

// Takes the columns of such a key apart again, last one first.
template <class P> struct UnpackWideRanged {
    u128 key;
    const Column* range;  // behind the last one
    template <class C> GPUAGG_INLINE typename C::T next(bool& valid) {
        --range;
        const u32 bits = static_cast<u32>(range->offset);
        u64 code = static_cast<u64>(key) & ((1ull << bits) - 1);
        key >>= bits;
        valid = true;
        if constexpr (P::template with_null<C>) {
            valid = code != 0;
            if (valid) --code;
        }
        return static_cast<typename C::T>(code + reinterpret_cast<u64>(range->data));
    }
};

// Takes the columns of a wide key apart again, last one first.
template <bool KEEP_NULLS> struct UnpackWide {
    u128 key;
    template <class C> GPUAGG_INLINE typename C::T next(bool& valid) {
        using T = typename C::T;
        valid = true;
        if constexpr (KEEP_NULLS && C::nullable) {
            valid = !(key & 1u);
            key >>= 1;
        }
        T value;
        if constexpr (C::bits == 128) {
            value = static_cast<T>(key);
        } else {
            value = KeyBits<T>::back(static_cast<u64>(key));
            key >>= C::bits;
        }
        return value;
    }
};

// Strings, and keys of more than 128 bits: the word is a hash, and beside it a second one of 32 bits
// checks that a group has one key. Two keys share both with a probability below 2**-95, or below 2**-61
// if somebody chose them to. State STATE keeps the check with the number of a row, from which the key
// columns are gathered.
template <bool KEEP_NULLS, u32 WORDS, u32 CHECKS, u32 STATE, class... K>
struct Hashed : MadeWord<WORDS> {
    using Rows = ByRow<KEEP_NULLS, K...>;
    static constexpr u32 state = STATE;

    static GPUAGG_INLINE bool make(const Column* from, const Factors& factors, i64 row) {
        bool dropped = false;
        const SecretHashes hash = Rows::hash(from, row, dropped, SecretHashes{factors, {}, {}});
        const u64 word = hash.word() == EMPTY ? 0ull : hash.word();
        const u32 check = hash.check();
        MadeWord<WORDS>::put_word(from, row, dropped ? EMPTY : word);
        MadeWord<CHECKS>::put_word(
            from, row, static_cast<u64>(check ? check : 1u) << 32 | static_cast<u32>(row));
        return true;
    }
};

}  // namespace gpuagg
