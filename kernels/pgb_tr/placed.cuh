// A partition's rows in the order of their groups: the numbers of the groups, the places of the rows,
// and a column moved to these places.
#pragma once

#include "pgb_tr/append.cuh"
#include "pgb_tr/turns.cuh"

namespace gpuagg {

// A row of no group that is folded now. A turn takes fewer rows; of partitions that have more it takes
// a part, and one that cannot be halved any more, because it is one key's, has no place.
constexpr u32 NO_PLACE = 0xffffu;
constexpr u32 LEAST_PART = 1023;
// Rows of a thread whose values are in registers at once.
constexpr u32 FOLD_BATCH = 8;

// A partition whose rows have places in the order of their groups.
struct Placed {
    const u16* places;  // of its rows
    const u16* starts;  // of its groups, and where the last one ends
    u64* words;         // of its groups, whose keys are written when more of them is known
    u32* nulls;         // a bit for each place
    char* cut;          // states of groups that the end of what is staged has cut: this time, and last
    char* staged;       // one column, as far as `bytes` go
    u32 bytes, begin, rows, groups;
    u32 large;  // the first of the groups that a warp folds together
    u32 first;  // the place of the first group in the dense area
    u32 next, next_rows;  // the first row of the block's next partition, and how many
    GPUAGG_INLINE u32 placed() const { return starts[groups]; }
    GPUAGG_INLINE bool each_row_is_one() const { return groups == rows; }
};

// What is fetched into the L2 cache before it is asked for: one line for each thread, which of all
// blocks together is a fraction of the cache.
constexpr u32 LINE = 128;

// Fetches the first rows of a partition's column.
template <class T> GPUAGG_INLINE void prefetch(const T* column, u32 rows) {
    const u32 row = threadIdx.x * (LINE / sizeof(T));
    if (row < rows) asm volatile("prefetch.global.L2 [%0];" ::"l"(column + row));
}

// A value that is read once. The partitions' columns are aligned, decimals too.
template <class T> GPUAGG_INLINE T stream(const T* from) {
    if constexpr (sizeof(T) <= 8) return __ldcs(from);
    else return *from;
}

// Brings the values of N rows of a thread, FOLD_THREADS apart, into shared memory, if their places
// are among `room` from `from` on.
template <u32 N, class T>
GPUAGG_INLINE void stage_rows(const Placed& o, const T* column, u32 from, u32 room, u32 row) {
    T* const staged = reinterpret_cast<T*>(o.staged);
    const u16* const places = o.places + row;
    const T* const values = column + row;
    T value[N];
    u32 to[N];
#pragma unroll
    for (u32 j = 0; j < N; ++j) {
        to[j] = places[j * FOLD_THREADS];
        value[j] = stream(values + j * FOLD_THREADS);
    }
#pragma unroll
    for (u32 j = 0; j < N; ++j)
        if (to[j] != NO_PLACE && to[j] - from < room) staged[to[j] - from] = value[j];
}
template <class T>
GPUAGG_INLINE void stage(const Placed& o, const T* column, u32 from, u32 room) {
    constexpr u32 STEP = FOLD_BATCH * FOLD_THREADS, AHEAD = 2;
    if (o.rows < STEP) {
        for (u32 row = threadIdx.x; row < o.rows; row += FOLD_THREADS)
            stage_rows<1>(o, column, from, room, row);
        return;
    }
    for (u32 base = 0; base < o.rows; base += STEP) {
        if (threadIdx.x < STEP * sizeof(T) / LINE && base + AHEAD * STEP < o.rows)
            prefetch(column + base + AHEAD * STEP, o.rows - base - AHEAD * STEP);
        // the last rows may come twice, to the same places
        const u32 begin = base + STEP <= o.rows ? base : o.rows - STEP;
        stage_rows<FOLD_BATCH>(o, column, from, room, begin + threadIdx.x);
    }
}

// Classes of the sizes of groups: each of the least ones, then two for each power of two. A warp
// folds a group of the last one, a thread any other.
constexpr u32 SIZES = 32, LEAST_SIZES = 24;
GPUAGG_INLINE u32 size_class(u32 rows) {
    if (rows < LEAST_SIZES) return rows;
    const u32 power = 31 - __clz(rows);
    const u32 half = 2 * (power - 4) + (rows >> (power - 1) & 1u) - 1;
    return half < SIZES - LEAST_SIZES ? LEAST_SIZES + half : SIZES - 1;
}

// How many rows a turn has, by the whole block; `sum` was 0.
GPUAGG_INLINE u32 rows_of_turn(const u32* counts, u32 slots, u32* sum) {
    u32 mine = 0;
    for (u32 s = threadIdx.x; s < slots; s += FOLD_THREADS) mine += counts[s];
    atomicAdd(sum, mine);
    __syncthreads();
    return *sum;
}

// Numbers the groups by their size, so that the threads of a warp fold as many rows each; counts
// become where their rows start. Where each row is a group, only places for them are taken.
template <class Q, class T>
GPUAGG_INLINE void number_groups(const Args& a, const Partitions& p, const Column* moved,
                                 const Target* to, const T& turn, u32* counts, u32 slots,
                                 u16* starts, u32* sizes, u32* first, Placed& o) {
    const u32 lane = threadIdx.x % WARP;
    // groups in the high half, rows in the low one
    constexpr u32 GROUP = 1u << 16;
    if (threadIdx.x < SIZES) sizes[threadIdx.x] = 0;
    __syncthreads();
    // groups of one row may be nearly all: a warp adds them up first
    u32 single = 0;
    for (u32 s = threadIdx.x; s < slots; s += FOLD_THREADS) {
        const u32 n = counts[s];
        if (n == 1) single += GROUP + 1;
        else if (n) atomicAdd(sizes + size_class(n), GROUP + n);
    }
    single = from_lane(sum_to_lane(single), WARP - 1);
    if (lane == 0 && single) atomicAdd(sizes + 1, single);
    __syncthreads();
    const u32 mine = sizes[lane];
    const u32 upto = sum_to_lane(mine);
    const u32 all = from_lane(upto, WARP - 1), groups = all >> 16;
    o.groups = groups;
    o.large = from_lane(upto - mine, SIZES - 1) >> 16;
    __syncthreads();
    if (threadIdx.x < SIZES) sizes[lane] = upto - mine;
    if (threadIdx.x == 0) *first = atomicAdd(&a.counters->groups, groups);
    __syncthreads();
    o.first = *first;
    if (o.each_row_is_one()) return;
    for (u32 base = threadIdx.x - lane; base < slots; base += FOLD_THREADS) {
        const u32 s = base + lane, n = s < slots ? counts[s] : 0;
        const u32 singles = __ballot_sync(ALL_LANES, n == 1);
        u32 at = 0;
        if (lane == 0 && singles) at = atomicAdd(sizes + 1, __popc(singles) * (GROUP + 1));
        at = from_lane(at, 0) + __popc(singles & ((1u << lane) - 1)) * (GROUP + 1);
        if (n > 1) at = atomicAdd(sizes + size_class(n), GROUP + n);
        if (n == 0) continue;
        starts[at >> 16] = static_cast<u16>(s);
        counts[s] = at & (GROUP - 1);
    }
    __syncthreads();
    for (u32 base = 0; base < groups; base += FOLD_THREADS) {
        const u32 g = base + threadIdx.x, at = o.first + g;
        const bool is_group = g < groups, fits = is_group && at < a.table.slots;
        const u32 s = is_group ? starts[g] : 0;
        const u64 word = fits ? turn.word(p, s) : EMPTY;
        if (!a.table.words) {
            if constexpr (KeyStates<typename Q::Key>::bits != 0) {
                if (fits) o.words[g] = word;
            } else {
                // by all lanes
                Probe probe{EMPTY, 0u, Kind::key};
                if (fits) probe = Q::Key::again(moved, word);
                write_key<typename Q::All>(typename Q::Key{}, moved, to, at, probe,
                                           Q::All::none(), fits);
            }
        } else if (fits) {
            a.table.words[at] = word;
        }
        if (is_group) starts[g] = static_cast<u16>(counts[s]);
    }
    if (threadIdx.x == 0) starts[groups] = static_cast<u16>(all);
}

// Adds 1 without a branch, so that several are under way at once.
GPUAGG_INLINE u32 add_one_if(bool wanted, u32* cell) {
    u32 before = 0;
    const u32 address = static_cast<u32>(__cvta_generic_to_shared(cell));
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %2, 0; @p atom.shared.add.u32 %0, [%1], 1; }"
        : "+r"(before)
        : "r"(address), "r"(static_cast<u32>(wanted)));
    return before;
}

// From the slots of the rows to their places; counts hold where the rows of a slot begin.
GPUAGG_INLINE void place_rows(u32* counts, u16* places, u32 rows) {
    for (u32 base = threadIdx.x; base < rows; base += FOLD_THREADS * FOLD_BATCH) {
        u16* const mine = places + base;
        u32 slot[FOLD_BATCH];
#pragma unroll
        for (u32 j = 0; j < FOLD_BATCH; ++j) {
            slot[j] = NO_PLACE;
            if (base + j * FOLD_THREADS < rows) slot[j] = mine[j * FOLD_THREADS];
        }
        u32 place[FOLD_BATCH];
#pragma unroll
        for (u32 j = 0; j < FOLD_BATCH; ++j)
            place[j] = add_one_if(slot[j] != NO_PLACE, counts + slot[j]);
#pragma unroll
        for (u32 j = 0; j < FOLD_BATCH; ++j)
            if (slot[j] != NO_PLACE) mine[j * FOLD_THREADS] = static_cast<u16>(place[j]);
    }
}

}  // namespace gpuagg
