// The columns of a tile of rows, staged in the order of their partitions and written to these.
#pragma once

#include "pgb_tr/partitions.cuh"
#include "pgb_ur/moved.cuh"

namespace gpuagg {

// Rows of a thread that are in registers at once.
constexpr u32 BATCH = 8;
// No place in a tile's order, which has fewer than 2**16 rows.
constexpr u32 NOWHERE = 0xffffu;

// Where the rows of a thread go: to places in the tile's order of partitions, two to a register,
// and from each place of that order to `target`, NONE where there is nothing to move.
template <u32 THREADS_, u32 ITEMS_> struct Route {
    static constexpr u32 THREADS = THREADS_, ITEMS = ITEMS_;
    u32 places[ITEMS / 2];
    u32 target[ITEMS];
    GPUAGG_INLINE u32 place(u32 j) const { return places[j / 2] >> (j % 2 * 16) & NOWHERE; }
    GPUAGG_INLINE void set(u32 j, u32 at) {
        if (j % 2) places[j / 2] = (places[j / 2] & NOWHERE) | at << 16;
        else places[j / 2] = (places[j / 2] & ~NOWHERE) | at;
    }
};

// Moves one column: `fill` gives the values of a batch of the thread's rows, from row b on. The
// staging buffer is the block's only one, so it must be free before the first value goes in.
template <class T, class R, class Fill>
GPUAGG_INLINE void move_batches(char* buffer, void* to, const R& route, Fill fill) {
    T* staged = reinterpret_cast<T*>(buffer);
    T value[BATCH];
#pragma unroll
    for (u32 b = 0; b < R::ITEMS; b += BATCH) {
        fill(value, b);
        if (b == 0) __syncthreads();
#pragma unroll
        for (u32 j = 0; j < BATCH; ++j)
            if (route.place(b + j) != NOWHERE) staged[route.place(b + j)] = value[j];
    }
    __syncthreads();
#pragma unroll
    for (u32 j = 0; j < R::ITEMS; ++j)
        if (route.target[j] != NONE)
            static_cast<T*>(to)[route.target[j]] = staged[j * R::THREADS + threadIdx.x];
}

// The same where `read` gives the value of the thread's row j.
template <class T, class R, class Read>
GPUAGG_INLINE void move_column(char* buffer, void* to, const R& route, Read read) {
    move_batches<T>(buffer, to, route, [&](T* value, u32 b) {
#pragma unroll
        for (u32 j = 0; j < BATCH; ++j) {
            value[j] = T{};
            if (route.place(b + j) != NOWHERE) value[j] = read(b + j);
        }
    });
}

template <u32 I, class R>
GPUAGG_INLINE void move_inputs(Cells<I>*, char*, const Column*, const Column*, i64, const R&) {}
template <u32 I, class R, class In, class... Rest>
GPUAGG_INLINE void move_inputs(Cells<I, In, Rest...>*, char* buffer, const Column* columns,
                               const Column* to, i64 first, const R& route) {
    using T = typename In::T;
    move_column<T>(
        buffer, const_cast<void*>(to[In::column].data), route,
        [&](u32 j) { return load<T>(columns[In::column], first + j * R::THREADS); });
    move_inputs(static_cast<Cells<I + 1, Rest...>*>(nullptr), buffer, columns, to, first, route);
}

template <class T, class R>
GPUAGG_INLINE void move_values(char* buffer, void* to, const Column& from, i64 first,
                               const R& route) {
    move_column<T>(buffer, to, route,
                                   [&](u32 j) { return load<T>(from, first + j * R::THREADS); });
}

// The same of a column with so many bytes, if these are the bytes of T.
template <class T, class... In, class R>
GPUAGG_INLINE void move_wide(u32 bytes, char* buffer, void* to, const Column& from, i64 first,
                             const R& route) {
    if constexpr (((sizeof(typename In::T) == sizeof(T)) || ...))
        if (bytes == sizeof(T)) move_values<T>(buffer, to, from, first, route);
}

// More columns in a loop over their widths: all of them unrolled would take seconds to compile, and
// four already more registers than there are.
constexpr u32 UNROLLED_COLUMNS = 2;
template <class R, class... In>
GPUAGG_INLINE void move_many(Cells<0, In...>*, char* buffer, const Column* columns,
                             const Column* to, i64 first, const R& route) {
    const u32 bytes[] = {static_cast<u32>(sizeof(typename In::T))..., 0u};
    const u32 places[] = {In::column..., 0u};
#pragma unroll 1
    for (u32 i = 0; i < sizeof...(In); ++i) {
        const Column from = columns[places[i]];
        void* const target = const_cast<void*>(to[places[i]].data);
        // only the widths that there are: each takes its time to compile
        move_wide<u64, In...>(bytes[i], buffer, target, from, first, route);
        move_wide<u32, In...>(bytes[i], buffer, target, from, first, route);
        move_wide<u16, In...>(bytes[i], buffer, target, from, first, route);
        move_wide<u8, In...>(bytes[i], buffer, target, from, first, route);
        move_wide<i128, In...>(bytes[i], buffer, target, from, first, route);
    }
}

// The validity of a batch of rows, column by column: whether a column has a mask is asked once for
// the batch, and its loads are issued together.
template <u32 BIT, u32 I, class V, class R>
GPUAGG_INLINE void valid_bits(Cells<I>*, const Column*, i64, const R&, V*, u32) {}
template <u32 BIT, u32 I, class V, class R, class In, class... Rest>
GPUAGG_INLINE void valid_bits(Cells<I, In, Rest...>*, const Column* columns, i64 first,
                              const R& route, V* bits, u32 b) {
    if constexpr (In::masked) {
        const Column column = columns[In::column];
        if (column.mask == nullptr) {
#pragma unroll
            for (u32 j = 0; j < BATCH; ++j) bits[j] |= static_cast<V>(V{1} << BIT);
        } else {
#pragma unroll
            for (u32 j = 0; j < BATCH; ++j)
                if (route.place(b + j) != NOWHERE)
                    bits[j] |= static_cast<V>(
                        static_cast<V>(mask_bit(column, first + (b + j) * R::THREADS)) << BIT);
        }
    }
    valid_bits<BIT + (In::masked ? 1 : 0)>(static_cast<Cells<I + 1, Rest...>*>(nullptr), columns,
                                           first, route, bits, b);
}

// Everything of the rows but their words.
template <class Q, class R>
GPUAGG_INLINE void move_rest(const Partitions& p, const Column* columns, const Column* to,
                             char* buffer, i64 first, const R& route) {
    using Row = typename Q::Values;
    using Copied = typename Moved<Q>::Columns;
    if constexpr (Inputs<Row>::masked > 0) {
        using V = typename Bits<Inputs<Row>::masked>::Type;
        move_batches<V>(buffer, p.validity, route, [&](V* bits, u32 b) {
#pragma unroll
            for (u32 j = 0; j < BATCH; ++j) bits[j] = 0;
            valid_bits<0>(static_cast<Row*>(nullptr), columns, first, route, bits, b);
        });
    }
    if constexpr (Moved<Q>::numbers)
        move_column<u32>(buffer, p.numbers, route, [&](u32 j) {
            return static_cast<u32>(first + j * R::THREADS);
        });
    Copied* const copied = nullptr;
    if constexpr (Inputs<Copied>::count > UNROLLED_COLUMNS)
        move_many(copied, buffer, columns, to, first, route);
    else
        move_inputs(copied, buffer, columns, to, first, route);
}

}  // namespace gpuagg
