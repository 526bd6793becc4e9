// Kernels that a query of keys in one word has besides those of entry.cuh where equal keys lie side
// by side, or are to be brought there.
#pragma once

#include "sgb/runs.cuh"
#include "sgb/scan_entry.cuh"

extern "C" {

__global__ void __launch_bounds__(256)
    gpuagg_count_runs(const __grid_constant__ gpuagg::Args a,
                      const __grid_constant__ gpuagg::Runs r,
                      const __grid_constant__ gpuagg::Columns c) {
    gpuagg::count_runs<GPUAGG_QUERY, GPUAGG_UNROLL>(a, r, c.column);
}

__global__ void __launch_bounds__(256)
    gpuagg_reduce_runs(const __grid_constant__ gpuagg::Args a,
                       const __grid_constant__ gpuagg::Runs r,
                       const __grid_constant__ gpuagg::Columns c) {
    gpuagg::reduce_runs<GPUAGG_QUERY, GPUAGG_UNROLL>(a, r, c.column);
}

__global__ void __launch_bounds__(256)
    gpuagg_rank_rows(const __grid_constant__ gpuagg::Args a,
                     const __grid_constant__ gpuagg::Columns c, gpuagg::u64* words,
                     gpuagg::u32* numbers) {
    gpuagg::rank_rows<GPUAGG_QUERY>(a, c.column, words, numbers);
}

}  // extern "C"
