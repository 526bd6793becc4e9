// What a sample of the rows has in its key columns: the least and the greatest byte in each place of
// strings, as `Coded` takes them, and their least and greatest length; of integers the least and the
// greatest value as in `ranges`. All are kept as the least of something, so that the host clears them
// by writing ones.
#pragma once

#include "estimate/ranges.cuh"
#include "key/coded.cuh"

namespace gpuagg {

constexpr u32 PLACES = 8 * PIECES;

template <class T, u32 COLUMN, bool MASKED>
GPUAGG_INLINE void see(KeyColumn<T, COLUMN, MASKED>, const Column* columns, u64 row, bool is_row,
                       Seen* seen) {
    range_of<KeyColumn<T, COLUMN, MASKED>>(columns, row, is_row, &seen->least, &seen->greatest);
}
template <class Offset, u32 COLUMN, bool MASKED>
GPUAGG_INLINE void see(StringColumn<Offset, COLUMN, MASKED>, const Column* columns, u64 row,
                       bool is_row, Seen* seen) {
    using C = Whole<StringColumn<Offset, COLUMN, MASKED>>;
    const i64 at = static_cast<i64>(row);
    const u32 lane = threadIdx.x % WARP;
    const bool counted = is_row && !C::missing(columns[COLUMN], at);
    u64 word[PIECES] = {};
    u32 length = NONE;
    if (counted) {
        const auto text = C::text(columns + COLUMN, at);
        length = text.length > 0x7fffffff ? 0x7fffffffu : static_cast<u32>(text.length);
        C::words(text, 0, word);
    }
    // lane i keeps what place i and the others of its turn have
    u32 low[PLACES / WARP], below[PLACES / WARP];
#pragma unroll
    for (u32 i = 0; i < PLACES; ++i) {
        const u32 byte = static_cast<u32>(word[i / 8] >> (8 * (i % 8))) & 0xffu;
        const u32 l = __reduce_min_sync(ALL_LANES, counted ? byte : NONE);
        const u32 b = __reduce_min_sync(ALL_LANES, counted ? 0xffu - byte : NONE);
        if (lane == i % WARP) {
            low[i / WARP] = l;
            below[i / WARP] = b;
        }
    }
#pragma unroll
    for (u32 i = 0; i < PLACES / WARP; ++i) {
        lower(Global{}, seen->low + i * WARP + lane, low[i]);
        lower(Global{}, seen->below + i * WARP + lane, below[i]);
    }
    const u32 shortest = __reduce_min_sync(ALL_LANES, length);
    const u32 longest = __reduce_min_sync(ALL_LANES, counted ? 0x7fffffffu - length : NONE);
    if (lane == 0) {
        lower(Global{}, seen->low + PLACES, shortest);
        lower(Global{}, seen->below + PLACES, longest);
    }
}

template <class K> struct BytesOf;
template <bool KEEP, u32 W, u32 CHECKS, u32 STATE, class... C>
struct BytesOf<Hashed<KEEP, W, CHECKS, STATE, C...>> {
    static GPUAGG_INLINE void take(const Column* columns, u64 row, bool is_row, Seen* seen) {
        u32 i = 0;
        (see(C{}, columns, row, is_row, seen + i++), ...);
    }
};

// One block a segment.
template <class Q>
__global__ void __launch_bounds__(SEGMENT)
    bytes(const __grid_constant__ Columns<Q> columns, u32 rows, Seen* seen) {
    const u64 row = sampled_row(0, rows);
    BytesOf<typename Q::Key>::take(columns, row, row < rows, seen);
}

}  // namespace gpuagg
