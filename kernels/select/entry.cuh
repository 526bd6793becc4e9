// The kernels that select, for values of one type: GPUAGG_VALUES, and GPUAGG_BETWEEN for what lies
// between two of them.
#pragma once

#include "select/distinct.cuh"
#include "select/pick.cuh"
#include "sgb/scan.cuh"

namespace gpuagg {
using Values = GPUAGG_VALUES;
using Words = Sortable<Values>::Word;
// Of the count: threads of a block, and blocks of an SM, which the registers must suffice for; where
// the counts leave room for one block only, it has more threads.
constexpr u32 COUNT_THREADS = 512;
constexpr u32 COUNT_BLOCKS = 3;
constexpr u32 ONE_BLOCK_THREADS = 1024;
constexpr u32 COUNT_ITEMS = 4;
}  // namespace gpuagg

#define GPUAGG_COUNT_IN_BLOCKS(NAME, THREADS, BLOCKS)                                          \
    __global__ void __launch_bounds__(THREADS, BLOCKS)                                         \
        NAME(const __grid_constant__ gpuagg::Chunk a,                                          \
             const gpuagg::Pair<gpuagg::Words>* brackets, gpuagg::u64* counts,                 \
             const __grid_constant__ gpuagg::Kept<gpuagg::Words> kept, gpuagg::u32 copies) {   \
        extern __shared__ gpuagg::u64 memory[];                                                \
        const gpuagg::InBlock in{reinterpret_cast<gpuagg::u32*>(memory), counts, a.groups,     \
                                 copies};                                                      \
        gpuagg::count_sides<gpuagg::Values, THREADS, gpuagg::COUNT_ITEMS>(a, brackets, in,     \
                                                                          kept);               \
    }

extern "C" {

__global__ void __launch_bounds__(256)
    gpuagg_sample_rows(const __grid_constant__ gpuagg::Chunk a, gpuagg::u32 stride,
                       gpuagg::u32 samples, gpuagg::Words* words, gpuagg::u32* of_row) {
    gpuagg::sample_rows<gpuagg::Values>(a, stride, samples, words, of_row);
}

__global__ void __launch_bounds__(256)
    gpuagg_aim(const gpuagg::u32* starts, gpuagg::u32 groups, gpuagg::f64 q, gpuagg::f64 errors,
               gpuagg::f64 spare, gpuagg::Pair<gpuagg::Words>* brackets, gpuagg::Ranks* ranks) {
    gpuagg::aim(starts, groups, q, errors, spare, brackets, ranks);
}

GPUAGG_COUNT_IN_BLOCKS(gpuagg_count_in_blocks, gpuagg::COUNT_THREADS, gpuagg::COUNT_BLOCKS)
GPUAGG_COUNT_IN_BLOCKS(gpuagg_count_in_one_block, gpuagg::ONE_BLOCK_THREADS, 1)

__global__ void __launch_bounds__(gpuagg::COUNT_THREADS, gpuagg::COUNT_BLOCKS)
    gpuagg_count_in_memory(const __grid_constant__ gpuagg::Chunk a,
                           const gpuagg::Pair<gpuagg::Words>* brackets, gpuagg::u64* counts,
                           const __grid_constant__ gpuagg::Kept<gpuagg::Words> kept) {
    gpuagg::count_sides<gpuagg::Values, gpuagg::COUNT_THREADS, gpuagg::COUNT_ITEMS>(
        a, brackets, gpuagg::InMemory{counts, a.groups}, kept);
}

__global__ void __launch_bounds__(256)
    gpuagg_narrow(const gpuagg::u64* counts, gpuagg::u32 groups, gpuagg::f64 q,
                  gpuagg::Pair<gpuagg::Words>* brackets, gpuagg::Pair<gpuagg::Words>* found,
                  gpuagg::Ranks* ranks, gpuagg::u64* sizes, gpuagg::u32* missed) {
    gpuagg::narrow(counts, groups, q, brackets, found, ranks, sizes, missed);
}

__global__ void __launch_bounds__(1024)
    gpuagg_pick(const gpuagg::Words* words, const gpuagg::u32* starts, const gpuagg::Ranks* ranks,
                gpuagg::u32 groups, gpuagg::Pair<gpuagg::Words>* to) {
    gpuagg::pick(words, starts, ranks, groups, to);
}

__global__ void __launch_bounds__(256)
    gpuagg_read_ranks(const gpuagg::Words* words, const gpuagg::u32* starts,
                      const gpuagg::Ranks* ranks, gpuagg::u32 groups,
                      gpuagg::Pair<gpuagg::Words>* to) {
    gpuagg::read_ranks(words, starts, ranks, groups, to);
}

__global__ void __launch_bounds__(256)
    gpuagg_quantiles_found(const gpuagg::Pair<gpuagg::Words>* found, const gpuagg::u64* sizes,
                           gpuagg::u32 groups, gpuagg::f64 q, gpuagg::u32 between,
                           const __grid_constant__ gpuagg::Target to, gpuagg::u32* nulls) {
    gpuagg::quantiles_found<gpuagg::Values, gpuagg::GPUAGG_BETWEEN>(
        found, sizes, groups, q, static_cast<gpuagg::Between>(between), to, nulls);
}

__global__ void __launch_bounds__(256)
    gpuagg_count_sampled(const gpuagg::u32* of_row, gpuagg::u32 samples, gpuagg::u32 groups,
                         gpuagg::u32* counts) {
    gpuagg::count_sampled(of_row, samples, groups, counts);
}

__global__ void __launch_bounds__(256)
    gpuagg_divide_groups(gpuagg::u32* counts, gpuagg::u32 groups, gpuagg::u32 each) {
    gpuagg::divide_groups(counts, groups, each);
}

__global__ void __launch_bounds__(1024)
    gpuagg_scan_groups(gpuagg::u32* counts, gpuagg::u32 groups) {
    gpuagg::scan_tiles(counts, groups, counts + groups);
}

__global__ void __launch_bounds__(256)
    gpuagg_find_parts(const __grid_constant__ gpuagg::Chunk a, const gpuagg::u32* firsts,
                      gpuagg::Words* words, gpuagg::u32* parts) {
    gpuagg::find_parts<gpuagg::Values>(a, firsts, words, parts);
}

__global__ void __launch_bounds__(256)
    gpuagg_find_widest(const gpuagg::u32* starts, gpuagg::u32 count, gpuagg::u32* widest) {
    gpuagg::find_widest(starts, count, widest);
}

__global__ void __launch_bounds__(512, 3)
    gpuagg_count_parts(const gpuagg::Words* words, const gpuagg::u32* starts, gpuagg::u32 parts,
                       gpuagg::u32 slots_at_most, gpuagg::u32* counts, gpuagg::u32* full) {
    gpuagg::count_parts(words, starts, parts, slots_at_most, counts, full);
}

__global__ void __launch_bounds__(256)
    gpuagg_sum_parts(const gpuagg::u32* counts, const gpuagg::u32* firsts, gpuagg::u32 groups,
                     gpuagg::u64* to) {
    gpuagg::sum_parts(counts, firsts, groups, to);
}

}  // extern "C"
