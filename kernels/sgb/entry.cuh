// The kernels that sort, the same for all queries: by the bytes of words and of what moves along,
// or by the type of the values.
#pragma once

#include "sgb/radix.cuh"
#include "sgb/segments.cuh"

#define GPUAGG_OF_WORDS(BYTES, W)                                                              \
    __global__ void __launch_bounds__(512) gpuagg_count_digits_##BYTES(                        \
        const W* words, gpuagg::u32 rows, gpuagg::u32 digits, gpuagg::u32* counts) {           \
        gpuagg::count_digits<W>(words, rows, digits, counts);                                  \
    }                                                                                          \
    __global__ void __launch_bounds__(256) gpuagg_count_distinct_##BYTES(                      \
        const W* words, const gpuagg::u32* of_row, gpuagg::u32 rows, gpuagg::u32 groups,       \
        gpuagg::u64* counts) {                                                                 \
        gpuagg::count_distinct<W>(words, of_row, rows, groups, counts);                        \
    }

#define GPUAGG_PASS(BYTES, W, MOVED_BYTES, P)                                                  \
    __global__ void __launch_bounds__(gpuagg::SORT_THREADS, gpuagg::SORT_BLOCKS)                               \
        gpuagg_pass_##BYTES##_##MOVED_BYTES(const __grid_constant__ gpuagg::Pass a) {          \
        gpuagg::sort_pass<W, P>(a);                                                            \
    }

#define GPUAGG_OF_VALUES(NAME)                                                                 \
    __global__ void __launch_bounds__(256) gpuagg_words_##NAME(                                \
        const __grid_constant__ gpuagg::Column values, const gpuagg::i32* codes,               \
        gpuagg::u32 rows, gpuagg::u32 groups, void* words, gpuagg::u32* of_row) {              \
        using Word = gpuagg::Sortable<gpuagg::NAME>::Word;                                     \
        gpuagg::make_words<gpuagg::NAME>(values, codes, rows, groups,                          \
                                         static_cast<Word*>(words), of_row);                   \
    }                                                                                          \
    __global__ void __launch_bounds__(256) gpuagg_quantiles_##NAME(                            \
        const void* words, const gpuagg::u32* starts, gpuagg::u32 groups, gpuagg::f64 q,       \
        gpuagg::u32 between, const __grid_constant__ gpuagg::Target to, gpuagg::u32* nulls) {  \
        using Word = gpuagg::Sortable<gpuagg::NAME>::Word;                                     \
        gpuagg::quantiles<gpuagg::NAME, gpuagg::Numbers>(                                      \
            static_cast<const Word*>(words), starts, groups, q,                                \
            static_cast<gpuagg::Between>(between), to, nulls);                                 \
    }

extern "C" {

GPUAGG_OF_WORDS(4, gpuagg::u32)
GPUAGG_OF_WORDS(8, gpuagg::u64)

GPUAGG_PASS(4, gpuagg::u32, 4, gpuagg::u32)
GPUAGG_PASS(4, gpuagg::u32, 8, gpuagg::u64)
GPUAGG_PASS(8, gpuagg::u64, 4, gpuagg::u32)
GPUAGG_PASS(8, gpuagg::u64, 8, gpuagg::u64)

GPUAGG_OF_VALUES(i8)
GPUAGG_OF_VALUES(i16)
GPUAGG_OF_VALUES(i32)
GPUAGG_OF_VALUES(i64)
GPUAGG_OF_VALUES(u8)
GPUAGG_OF_VALUES(u16)
GPUAGG_OF_VALUES(u32)
GPUAGG_OF_VALUES(u64)
GPUAGG_OF_VALUES(f32)
GPUAGG_OF_VALUES(f64)

__global__ void __launch_bounds__(256)
    gpuagg_ticks(const gpuagg::u64* words, const gpuagg::u32* starts, gpuagg::u32 groups,
                 gpuagg::f64 q, gpuagg::u32 between, const __grid_constant__ gpuagg::Target to,
                 gpuagg::u32* nulls) {
    gpuagg::quantiles<gpuagg::i64, gpuagg::Ticks>(words, starts, groups, q,
                                                  static_cast<gpuagg::Between>(between), to, nulls);
}

__global__ void __launch_bounds__(gpuagg::DIGITS)
    gpuagg_scan_digits(gpuagg::u32* counts, gpuagg::u32 rows, gpuagg::u32* same) {
    gpuagg::scan_digits(counts, rows, same);
}

__global__ void __launch_bounds__(256)
    gpuagg_numbers(const gpuagg::i32* codes, gpuagg::u32 rows, gpuagg::u32 groups,
                   gpuagg::u32* numbers, gpuagg::u32* of_row) {
    gpuagg::make_numbers(codes, rows, groups, numbers, of_row);
}

__global__ void __launch_bounds__(256)
    gpuagg_mark_starts(const gpuagg::u32* of_row, gpuagg::u32 rows, gpuagg::u32 groups,
                       gpuagg::u32* starts) {
    gpuagg::mark_starts(of_row, rows, groups, starts);
}

__global__ void __launch_bounds__(256)
    gpuagg_fill_starts(const gpuagg::u32* of_row, gpuagg::u32 rows, gpuagg::u32 groups,
                       gpuagg::u32* starts) {
    gpuagg::fill_starts(of_row, rows, groups, starts);
}

}  // extern "C"
