// Keys of few possible values, as identifiers, numbers and dates are, however long they are as text:
// each byte of a string counts from the least that a sample saw in its place, and so do integers;
// together they are the digits of one number, whose word is mixed as that of an integer key. A
// separate pass makes the words; a row with another byte raises a flag, on which the host starts again
// with other words.
#pragma once

#include "key/made_word.cuh"

namespace gpuagg {

// The bits that were borrowed in a difference: none at the end of a byte if no byte is less than
// what is taken from it.
GPUAGG_INLINE u32 borrowed(u32 from, u32 taken, u32 difference) {
    return (~from & taken) | ((~from | taken) & difference);
}

template <bool KEEP_NULLS, u32 WORDS, class... K> struct Coded : MadeWord<WORDS> {
    static_assert(sizeof...(K) <= CODED_COLUMNS, "the host knows");

    // The next digits of a code, of four bytes; `odd` is not 0 if they are no such.
    static GPUAGG_INLINE void append_quad(const Quad& quad, u32 bytes, u64& made, u32& odd) {
        // at most 2**32
        if (static_cast<u32>(quad.all) == 1) {
            odd |= bytes ^ quad.least;
            return;
        }
        const u32 above = bytes - quad.least, below = quad.greatest - bytes;
        odd |= (borrowed(bytes, quad.least, above) | borrowed(quad.greatest, bytes, below)) &
               0x80808080u;
        u32 value = above & 0xffu;
        value = value * quad.values[0] + (above >> 8 & 0xffu);
        value = value * quad.values[1] + (above >> 16 & 0xffu);
        value = value * quad.values[2] + (above >> 24);
        made = made * quad.all + value;
    }

    template <class Offset, u32 COLUMN, bool MASKED>
    static GPUAGG_INLINE u64 code(StringColumn<Offset, COLUMN, MASKED>, const Column* from,
                                  const ColumnCode& code, i64 row, u32& odd) {
        using C = Whole<StringColumn<Offset, COLUMN, MASKED>>;
        const auto text = C::text(from + COLUMN, row);
        const u64 longer = text.length - code.base;
        if (longer > code.range) {
            odd = 1;
            return 0;
        }
        u64 bytes[PIECES], made = 0;
        C::raw_words(text, 0, code.pieces, bytes);
#pragma unroll
        for (u32 p = 0; p < PIECES; ++p) {
            if (p >= code.pieces) break;
            if (code.range) bytes[p] &= C::present(p, static_cast<u32>(text.length));
            else if (p + 1 == code.pieces) bytes[p] &= code.tail;
            const Quad &first = code.quad[2 * p], &second = code.quad[2 * p + 1];
            const u32 low = static_cast<u32>(bytes[p]), high = static_cast<u32>(bytes[p] >> 32);
            if (code.constant >> p & 1u) {
                odd |= low ^ first.least;
                odd |= high ^ second.least;
            } else {
                append_quad(first, low, made, odd);
                append_quad(second, high, made, odd);
            }
        }
        if (code.range) made = made * (code.range + 1) + longer;
        return made;
    }

    template <class T, u32 COLUMN, bool MASKED>
    static GPUAGG_INLINE u64 code(KeyColumn<T, COLUMN, MASKED>, const Column* from,
                                  const ColumnCode& code, i64 row, u32& odd) {
        const u64 above = static_cast<u64>(static_cast<i64>(load<T>(from[COLUMN], row))) - code.base;
        if (above > code.range) odd = 1;
        return above;
    }

    template <class C>
    static GPUAGG_INLINE void append(const Column* from, const ColumnCode& column, i64 row,
                                     u64& word, u32& odd, bool& dropped) {
        u64 made = 0;
        if (C::masked && !is_valid(from[C::column], row)) {
            if constexpr (!KEEP_NULLS) dropped = true;
        } else {
            made = code(C{}, from, column, row, odd) + (C::masked && KEEP_NULLS ? 1 : 0);
        }
        if constexpr (sizeof...(K) > 1) word += made * column.scale;
        else word = made;
    }

    // The word before it is mixed.
    static GPUAGG_INLINE u64 plain(const Column* from, i64 row, Kind& kind) {
        const Probe probe = MadeWord<WORDS>::probe(from, row);
        kind = probe.kind;
        return unmix(probe.word);
    }

    // False if the row has another key than its word says.
    static GPUAGG_INLINE bool make(const Column* from, const Codes& codes, i64 row) {
        u64 word = 0;
        u32 odd = 0, i = 0;
        bool dropped = false;
        (append<K>(from, codes.column[i++], row, word, odd, dropped), ...);
        // no key mixes to EMPTY, whose bits the host leaves unused
        MadeWord<WORDS>::put_word(from, row, dropped ? EMPTY : mix(word));
        return dropped || odd == 0;
    }
};

}  // namespace gpuagg
