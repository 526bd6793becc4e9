// Group-by of rows whose equal keys lie side by side: the reduction of SGB (Wu 2025, section 3.2.2).
// The keys are read twice, once to number the groups and once with the values; there is no table,
// and the groups have the order of the rows.
#pragma once

#include "output/output.cuh"
#include "sgb/order.cuh"

namespace gpuagg {

struct Runs {
    u32* heads;  // of each warp's rows: groups that begin there, then those that began before
    u32* falls;  // rows that may belong to a group that has ended
};

// What a warp knows of the row before its next step.
struct Before {
    u64 word;
    bool kept, none;
};

template <class Q>
GPUAGG_INLINE Before before_tile(const Column* columns, u64 begin) {
    if (begin == 0) return {0ull, false, true};
    const Ranked last = InOrder<typename Q::Key>::of(columns, static_cast<i64>(begin - 1));
    return {last.word, last.kept, false};
}

// Whether a group begins at this lane's row.
GPUAGG_INLINE bool begins(const Ranked& here, Before& before, bool& falls) {
    const u32 lane = threadIdx.x % WARP;
    const u32 kept = __ballot_sync(ALL_LANES, here.kept);
    u64 word = __shfl_up_sync(ALL_LANES, here.word, 1);
    bool neighbour = true, first = false;
    if (lane == 0) {
        word = before.word;
        neighbour = before.kept;
        first = before.none;
    } else {
        neighbour = (kept >> (lane - 1)) & 1u;
    }
    before = {__shfl_sync(ALL_LANES, here.word, WARP - 1), (kept >> (WARP - 1)) != 0, false};
    const bool behind = neighbour ? here.word < word : !first;
    falls = falls || here.odd || (here.kept && behind);
    return here.kept && !(neighbour && word == here.word);
}

template <class Q, u32 UNROLL>
__global__ void __launch_bounds__(SMALL_BLOCK)
    count_runs(const __grid_constant__ Args a, const __grid_constant__ Runs r,
               const __grid_constant__ Columns<Q> columns) {
    using K = typename Q::Key;
    const u32 lane = threadIdx.x % WARP;
    const u32 tile = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    const u64 begin = static_cast<u64>(tile) * RUN_ROWS;
    if (begin >= a.rows) return;
    Before before = before_tile<Q>(columns, begin);
    bool falls = false;
    u32 heads = 0;
    for (u32 step = 0; step < RUN_ROWS && begin + step < a.rows; step += WARP * UNROLL) {
        Ranked here[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 i = begin + step + j * WARP + lane;
            here[j] = {EMPTY, false, false};
            if (i < a.rows) {
                const i64 row = static_cast<i64>(i);
                here[j] = InOrder<K>::of(columns, row);
                // the key whose word is EMPTY has no place among the groups
                here[j].odd = here[j].odd || K::probe(columns, row).kind == Kind::empty;
            }
        }
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j)
            heads += __popc(__ballot_sync(ALL_LANES, begins(here[j], before, falls)));
    }
    if (lane == 0) r.heads[tile] = heads;
    if (__any_sync(ALL_LANES, falls) && lane == 0) *r.falls = 1;
}

// A warp's lanes fold the values of their runs; the last lane of each has the whole. A run that
// may go on outside the step is added to its group, any other is all of it.
template <class Q>
GPUAGG_INLINE void reduce_step(const Args& a, const typename Q::All::Memory& dense, u64 word,
                               bool head, typename Q::All::Value value, u32& groups) {
    const u32 lane = threadIdx.x % WARP;
    const u32 heads = __ballot_sync(ALL_LANES, head);
    const u32 upto = heads & (ALL_LANES >> (WARP - 1 - lane));
    const u32 start = upto ? 31 - __clz(upto) : 0;
#pragma unroll
    for (u32 d = 1; d < WARP; d *= 2) {
        auto earlier = from_lane(value, lane >= d ? lane - d : lane);
        if (lane >= start + d) {
            Q::All::fold(earlier, value);
            value = earlier;
        }
    }
    const u32 group = groups + __popc(upto) - 1;
    if (head) a.table.words[group] = word;
    const bool ends = lane < WARP - 1 && (heads >> (lane + 1)) & 1u;
    if (ends && upto) Q::All::write(dense, {group, group}, value);
    // before the first group of all there are only rows of none
    else if ((ends || lane == WARP - 1) && groups + __popc(upto) > 0)
        Q::All::add(Global{}, dense, {group, group}, value);
    groups += __popc(heads);
}

template <class Q, u32 UNROLL>
__global__ void __launch_bounds__(SMALL_BLOCK)
    reduce_runs(const __grid_constant__ Args a, const __grid_constant__ Runs r,
                const __grid_constant__ Columns<Q> columns) {
    using K = typename Q::Key;
    const auto dense = Q::All::carve(a.table.cells, a.table.slots + EXTRA_SLOTS, 1);
    const u32 lane = threadIdx.x % WARP;
    const u32 tile = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    const u64 begin = static_cast<u64>(tile) * RUN_ROWS;
    if (begin >= a.rows) return;
    Before before = before_tile<Q>(columns, begin);
    u32 groups = r.heads[tile];
    bool falls = false;
    for (u32 step = 0; step < RUN_ROWS && begin + step < a.rows; step += WARP * UNROLL) {
        Ranked here[UNROLL];
        typename Q::Values row[UNROLL];
        u64 word[UNROLL];
        u32 number[UNROLL];
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const u64 i = begin + step + j * WARP + lane;
            here[j] = {EMPTY, false, false};
            number[j] = 0;
            word[j] = EMPTY;
            if (i < a.rows) {
                number[j] = static_cast<u32>(i);
                here[j] = InOrder<K>::of(columns, number[j]);
                word[j] = K::probe(columns, number[j]).word;
                row[j].read(columns, number[j]);
            }
        }
#pragma unroll
        for (u32 j = 0; j < UNROLL; ++j) {
            const bool head = begins(here[j], before, falls);
            if (__ballot_sync(ALL_LANES, here[j].kept) == 0) continue;
            auto value = Q::All::none();
            if (here[j].kept) Q::All::fold_row(value, row[j], number[j]);
            reduce_step<Q>(a, dense, word[j], head, value, groups);
        }
    }
}

}  // namespace gpuagg
