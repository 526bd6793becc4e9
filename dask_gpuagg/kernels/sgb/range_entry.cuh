// Kernels that a query of keys in one word has besides where its rows are to be encoded.
#pragma once

#include "sgb/range.cuh"
#include "sgb/scan_entry.cuh"

extern "C" {

__global__ void __launch_bounds__(512)
    gpuagg_find_range(const __grid_constant__ gpuagg::Args a,
                      const __grid_constant__ gpuagg::Columns c, gpuagg::Range* range) {
    gpuagg::find_range<GPUAGG_QUERY>(a, c.column, range);
}

__global__ void __launch_bounds__(512)
    gpuagg_mark_keys(const __grid_constant__ gpuagg::Args a,
                     const __grid_constant__ gpuagg::Columns c, gpuagg::u64 low,
                     gpuagg::Mark* marks) {
    gpuagg::mark_keys<GPUAGG_QUERY>(a, c.column, low, marks);
}

__global__ void __launch_bounds__(256)
    gpuagg_count_marks(const gpuagg::Mark* marks, gpuagg::u32 count, gpuagg::u32* tiles) {
    gpuagg::count_marks(marks, count, tiles);
}

__global__ void __launch_bounds__(256)
    gpuagg_number_marks(gpuagg::Mark* marks, gpuagg::u32 count, const gpuagg::u32* tiles,
                        gpuagg::u64 low, gpuagg::u64* keys) {
    gpuagg::number_marks(marks, count, tiles, low, keys);
}

__global__ void __launch_bounds__(512)
    gpuagg_encode_range(const __grid_constant__ gpuagg::Args a,
                        const __grid_constant__ gpuagg::Columns c, gpuagg::u64 low,
                        const gpuagg::Mark* marks, gpuagg::i32* codes) {
    gpuagg::encode_range<GPUAGG_QUERY>(a, c.column, low, marks, codes);
}

__global__ void __launch_bounds__(256)
    gpuagg_write_range(const gpuagg::u64* keys, gpuagg::u32 groups,
                       const __grid_constant__ gpuagg::Targets t) {
    gpuagg::write_range(GPUAGG_QUERY::Key{}, keys, groups, t.target);
}

}  // extern "C"
