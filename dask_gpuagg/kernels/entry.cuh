// The kernels of one query. The translation unit that is compiled defines, before it includes this
// file, the types GPUAGG_QUERY and GPUAGG_OUTPUTS and the numbers GPUAGG_KEY_TARGETS,
// GPUAGG_THREADS, GPUAGG_BLOCKS (of an SM), GPUAGG_UNROLL; where keys fit one word also those of
// the scatter: GPUAGG_SCATTER_THREADS, _ITEMS and _WIDE_ITEMS. Everything else is a run-time argument.
// Kernels that take long to compile are units of their own (dask_gpuagg/cuda/source.py), each made
// only where its macro is defined, once a call needs it.
#pragma once

#include "estimate/count.cuh"
#include "estimate/ranges.cuh"
#include "estimate/sample.cuh"
#include "hgb/hgb.cuh"
#include "key/longest.cuh"
#include "key/verify.cuh"
#include "lphga/lphga.cuh"
#include "output/output.cuh"
#include "pgb_tr/absorb.cuh"
#include "pgb_tr/aggregate.cuh"
#include "pgb_tr/scatter.cuh"

namespace gpuagg {

struct Columns {
    Column column[GPUAGG_QUERY::columns];
};
struct Targets {
    Target target[GPUAGG_KEY_TARGETS + GPUAGG_OUTPUTS::count];
};

}  // namespace gpuagg

extern "C" {

#ifdef GPUAGG_WITH_CORE
__global__ void __launch_bounds__(256) gpuagg_clear(const __grid_constant__ gpuagg::Args a) {
    gpuagg::clear_table<GPUAGG_QUERY>(a.table);
    if (blockIdx.x == 0) {
        auto* words = reinterpret_cast<gpuagg::u32*>(a.counters);
        for (gpuagg::u32 i = threadIdx.x; i < sizeof(gpuagg::Counters) / 4 - 1; i += blockDim.x)
            words[i] = 0;
    }
}
#endif

#ifdef GPUAGG_WITH_HGB
__global__ void __launch_bounds__(GPUAGG_THREADS, GPUAGG_BLOCKS)
    gpuagg_hgb(const __grid_constant__ gpuagg::Args a, const __grid_constant__ gpuagg::Columns c) {
    gpuagg::hgb<GPUAGG_QUERY, gpuagg::InTable, false, GPUAGG_UNROLL>(a, c.column);
}
#endif

#ifdef GPUAGG_WITH_HGB_SLICED
__global__ void __launch_bounds__(GPUAGG_THREADS, GPUAGG_BLOCKS)
    gpuagg_hgb_sliced(const __grid_constant__ gpuagg::Args a, const __grid_constant__ gpuagg::Columns c) {
    gpuagg::hgb<GPUAGG_QUERY, gpuagg::InTable, true, GPUAGG_UNROLL>(a, c.column);
}
#endif

#ifdef GPUAGG_WITH_HGB_RUNS
__global__ void __launch_bounds__(GPUAGG_THREADS, GPUAGG_BLOCKS)
    gpuagg_hgb_runs(const __grid_constant__ gpuagg::Args a, const __grid_constant__ gpuagg::Columns c) {
    gpuagg::hgb<GPUAGG_QUERY, gpuagg::InRegisters, false, GPUAGG_UNROLL>(a, c.column);
}
#endif

#ifdef GPUAGG_WITH_CORE
__global__ void __launch_bounds__(GPUAGG_THREADS, 1)
    gpuagg_lphga(const __grid_constant__ gpuagg::Args a,
                 const __grid_constant__ gpuagg::Columns c) {
    gpuagg::lphga<GPUAGG_QUERY, GPUAGG_UNROLL>(a, c.column);
}
#endif

#ifdef GPUAGG_WITH_TRANSFER
__global__ void __launch_bounds__(256) gpuagg_clear_target(const __grid_constant__ gpuagg::Args a) {
    gpuagg::clear_table<GPUAGG_QUERY>(a.target);
}

__global__ void __launch_bounds__(256)
    gpuagg_transfer(const __grid_constant__ gpuagg::Args a,
                    const __grid_constant__ gpuagg::Columns c) {
    gpuagg::transfer<GPUAGG_QUERY>(a, c.column, a.table.slots + gpuagg::EXTRA_SLOTS);
}
#endif

#ifdef GPUAGG_WITH_WORDS
__global__ void __launch_bounds__(256)
    gpuagg_make_words(const __grid_constant__ gpuagg::Args a,
                      const __grid_constant__ gpuagg::Columns c) {
    gpuagg::make_words<GPUAGG_QUERY>(a, c.column);
}
#endif

#ifdef GPUAGG_WITH_RANGES
__global__ void __launch_bounds__(gpuagg::SEGMENT)
    gpuagg_ranges(const __grid_constant__ gpuagg::Columns c, gpuagg::u32 rows,
                  gpuagg::u64* bounds) {
    gpuagg::ranges<GPUAGG_QUERY>(c.column, rows, bounds);
}
#endif

#ifdef GPUAGG_WITH_LONGEST
__global__ void __launch_bounds__(256)
    gpuagg_longest(const __grid_constant__ gpuagg::Columns c, gpuagg::u32 rows,
                   gpuagg::u32* most) {
    gpuagg::longest<GPUAGG_QUERY>(c.column[0], rows, most);
}
#endif

#ifdef GPUAGG_WITH_VERIFY
__global__ void __launch_bounds__(256)
    gpuagg_index_groups(const __grid_constant__ gpuagg::Args a) {
    gpuagg::index_groups<GPUAGG_QUERY>(a);
}

__global__ void __launch_bounds__(256)
    gpuagg_verify(const __grid_constant__ gpuagg::Args a,
                  const __grid_constant__ gpuagg::Columns c) {
    gpuagg::verify<GPUAGG_QUERY, 4>(a, c.column);
}
#endif

// The scatters: of ordinary tiles, of larger ones for many partitions, and with a table of hot keys
// beside the tile; each with whole words and with narrow ones.
#ifdef GPUAGG_WITH_SCATTER
__global__ void __launch_bounds__(GPUAGG_SCATTER_THREADS, 1)
    gpuagg_scatter(const __grid_constant__ gpuagg::Args a,
                    const __grid_constant__ gpuagg::Partitions p,
                    const __grid_constant__ gpuagg::Columns c,
                    const __grid_constant__ gpuagg::Columns to) {
    gpuagg::scatter<GPUAGG_QUERY, GPUAGG_SCATTER_THREADS, GPUAGG_SCATTER_ITEMS, false, false>(
        a, p, c.column, to.column, gpuagg::HotKeys{});
}
#endif

#ifdef GPUAGG_WITH_SCATTER_WIDE
__global__ void __launch_bounds__(GPUAGG_SCATTER_THREADS, 1)
    gpuagg_scatter_wide(const __grid_constant__ gpuagg::Args a,
                    const __grid_constant__ gpuagg::Partitions p,
                    const __grid_constant__ gpuagg::Columns c,
                    const __grid_constant__ gpuagg::Columns to) {
    gpuagg::scatter<GPUAGG_QUERY, GPUAGG_SCATTER_THREADS, GPUAGG_SCATTER_WIDE_ITEMS, false, false>(
        a, p, c.column, to.column, gpuagg::HotKeys{});
}
#endif

#ifdef GPUAGG_WITH_SCATTER_HOT
__global__ void __launch_bounds__(GPUAGG_SCATTER_THREADS, 1)
    gpuagg_scatter_hot(const __grid_constant__ gpuagg::Args a,
                    const __grid_constant__ gpuagg::Partitions p,
                    const __grid_constant__ gpuagg::Columns c,
                    const __grid_constant__ gpuagg::Columns to,
                    const __grid_constant__ gpuagg::HotKeys hot) {
    gpuagg::scatter<GPUAGG_QUERY, GPUAGG_SCATTER_THREADS, GPUAGG_SCATTER_ITEMS, true, false>(
        a, p, c.column, to.column, hot);
}
#endif

#ifdef GPUAGG_WITH_SCATTER_NARROW
__global__ void __launch_bounds__(GPUAGG_SCATTER_THREADS, 1)
    gpuagg_scatter_narrow(const __grid_constant__ gpuagg::Args a,
                    const __grid_constant__ gpuagg::Partitions p,
                    const __grid_constant__ gpuagg::Columns c,
                    const __grid_constant__ gpuagg::Columns to) {
    gpuagg::scatter<GPUAGG_QUERY, GPUAGG_SCATTER_THREADS, GPUAGG_SCATTER_ITEMS, false, true>(
        a, p, c.column, to.column, gpuagg::HotKeys{});
}
#endif

#ifdef GPUAGG_WITH_SCATTER_WIDE_NARROW
__global__ void __launch_bounds__(GPUAGG_SCATTER_THREADS, 1)
    gpuagg_scatter_wide_narrow(const __grid_constant__ gpuagg::Args a,
                    const __grid_constant__ gpuagg::Partitions p,
                    const __grid_constant__ gpuagg::Columns c,
                    const __grid_constant__ gpuagg::Columns to) {
    gpuagg::scatter<GPUAGG_QUERY, GPUAGG_SCATTER_THREADS, GPUAGG_SCATTER_WIDE_ITEMS, false, true>(
        a, p, c.column, to.column, gpuagg::HotKeys{});
}
#endif

#ifdef GPUAGG_WITH_SCATTER_HOT_NARROW
__global__ void __launch_bounds__(GPUAGG_SCATTER_THREADS, 1)
    gpuagg_scatter_hot_narrow(const __grid_constant__ gpuagg::Args a,
                    const __grid_constant__ gpuagg::Partitions p,
                    const __grid_constant__ gpuagg::Columns c,
                    const __grid_constant__ gpuagg::Columns to,
                    const __grid_constant__ gpuagg::HotKeys hot) {
    gpuagg::scatter<GPUAGG_QUERY, GPUAGG_SCATTER_THREADS, GPUAGG_SCATTER_ITEMS, true, true>(
        a, p, c.column, to.column, hot);
}
#endif

#ifdef GPUAGG_WITH_AGGREGATE
__global__ void __launch_bounds__(GPUAGG_THREADS, 1)
    gpuagg_aggregate(const __grid_constant__ gpuagg::Args a,
                     const __grid_constant__ gpuagg::Partitions p,
                     const __grid_constant__ gpuagg::Columns moved) {
    gpuagg::aggregate<GPUAGG_QUERY, GPUAGG_OUTPUTS, false, GPUAGG_UNROLL>(a, p, moved.column);
}
#endif

#ifdef GPUAGG_WITH_AGGREGATE_NARROW
__global__ void __launch_bounds__(GPUAGG_THREADS, 1)
    gpuagg_aggregate_narrow(const __grid_constant__ gpuagg::Args a,
                     const __grid_constant__ gpuagg::Partitions p,
                     const __grid_constant__ gpuagg::Columns moved) {
    gpuagg::aggregate<GPUAGG_QUERY, GPUAGG_OUTPUTS, true, GPUAGG_UNROLL>(a, p, moved.column);
}
#endif

#ifdef GPUAGG_WITH_ABSORB
__global__ void __launch_bounds__(256)
    gpuagg_absorb(const __grid_constant__ gpuagg::Args a,
                  const __grid_constant__ gpuagg::Columns c) {
    gpuagg::absorb<GPUAGG_QUERY>(a, c.column);
}

__global__ void __launch_bounds__(256)
    gpuagg_append_others(const __grid_constant__ gpuagg::Args a) {
    gpuagg::append_others<GPUAGG_QUERY>(a);
}

__global__ void __launch_bounds__(256) gpuagg_recount(const __grid_constant__ gpuagg::Args a) {
    gpuagg::recount<GPUAGG_QUERY, GPUAGG_OUTPUTS>(a);
}
#endif

#ifdef GPUAGG_WITH_COUNT
__global__ void __launch_bounds__(512)
    gpuagg_count_keys(const __grid_constant__ gpuagg::Columns c, gpuagg::u32 rows,
                      gpuagg::u32* registers) {
    gpuagg::count_keys<GPUAGG_QUERY>(c.column, rows, registers);
}
#endif

#ifdef GPUAGG_WITH_CORE
__global__ void __launch_bounds__(256) gpuagg_collect(const __grid_constant__ gpuagg::Args a) {
    gpuagg::collect<GPUAGG_QUERY, GPUAGG_OUTPUTS>(a);
}

__global__ void __launch_bounds__(256)
    gpuagg_write(const __grid_constant__ gpuagg::Args a, const __grid_constant__ gpuagg::Columns c,
                 const __grid_constant__ gpuagg::Targets t) {
    gpuagg::write<GPUAGG_QUERY, GPUAGG_OUTPUTS, GPUAGG_KEY_TARGETS>(a, c.column, t.target);
}

__global__ void __launch_bounds__(gpuagg::SEGMENT)
    gpuagg_sample(const __grid_constant__ gpuagg::Columns c, gpuagg::u32 rows,
                  gpuagg::Sample* table, gpuagg::Summary* summary) {
    gpuagg::sample<GPUAGG_QUERY>(c.column, rows, table, summary);
}

__global__ void __launch_bounds__(256)
    gpuagg_summarise(const gpuagg::Sample* table, gpuagg::Summary* summary,
                     gpuagg::HotSeen* hot) {
    gpuagg::summarise(table, summary, hot);
}
#endif

}  // extern "C"
