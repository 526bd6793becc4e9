// What all kernels of one query share: its types, its arguments and the table in global memory.
#pragma once

#include "aggregate/list.cuh"
#include "key/coded.cuh"
#include "key/ranged.cuh"

namespace gpuagg {

// Where a key is looked for first in a table beside the partitions: rows of one partition have the
// high bits of their words in common, by which other tables go.
GPUAGG_INLINE Probe beside(Probe probe) {
    probe.home = static_cast<u32>(scramble(probe.word));
    return probe;
}

// Whether a row of a list lies in the launch's piece of the columns.
GPUAGG_INLINE bool in_piece(const Args& a, u32 row) { return row - a.first < a.end - a.first; }

// Whether what the host launched without waiting for the sample has been called off (estimate/check.cuh).
GPUAGG_INLINE bool called_off(const Args& a) { return a.counters->mismatch != 0; }

// Where a group's states are. Without a list the groups are the first slots, and then those behind
// the table.
GPUAGG_INLINE u32 slot_of_group(const Args& a, u32 group) {
    if (a.order) return a.order[group];
    const u32 dense = a.groups - __popc(a.extras);
    if (group < dense) return group;
    return a.table.slots + (a.extras == 2 ? 1u : group - dense);
}

// Lists those of a thread's rows whose bits are set, `first` and every WARP-th one after it. By a
// whole warp: true for all of it once rows were listed beyond the limit.
template <u32 UNROLL> GPUAGG_INLINE bool list_lost(const Args& a, u32 lost, u64 first) {
    if (!__any_sync(ALL_LANES, lost != 0)) return false;
    u32 begin = 0;
    if (lost) begin = atomicAdd(&a.counters->spilled, __popc(lost));
    u32 at = begin;
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j)
        if (lost & (1u << j)) a.spill[at++] = static_cast<u32>(first + j * WARP);
    return __any_sync(ALL_LANES, lost != 0 && begin >= a.spill_limit);
}

// UNTRANSFORMED: partitions hold the numbers of their rows instead of copies of the values (pgb_ur/).
template <class KEY, class STATES, class ROW, u32 COLUMNS, bool UNTRANSFORMED = false>
struct Query {
    using Key = KEY;
    using All = STATES;
    using Values = ROW;
    static constexpr u32 columns = COLUMNS;
    static constexpr bool untransformed = UNTRANSFORMED;
};

// The columns of a query Q, as a kernel's parameter.
template <class Q> struct Columns {
    Column column[Q::columns];
    GPUAGG_INLINE operator const Column*() const { return column; }
};

// The slot of a key that has one of its own behind the table, or none.
GPUAGG_INLINE u32 find_extra(u64* words, u32 slots, Kind kind) {
    if (kind == Kind::drop) return NONE;
    const u32 extra = slots + (kind == Kind::null ? 1u : 0u);
    if (peek(words + extra) == EMPTY) words[extra] = 0;  // every writer writes the same
    return extra;
}

// The slot of a key, claimed if it is new; NONE when the probes or the slots run out. Counting the
// claims costs little: they end once every key has its slot.
template <class K>
GPUAGG_INLINE u32 find(u64* words, u32 slots, u32 limit, u32* claimed, u32 probes,
                       const Column* columns, const Probe& probe) {
    if (probe.kind != Kind::key) return find_extra(words, slots, probe.kind);
    u32 slot = first_slot(probe.home, slots);
#pragma unroll 1
    for (u32 i = 0; i < probes; ++i) {
        u64 held = peek(words + slot);
        if (held == EMPTY) {
            if (peek(claimed) >= limit) return NONE;
            held = atomicCAS(words + slot, EMPTY, probe.word);
            if (held == EMPTY) {
                atomicAdd(claimed, 1u);
                return slot;
            }
        }
        if (K::same(columns, held, probe)) return slot;
        if (++slot == slots) slot = 0;
    }
    return NONE;
}

// Whether a table gives away more slots.
struct Limited {
    u32* claimed;
    u32 limit;
    GPUAGG_INLINE bool may() const { return peek(claimed) < limit; }
    GPUAGG_INLINE void made() const { atomicAdd(claimed, 1u); }
};

// A table in which a thread finds slots for the keys of its rows, by `settle`.
template <class K, class Claims> struct SettledRows {
    Claims& claims;
    const Column* columns;
    u32 lost = 0;  // bits of the rows without a slot
    GPUAGG_INLINE Probe nothing() const { return {EMPTY, 0u, Kind::drop}; }
    GPUAGG_INLINE u64 word(const Probe& probe) const { return probe.word; }
    GPUAGG_INLINE bool same(u64 held, const Probe& probe) const {
        return K::same(columns, held, probe);
    }
    GPUAGG_INLINE bool may() const { return claims.may(); }
    GPUAGG_INLINE void made() { claims.made(); }
    GPUAGG_INLINE void lose(u32 row) { lost |= 1u << row; }
};

// Slots for the keys of a thread's rows, those whose bits are `left`, from where `slot` says that
// they are looked for first; NONE for those that found none. One loop for all of them: a warp takes
// as many turns as one of its threads has probes in all, at most, which are far fewer than the sum of
// the longest probes of each of its rows.
template <class T, class W, class Key, u32 UNROLL>
GPUAGG_INLINE void settle(T& table, W* words, u32 slots, u32 probes, const Key (&key)[UNROLL],
                          u32 (&slot)[UNROLL], u32 left) {
    constexpr W FREE = static_cast<W>(EMPTY);
    Key wanted = table.nothing();
    u32 at = 0, tries = 0;
#pragma unroll
    for (u32 j = UNROLL; j-- > 0;)
        if (left >> j & 1u) {
            wanted = key[j];
            at = slot[j];
        }
    while (left) {
        W held = peek(words + at);
        bool end = false;
        if (held == FREE) {
            end = !table.may();
            if (!end) {
                held = atomicCAS(words + at, FREE, table.word(wanted));
                if (held == FREE) {
                    table.made();
                    held = table.word(wanted);
                }
            }
        }
        const bool placed = !end && table.same(held, wanted);
        if (!placed && !end && ++tries < probes) {
            if (++at == slots) at = 0;
            continue;
        }
        const u32 done = __ffs(left) - 1;
        left &= left - 1;
        const u32 next = __ffs(left) - 1;
        const u32 result = placed ? at : NONE;
        if (!placed) table.lose(done);
        tries = 0;
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            if (j == next) {
                wanted = key[j];
                at = slot[j];
            }
            if (j == done) slot[j] = result;
        }
    }
}

// The slot of a key that lies where it is looked for first: the common case, without a branch.
template <class K>
GPUAGG_INLINE bool find_first(const u64* words, u32 slots, const Probe& probe, u32& slot) {
    if constexpr (K::by_row) return false;
    slot = first_slot(probe.home, slots);
    return peek(words + slot) == probe.word && probe.word != EMPTY;
}

// What the rows of an occupied slot asked for, the two extra slots included.
template <class K>
GPUAGG_INLINE Probe asked(const Column* columns, u64 word, u32 slot, u32 slots) {
    if (slot == slots) return {EMPTY, 0u, Kind::empty};
    if (slot == slots + 1) return {0ull, 0u, Kind::null};
    return K::again(columns, word);
}

}  // namespace gpuagg
