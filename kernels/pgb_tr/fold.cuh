// A partition's rows in the order of their groups, moved there one column at a time, and folded
// in registers: for groups of few rows and many states, of which a table holds too few and whose
// atomics take too long. The table in shared memory holds keys alone.
#pragma once

#include "pgb_tr/placed.cuh"
#include "pgb_ur/moved.cuh"

namespace gpuagg {

// Bytes of the states of one column.
constexpr u32 CUT_BYTES = 256;

// Whether more than an input's validity is read.
template <class In> struct HasValues { static constexpr bool value = true; };
template <u32 COLUMN, bool MASKED> struct HasValues<Presence<COLUMN, MASKED>> {
    static constexpr bool value = false;
};

// Fetches the beginning of what comes after input I: the next one, or the next partition's keys.
template <class Q, u32 I, class W>
GPUAGG_INLINE void prefetch_next(const Partitions& p, const Column* moved, const Placed& o) {
    using Row = typename Q::Values;
    constexpr u32 after = I == NO_INPUT ? 0 : I + 1;
    if constexpr (after < Inputs<Row>::count) {
        using In = typename InputAt<after, Row>::Type;
        if constexpr (HasValues<In>::value)
            prefetch(static_cast<const typename In::T*>(moved[In::column].data) + o.begin, o.rows);
    } else {
        prefetch(static_cast<const typename W::Stored*>(p.words.data) + o.next, o.next_rows);
    }
}

// The outputs of a group that read some of the states `OF`, and of those `KNOWN` beside them.
template <class L, u64 OF, u64 KNOWN>
GPUAGG_INLINE void write_some(Outputs<>, const Target*, u32, const typename L::Value&) {}
template <class L, u64 OF, u64 KNOWN, class O, class... Rest>
GPUAGG_INLINE void write_some(Outputs<O, Rest...>, const Target* to, u32 group,
                              const typename L::Value& v) {
    if constexpr ((O::reads & OF) != 0 && (O::reads & ~(OF | KNOWN)) == 0) {
        typename O::T value{};
        O::template make<L>(v, value);
        static_cast<typename O::T*>(to->data)[group] = value;
    }
    write_some<L, OF, KNOWN>(Outputs<Rest...>{}, to + 1, group, v);
}

// States of the groups' sizes alone.
template <class Q> struct Sizes : Pick<OfInput<NO_INPUT, false>, typename Q::All> {
    using Some = typename Pick<OfInput<NO_INPUT, false>, typename Q::All>::Type;
    static GPUAGG_INLINE typename Some::Value of_rows(u32 rows) {
        if constexpr (Same<Some, States<>>::value) return {};
        else return {{rows}, {}};
    }
};

// Folds the states of input I that are made of its values, or of the numbers of its rows; into the
// dense area or, where there is none, into the outputs that read them.
template <class Q, class O, u32 KEY_TARGETS, u32 I, bool NUMBERS, class W>
GPUAGG_INLINE void fold_column(const Args& a, const Partitions& p, const Column* moved,
                               const Target* to_columns, const Placed& o) {
    using Row = typename Q::Values;
    using Picked = Pick<OfInput<I, NUMBERS>, typename Q::All>;
    using Some = typename Picked::Type;
    using At = InputOrNone<I, Row>;
    using In = typename At::Type;
    if constexpr (!Same<Some, States<>>::value) {
        using T = typename Either<NUMBERS, u32, typename In::T>::Type;
        constexpr bool VALUES = !NUMBERS && HasValues<In>::value;
        const bool dense = a.table.words != nullptr;
        // not worked out for all columns beforehand: there are no registers for that
        char* cells = a.table.cells;
        asm volatile("" : "+l"(cells));
        const auto memory = Picked::of(Q::All::carve(cells, a.table.slots + EXTRA_SLOTS, 1));
        using Value = typename Some::Value;
        static_assert(sizeof(Value) <= CUT_BYTES, "the states of one column");
        const u32 placed = o.placed(), room = NUMBERS || VALUES ? o.bytes / sizeof(T) : placed;
        const T* const staged = reinterpret_cast<const T*>(o.staged);
        // the group that one fill cuts may end while another one is cut
        for (u32 from = 0, cut = 0; from < placed; from += room, cut ^= CUT_BYTES) {
            if constexpr (In::masked) {
                using V = typename Bits<Inputs<Row>::masked>::Type;
                for (u32 i = threadIdx.x; i < (o.rows + 31) / 32; i += FOLD_THREADS) o.nulls[i] = 0;
                __syncthreads();
                const V* const valid = static_cast<const V*>(p.validity) + o.begin;
                for (u32 i = threadIdx.x; i < o.rows; i += FOLD_THREADS) {
                    const u32 place = o.places[i];
                    if (place != NO_PLACE && !((valid[i] >> At::bit) & 1u))
                        atomicOr(o.nulls + place / 32, 1u << place % 32);
                }
            }
            if constexpr (NUMBERS) stage(o, p.numbers + o.begin, from, room);
            if constexpr (VALUES)
                stage(o, static_cast<const T*>(moved[In::column].data) + o.begin, from, room);
            __syncthreads();
            if (placed - from <= room) prefetch_next<Q, I, W>(p, moved, o);
            const u32 upto = placed - from < room ? placed : from + room;
            // a thread for each group, then a warp for each of the large ones
            const u32 lane = threadIdx.x % WARP;
            const u32 alone = (o.large + WARP - 1) / WARP * WARP;
            const u32 units = alone + (o.groups - o.large) * WARP;
            for (u32 i = threadIdx.x; i < units; i += FOLD_THREADS) {
                const bool together = i >= alone;
                const u32 g = together ? o.large + (i - alone) / WARP : i;
                if (!together && g >= o.large) continue;
                const u32 start = o.starts[g], end = o.starts[g + 1], to = o.first + g;
                if (start >= upto || end <= from || to >= a.table.slots) continue;
                auto value = Some::none();
                if (start < from && (!together || lane == 0))
                    value = dense ? Some::read(memory, {to, to})
                                  : *reinterpret_cast<const Value*>(o.cut + (cut ^ CUT_BYTES));
                const u32 begin = start < from ? from : start, last = end < upto ? end : upto;
                u32 left = last - begin, step = 1;
                // lanes whose groups are of the same size begin in different banks
                constexpr u32 LANES = 128 / (sizeof(T) < 4 ? 4 : sizeof(T));
                u32 at = begin + lane % LANES * left / LANES;
                if (together) {
                    at = begin + lane;
                    left = (left + WARP - 1 - lane) / WARP;
                    step = WARP;
                }
                for (; left; --left, at = at + step < last ? at + step : begin) {
                    Row row;
                    u32 number = 0;
                    if constexpr (NUMBERS) number = staged[at - from];
                    if constexpr (VALUES) cell<I>(row).value = staged[at - from];
                    if constexpr (In::masked)
                        cell<I>(row).valid = !(o.nulls[at / 32] >> at % 32 & 1u);
                    else if constexpr (I != NO_INPUT) cell<I>(row).valid = true;
                    Some::fold_row(value, row, number);
                }
                if (together) {
#pragma unroll
                    for (u32 d = WARP / 2; d; d /= 2)
                        Some::fold(value, from_lane(value, (lane + d) % WARP));
                    if (lane) continue;
                }
                if (dense) {
                    Some::write(memory, {to, to}, value);
                } else if (end > upto) {
                    *reinterpret_cast<Value*>(o.cut + cut) = value;
                } else {
                    auto all = Q::All::none();
                    Picked::put(value, all);
                    Sizes<Q>::put(Sizes<Q>::of_rows(end - start), all);
                    write_some<typename Q::All, Picked::bits, Sizes<Q>::bits>(
                        O{}, to_columns + KEY_TARGETS, to, all);
                    if constexpr ((KeyStates<typename Q::Key>::bits & Picked::bits) != 0) {
                        const Probe probe = Q::Key::again(moved, o.words[g]);
                        write_key<typename Q::All>(typename Q::Key{}, moved, to_columns, to, probe,
                                                   all, true);
                        if (Ambiguous<typename Q::All>::of(all)) a.counters->ambiguous = 1;
                    }
                }
            }
            __syncthreads();
        }
    }
}

template <class Q, class O, u32 KEY_TARGETS, u32 I, class W>
GPUAGG_INLINE void fold_inputs(const Args& a, const Partitions& p, const Column* moved,
                               const Target* to, const Placed& o) {
    if constexpr (I < Inputs<typename Q::Values>::count) {
        fold_column<Q, O, KEY_TARGETS, I, false, W>(a, p, moved, to, o);
        fold_column<Q, O, KEY_TARGETS, I, true, W>(a, p, moved, to, o);
        fold_inputs<Q, O, KEY_TARGETS, I + 1, W>(a, p, moved, to, o);
    }
}

// All states of the partition's groups, as far as there is room for them.
template <class Q, class O, u32 KEY_TARGETS, class W>
GPUAGG_INLINE void fold_all(const Args& a, const Partitions& p, const Column* moved,
                            const Target* to_columns, const Placed& o) {
    const auto dense = Q::All::carve(a.table.cells, a.table.slots + EXTRA_SLOTS, 1);
    if constexpr (Sizes<Q>::bits != 0)
        for (u32 g = threadIdx.x; g < o.groups; g += FOLD_THREADS) {
            const u32 to = o.first + g;
            if (to >= a.table.slots) continue;
            const auto value = Sizes<Q>::of_rows(static_cast<u32>(o.starts[g + 1] - o.starts[g]));
            if (a.table.words) {
                Sizes<Q>::Some::write(Sizes<Q>::of(dense), {to, to}, value);
            } else {
                auto all = Q::All::none();
                Sizes<Q>::put(value, all);
                write_some<typename Q::All, Sizes<Q>::bits, 0>(O{}, to_columns + KEY_TARGETS, to,
                                                              all);
            }
        }
    fold_inputs<Q, O, KEY_TARGETS, 0, W>(a, p, moved, to_columns, o);
    fold_column<Q, O, KEY_TARGETS, NO_INPUT, true, W>(a, p, moved, to_columns, o);
    if (!a.table.words) return;
    // a thread reads what it wrote itself, or what others did before a barrier
    for (u32 base = 0; base < o.groups; base += FOLD_THREADS) {
        const u32 g = base + threadIdx.x, to = o.first + g;
        const bool is_group = g < o.groups && to < a.table.slots;
        auto value = Q::All::none();
        if (is_group) value = Q::All::read(dense, {to, to});
        count_outputs<typename Q::All>(O{}, a, value, is_group);
    }
}

// Rows of which each is a group, in the order that they have.
template <class Q, class O, u32 KEY_TARGETS, class T>
GPUAGG_INLINE void put_rows(const Args& a, const Partitions& p, const Column* moved,
                            const Target* to, const T& turn, const Placed& o) {
    using V = typename Bits<Inputs<typename Q::Values>::masked>::Type;
    const u32 end = o.begin + o.rows, lane = threadIdx.x % WARP;
    for (u32 base = o.begin + threadIdx.x - lane; base < end; base += FOLD_THREADS) {
        typename Q::Values row[1];
        u32 number[1];
        V valid[1];
        u64 word = EMPTY;
        read_tile<Q, false>(p, moved, base, end, row, number, valid,
                            [&](u32, u32 at) { word = turn.word_of_row(p, at); });
        const bool is_group = base + lane < end;
        auto value = Q::All::none();
        if (is_group) Q::All::fold_row(value, row[0], number[0]);
        put_group<Q, O, KEY_TARGETS>(a, moved, to, o.first + base + lane - o.begin, word, value,
                                     is_group);
        count_outputs<typename Q::All>(O{}, a, value, is_group);
    }
}

template <class Q, class O, u32 KEY_TARGETS, class W, u32 UNROLL>
__global__ void __launch_bounds__(FOLD_THREADS, 1)
    fold(const __grid_constant__ Args a, const __grid_constant__ Partitions p,
         const __grid_constant__ Columns<Q> moved,
         const __grid_constant__ Targets<O, KEY_TARGETS> to, u16* all_places, u64* all_words) {
    extern __shared__ __align__(16) u64 fold_memory[];
    __shared__ u32 ticket, upcoming, full, first, counted, sizes[SIZES];
    if (not_final(a)) return;
    const u32 slots = a.shared_slots;
    u16* const starts = reinterpret_cast<u16*>(fold_memory);
    Turn<Q, W> turn;
    turn.keys = reinterpret_cast<typename Turn<Q, W>::Key*>(fold_memory + slots / 4 + 1);
    u32* const counts = reinterpret_cast<u32*>(turn.keys) + slots * (turn.key_bytes / 4);
    u16* const places = all_places + static_cast<u64>(blockIdx.x) * p.most;
    u32 bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    constexpr u32 TILE = WARP * UNROLL;
    bool take = true;
    Placed o{places, starts, all_words + static_cast<u64>(blockIdx.x) * slots};
    if (threadIdx.x == 0) upcoming = atomicAdd(p.ticket, 1u);
    for (;;) {
        for (u32 s = threadIdx.x; s < slots; s += FOLD_THREADS) {
            turn.clear(s);
            counts[s] = 0;
        }
        if (threadIdx.x == 0) {
            full = counted = 0;
            if (take) {
                ticket = upcoming;
                upcoming = atomicAdd(p.ticket, 1u);
            }
        }
        __syncthreads();
        if (ticket >= p.count * a.slices) return;
        if (take) {
            take = false;
            // blocks that run side by side take the parts of the same partition
            turn.start(a, ticket);
            o.begin = begin_of(p, ticket / a.slices);
            o.rows = held_of(p, ticket / a.slices);
            const u32 next = upcoming / a.slices;
            o.next = begin_of(p, next < p.count ? next : 0);
            o.next_rows = next < p.count ? held_of(p, next) : 0;
        }
        bool fits = true;
        // the trip count is the warp's, so that its lanes meet at every barrier
        for (u32 base = threadIdx.x / WARP * TILE; fits && base < o.rows;
             base += FOLD_THREADS * UNROLL)
            fits = turn.template count<UNROLL>(p, counts, slots, places, o.begin, base, o.rows,
                                               &full);
        __syncthreads();
        const bool many = o.rows >= NO_PLACE && !full &&
                          rows_of_turn(counts, slots, &counted) >= NO_PLACE;
        if (many && turn.part.mask >= LEAST_PART) {
            if (threadIdx.x == 0) atomicAdd(&a.counters->unplaced, 1u);
            take = !turn.next(a);
        } else if (full || many) {
            turn.part.split();
        } else {
            prefetch_next<Q, NO_INPUT, W>(p, moved, o);
            number_groups<Q>(a, p, moved, to, turn, counts, slots, starts, sizes, &first, o);
            __syncthreads();
            if (o.each_row_is_one()) {
                put_rows<Q, O, KEY_TARGETS>(a, p, moved, to, turn, o);
                take = !turn.next(a);
                __syncthreads();
                continue;
            }
            place_rows(counts, places, o.rows);
            // the table has done its work, and its place is the columns' now
            const u32 used = (o.groups + 1 + 7) / 8 * 16;
            const u32 masks = Inputs<typename Q::Values>::masked ? (o.rows + 127) / 128 * 16 : 0;
            o.nulls = reinterpret_cast<u32*>(reinterpret_cast<char*>(fold_memory) + used);
            o.cut = reinterpret_cast<char*>(o.nulls) + masks;
            o.staged = o.cut + 2 * CUT_BYTES;
            o.bytes = (bytes - used - masks - 2 * CUT_BYTES) / 16 * 16;
            __syncthreads();
            fold_all<Q, O, KEY_TARGETS, W>(a, p, moved, to, o);
            take = !turn.next(a);
        }
        __syncthreads();
    }
}

}  // namespace gpuagg
