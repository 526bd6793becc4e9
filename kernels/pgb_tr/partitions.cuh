// Rows partitioned by their keys: where they lie, and what the inputs are.
#pragma once

#include "aggregate/pick.cuh"
#include "pgb_tr/words.cuh"

namespace gpuagg {

// A key that is farther from its first slot than this finds its partition's table full.
constexpr u32 PARTITION_PROBES = 96;

// The rows of a partition that one turn of a table takes: all of them, or where its groups exceed
// the table those whose hash ends in `value`.
struct Part {
    u32 mask, value;
    // half of this part's keys, by one more bit of their hash
    GPUAGG_INLINE void split() { mask = 2 * mask + 1; }
    // On to the other half of the smallest part whose other half is left, down to parts of `least`;
    // parts have at least the bits of `most`. False where none is.
    GPUAGG_INLINE bool next(u32 least, u32 most) {
        while (mask > least && (value & (mask / 2 + 1))) {
            value &= mask / 2;
            mask /= 2;
        }
        if (mask == least) return false;
        value |= mask / 2 + 1;
        if (mask < most) mask = most;
        return true;
    }
    GPUAGG_INLINE bool has(u64 word) const {
        return mask == 0 || (static_cast<u32>(scramble(word)) & mask) == value;
    }
};

// Where a partition begins, how many rows it has room for, and how many have found a place. Values
// lie where the `Columns` of the partitions say, in the places of the input's own columns.
GPUAGG_INLINE u32 begin_of(const Partitions& p, u32 i) {
    return p.begins ? p.begins[i] : i * p.capacity;
}
GPUAGG_INLINE u32 room_of(const Partitions& p, u32 i) {
    return p.begins ? p.begins[i + 1] - p.begins[i] : p.capacity;
}
GPUAGG_INLINE u32 held_of(const Partitions& p, u32 i) {
    const u32 all = p.rows[i], most = room_of(p, i);
    return all < most ? all : most;
}

// The inputs of a row: how many, how many of them masked, and the bytes of the widest, which a
// key's word is among.
template <class R> struct Inputs;
template <u32 I> struct Inputs<Cells<I>> {
    static constexpr u32 count = 0, masked = 0, widest = 8;
};
template <u32 I, class In, class... Rest> struct Inputs<Cells<I, In, Rest...>> {
    using First = In;
    using Tail = Inputs<Cells<I + 1, Rest...>>;
    static constexpr u32 count = Tail::count + 1;
    static constexpr u32 masked = Tail::masked + (In::masked ? 1 : 0);
    static constexpr u32 widest =
        sizeof(typename In::T) > Tail::widest ? sizeof(typename In::T) : Tail::widest;
};

// Input I of a row: its type, and its bit among those of the masked ones.
template <u32 I, class R> struct InputAt;
template <u32 AT, class In, class... Rest> struct InputAt<0, Cells<AT, In, Rest...>> {
    using Type = In;
    static constexpr u32 bit = 0;
};
template <u32 I, u32 AT, class In, class... Rest> struct InputAt<I, Cells<AT, In, Rest...>> {
    using Next = InputAt<I - 1, Cells<AT + 1, Rest...>>;
    using Type = typename Next::Type;
    static constexpr u32 bit = Next::bit + (In::masked ? 1 : 0);
};

template <u32 I, class R> struct InputOrNone : InputAt<I, R> {};
template <class R> struct InputOrNone<NO_INPUT, R> {
    using Type = Presence<0, false>;
    static constexpr u32 bit = 0;
};

// An integer with a bit for each of N masked inputs.
template <u32 N, bool Byte = (N <= 8), bool Half = (N <= 32)> struct Bits { using Type = u8; };
template <u32 N> struct Bits<N, false, true> { using Type = u32; };
template <u32 N> struct Bits<N, false, false> {
    static_assert(N <= 64, "too many masked inputs");
    using Type = u64;
};

}  // namespace gpuagg
