// Integers, columns and bits: what every other file here stands on.
#pragma once

#include "constants.cuh"  // made of dask_gpuagg/cuda/query/tuning.py

namespace gpuagg {

using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using i128 = __int128;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using u128 = unsigned __int128;
using f32 = float;
using f64 = double;

}  // namespace gpuagg

#include "structs.cuh"  // made of dask_gpuagg/cuda/query/structs.py

namespace gpuagg {

#define GPUAGG_INLINE __device__ __forceinline__

constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;
// no slot: the row found no place in a table
constexpr u32 NONE = 0xffffffffu;
// the word of a slot that no key has claimed
constexpr u64 EMPTY = ~0ull;

template <class A, class B> struct Same { static constexpr bool value = false; };
template <class A> struct Same<A, A> { static constexpr bool value = true; };

template <bool, class A, class B> struct Either { using Type = A; };
template <class A, class B> struct Either<false, A, B> { using Type = B; };

template <class T> struct Traits {
    static constexpr bool floating = Same<T, f32>::value || Same<T, f64>::value;
    static constexpr bool negative = static_cast<T>(-1) < static_cast<T>(0);
};

// Each value of the input is read once, so it must not push tables out of the caches; but scatters,
// which have no such table, read some of it twice, and the second time from the L2 cache.
template <class T> GPUAGG_INLINE T load_input(const T* at) {
#ifdef GPUAGG_READS_TWICE
    return __ldg(at);
#else
    return __ldcs(at);
#endif
}
template <class T> GPUAGG_INLINE T load(const Column& column, i64 row) {
    return load_input(static_cast<const T*>(column.data) + column.offset + row);
}
template <> GPUAGG_INLINE i128 load<i128>(const Column& column, i64 row) {
    const u64* words = static_cast<const u64*>(column.data) + 2 * (column.offset + row);
    return static_cast<i128>((static_cast<u128>(load_input(words + 1)) << 64) | load_input(words));
}

// The bit of a row in the mask of a column that has one.
GPUAGG_INLINE bool mask_bit(const Column& column, i64 row) {
    const i64 bit = column.offset + row;
    return (__ldg(column.mask + (bit >> 5)) >> (bit & 31)) & 1u;
}
GPUAGG_INLINE bool is_valid(const Column& column, i64 row) {
    return column.mask == nullptr || mask_bit(column, row);
}

// An integer that orders as the value does, so that the hardware's integer atomics serve floats.
template <class T, bool Float = Traits<T>::floating, bool Wide = (sizeof(T) > 4),
          bool Signed = Traits<T>::negative>
struct Ordered {
    static_assert(sizeof(T) <= 8, "no atomic orders wider values");
};
template <class T> struct Ordered<T, false, false, true> {
    using Type = i32;
    static constexpr Type lowest = -0x7fffffff - 1, highest = 0x7fffffff;
    static GPUAGG_INLINE Type of(T value) { return value; }
    static GPUAGG_INLINE T back(Type ordered) { return static_cast<T>(ordered); }
};
template <class T> struct Ordered<T, false, false, false> {
    using Type = u32;
    static constexpr Type lowest = 0, highest = 0xffffffffu;
    static GPUAGG_INLINE Type of(T value) { return value; }
    static GPUAGG_INLINE T back(Type ordered) { return static_cast<T>(ordered); }
};
template <class T> struct Ordered<T, false, true, true> {
    using Type = i64;
    static constexpr Type lowest = -0x7fffffffffffffffll - 1, highest = 0x7fffffffffffffffll;
    static GPUAGG_INLINE Type of(T value) { return value; }
    static GPUAGG_INLINE T back(Type ordered) { return static_cast<T>(ordered); }
};
template <class T> struct Ordered<T, false, true, false> {
    using Type = u64;
    static constexpr Type lowest = 0, highest = ~0ull;
    static GPUAGG_INLINE Type of(T value) { return value; }
    static GPUAGG_INLINE T back(Type ordered) { return static_cast<T>(ordered); }
};
template <> struct Ordered<f32, true, false, true> {
    using Type = i32;
    static constexpr Type lowest = -0x7fffffff - 1, highest = 0x7fffffff;
    static GPUAGG_INLINE Type flip(Type bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }
    static GPUAGG_INLINE Type of(f32 value) { return flip(__float_as_int(value)); }
    static GPUAGG_INLINE f32 back(Type ordered) { return __int_as_float(flip(ordered)); }
};
template <> struct Ordered<f64, true, true, true> {
    using Type = i64;
    static constexpr Type lowest = -0x7fffffffffffffffll - 1, highest = 0x7fffffffffffffffll;
    static GPUAGG_INLINE Type flip(Type bits) {
        return bits ^ ((bits >> 63) & 0x7fffffffffffffffll);
    }
    static GPUAGG_INLINE Type of(f64 value) { return flip(__double_as_longlong(value)); }
    static GPUAGG_INLINE f64 back(Type ordered) { return __longlong_as_double(flip(ordered)); }
};

// A bijection, so that a mixed key stands for the key itself: the high half is folded into the low
// one, then multiplied by 2**64 over the golden ratio (Knuth, volume 3, section 6.4). The high bits
// of the product spread runs of integers more evenly than chance would, which is what dense keys
// need; keys that still collide cost probes, never answers.
constexpr u64 GOLDEN = 0x9e3779b97f4a7c15ull;
constexpr u64 GOLDEN_INVERSE = 0xf1de83e19937733dull;  // modulo 2**64

GPUAGG_INLINE u64 mix(u64 x) { return (x ^ (x >> 32)) * GOLDEN; }

GPUAGG_INLINE u64 unmix(u64 x) {
    x *= GOLDEN_INVERSE;
    return x ^ (x >> 32);
}

// MurmurHash3's 64-bit finaliser (Appleby): for hashes that are compared, or cut into many parts.
// A bijection too.
GPUAGG_INLINE u64 scramble(u64 x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
}

GPUAGG_INLINE u64 unscramble(u64 x) {
    x ^= x >> 33;
    x *= 0x9cb4b2f8129337dbull;
    x ^= x >> 33;
    x *= 0x4f74430c22a54005ull;
    return x ^ (x >> 33);
}

// Sum of a warp's values up to this lane's.
template <class T> GPUAGG_INLINE T sum_to_lane(T sum) {
#pragma unroll
    for (u32 d = 1; d < WARP; d *= 2) {
        const T other = __shfl_up_sync(ALL_LANES, sum, d);
        if (threadIdx.x % WARP >= d) sum += other;
    }
    return sum;
}

// What another lane of the warp has, of any type.
template <class V> GPUAGG_INLINE V from_lane(const V& value, u32 lane) {
    constexpr u32 WORDS = (sizeof(V) + 3) / 4;
    u32 words[WORDS] = {};
    V made;
    memcpy(words, &value, sizeof(V));
#pragma unroll
    for (u32 i = 0; i < WORDS; ++i) words[i] = __shfl_sync(ALL_LANES, words[i], lane);
    memcpy(&made, words, sizeof(V));
    return made;
}

}  // namespace gpuagg
