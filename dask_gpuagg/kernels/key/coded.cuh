// Keys whose values differ in few bits, as identifiers, numbers and dates do, however long they are as
// text: the bits of strings that a sample saw to differ, and what integers have above a base, side by
// side in one word. A pass of its own makes the words; a row that differs elsewhere raises a flag, on
// which the host starts again with other words.
#pragma once

#include "key/made_word.cuh"

namespace gpuagg {

// Words of eight bytes that a string may have, and key columns.
constexpr u32 PIECES = 8;
constexpr u32 CODED_COLUMNS = 4;

// Eight bytes of all strings of a column, the first one as the highest, so that words are in the order
// of the strings; bytes past a string's end are 0.
struct Piece {
    u64 constant;   // of the bits that do not vary
    u64 varying;
    u64 moves[6];   // bits that compressing moves down by 1, 2, 4, ... places
    u32 from_bit;   // of the word, where its bits begin
    u32 unused;
};

struct ColumnCode {
    Piece piece[PIECES];
    u64 base;      // integers: the least; strings: the bits of the length that do not vary
    u64 range;     // integers: the greatest above it; strings: the bits of the length that vary
    u32 from_bit;  // of the word, where integers or lengths begin
    u32 null_bit;  // of the word, where nulls are kept
    u32 pieces;
    u32 nullable;  // of a key that comes out: whether it has a null bit
};
struct Codes {
    ColumnCode column[CODED_COLUMNS];
};

GPUAGG_INLINE u64 reversed(u64 bytes) {
    const u32 low = static_cast<u32>(bytes), high = static_cast<u32>(bytes >> 32);
    return static_cast<u64>(__byte_perm(low, 0, 0x0123)) << 32 | __byte_perm(high, 0, 0x0123);
}

// The bits that vary, moved together, and back again (Warren, Hacker's Delight, sections 7-4 and 7-5).
GPUAGG_INLINE u64 compressed(u64 x, const Piece& piece) {
    x &= piece.varying;
#pragma unroll
    for (u32 i = 0; i < 6; ++i)
        if (piece.moves[i]) {
            const u64 moved = x & piece.moves[i];
            x = (x ^ moved) | moved >> (1u << i);
        }
    return x;
}
GPUAGG_INLINE u64 expanded(u64 x, const Piece& piece) {
#pragma unroll
    for (u32 i = 6; i-- > 0;)
        if (piece.moves[i]) x = (x & ~piece.moves[i]) | (x << (1u << i) & piece.moves[i]);
    return x & piece.varying;
}

template <bool KEEP_NULLS, u32 WORDS, class... K> struct Coded : MadeWord<WORDS> {
    static_assert(sizeof...(K) <= CODED_COLUMNS, "the host knows");

    template <class Offset, u32 COLUMN, bool MASKED>
    static GPUAGG_INLINE void append(StringColumn<Offset, COLUMN, MASKED>, const Column* from,
                                     const ColumnCode& code, i64 row, u64& word, u64& odd) {
        using C = Whole<StringColumn<Offset, COLUMN, MASKED>>;
        const auto text = C::text(from + COLUMN, row);
        odd |= (text.length & ~code.range) ^ code.base;
        if (text.length > 8 * code.pieces) odd = 1;
        word |= (text.length & code.range) << code.from_bit;
        u64 bytes[PIECES];
        C::words(text, 0, code.pieces, bytes);
#pragma unroll
        for (u32 p = 0; p < PIECES; ++p)
            if (p < code.pieces) {
                const Piece& piece = code.piece[p];
                const u64 x = reversed(bytes[p]);
                odd |= (x & ~piece.varying) ^ piece.constant;
                if (piece.varying) word |= compressed(x, piece) << piece.from_bit;
            }
    }

    template <class T, u32 COLUMN, bool MASKED>
    static GPUAGG_INLINE void append(KeyColumn<T, COLUMN, MASKED>, const Column* from,
                                     const ColumnCode& code, i64 row, u64& word, u64& odd) {
        const u64 above = static_cast<u64>(static_cast<i64>(load<T>(from[COLUMN], row))) - code.base;
        if (above > code.range) odd = 1;
        word |= above << code.from_bit;
    }

    template <class C>
    static GPUAGG_INLINE void take(const Column* from, const ColumnCode& code, i64 row, u64& word,
                                   u64& odd, bool& dropped) {
        bool missing = false;
        if constexpr (C::masked) missing = !is_valid(from[C::column], row);
        if (!missing) append(C{}, from, code, row, word, odd);
        else if constexpr (KEEP_NULLS) word |= 1ull << code.null_bit;
        else dropped = true;
    }

    // False if the row has another key than its word says.
    static GPUAGG_INLINE bool make(const Column* from, const Codes& codes, i64 row) {
        u64 word = 0, odd = 0;
        bool dropped = false;
        u32 i = 0;
        (take<K>(from, codes.column[i++], row, word, odd, dropped), ...);
        // no key mixes to EMPTY, whose bits the host leaves unused
        MadeWord<WORDS>::put_word(from, row, dropped ? EMPTY : mix(word));
        return dropped || odd == 0;
    }
};

}  // namespace gpuagg
