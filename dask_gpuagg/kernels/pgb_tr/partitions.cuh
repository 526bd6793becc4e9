// Rows brought together by the leading digit of their mixed keys: where they lie, and which digit
// and which first slot a key has.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

// Column arrays of `capacity` rows for each partition. Values lie where the `Columns` of the
// partitions say, in the places of the input's own columns.
struct Partitions {
    void* words;     // mixed keys; narrow ones as 32 bits, what their unmixed words have above `base`
    u64 base;
    u32* numbers;    // of the rows in the input, where a state asks for them
    void* validity;  // of each row: one bit for each masked input
    u32* rows;       // of each partition, those included that found it full
    u32* ticket;     // the next partition to aggregate
    u32 count;
    u32 capacity;
};

// The digit is the integer part and the first slot the fraction of the same product, so both
// follow the order of the mixed keys and any number of partitions will do.
GPUAGG_INLINE u32 partition_of(u64 word, u32 partitions) {
    return __umulhi(static_cast<u32>(word >> 32), partitions);
}
GPUAGG_INLINE u32 home_in_partition(u64 word, u32 partitions) {
    return static_cast<u32>(word >> 32) * partitions;
}

// Words as they lie in the partitions.
GPUAGG_INLINE u32 narrowed(const Partitions& p, u64 word) {
    return static_cast<u32>(unmix(word) - p.base);
}
GPUAGG_INLINE u64 widened(const Partitions& p, u32 word) { return mix(p.base + word); }
template <bool NARROW> GPUAGG_INLINE u64 load_word(const Partitions& p, u32 at) {
    if constexpr (NARROW) return widened(p, __ldcs(static_cast<const u32*>(p.words) + at));
    else return __ldcs(static_cast<const u64*>(p.words) + at);
}
template <bool NARROW> GPUAGG_INLINE void store_word(const Partitions& p, u32 at, u64 word) {
    if constexpr (NARROW) static_cast<u32*>(p.words)[at] = narrowed(p, word);
    else static_cast<u64*>(p.words)[at] = word;
}
template <bool NARROW> GPUAGG_INLINE bool fits(const Partitions& p, u64 word) {
    return !NARROW || (unmix(word) - p.base) >> 32 == 0;
}

template <class S> struct Numbered { static constexpr bool value = false; };
template <u32 I> struct Numbered<FirstRow<I>> { static constexpr bool value = true; };
template <u32 I> struct Numbered<LastRow<I>> { static constexpr bool value = true; };
template <> struct Numbered<AnyRow> { static constexpr bool value = true; };
template <class... S> struct Numbered<States<S...>> {
    static constexpr bool value = (Numbered<S>::value || ... || false);
};

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

// An integer with a bit for each of N masked inputs.
template <u32 N, bool Byte = (N <= 8), bool Half = (N <= 32)> struct Bits { using Type = u8; };
template <u32 N> struct Bits<N, false, true> { using Type = u32; };
template <u32 N> struct Bits<N, false, false> {
    static_assert(N <= 64, "too many masked inputs");
    using Type = u64;
};

}  // namespace gpuagg
