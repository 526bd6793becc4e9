// The least and the greatest value of each integer key column, of the rows of a warp. Both are kept as
// the least of unsigned codes, so that the host clears them by writing ones: the value's distance from
// the least of its type, and from the greatest.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

template <class C>
GPUAGG_INLINE void range_of(const Column* columns, u64 row, bool is_row, u64* least, u64* greatest) {
    using T = typename C::T;
    bool counted = is_row;
    if constexpr (C::masked) counted = counted && is_valid(columns[C::column], row);
    const i64 value = counted ? static_cast<i64>(load<T>(columns[C::column], row)) : 0;
    u64 low = counted ? static_cast<u64>(value) ^ (1ull << 63) : ~0ull;
    u64 high = counted ? ~(static_cast<u64>(value) ^ (1ull << 63)) : ~0ull;
    for (u32 d = WARP / 2; d > 0; d /= 2) {
        const u64 l = __shfl_xor_sync(ALL_LANES, low, d), h = __shfl_xor_sync(ALL_LANES, high, d);
        low = l < low ? l : low;
        high = h < high ? h : high;
    }
    if (threadIdx.x % WARP == 0) {
        lower(Global{}, least, low);
        lower(Global{}, greatest, high);
    }
}

template <class K> struct RangesOf;
template <bool KEEP, u32 W, u32 WITNESSES, u32 STATE, class... C>
struct RangesOf<Wide<KEEP, W, WITNESSES, STATE, C...>> {
    static GPUAGG_INLINE void take(const Column* columns, u64 row, bool is_row, u64* bounds) {
        u32 i = 0;
        ((range_of<C>(columns, row, is_row, bounds + i, bounds + i + 1), i += 2), ...);
    }
};
template <bool KEEP, u32 W, u32 CHECKS, u32 STATE, class... C>
struct RangesOf<Hashed<KEEP, W, CHECKS, STATE, C...>> {
    static GPUAGG_INLINE void take(const Column* columns, u64 row, bool is_row, u64* bounds) {
        u32 i = 0;
        ((range_of<C>(columns, row, is_row, bounds + i, bounds + i + 1), i += 2), ...);
    }
};
template <bool KEEP, class... C> struct RangesOf<Packed<KEEP, C...>> {
    static GPUAGG_INLINE void take(const Column* columns, u64 row, bool is_row, u64* bounds) {
        u32 i = 0;
        ((range_of<C>(columns, row, is_row, bounds + i, bounds + i + 1), i += 2), ...);
    }
};
template <class K> struct MayFill { static constexpr bool value = false; };
template <bool KEEP, class... C> struct MayFill<Packed<KEEP, C...>> {
    static constexpr bool value = sizeof...(C) > 1 && sizeof...(C) <= TOLD_COLUMNS &&
                                  !(Traits<typename C::T>::floating || ...);
};

}  // namespace gpuagg
