// Keys of any width: the table holds a representative row and 32 bits of the hash in one word, so
// one compare-and-swap claims a slot, and every hit compares the key columns of the two rows.
#pragma once

#include "key/packed.cuh"

namespace gpuagg {

// What a null is hashed as.
constexpr u64 NULL_HASH = 0x9e3779b97f4a7c15ull;
// A second multiplier, of as even spread as GOLDEN: 2**64 over the silver ratio.
GPUAGG_INLINE u64 mix_high(u64 x) { return (x ^ (x >> 32)) * 0x6a09e667f3bcc909ull; }

// A linear function of up to nine words, by 32 bits each (Carter and Wegman 1979, section 1: its factors
// are any odd numbers), mixed between columns and between stretches of a string.
struct LinearHash {
    u64 sum = 0;
    GPUAGG_INLINE void next() { sum = mix(sum); }
    GPUAGG_INLINE void add(u64 word, u32 low_factor, u32 high_factor) {
        sum += static_cast<u64>(static_cast<u32>(word)) * low_factor;
        sum += static_cast<u64>(static_cast<u32>(word >> 32)) * high_factor;
    }
};
// One hash by constants: keys that share it are compared.
struct FixedHash {
    LinearHash linear;
    static GPUAGG_INLINE u32 factor(u32 i) {
        return static_cast<u32>(scramble((1 + i) * GOLDEN) >> 32) | 1u;
    }
    GPUAGG_INLINE void next() { linear.next(); }
    GPUAGG_INLINE void add(u64 word, u32 place) {
        linear.add(word, factor(2 * place), factor(2 * place + 1));
    }
    GPUAGG_INLINE u64 word() const { return scramble(linear.sum); }
};
// Two hashes by the process's own factors, so that no keys can be constructed that share both.
struct SecretHashes {
    const Factors& factors;
    LinearHash first, second;
    GPUAGG_INLINE void next() {
        first.next();
        second.next();
    }
    GPUAGG_INLINE void add(u64 word, u32 place) {
        first.add(word, factors.first[2 * place], factors.first[2 * place + 1]);
        second.add(word, factors.second[2 * place], factors.second[2 * place + 1]);
    }
    GPUAGG_INLINE u64 word() const { return scramble(first.sum); }
    GPUAGG_INLINE u32 check() const { return static_cast<u32>(scramble(second.sum) >> 32); }
};

// Fixed-width columns reuse KeyColumn. i128 (decimal128) has its own bits.
template <class C> struct Whole {
    using T = typename C::T;
    static GPUAGG_INLINE bool missing(const Column& column, i64 row) {
        bool null = false;
        if constexpr (C::masked) null = !is_valid(column, row);
        if constexpr (Traits<T>::floating) null = null || is_nan(load<T>(column, row));
        return null;
    }
    template <class H> static GPUAGG_INLINE void hash(const Column& column, i64 row, H& h) {
        if constexpr (sizeof(T) == 16) {
            const u128 v = static_cast<u128>(load<T>(column, row));
            h.add(static_cast<u64>(v), 0);
            h.add(static_cast<u64>(v >> 64), 1);
        } else {
            h.add(KeyBits<T>::of(load<T>(column, row)), 0);
        }
    }
    static GPUAGG_INLINE bool equal(const Column& column, i64 a, i64 b) {
        if constexpr (sizeof(T) == 16) return load<T>(column, a) == load<T>(column, b);
        else return KeyBits<T>::of(load<T>(column, a)) == KeyBits<T>::of(load<T>(column, b));
    }
};

// A string column takes two entries of the columns: the offsets (with the column's mask and
// offset) at COLUMN and the characters at COLUMN + 1. Offset: i32, or i64 for large strings.
template <class Offset, u32 COLUMN, bool MASKED> struct StringColumn {
    using T = Offset;
    static constexpr u32 column = COLUMN;
    static constexpr bool masked = MASKED;
    static constexpr bool nullable = MASKED;
};
template <class Offset, u32 COLUMN, bool MASKED> struct Whole<StringColumn<Offset, COLUMN, MASKED>> {
    static GPUAGG_INLINE bool missing(const Column& column, i64 row) {
        if constexpr (MASKED) return !is_valid(column, row);
        return false;
    }
    struct Text {
        const u8 *at, *begin, *end;  // the string, and the column's characters around it
        u64 length;
    };
    // The second column's offset is the number of its bytes.
    static GPUAGG_INLINE Text text(const Column* column, i64 row) {
        const Offset* offsets = static_cast<const Offset*>(column[0].data) + column[0].offset;
        const Offset first = __ldg(offsets + row);
        const u8* begin = static_cast<const u8*>(column[1].data);
        return {begin + first, begin, begin + column[1].offset,
                static_cast<u64>(__ldg(offsets + row + 1) - first)};
    }
    // An aligned word that the column does not have whole: its bytes outside of the column as 0.
    static GPUAGG_INLINE u64 edge(const Text& t, u64 address) {
        const u64 begin = reinterpret_cast<u64>(t.begin), end = reinterpret_cast<u64>(t.end);
        u64 w = 0;
#pragma unroll 1
        for (u32 i = 0; i < 8; ++i)
            if (address + i >= begin && address + i < end)
                w |= static_cast<u64>(__ldg(reinterpret_cast<const u8*>(address + i))) << (8 * i);
        return w;
    }
    // The string's words of eight bytes from its byte `first` on, the first `count` of them, and in the
    // last one whatever lies behind the string. Each aligned word of memory is read once, and all
    // reads are under way before the first is waited for.
    template <u32 MOST>
    static GPUAGG_INLINE void raw_words(const Text& t, u64 first, u32 count, u64 (&word)[MOST]) {
        const u64 start = reinterpret_cast<u64>(t.at) + first, base = start & ~7ull;
        const u32 skipped = static_cast<u32>(start & 7ull);
        const u64 rest = t.length - first;
        const u32 end = skipped + (rest < 8 * MOST ? static_cast<u32>(rest) : 8 * MOST);
        const bool inside = base >= reinterpret_cast<u64>(t.begin) &&
                            base + (end + 7) / 8 * 8 <= reinterpret_cast<u64>(t.end);
        u64 held[MOST + 1] = {};
        if (inside) {
#pragma unroll
            for (u32 p = 0; p <= MOST; ++p)
                if (8 * p < end) held[p] = __ldg(reinterpret_cast<const u64*>(base) + p);
        } else {
#pragma unroll
            for (u32 p = 0; p <= MOST; ++p)
                if (8 * p < end) held[p] = edge(t, base + 8 * p);
        }
        // by halves, for which the hardware has a shift over two registers
        const bool half = skipped & 4u;
        u32 low = static_cast<u32>(half ? held[0] >> 32 : held[0]);
#pragma unroll
        for (u32 p = 0; p < MOST; ++p) {
            if (p >= count) break;
            const u32 high = static_cast<u32>(half ? held[p + 1] : held[p] >> 32);
            const u32 next = static_cast<u32>(half ? held[p + 1] >> 32 : held[p + 1]);
            word[p] = static_cast<u64>(__funnelshift_r(high, next, 8 * skipped)) << 32 |
                      __funnelshift_r(low, high, 8 * skipped);
            low = next;
        }
    }
    // Which bits of word p a string of `left` more bytes has. Without a branch: the strings of a warp
    // end at different words.
    static GPUAGG_INLINE u64 present(u32 p, u32 left) {
        const u32 absent = 64 * p + 64 - 8 * (left < 8 * p + 8 ? left : 8 * p + 8);
        // shifts end at all 32 bits
        return static_cast<u64>(__funnelshift_rc(~0u, 0u, absent)) << 32 |
               __funnelshift_rc(~0u, 0u, absent > 32 ? absent - 32 : 0u);
    }
    // The same with bytes past the end as 0.
    template <u32 MOST>
    static GPUAGG_INLINE void words(const Text& t, u64 first, u64 (&word)[MOST]) {
        raw_words(t, first, MOST, word);
        const u64 rest = t.length - first;
        const u32 left = rest < 8 * MOST ? static_cast<u32>(rest) : 8 * MOST;
#pragma unroll
        for (u32 p = 0; p < MOST; ++p) word[p] &= present(p, left);
    }
    // Words that are read together to hash a string, and to compare two.
    static constexpr u32 HASHED = HASHED_WORDS, COMPARED = 4;
    // Its length is hashed and compared too.
    template <class H> static GPUAGG_INLINE void hash(const Column& column, i64 row, H& h) {
        const Text t = text(&column, row);
        h.add(t.length, HASHED);
#pragma unroll 1
        for (u64 i = 0; i < t.length; i += 8 * HASHED) {
            if (i) h.next();
            const u64 rest = t.length - i;
            const u32 left = rest < 8 * HASHED ? static_cast<u32>(rest) : 8 * HASHED;
            const u32 count = (left + 7) / 8;
            u64 word[HASHED];
            raw_words(t, i, count, word);
#pragma unroll
            for (u32 p = 0; p < HASHED; ++p) {
                if (p >= count) break;
                h.add(p + 1 < count ? word[p] : word[p] & present(p, left), p);
            }
        }
    }
    static GPUAGG_INLINE bool equal(const Column& column, i64 a, i64 b) {
        const Text x = text(&column, a), y = text(&column, b);
        if (x.length != y.length) return false;
#pragma unroll 1
        for (u64 i = 0; i < x.length; i += 8 * COMPARED) {
            u64 of_x[COMPARED], of_y[COMPARED], differs = 0;
            words(x, i, of_x);
            words(y, i, of_y);
#pragma unroll
            for (u32 p = 0; p < COMPARED; ++p) differs |= of_x[p] ^ of_y[p];
            if (differs) return false;
        }
        return true;
    }
};

template <bool KEEP_NULLS, class... K> struct ByRow {
    static constexpr bool by_row = true;
    static constexpr u32 columns = sizeof...(K);

    template <class C, class H>
    static GPUAGG_INLINE void append(const Column* from, i64 row, H& h, bool& dropped) {
        const Column& column = from[C::column];
        h.next();
        if (C::nullable && Whole<C>::missing(column, row)) {
            h.add(NULL_HASH, 0);
            if constexpr (!KEEP_NULLS) dropped = true;
        } else {
            Whole<C>::hash(column, row, h);
        }
    }

    template <class H>
    static GPUAGG_INLINE H hash(const Column* from, i64 row, bool& dropped, H h) {
        (append<K>(from, row, h, dropped), ...);
        return h;
    }

    static GPUAGG_INLINE Probe probe(const Column* from, i64 row) {
        bool dropped = false;
        const u64 h = hash(from, row, dropped, FixedHash{}).word();
        const u64 word = (static_cast<u64>(row) << 32) | (h >> 32);
        // rows are below 2**31, so no word is EMPTY
        return {dropped ? EMPTY : word, static_cast<u32>(h), dropped ? Kind::drop : Kind::key};
    }

    static GPUAGG_INLINE Probe again(const Column* from, u64 word) {
        return probe(from, static_cast<i64>(word >> 32));
    }

    template <class C> static GPUAGG_INLINE bool equal(const Column* from, i64 a, i64 b) {
        const Column& column = from[C::column];
        if constexpr (C::nullable) {
            const bool missing = Whole<C>::missing(column, a);
            if (missing != Whole<C>::missing(column, b)) return false;
            if (missing) return true;
        }
        return Whole<C>::equal(column, a, b);
    }

    static GPUAGG_INLINE bool same(const Column* from, u64 held, const Probe& wanted) {
        if (static_cast<u32>(held) != static_cast<u32>(wanted.word)) return false;
        const i64 a = static_cast<i64>(held >> 32), b = static_cast<i64>(wanted.word >> 32);
        return a == b || equal_rows(from, a, b);
    }

    static GPUAGG_INLINE bool equal_rows(const Column* from, i64 a, i64 b) {
        return (equal<K>(from, a, b) && ...);
    }

    static GPUAGG_INLINE u64 fingerprint(const Column*, const Probe& probe) {
        return (static_cast<u64>(static_cast<u32>(probe.word)) << 32) | probe.home;
    }
};

}  // namespace gpuagg
