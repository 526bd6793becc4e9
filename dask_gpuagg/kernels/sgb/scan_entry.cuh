#pragma once

#include "sgb/scan.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    gpuagg_scan_tiles(gpuagg::u32* counts, gpuagg::u32 tiles, gpuagg::u32* all) {
    gpuagg::scan_tiles(counts, tiles, all);
}
