// Strings as numbers of a dictionary: a table of the distinct ones, in which each row finds its slot, whose
// number then stands for the string. A slot holds a representative row and 32 bits of the hash, so one
// compare-and-swap claims it, and a row is compared with the representative's string before it gets the
// number: equal numbers are equal strings. The rows are taken in several launches. Between two of them
// the strings of claimed slots are copied beside the table, so that most rows are compared without
// looking their representative up. Where these are few each block has the copies in shared memory.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

// The first word of a slot without a copy.
constexpr u64 NOT_COPIED = ~0ull;
// Slots that a row looks at together: a sector of memory. A string is looked for from the first slot of
// a bucket on, so that the lanes of a warp seldom wait for one that needs several looks.
constexpr u32 BUCKET = 4;
// Slots that a row looks at, at most.
constexpr u32 DICTIONARY_PROBES = 512;
// Low half of the word of an empty slot. Rows with this tag find their slots one by one.
constexpr u32 NO_TAG = static_cast<u32>(EMPTY);

template <class K> struct OnlyText;
template <bool KEEP_NULLS, class C> struct OnlyText<ByRow<KEEP_NULLS, C>> {
    using Column = C;
    static constexpr bool keeps_nulls = KEEP_NULLS;
};

// A string of which the first words are in registers, bytes past its end as 0.
template <class C> struct HeldText {
    typename Whole<C>::Text text;
    u64 word[TEXT_WORDS];
    bool missing;

    GPUAGG_INLINE u32 held() const {
        return text.length < 8 * TEXT_WORDS ? (static_cast<u32>(text.length) + 7) / 8 : TEXT_WORDS;
    }
};

// A linear function of the words, by 32 bits each (Carter and Wegman 1979, section 1: its factors are
// any odd numbers), mixed after some of them. Equal hashes are compared.
template <u32 N> GPUAGG_INLINE u64 hash_words(u64 h, const u64 (&word)[N]) {
    u32 factor = 0x9e3779b9u;
#pragma unroll
    for (u32 p = 0; p < N; ++p) {
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

template <class C> GPUAGG_INLINE u64 hash_text(const HeldText<C>& row) {
    if (row.missing) return NULL_HASH;
    u64 h = hash_words(row.text.length * GOLDEN, row.word);
    if (row.text.length > 8 * TEXT_WORDS) h = hash_rest<C>(row.text, 8 * TEXT_WORDS, h);
    return scramble(h);
}

// What stands for a string in the first word of a copy: its length. Null is longer than any.
template <class K, class C>
GPUAGG_INLINE u64 marker(const HeldText<C>& row) {
    return row.missing ? K::MISSING - 1 : row.text.length;
}

// Whether a row's string is the one that is copied in global memory.
template <class K, class C>
GPUAGG_INLINE bool is_copy(const HeldText<C>& row, const u64* copy) {
    static_assert(TEXT_WORDS % 2 == 0, "words are read in pairs");
    const auto* pairs = reinterpret_cast<const ulonglong2*>(copy);
    const u32 words = row.held();
    // the host gives all copies room for so many words
    ulonglong2 pair[TEXT_WORDS / 2 + 1];
#pragma unroll
    for (u32 p = 0; p <= TEXT_WORDS; p += 2)
        if (p == 0 || p <= words) pair[p / 2] = __ldg(pairs + p / 2);
    u64 differs = pair[0].x ^ marker<K>(row);
#pragma unroll
    for (u32 p = 0; p < TEXT_WORDS; ++p)
        if (p < words) differs |= row.word[p] ^ (p % 2 ? pair[(p + 1) / 2].x : pair[p / 2].y);
    if (!differs && row.text.length > 8 * TEXT_WORDS) return is_rest<C>(row.text, 8 * TEXT_WORDS, copy + 1);
    return !differs;
}

// A block's own copies of the first words of strings. The words of a copy are an odd number, so that
// lanes which read any of them seldom wait for each other.
struct NearCopies {
    static constexpr u32 STRIDE = TEXT_WORDS + 1;
    u64* copies;
    u32* tags;    // of each slot; NO_TAG if it has no copy here
    u16* places;  // of each slot: its copy's

    // By the whole block.
    GPUAGG_INLINE void fill(u64* memory, const Dictionary& from, u32* count) {
        copies = memory;
        tags = reinterpret_cast<u32*>(copies + static_cast<u64>(from.near_room) * STRIDE);
        places = reinterpret_cast<u16*>(tags + from.slots);
        if (threadIdx.x == 0) *count = 0;
        __syncthreads();
        for (u32 slot = threadIdx.x; slot < from.slots; slot += blockDim.x) {
            const u64 held = __ldcg(from.words + slot);
            const u64* copy = from.copies + static_cast<u64>(slot) * from.stride;
            u32 tag = NO_TAG;
            if (held != EMPTY && __ldg(copy) != NOT_COPIED) {
                const u32 place = atomicAdd(count, 1u);
                if (place < from.near_room) {
                    tag = static_cast<u32>(held);
                    places[slot] = static_cast<u16>(place);
#pragma unroll
                    for (u32 p = 0; p < STRIDE; ++p) copies[place * STRIDE + p] = __ldg(copy + p);
                }
            }
            tags[slot] = tag;
        }
        __syncthreads();
    }
    template <class K, class C>
    GPUAGG_INLINE bool has(u32 slot, const HeldText<C>& row, const Dictionary& from) const {
        const u64* copy = copies + places[slot] * STRIDE;
        const u32 words = row.held();
        u64 differs = copy[0] ^ marker<K>(row);
#pragma unroll
        for (u32 p = 0; p < TEXT_WORDS; ++p)
            if (p < words) differs |= row.word[p] ^ copy[p + 1];
        if (!differs && row.text.length > 8 * TEXT_WORDS) {
            const u64* whole = from.copies + static_cast<u64>(slot) * from.stride;
            return is_rest<C>(row.text, 8 * TEXT_WORDS, whole + 1);
        }
        return !differs;
    }
};

// The slot of a bucket with this tag, NONE if there is none; `ends` if some slot is empty.
GPUAGG_INLINE u32 slot_in_bucket(const uint4& tags, u32 tag, u32 first, bool& ends) {
    ends = tags.x == NO_TAG || tags.y == NO_TAG || tags.z == NO_TAG || tags.w == NO_TAG;
    u32 slot = NONE;
    if (tags.w == tag) slot = first + 3;
    if (tags.z == tag) slot = first + 2;
    if (tags.y == tag) slot = first + 1;
    if (tags.x == tag) slot = first;
    return tag == NO_TAG ? NONE : slot;
}

// The slot of a row's string in the table itself, claimed if it is new; NONE if there is none. Few rows
// ask, so that it is no part of the loop over all rows, whose registers it would take.
template <class K>
__noinline__ __device__ u32 slot_of_row(const Dictionary& to, const Column* columns, u32 row,
                                        u32 slot, u32 tag) {
    // the launch is in vain
    if (peek(to.full)) return NONE;
#pragma unroll 1
    for (u32 probes = 0; probes < DICTIONARY_PROBES; ++probes) {
        u64 held = peek(to.words + slot);
        if (held == EMPTY)
            held = atomicCAS(to.words + slot, EMPTY, static_cast<u64>(row) << 32 | tag);
        if (held == EMPTY) return slot;
        if (static_cast<u32>(held) == tag &&
            K::template equal<typename OnlyText<K>::Column>(columns, held >> 32, row))
            return slot;
        if (++slot == to.slots) slot = 0;
    }
    *to.full = 1;
    return NONE;
}

// Rows from `first`, a multiple of WARP, up to `end`. Looking for the slot, comparing, and what few rows
// need are apart, so that the lanes of a warp do each together.
template <class Q, bool NEAR, u32 THREADS>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    encode_texts(const __grid_constant__ Columns<Q> columns, const __grid_constant__ Dictionary to,
                 u32 first, u32 end) {
    using K = typename Q::Key;
    using C = typename OnlyText<K>::Column;
    constexpr bool DROPS = C::nullable && !OnlyText<K>::keeps_nulls;
    // tags are read sixteen bytes at a time
    extern __shared__ __align__(16) u64 dictionary_memory[];
    __shared__ u32 copied;
    NearCopies near;
    if constexpr (NEAR) near.fill(dictionary_memory, to, &copied);
    const u32 lane = threadIdx.x % WARP;
    const u64 stride = static_cast<u64>(gridDim.x) * THREADS;
    for (u64 i = first + blockIdx.x * static_cast<u64>(THREADS) + threadIdx.x; i - lane < end;
         i += stride) {
        HeldText<C> row;
        row.text = {nullptr, nullptr, nullptr, 0};
        row.missing = false;
        if (i < end) {
            row.text = Whole<C>::text(columns, static_cast<i64>(i));
            row.missing = Whole<C>::missing(columns.column[0], static_cast<i64>(i));
            if (row.missing) row.text.length = 0;
        }
        Whole<C>::words(row.text, 0, row.word);
        const bool wanted = i < end && !(DROPS && row.missing);
        const u64 h = hash_text(row);
        const u32 tag = static_cast<u32>(h);
        const u32 home = first_slot(static_cast<u32>(h >> 32), to.slots / BUCKET) * BUCKET;
        u32 slot = NONE;
        bool found = false, ends = false;
        for (u32 at = home, looks = 0; slot == NONE && !ends && looks < WARP; ++looks) {
            uint4 tags;
            if constexpr (NEAR) {
                tags = *reinterpret_cast<const uint4*>(near.tags + at);
            } else {
                // perhaps out of date in this cache, but then empty
                const auto* words = reinterpret_cast<const ulonglong2*>(to.words + at);
                const ulonglong2 a = __ldca(words), b = __ldca(words + 1);
                tags = {static_cast<u32>(a.x), static_cast<u32>(a.y), static_cast<u32>(b.x),
                        static_cast<u32>(b.y)};
            }
            slot = slot_in_bucket(tags, tag, at, ends);
            at += BUCKET;
            if (at == to.slots) at = 0;
        }
        __syncwarp();
        if (slot != NONE) {
            if constexpr (NEAR) found = near.template has<K>(slot, row, to);
            else found = is_copy<K>(row, to.copies + static_cast<u64>(slot) * to.stride);
        }
        __syncwarp();
        if (wanted && !found)
            slot = slot_of_row<K>(to, columns, static_cast<u32>(i), home, tag);
        __syncwarp();
        if (i < end) to.codes[i] = slot;
        if constexpr (DROPS) {
            const u32 valid = __ballot_sync(ALL_LANES, wanted);
            if (lane == 0) to.mask[i / WARP] = valid;
        }
    }
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
