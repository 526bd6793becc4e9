// What is read from the sorted rows of groups.
#pragma once

#include "output/output.cuh"
#include "output/quantile.cuh"
#include "sgb/order.cuh"

namespace gpuagg {

// Rows of no group and those without a value belong to group `groups`, behind all others.
template <class T>
__global__ void __launch_bounds__(SMALL_BLOCK)
    make_words(const __grid_constant__ Column values, const i32* codes, u32 rows, u32 groups,
               typename Sortable<T>::Word* words, u32* of_row) {
    const u32 stride = gridDim.x * blockDim.x;
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < rows; i += stride) {
        const i64 row = static_cast<i64>(i);
        const i32 code = __ldcs(codes + i);
        const bool kept = code >= 0 && is_valid(values, row);
        words[i] = Sortable<T>::of(load<T>(values, row));
        of_row[i] = kept ? static_cast<u32>(code) : groups;
    }
}

// Likewise with the numbers of the rows instead of values.
__global__ void __launch_bounds__(SMALL_BLOCK)
    make_numbers(const i32* codes, u32 rows, u32 groups, u32* numbers, u32* of_row) {
    const u32 stride = gridDim.x * blockDim.x;
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i < rows; i += stride) {
        const i32 code = __ldcs(codes + i);
        numbers[i] = static_cast<u32>(i);
        of_row[i] = code >= 0 ? static_cast<u32>(code) : groups;
    }
}

// Where each group's rows begin, NONE (as the host has filled it) for a group without any; the
// entry behind the last group is the end.
__global__ void __launch_bounds__(SMALL_BLOCK)
    mark_starts(const u32* of_row, u32 rows, u32 groups, u32* starts) {
    const u32 stride = gridDim.x * blockDim.x;
    for (u64 i = blockIdx.x * blockDim.x + threadIdx.x; i <= rows; i += stride) {
        const u32 here = i < rows ? of_row[i] : groups;
        if (i == rows ? rows == 0 || of_row[rows - 1] != groups : i == 0 || of_row[i - 1] != here)
            starts[here] = static_cast<u32>(i);
    }
}

// Groups without rows begin where the next group does.
__global__ void __launch_bounds__(SMALL_BLOCK)
    fill_starts(const u32* of_row, u32 rows, u32 groups, u32* starts) {
    const u32 stride = gridDim.x * blockDim.x;
    for (u64 g = blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += stride) {
        if (starts[g] != NONE) continue;
        u32 low = 0, high = rows;
        while (low < high) {
            const u32 middle = low + (high - low) / 2;
            if (of_row[middle] < g) low = middle + 1;
            else high = middle;
        }
        starts[g] = low;
    }
}

// H: what lies between two values.
template <class T, class H>
__global__ void __launch_bounds__(SMALL_BLOCK)
    quantiles(const typename Sortable<T>::Word* words, const u32* starts, u32 groups, f64 q,
              Between between, const __grid_constant__ Target to, u32* nulls) {
    const u32 lane = threadIdx.x % WARP;
    const u32 stride = gridDim.x * blockDim.x;
    for (u64 base = blockIdx.x * blockDim.x + threadIdx.x - lane; base < groups; base += stride) {
        const u32 group = static_cast<u32>(base) + lane;
        const bool is_group = group < groups;
        typename H::template Made<T> made{};
        bool valid = false;
        if (is_group) {
            const u32 first = starts[group];
            const u32 n = starts[group + 1] - first;
            valid = n > 0;
            if (valid) {
                const RankOf place(q, n);
                const auto value = [&](f64 rank) {
                    return Sortable<T>::back(words[first + static_cast<u32>(rank)]);
                };
                made = H::between(value(place.lower), value(place.upper), place, q, between);
            }
        }
        const u32 missing = __ballot_sync(ALL_LANES, is_group && !valid);
        if (lane == 0 && missing) atomicAdd(nulls, __popc(missing));
        put(to, group, made, valid, is_group);
    }
}

// Words of a group that differ from the one before. A warp adds once for each group it meets.
template <class W>
__global__ void __launch_bounds__(SMALL_BLOCK)
    count_distinct(const W* words, const u32* of_row, u32 rows, u32 groups, u64* counts) {
    const u32 lane = threadIdx.x % WARP;
    const u32 stride = gridDim.x * blockDim.x;
    for (u64 base = blockIdx.x * blockDim.x + threadIdx.x - lane; base < rows; base += stride) {
        const u64 i = base + lane;
        u32 group = groups;
        bool head = true, differs = false;
        if (i < rows) {
            group = of_row[i];
            const bool same_group = i > 0 && of_row[i - 1] == group;
            head = lane == 0 || !same_group;
            differs = group < groups && (!same_group || words[i - 1] != words[i]);
        }
        const u32 heads = __ballot_sync(ALL_LANES, head);
        const u32 distinct = __ballot_sync(ALL_LANES, differs);
        if (!head || group == groups) continue;
        // from this head to the next one
        const u32 behind = lane == WARP - 1 ? 0u : heads & (ALL_LANES << (lane + 1));
        const u32 upto = behind ? (behind & (0u - behind)) - 1 : ALL_LANES;
        const u32 n = __popc(distinct & upto & (ALL_LANES << lane));
        if (n) atomicAdd(counts + group, static_cast<u64>(n));
    }
}

}  // namespace gpuagg
