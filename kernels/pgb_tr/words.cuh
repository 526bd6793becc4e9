// How keys travel to their partitions and lie there: as mixed words, as what their unmixed words
// have above a base, or as slots, where every key of a narrow range has one of its own.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

// The digit is the integer part and the first slot the fraction of the same product, so both
// follow the order of the mixed keys and any number of partitions will do.
GPUAGG_INLINE u32 partition_of(u64 word, u32 partitions) {
    return __umulhi(static_cast<u32>(word >> 32), partitions);
}
GPUAGG_INLINE u32 home_in_partition(u64 word, u32 partitions) {
    return static_cast<u32>(word >> 32) * partitions;
}

// A policy says what the scatter has of a row's key in shared memory (Code), what it keeps of it in
// registers meanwhile (Kept) if it fits, and what it stores (Stored).

// Mixed words. They would take too many registers, so they are made again.
struct WholeWords {
    using Code = u64;
    using Stored = u64;
    struct Kept {};
    static constexpr bool kept = false;
    template <class K>
    static GPUAGG_INLINE Probe probe(const Words&, const Column* columns, i64 row) {
        return K::probe(columns, row);
    }
    static GPUAGG_INLINE Code code(const Words&, u64 word, u32) { return word; }
    static GPUAGG_INLINE u32 partition(Code code, u32 count) { return partition_of(code, count); }
    static GPUAGG_INLINE bool keep(const Words&, u64, Code, Kept&) { return true; }
    template <class K>
    static GPUAGG_INLINE Code again(const Words&, Kept, const Column* columns, i64 row) {
        return K::probe(columns, row).word;
    }
    static GPUAGG_INLINE Stored stored(const Words&, Code code) { return code; }
    static GPUAGG_INLINE Stored load(const Words& w, u32 at) {
        return __ldcs(static_cast<const u64*>(w.data) + at);
    }
    // The mixed word of what is stored. Nothing that is stored has all bits set: a table has that in
    // its empty slots.
    static GPUAGG_INLINE u64 word(const Words&, Stored stored) { return stored; }
};

// Words that 32 bits identify: what they have above a base. Some bits are turned, so that the one
// distance that would be an empty slot is not that of -1, which keys of 32 bits may well be, but lies
// where keys of 64 bits are beyond what a sample saw; a key that has it is listed.
struct NarrowWords : WholeWords {
    static constexpr u32 TURNED = 0x1e3779b9u;
    using Stored = u32;
    using Kept = u32;
    static constexpr bool kept = true;
    static GPUAGG_INLINE bool keep(const Words& w, u64 word, Code, Kept& kept) {
        const u64 distance = unmix(word) - w.base;
        kept = static_cast<u32>(distance) ^ TURNED;
        return distance >> 32 == 0 && kept != static_cast<u32>(EMPTY);
    }
    template <class K>
    static GPUAGG_INLINE Code again(const Words& w, Kept kept, const Column*, i64) {
        return word(w, kept);
    }
    static GPUAGG_INLINE Stored stored(const Words& w, Code code) {
        return static_cast<u32>(unmix(code) - w.base) ^ TURNED;
    }
    static GPUAGG_INLINE Stored load(const Words& w, u32 at) {
        return __ldcs(static_cast<const u32*>(w.data) + at);
    }
    static GPUAGG_INLINE u64 word(const Words& w, Stored stored) {
        return mix(w.base + (stored ^ TURNED));
    }
};

// Keys of a narrow range in stripes: one key of each stripe for each partition, in which it has the
// stripe's number for a slot. Each stripe is turned by another amount, or keys that are
// multiples of something would meet in few partitions.
struct Striped {
    using Code = u32;  // partition and slot
    using Stored = u16;
    using Kept = u32;
    static constexpr bool kept = true;
    static GPUAGG_INLINE u32 turn(u32 stripe, u32 count) {
        return __umulhi(stripe * 0x9e3779b1u, count);
    }
    template <class K>
    static GPUAGG_INLINE Probe probe(const Words& w, const Column* columns, i64 row) {
        Probe probe{0, 0u, Kind::key};
        probe.word = K::plain(columns, row, probe.kind) - w.base;
        return probe;
    }
    static GPUAGG_INLINE Code code(const Words& w, u64 distance, u32 count) {
        const u32 d = static_cast<u32>(distance);
        // d * inverse / 2**64, whose high half is all that is wanted
        const u64 low = __umulhi(d, static_cast<u32>(w.inverse));
        const u32 stripe = static_cast<u32>((d * (w.inverse >> 32) + low) >> 32);
        u32 partition = d - stripe * count + turn(stripe, count);
        if (partition >= count) partition -= count;
        return partition << 16 | stripe;
    }
    // The word of a key, from where it is.
    static GPUAGG_INLINE u64 word(const Words& w, u32 partition, u32 slot, u32 count) {
        u32 within = partition + count - turn(slot, count);
        if (within >= count) within -= count;
        return mix(w.base + (static_cast<u64>(slot) * count + within));
    }
    static GPUAGG_INLINE u32 partition(Code code, u32) { return code >> 16; }
    static GPUAGG_INLINE bool keep(const Words& w, u64 distance, Code code, Kept& kept) {
        kept = code;
        return distance < w.keys;
    }
    template <class K>
    static GPUAGG_INLINE Code again(const Words&, Kept kept, const Column*, i64) { return kept; }
    static GPUAGG_INLINE Stored stored(const Words&, Code code) { return static_cast<u16>(code); }
    static GPUAGG_INLINE u32 load(const Words& w, u32 at) {
        return __ldcs(static_cast<const u16*>(w.data) + at);
    }
};

}  // namespace gpuagg
