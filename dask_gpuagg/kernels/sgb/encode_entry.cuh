// Kernels that a query has besides those of entry.cuh where its rows are to be encoded.
#pragma once

#include "sgb/encode.cuh"

extern "C" {

__global__ void __launch_bounds__(256)
    gpuagg_entries(const __grid_constant__ gpuagg::Args a, const gpuagg::i32* sorted,
                   gpuagg::u32 groups, gpuagg::Entry* entries) {
    gpuagg::make_entries(a.table, a.order, sorted, groups, entries);
}

__global__ void __launch_bounds__(512)
    gpuagg_encode(const __grid_constant__ gpuagg::Args a,
                  const __grid_constant__ gpuagg::Columns c, const gpuagg::Entry* entries,
                  gpuagg::i32* codes) {
    gpuagg::encode<GPUAGG_QUERY, GPUAGG_UNROLL>(a, c.column, entries, codes);
}

}  // extern "C"
