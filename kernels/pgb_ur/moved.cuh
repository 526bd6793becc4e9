// What a scatter moves beside the words and the validity: copies of the inputs, or the numbers of the
// rows alone, by which the aggregation then gathers the values from where the input has them (PGB-UR
// of Wu 2025, section 4.2).
#pragma once

#include "pgb_tr/partitions.cuh"

namespace gpuagg {

// The inputs without those of which only the validity is read.
template <class R, class... Before> struct WithValues;
template <u32 I, class... Before> struct WithValues<Cells<I>, Before...> {
    using Type = Row<Before...>;
};
template <u32 I, class In, class... Rest, class... Before>
struct WithValues<Cells<I, In, Rest...>, Before...>
    : WithValues<Cells<I + 1, Rest...>, Before..., In> {};
template <u32 I, u32 COLUMN, bool MASKED, class... Rest, class... Before>
struct WithValues<Cells<I, Presence<COLUMN, MASKED>, Rest...>, Before...>
    : WithValues<Cells<I + 1, Rest...>, Before...> {};

template <class Q, bool UNTRANSFORMED = Q::untransformed> struct Moved {
    using Columns = typename WithValues<typename Q::Values>::Type;
    static constexpr bool numbers = Numbered<typename Q::All>::value;
};
template <class Q> struct Moved<Q, true> {
    using Columns = Row<>;
    static constexpr bool numbers = true;
};

// The values of a row whose validity is known: at the same place of copies, or gathered.
struct FromCopies {
    template <class In> static GPUAGG_INLINE typename In::T read(const Column& from, u32 at, bool) {
        return read_as(In{}, from, static_cast<i64>(at));
    }
};
struct Gathering {
    // a sector holds values of other rows too, so it is worth keeping; a null costs no access
    template <class In>
    static GPUAGG_INLINE typename In::T read(const Column& from, u32 row, bool valid) {
        return valid ? fetch(In{}, from, from.offset + row) : typename In::T{};
    }
    template <class T, u32 COLUMN, bool MASKED>
    static GPUAGG_INLINE T fetch(Input<T, COLUMN, MASKED>, const Column& from, i64 at) {
        return __ldg(static_cast<const T*>(from.data) + at);
    }
    template <u32 COLUMN, bool MASKED>
    static GPUAGG_INLINE i128 fetch(Input<i128, COLUMN, MASKED>, const Column& from, i64 at) {
        const ulonglong2 words = __ldg(static_cast<const ulonglong2*>(from.data) + at);
        return static_cast<i128>((static_cast<u128>(words.y) << 64) | words.x);
    }
    template <u32 COLUMN, bool MASKED>
    static GPUAGG_INLINE u8 fetch(Presence<COLUMN, MASKED>, const Column&, i64) {
        return 0;
    }
};

template <class From, class V, u32 BIT, u32 I>
GPUAGG_INLINE void read_moved(Cells<I>&, const Column*, u32, V, bool) {}
template <class From, class V, u32 BIT, u32 I, class In, class... Rest>
GPUAGG_INLINE void read_moved(Cells<I, In, Rest...>& row, const Column* columns, u32 at, V valid,
                              bool wanted) {
    row.valid = wanted;
    if constexpr (In::masked) row.valid = wanted && ((valid >> BIT) & 1u);
    row.value = From::template read<In>(columns[In::column], at, row.valid);
    read_moved<From, V, BIT + (In::masked ? 1 : 0)>(static_cast<Cells<I + 1, Rest...>&>(row),
                                                    columns, at, valid, wanted);
}

// Reads a thread's rows of a tile of a partition: `load` what it holds of the keys, then their
// validity, and values or numbers as the partition has them. Rows behind `end` are left alone.
template <class Q, bool WHOLE, class V, u32 UNROLL, class Load>
GPUAGG_INLINE void read_tile(const Partitions& p, const Column* moved, u32 base, u32 end,
                             typename Q::Values (&row)[UNROLL], u32 (&number)[UNROLL],
                             V (&valid)[UNROLL], Load load) {
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j) {
        const u32 at = base + j * WARP + threadIdx.x % WARP;
        if (WHOLE || at < end) {
            load(j, at);
            valid[j] = 0;
            if constexpr (Inputs<typename Q::Values>::masked > 0)
                valid[j] = __ldcs(static_cast<const V*>(p.validity) + at);
            if constexpr (!Q::untransformed)
                read_moved<FromCopies, V, 0>(row[j], moved, at, valid[j], true);
            number[j] = 0;
            if constexpr (Moved<Q>::numbers) number[j] = __ldcs(p.numbers + at);
        }
    }
}

// Then gathers the values of those that are `wanted`, where the partition has numbers alone.
template <class Q, class V, u32 UNROLL, class Wanted>
GPUAGG_INLINE void gather_tile(const Column* moved, typename Q::Values (&row)[UNROLL],
                               const u32 (&number)[UNROLL], const V (&valid)[UNROLL],
                               Wanted wanted) {
    if constexpr (Q::untransformed) {
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j)
            read_moved<Gathering, V, 0>(row[j], moved, number[j], valid[j], wanted(j));
    }
}

}  // namespace gpuagg
