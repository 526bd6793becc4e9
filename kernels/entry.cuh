// The kernels of one query. The translation unit that is compiled defines, before it includes this
// file, the types GPUAGG_QUERY and GPUAGG_OUTPUTS and the numbers GPUAGG_KEY_TARGETS,
// GPUAGG_THREADS, GPUAGG_BLOCKS (of an SM), GPUAGG_UNROLL, GPUAGG_CROWDS; but for keys by row also
// those of the scatter: GPUAGG_SCATTER_THREADS, _ITEMS and _WIDE_ITEMS. Everything else is a run-time
// argument. Kernels that take long to compile are units of their own (dask_gpuagg/cuda/query/instantiations.py), each made
// only where its macro is defined, once a call needs it.
#pragma once

#include "direct/direct.cuh"
#include "estimate/bytes.cuh"
#include "estimate/check.cuh"
#include "estimate/count.cuh"
#include "estimate/ranges.cuh"
#include "estimate/sample.cuh"
#include "hgb/hgb.cuh"
#include "key/longest.cuh"
#include "key/verify.cuh"
#include "lphga/lphga.cuh"
#include "output/coded.cuh"
#include "output/output.cuh"
#include "pgb_tr/absorb.cuh"
#include "pgb_tr/aggregate.cuh"
#include "pgb_tr/fold.cuh"
#include "pgb_tr/room.cuh"
#include "pgb_tr/scatter.cuh"
#include "pgb_tr/striped.cuh"
#include "sgb/encode.cuh"
#include "sgb/range.cuh"
#include "sgb/runs.cuh"
#include "sgb/scan.cuh"
#include "sp_ega/sp_ega.cuh"

namespace gpuagg {

struct Columns {
    Column column[GPUAGG_QUERY::columns];
};
struct Targets {
    Target target[GPUAGG_KEY_TARGETS + GPUAGG_OUTPUTS::count];
};
using QueryCrowds = Crowds<GPUAGG_QUERY::All, GPUAGG_CROWDS>;

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
    gpuagg::hgb<GPUAGG_QUERY, gpuagg::InTable, GPUAGG_UNROLL>(a, c.column);
}
#endif

#ifdef GPUAGG_WITH_HGB_RUNS
__global__ void __launch_bounds__(GPUAGG_THREADS, GPUAGG_BLOCKS)
    gpuagg_hgb_runs(const __grid_constant__ gpuagg::Args a, const __grid_constant__ gpuagg::Columns c) {
    gpuagg::hgb<GPUAGG_QUERY, gpuagg::InRegisters, GPUAGG_UNROLL>(a, c.column);
}
#endif

#ifdef GPUAGG_WITH_DIRECT_SHARED
__global__ void __launch_bounds__(GPUAGG_THREADS, GPUAGG_BLOCKS)
    gpuagg_direct_shared(const __grid_constant__ gpuagg::Args a,
                         const __grid_constant__ gpuagg::Window w,
                         const __grid_constant__ gpuagg::Columns c) {
    gpuagg::direct<GPUAGG_QUERY, gpuagg::Shared, false, GPUAGG_UNROLL>(a, w, c.column);
}
#endif

#ifdef GPUAGG_WITH_DIRECT_FAR
__global__ void __launch_bounds__(GPUAGG_THREADS, GPUAGG_BLOCKS)
    gpuagg_direct_far(const __grid_constant__ gpuagg::Args a,
                         const __grid_constant__ gpuagg::Window w,
                         const __grid_constant__ gpuagg::Columns c) {
    gpuagg::direct<GPUAGG_QUERY, gpuagg::Shared, true, GPUAGG_UNROLL>(a, w, c.column);
}
#endif

#ifdef GPUAGG_WITH_DIRECT_GLOBAL
__global__ void __launch_bounds__(GPUAGG_THREADS, GPUAGG_BLOCKS)
    gpuagg_direct_global(const __grid_constant__ gpuagg::Args a,
                         const __grid_constant__ gpuagg::Window w,
                         const __grid_constant__ gpuagg::Columns c) {
    gpuagg::direct<GPUAGG_QUERY, gpuagg::Global, false, GPUAGG_UNROLL>(a, w, c.column);
}
#endif

#ifdef GPUAGG_WITH_CORE
__global__ void __launch_bounds__(256)
    gpuagg_name_slots(const __grid_constant__ gpuagg::Args a,
                      const __grid_constant__ gpuagg::Window w) {
    gpuagg::name_slots(a, w);
}

__global__ void __launch_bounds__(GPUAGG_THREADS, 1)
    gpuagg_lphga(const __grid_constant__ gpuagg::Args a,
                 const __grid_constant__ gpuagg::Columns c) {
    gpuagg::lphga<GPUAGG_QUERY, GPUAGG_UNROLL>(a, c.column);
}
#endif

#ifdef GPUAGG_WITH_SP_EGA
__global__ void __launch_bounds__(256)
    gpuagg_list_free(const __grid_constant__ gpuagg::Args a,
                     const __grid_constant__ gpuagg::Round r) {
    gpuagg::list_free(a, r);
}

__global__ void __launch_bounds__(GPUAGG_THREADS, 1)
    gpuagg_first_place(const __grid_constant__ gpuagg::Args a,
                       const __grid_constant__ gpuagg::Round r,
                       const __grid_constant__ gpuagg::Columns c) {
    gpuagg::place_rows<GPUAGG_QUERY, true, GPUAGG_UNROLL>(a, r, c.column);
}

// Of rows that found no place before.
__global__ void __launch_bounds__(GPUAGG_THREADS, 1)
    gpuagg_next_place(const __grid_constant__ gpuagg::Args a,
                      const __grid_constant__ gpuagg::Round r,
                      const __grid_constant__ gpuagg::Columns c) {
    gpuagg::place_rows<GPUAGG_QUERY, false, GPUAGG_UNROLL>(a, r, c.column);
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

#ifdef GPUAGG_WITH_CODES
__global__ void __launch_bounds__(256)
    gpuagg_make_codes(const __grid_constant__ gpuagg::Args a,
                      const __grid_constant__ gpuagg::Columns c,
                      const __grid_constant__ gpuagg::Codes codes) {
    gpuagg::make_codes<GPUAGG_QUERY>(a, c.column, codes);
}

__global__ void __launch_bounds__(gpuagg::TEXT_TILE)
    gpuagg_measure_texts(const gpuagg::u64* words, gpuagg::u32 groups,
                         const __grid_constant__ gpuagg::ColumnCode code, gpuagg::u64* starts) {
    gpuagg::measure_texts(words, groups, code, starts);
}

__global__ void __launch_bounds__(1024)
    gpuagg_scan_texts(gpuagg::u64* starts, gpuagg::u32 tiles) {
    gpuagg::scan_texts(starts, tiles);
}

__global__ void __launch_bounds__(gpuagg::TEXT_TILE)
    gpuagg_write_texts(const gpuagg::u64* words, gpuagg::u32 groups,
                       const __grid_constant__ gpuagg::ColumnCode code,
                       const __grid_constant__ gpuagg::Texts to) {
    gpuagg::write_texts(words, groups, code, to);
}

__global__ void __launch_bounds__(256)
    gpuagg_write_integers(const gpuagg::u64* words, gpuagg::u32 groups,
                          const __grid_constant__ gpuagg::ColumnCode code,
                          const __grid_constant__ gpuagg::Target to, gpuagg::u32 bytes) {
    gpuagg::write_integers(words, groups, code, to, bytes);
}
#endif

#ifdef GPUAGG_WITH_BYTES
__global__ void __launch_bounds__(gpuagg::SEGMENT)
    gpuagg_bytes(const __grid_constant__ gpuagg::Columns c, gpuagg::u32 rows,
                 gpuagg::Seen* seen) {
    gpuagg::bytes<GPUAGG_QUERY>(c.column, rows, seen);
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
    gpuagg_index_groups(const __grid_constant__ gpuagg::Args a,
                        const __grid_constant__ gpuagg::Columns c,
                        const __grid_constant__ gpuagg::Index index) {
    gpuagg::index_groups<GPUAGG_QUERY>(a, c.column, index);
}

__global__ void __launch_bounds__(256)
    gpuagg_verify(const __grid_constant__ gpuagg::Args a,
                  const __grid_constant__ gpuagg::Columns c,
                  const __grid_constant__ gpuagg::Index index) {
    gpuagg::verify<GPUAGG_QUERY, 4>(a, c.column, index);
}
#endif

// The scatters: of ordinary tiles, of larger ones for many partitions, and with a table of hot keys
// beside the tile; with whole words and with narrow ones, the first two with slots too.
#ifdef GPUAGG_WITH_SCATTER
__global__ void __launch_bounds__(GPUAGG_SCATTER_THREADS, 1)
    gpuagg_scatter(const __grid_constant__ gpuagg::Args a,
                    const __grid_constant__ gpuagg::Partitions p,
                    const __grid_constant__ gpuagg::Columns c,
                    const __grid_constant__ gpuagg::Columns to) {
    gpuagg::scatter<GPUAGG_QUERY, GPUAGG_SCATTER_THREADS, GPUAGG_SCATTER_ITEMS, false, gpuagg::WholeWords>(
        a, p, c.column, to.column, gpuagg::HotKeys{});
}
#endif

#ifdef GPUAGG_WITH_SCATTER_WIDE
__global__ void __launch_bounds__(GPUAGG_SCATTER_THREADS, 1)
    gpuagg_scatter_wide(const __grid_constant__ gpuagg::Args a,
                    const __grid_constant__ gpuagg::Partitions p,
                    const __grid_constant__ gpuagg::Columns c,
                    const __grid_constant__ gpuagg::Columns to) {
    gpuagg::scatter<GPUAGG_QUERY, GPUAGG_SCATTER_THREADS, GPUAGG_SCATTER_WIDE_ITEMS, false, gpuagg::WholeWords>(
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
    gpuagg::scatter<GPUAGG_QUERY, GPUAGG_SCATTER_THREADS, GPUAGG_SCATTER_ITEMS, true, gpuagg::WholeWords>(
        a, p, c.column, to.column, hot);
}
#endif

#ifdef GPUAGG_WITH_SCATTER_NARROW
__global__ void __launch_bounds__(GPUAGG_SCATTER_THREADS, 1)
    gpuagg_scatter_narrow(const __grid_constant__ gpuagg::Args a,
                    const __grid_constant__ gpuagg::Partitions p,
                    const __grid_constant__ gpuagg::Columns c,
                    const __grid_constant__ gpuagg::Columns to) {
    gpuagg::scatter<GPUAGG_QUERY, GPUAGG_SCATTER_THREADS, GPUAGG_SCATTER_ITEMS, false, gpuagg::NarrowWords>(
        a, p, c.column, to.column, gpuagg::HotKeys{});
}
#endif

#ifdef GPUAGG_WITH_SCATTER_WIDE_NARROW
__global__ void __launch_bounds__(GPUAGG_SCATTER_THREADS, 1)
    gpuagg_scatter_wide_narrow(const __grid_constant__ gpuagg::Args a,
                    const __grid_constant__ gpuagg::Partitions p,
                    const __grid_constant__ gpuagg::Columns c,
                    const __grid_constant__ gpuagg::Columns to) {
    gpuagg::scatter<GPUAGG_QUERY, GPUAGG_SCATTER_THREADS, GPUAGG_SCATTER_WIDE_ITEMS, false, gpuagg::NarrowWords>(
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
    gpuagg::scatter<GPUAGG_QUERY, GPUAGG_SCATTER_THREADS, GPUAGG_SCATTER_ITEMS, true, gpuagg::NarrowWords>(
        a, p, c.column, to.column, hot);
}
#endif

#ifdef GPUAGG_WITH_SCATTER_STRIPED
__global__ void __launch_bounds__(GPUAGG_SCATTER_THREADS, 1)
    gpuagg_scatter_striped(const __grid_constant__ gpuagg::Args a,
                    const __grid_constant__ gpuagg::Partitions p,
                    const __grid_constant__ gpuagg::Columns c,
                    const __grid_constant__ gpuagg::Columns to) {
    gpuagg::scatter<GPUAGG_QUERY, GPUAGG_SCATTER_THREADS, GPUAGG_SCATTER_ITEMS, false,
                    gpuagg::Striped>(a, p, c.column, to.column, gpuagg::HotKeys{});
}
#endif

#ifdef GPUAGG_WITH_SCATTER_WIDE_STRIPED
__global__ void __launch_bounds__(GPUAGG_SCATTER_THREADS, 1)
    gpuagg_scatter_wide_striped(const __grid_constant__ gpuagg::Args a,
                    const __grid_constant__ gpuagg::Partitions p,
                    const __grid_constant__ gpuagg::Columns c,
                    const __grid_constant__ gpuagg::Columns to) {
    gpuagg::scatter<GPUAGG_QUERY, GPUAGG_SCATTER_THREADS, GPUAGG_SCATTER_WIDE_ITEMS, false,
                    gpuagg::Striped>(a, p, c.column, to.column, gpuagg::HotKeys{});
}
#endif

#ifdef GPUAGG_WITH_ROOM
__global__ void __launch_bounds__(1024)
    gpuagg_count_partitions(const __grid_constant__ gpuagg::Args a,
                            const __grid_constant__ gpuagg::Partitions p,
                            const __grid_constant__ gpuagg::Columns c,
                            const __grid_constant__ gpuagg::HotKeys hot, gpuagg::u32* counts) {
    gpuagg::count_partitions<GPUAGG_QUERY>(a, p, c.column, hot, counts);
}

__global__ void __launch_bounds__(1024)
    gpuagg_lay_out(const __grid_constant__ gpuagg::Partitions p, const gpuagg::u32* counts,
                   gpuagg::u32* begins, gpuagg::u32 places) {
    gpuagg::lay_out<1024>(p, counts, begins, places);
}
#endif

#ifdef GPUAGG_WITH_AGGREGATE
__global__ void __launch_bounds__(GPUAGG_THREADS, 1)
    gpuagg_aggregate(const __grid_constant__ gpuagg::Args a,
                     const __grid_constant__ gpuagg::Partitions p,
                     const __grid_constant__ gpuagg::Columns moved,
                     const __grid_constant__ gpuagg::Targets to) {
    gpuagg::aggregate<GPUAGG_QUERY, GPUAGG_OUTPUTS, GPUAGG_KEY_TARGETS, gpuagg::NoCrowds,
                      gpuagg::WholeWords, GPUAGG_UNROLL>(a, p, moved.column, to.target);
}
#endif

#ifdef GPUAGG_WITH_AGGREGATE_NARROW
__global__ void __launch_bounds__(GPUAGG_THREADS, 1)
    gpuagg_aggregate_narrow(const __grid_constant__ gpuagg::Args a,
                     const __grid_constant__ gpuagg::Partitions p,
                     const __grid_constant__ gpuagg::Columns moved,
                     const __grid_constant__ gpuagg::Targets to) {
    gpuagg::aggregate<GPUAGG_QUERY, GPUAGG_OUTPUTS, GPUAGG_KEY_TARGETS, gpuagg::NoCrowds,
                      gpuagg::NarrowWords, GPUAGG_UNROLL>(a, p, moved.column, to.target);
}
#endif

#ifdef GPUAGG_WITH_AGGREGATE_CROWDED
__global__ void __launch_bounds__(GPUAGG_THREADS, 1)
    gpuagg_aggregate_crowded(const __grid_constant__ gpuagg::Args a,
                     const __grid_constant__ gpuagg::Partitions p,
                     const __grid_constant__ gpuagg::Columns moved,
                     const __grid_constant__ gpuagg::Targets to) {
    gpuagg::aggregate<GPUAGG_QUERY, GPUAGG_OUTPUTS, GPUAGG_KEY_TARGETS, gpuagg::QueryCrowds,
                      gpuagg::WholeWords, GPUAGG_UNROLL>(a, p, moved.column, to.target);
}
#endif

#ifdef GPUAGG_WITH_AGGREGATE_CROWDED_NARROW
__global__ void __launch_bounds__(GPUAGG_THREADS, 1)
    gpuagg_aggregate_crowded_narrow(const __grid_constant__ gpuagg::Args a,
                     const __grid_constant__ gpuagg::Partitions p,
                     const __grid_constant__ gpuagg::Columns moved,
                     const __grid_constant__ gpuagg::Targets to) {
    gpuagg::aggregate<GPUAGG_QUERY, GPUAGG_OUTPUTS, GPUAGG_KEY_TARGETS, gpuagg::QueryCrowds,
                      gpuagg::NarrowWords, GPUAGG_UNROLL>(a, p, moved.column, to.target);
}
#endif

#ifdef GPUAGG_WITH_AGGREGATE_STRIPED
__global__ void __launch_bounds__(GPUAGG_THREADS, 1)
    gpuagg_aggregate_striped(const __grid_constant__ gpuagg::Args a,
                             const __grid_constant__ gpuagg::Partitions p,
                             const __grid_constant__ gpuagg::Columns moved,
                             const __grid_constant__ gpuagg::Targets to) {
    gpuagg::aggregate_striped<GPUAGG_QUERY, GPUAGG_OUTPUTS, GPUAGG_KEY_TARGETS, GPUAGG_UNROLL>(
        a, p, moved.column, to.target);
}
#endif

#ifdef GPUAGG_WITH_FOLD
__global__ void __launch_bounds__(gpuagg::FOLD_THREADS, 1)
    gpuagg_fold(const __grid_constant__ gpuagg::Args a,
                const __grid_constant__ gpuagg::Partitions p,
                const __grid_constant__ gpuagg::Columns moved,
                const __grid_constant__ gpuagg::Targets to, gpuagg::u16* places) {
    gpuagg::fold<GPUAGG_QUERY, GPUAGG_OUTPUTS, GPUAGG_KEY_TARGETS, gpuagg::WholeWords, 4>(
        a, p, moved.column, to.target, places);
}
#endif

#ifdef GPUAGG_WITH_FOLD_NARROW
__global__ void __launch_bounds__(gpuagg::FOLD_THREADS, 1)
    gpuagg_fold_narrow(const __grid_constant__ gpuagg::Args a,
                       const __grid_constant__ gpuagg::Partitions p,
                       const __grid_constant__ gpuagg::Columns moved,
                const __grid_constant__ gpuagg::Targets to, gpuagg::u16* places) {
    gpuagg::fold<GPUAGG_QUERY, GPUAGG_OUTPUTS, GPUAGG_KEY_TARGETS, gpuagg::NarrowWords, 4>(
        a, p, moved.column, to.target, places);
}
#endif

#ifdef GPUAGG_WITH_FOLD_STRIPED
__global__ void __launch_bounds__(gpuagg::FOLD_THREADS, 1)
    gpuagg_fold_striped(const __grid_constant__ gpuagg::Args a,
                        const __grid_constant__ gpuagg::Partitions p,
                        const __grid_constant__ gpuagg::Columns moved,
                const __grid_constant__ gpuagg::Targets to, gpuagg::u16* places) {
    gpuagg::fold<GPUAGG_QUERY, GPUAGG_OUTPUTS, GPUAGG_KEY_TARGETS, gpuagg::Striped, 4>(
        a, p, moved.column, to.target, places);
}
#endif

#ifdef GPUAGG_WITH_ABSORB
__global__ void __launch_bounds__(256)
    gpuagg_absorb(const __grid_constant__ gpuagg::Args a,
                  const __grid_constant__ gpuagg::Columns c) {
    gpuagg::absorb<GPUAGG_QUERY>(a, c.column);
}

__global__ void __launch_bounds__(256)
    gpuagg_append_others(const __grid_constant__ gpuagg::Args a,
                         const __grid_constant__ gpuagg::Columns c,
                         const __grid_constant__ gpuagg::Targets to) {
    gpuagg::append_others<GPUAGG_QUERY, GPUAGG_OUTPUTS, GPUAGG_KEY_TARGETS>(a, c.column,
                                                                            to.target);
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

__global__ void __launch_bounds__(32)
    gpuagg_check(const gpuagg::Summary* summary, const __grid_constant__ gpuagg::Expected expected,
                 gpuagg::Counters* counters) {
    if (threadIdx.x == 0) gpuagg::check(*summary, expected, counters);
}
#endif

#ifdef GPUAGG_WITH_ENCODE
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
#endif

#ifdef GPUAGG_WITH_SCAN
__global__ void __launch_bounds__(1024)
    gpuagg_scan_tiles(gpuagg::u32* counts, gpuagg::u32 tiles, gpuagg::u32* all) {
    gpuagg::scan_tiles(counts, tiles, all);
}
#endif

#ifdef GPUAGG_WITH_RANGE
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
#endif

#ifdef GPUAGG_WITH_RUNS
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
#endif

}  // extern "C"
