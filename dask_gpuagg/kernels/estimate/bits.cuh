// Which bits of the key columns differ, in a sample of the rows: of strings those that all have and
// those that none has, of integers the least and the greatest value as in `ranges`. Strings as
// `Coded` takes them. The host sets all bits before.
#pragma once

#include "estimate/ranges.cuh"
#include "key/coded.cuh"

namespace gpuagg {

// The last of each is the length; a string of more words has all of its length's bits.
struct Seen {
    u64 all[PIECES + 1];
    u64 none[PIECES + 1];
};

GPUAGG_INLINE void keep_common(u64* common, u64 mine) {
    const u32 low = __reduce_and_sync(ALL_LANES, static_cast<u32>(mine));
    const u32 high = __reduce_and_sync(ALL_LANES, static_cast<u32>(mine >> 32));
    const u64 both = static_cast<u64>(high) << 32 | low;
    if (threadIdx.x % WARP == 0 && (peek(common) & ~both)) atomicAnd(common, both);
}

template <class T, u32 COLUMN, bool MASKED>
GPUAGG_INLINE void see(KeyColumn<T, COLUMN, MASKED>, const Column* columns, u64 row, bool is_row,
                       Seen* seen) {
    range_of<KeyColumn<T, COLUMN, MASKED>>(columns, row, is_row, seen->all, seen->none);
}
template <class Offset, u32 COLUMN, bool MASKED>
GPUAGG_INLINE void see(StringColumn<Offset, COLUMN, MASKED>, const Column* columns, u64 row,
                       bool is_row, Seen* seen) {
    using C = Whole<StringColumn<Offset, COLUMN, MASKED>>;
    const i64 at = static_cast<i64>(row);
    const bool counted = is_row && !C::missing(columns[COLUMN], at);
    u64 word[PIECES] = {}, length = 0;
    if (counted) {
        const auto text = C::text(columns + COLUMN, at);
        length = text.length > 8 * PIECES ? ~0ull : text.length;
        C::words(text, 0, PIECES, word);
    }
#pragma unroll
    for (u32 p = 0; p <= PIECES; ++p) {
        const u64 mine = p < PIECES ? reversed(word[p < PIECES ? p : 0]) : length;
        keep_common(seen->all + p, counted ? mine : ~0ull);
        keep_common(seen->none + p, counted ? ~mine : ~0ull);
    }
}

template <class K> struct BitsOf;
template <bool KEEP, u32 W, u32 STATE, class... C> struct BitsOf<Hashed<KEEP, W, STATE, C...>> {
    static GPUAGG_INLINE void take(const Column* columns, u64 row, bool is_row, Seen* seen) {
        u32 i = 0;
        (see(C{}, columns, row, is_row, seen + i++), ...);
    }
};

// Segments as those of `sample`.
template <class Q> __device__ void bits(const Column* columns, u32 rows, Seen* seen) {
    const u64 row = static_cast<u64>(rows) * blockIdx.x / gridDim.x + threadIdx.x;
    BitsOf<typename Q::Key>::take(columns, row, row < rows, seen);
}

}  // namespace gpuagg
