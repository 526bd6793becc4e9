// Counts of each group's rows on either side of a bracket and at its ends; the rows inside are kept.
// Counts of several chunks, or of several devices, add up.
#pragma once

#include "select/rows.cuh"

namespace gpuagg {

// Where a row lies. Rows at the ends are counted and not kept, so that a value which many rows share
// costs no room.
enum class Side : u32 { below, at_low, inside, at_high, above };

// Without a branch: where both ends are one word, it is the low end.
template <class W> GPUAGG_INLINE Side side_of(W word, const Pair<W>& bracket) {
    const u32 beyond = word > bracket.low;
    return static_cast<Side>((word >= bracket.low) + beyond + (beyond & (word >= bracket.high)) +
                             (beyond & (word > bracket.high)));
}

// Counts in shared memory, of which threads side by side have copies where groups are few.
struct InBlock {
    u32* counts;
    u64* all;
    u32 groups, copies;
    GPUAGG_INLINE void begin() {
        for (u32 i = threadIdx.x; i < SIDES * groups * copies; i += blockDim.x) counts[i] = 0;
    }
    GPUAGG_INLINE void add(Side side, u32 group) {
        const u32 place = static_cast<u32>(side) * groups + group;
        atomicAdd(counts + place * copies + (threadIdx.x & (copies - 1)), 1u);
    }
    GPUAGG_INLINE void end() {
        for (u32 i = threadIdx.x; i < SIDES * groups; i += blockDim.x) {
            u32 sum = 0;
            for (u32 c = 0; c < copies; ++c) sum += counts[i * copies + c];
            if (sum) atomicAdd(all + i, static_cast<u64>(sum));
        }
    }
};

// Counts of too many groups for shared memory.
struct InMemory {
    u64* all;
    u32 groups;
    GPUAGG_INLINE void begin() {}
    GPUAGG_INLINE void add(Side side, u32 group) {
        atomicAdd(all + static_cast<u32>(side) * groups + group, 1ull);
    }
    GPUAGG_INLINE void end() {}
};

// The place of a thread's rows among those that the block keeps; all threads call it.
GPUAGG_INLINE u64 place_of(u32 mine, u32* of_block, u32* all, u32& base) {
    const u32 upto = sum_to_lane(mine);
    u32 first = 0;
    if (threadIdx.x % WARP == WARP - 1 && upto) first = atomicAdd(of_block, upto);
    first = __shfl_sync(ALL_LANES, first, WARP - 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        base = *of_block ? atomicAdd(all, *of_block) : 0;
        *of_block = 0;
    }
    __syncthreads();
    return static_cast<u64>(base) + first + upto - mine;
}

template <class T, u32 THREADS, u32 ITEMS, class C>
GPUAGG_INLINE void count_sides(const Chunk& a, const Pair<typename Sortable<T>::Word>* brackets,
                               C counts, const Inside& kept) {
    using W = typename Sortable<T>::Word;
    constexpr u32 TILE = THREADS * ITEMS;
    __shared__ u32 of_block, base;
    if (threadIdx.x == 0) of_block = 0;
    counts.begin();
    __syncthreads();
    for (u64 tile = static_cast<u64>(blockIdx.x) * TILE; tile < a.rows;
         tile += static_cast<u64>(gridDim.x) * TILE) {
        W word[ITEMS];
        u32 group[ITEMS];
        read_rows<T>(a, tile + threadIdx.x, THREADS, group, word);
        Pair<W> bracket[ITEMS];
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j)
            bracket[j] = load_pair(brackets + (group[j] == NONE ? 0 : group[j]));
        u32 inside = 0;
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j) {
            if (group[j] == NONE || bracket[j].is_closed()) continue;
            const Side side = side_of(word[j], bracket[j]);
            if (side == Side::inside) inside |= 1u << j;
            counts.add(side, group[j]);
        }
        if (kept.words == nullptr) continue;
        u64 at = place_of(__popc(inside), &of_block, kept.rows, base);
#pragma unroll
        for (u32 j = 0; j < ITEMS; ++j) {
            if (!(inside >> j & 1u)) continue;
            if (at < kept.room) {
                static_cast<W*>(kept.words)[at] = word[j];
                kept.of_row[at] = group[j];
            }
            ++at;
        }
    }
    __syncthreads();
    counts.end();
}

// BLOCKS: of an SM, which the registers must suffice for.
template <class T, u32 THREADS, u32 BLOCKS, u32 ITEMS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    count_in_blocks(const __grid_constant__ Chunk a,
                    const Pair<typename Sortable<T>::Word>* brackets, u64* counts,
                    const __grid_constant__ Inside kept, u32 copies) {
    extern __shared__ u64 memory[];
    const InBlock in{reinterpret_cast<u32*>(memory), counts, a.groups, copies};
    count_sides<T, THREADS, ITEMS>(a, brackets, in, kept);
}

template <class T, u32 THREADS, u32 BLOCKS, u32 ITEMS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    count_in_memory(const __grid_constant__ Chunk a,
                    const Pair<typename Sortable<T>::Word>* brackets, u64* counts,
                    const __grid_constant__ Inside kept) {
    count_sides<T, THREADS, ITEMS>(a, brackets, InMemory{counts, a.groups}, kept);
}

}  // namespace gpuagg
