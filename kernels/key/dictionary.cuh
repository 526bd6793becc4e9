// Strings as numbers of a dictionary: a table of the distinct ones, in which each row finds its slot, whose
// number then stands for the string. A slot holds a representative row and 32 bits of the hash, so one
// compare-and-swap claims it, and a row is compared with the representative's string before it gets the
// number: equal numbers are equal strings. The rows are taken in several launches. Between two of them
// the strings of claimed slots are copied beside the table, so that most rows are compared without
// looking their representative up.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

// The first word of a slot without a copy.
constexpr u64 NOT_COPIED = ~0ull;
// Slots that a row looks at, at most.
constexpr u32 DICTIONARY_PROBES = 512;

struct Dictionary {
    u64* words;    // of each slot: the representative's row, 32 bits of the hash; EMPTY if it is free
    u64* copies;   // of each slot `stride` words: the string's length, its bytes
    u32* codes;    // of each row: its slot
    u32* mask;     // of rows: whether they belong to a group; null if all do
    u32* full;     // not 0: some row found no slot
    u32 slots;
    u32 stride;    // an even number
};

template <class K> struct OnlyText;
template <bool KEEP_NULLS, class C> struct OnlyText<ByRow<KEEP_NULLS, C>> {
    using Column = C;
    static constexpr bool keeps_nulls = KEEP_NULLS;
};

// A string of which the first words are in registers, bytes past its end as 0.
template <class C, u32 WORDS> struct HeldText {
    typename Whole<C>::Text text;
    u64 word[WORDS];
    bool missing;

    GPUAGG_INLINE u32 held() const {
        return text.length < 8 * WORDS ? (static_cast<u32>(text.length) + 7) / 8 : WORDS;
    }
};

// A linear function of the words, by 32 bits each (Carter and Wegman 1979, section 1: its factors are
// any odd numbers), mixed after every WORDS of them. Equal hashes are compared.
template <u32 WORDS> GPUAGG_INLINE u64 hash_words(u64 h, const u64 (&word)[WORDS]) {
    u32 factor = 0x9e3779b9u;
#pragma unroll
    for (u32 p = 0; p < WORDS; ++p) {
        h += static_cast<u64>(static_cast<u32>(word[p])) * factor;
        factor = factor * 0x2c9277b5u + 2u;
        h += static_cast<u64>(static_cast<u32>(word[p] >> 32)) * factor;
        factor = factor * 0x2c9277b5u + 2u;
    }
    return h;
}

// Likewise of what is not in registers. Few strings are so long.
template <class C>
GPUAGG_INLINE u64 hash_rest(typename Whole<C>::Text text, u64 from, u64 h) {
#pragma unroll 1
    for (; from < text.length; from += 16) {
        u64 more[2];
        Whole<C>::words(text, from, more);
        h = hash_words(mix(h), more);
    }
    return h;
}
template <class C>
GPUAGG_INLINE bool is_rest(typename Whole<C>::Text text, u64 from, const u64* copy) {
#pragma unroll 1
    for (; from < text.length; from += 8) {
        u64 more[1];
        Whole<C>::words(text, from, more);
        if (more[0] != __ldg(copy + from / 8)) return false;
    }
    return true;
}

template <class C, u32 WORDS> GPUAGG_INLINE u64 hash_text(const HeldText<C, WORDS>& row) {
    if (row.missing) return NULL_HASH;
    u64 h = hash_words(row.text.length * GOLDEN, row.word);
    if (row.text.length > 8 * WORDS) h = hash_rest<C>(row.text, 8 * WORDS, h);
    return scramble(h);
}

// Whether a row's string is the one that a slot has a copy of.
template <class C, u32 WORDS>
GPUAGG_INLINE bool is_copy(const HeldText<C, WORDS>& row, const u64* copy) {
    static_assert(WORDS % 2 == 0, "words are read in pairs");
    const auto* pairs = reinterpret_cast<const ulonglong2*>(copy);
    const u32 words = row.held();
    u64 other = row.missing ? 0ull : __ldg(pairs).y, differs = 0;
#pragma unroll
    for (u32 p = 0; p < WORDS; p += 2) {
        ulonglong2 next = {0, 0};
        if (p + 1 < words) next = __ldg(pairs + p / 2 + 1);
        if (p < words) differs |= row.word[p] ^ other;
        if (p + 1 < words) differs |= row.word[p + 1] ^ next.x;
        other = next.y;
    }
    if (!differs && row.text.length > 8 * WORDS) return is_rest<C>(row.text, 8 * WORDS, copy + 1);
    return !differs;
}

// Whether two rows have one string. Few rows ask, so that it is no part of the loop over all rows,
// whose registers it would take.
template <class K> GPUAGG_INLINE bool same_text(const Column* columns, u32 a, u32 b) {
    return K::template equal<typename OnlyText<K>::Column>(columns, a, b);
}

// Rows from `first`, a multiple of WARP, up to `end`.
template <class Q, u32 WORDS>
__global__ void __launch_bounds__(SMALL_BLOCK, 4)
    encode_texts(const __grid_constant__ Columns<Q> columns, const __grid_constant__ Dictionary to,
                 u32 first, u32 end) {
    using K = typename Q::Key;
    using C = typename OnlyText<K>::Column;
    constexpr bool DROPS = C::nullable && !OnlyText<K>::keeps_nulls;
    const u32 lane = threadIdx.x % WARP;
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
    bool full = false;
    for (u64 base = first + blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x - lane;
         base < end; base += stride) {
        // the launch is in vain
        if (__any_sync(ALL_LANES, __ldca(to.full) != 0)) return;
        const i64 i = static_cast<i64>(base + lane);
        HeldText<C, WORDS> row;
        row.text = {nullptr, nullptr, nullptr, 0};
        row.missing = true;
        if (base + lane < end && !Whole<C>::missing(columns.column[0], i)) {
            row.text = Whole<C>::text(columns, i);
            row.missing = false;
        }
        Whole<C>::words(row.text, 0, row.word);
        const bool wanted = base + lane < end && !(DROPS && row.missing);
        const u64 h = hash_text(row);
        const u32 tag = static_cast<u32>(h);
        u32 slot = first_slot(static_cast<u32>(h >> 32), to.slots), probes = wanted ? 0 : NONE;
        while (probes < DICTIONARY_PROBES) {
            // perhaps out of date in this cache, but then empty
            u64 held = __ldca(to.words + slot);
            if (held == EMPTY) held = atomicCAS(to.words + slot, EMPTY, static_cast<u64>(i) << 32 | tag);
            if (held == EMPTY) break;
            if (static_cast<u32>(held) == tag) {
                const u64* copy = to.copies + static_cast<u64>(slot) * to.stride;
                const u64 length = __ldg(copy);
                const bool same = length == NOT_COPIED
                                      ? same_text<K>(columns, static_cast<u32>(held >> 32),
                                                     static_cast<u32>(i))
                                      : length == (row.missing ? K::MISSING - 1 : row.text.length) &&
                                            is_copy(row, copy);
                if (same) break;
            }
            if (++slot == to.slots) slot = 0;
            ++probes;
        }
        full = full || probes == DICTIONARY_PROBES;
        if (base + lane < end) to.codes[i] = slot;
        if constexpr (DROPS) {
            const u32 valid = __ballot_sync(ALL_LANES, wanted);
            if (lane == 0) to.mask[base / WARP] = valid;
        }
    }
    if (full) *to.full = 1;
}

// Copies the strings of claimed slots beside the table, those that fit.
template <class Q>
__global__ void __launch_bounds__(SMALL_BLOCK)
    copy_texts(const __grid_constant__ Columns<Q> columns, const __grid_constant__ Dictionary to) {
    using K = typename Q::Key;
    using C = typename OnlyText<K>::Column;
    const u32 stride = gridDim.x * blockDim.x;
    for (u32 slot = blockIdx.x * blockDim.x + threadIdx.x; slot < to.slots; slot += stride) {
        const u64 held = to.words[slot];
        u64* const copy = to.copies + static_cast<u64>(slot) * to.stride;
        if (held == EMPTY || *copy != NOT_COPIED) continue;
        const i64 row = static_cast<i64>(held >> 32);
        u32 n = 0;
        if (Whole<C>::missing(columns.column[0], row)) *copy = K::MISSING - 1;
        else Whole<C>::put(columns.column[0], row, copy, to.stride, n);
    }
}

// The representatives' rows in the place of the groups' numbers.
__global__ void __launch_bounds__(SMALL_BLOCK)
    rows_of_codes(const u64* words, u32* codes, u32 groups) {
    const u32 stride = gridDim.x * blockDim.x;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < groups; i += stride)
        codes[i] = static_cast<u32>(words[codes[i]] >> 32);
}

}  // namespace gpuagg
