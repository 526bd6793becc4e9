// The values of one row, each input column read once for all states.
#pragma once

#include "core/types.cuh"

namespace gpuagg {

template <class T_, u32 COLUMN, bool MASKED> struct Input {
    using T = T_;
    static constexpr u32 column = COLUMN;
    static constexpr bool masked = MASKED;
};

// An input of which only the validity is read: for counts, first and last of any type.
template <u32 COLUMN, bool MASKED> struct Presence {
    using T = u8;
    static constexpr u32 column = COLUMN;
    static constexpr bool masked = MASKED;
};

template <class T, u32 COLUMN, bool MASKED>
GPUAGG_INLINE T read_as(Input<T, COLUMN, MASKED>, const Column& from, i64 row) {
    return load<T>(from, row);
}
template <u32 COLUMN, bool MASKED>
GPUAGG_INLINE u8 read_as(Presence<COLUMN, MASKED>, const Column&, i64) {
    return 0;
}

template <u32 I, class... In> struct Cells {
    GPUAGG_INLINE void read(const Column*, i64) {}
};
template <u32 I, class In, class... Rest> struct Cells<I, In, Rest...> : Cells<I + 1, Rest...> {
    typename In::T value;
    bool valid;
    GPUAGG_INLINE void read(const Column* from, i64 row) {
        value = read_as(In{}, from[In::column], row);
        valid = true;
        if constexpr (In::masked) valid = is_valid(from[In::column], row);
        Cells<I + 1, Rest...>::read(from, row);
    }
};
template <class... In> using Row = Cells<0, In...>;

// The cell of input I, found by its base class.
template <u32 I, class In, class... Rest>
GPUAGG_INLINE const Cells<I, In, Rest...>& cell(const Cells<I, In, Rest...>& row) {
    return row;
}
template <u32 I, class In, class... Rest>
GPUAGG_INLINE Cells<I, In, Rest...>& cell(Cells<I, In, Rest...>& row) {
    return row;
}

}  // namespace gpuagg
