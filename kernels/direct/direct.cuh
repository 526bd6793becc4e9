// Group-by of keys from a narrow range: the distance from the least key is the slot, so nothing is
// looked for. The states lie in the shared memory of each SM while they fit there (HGB of Wu 2025,
// section 4.2, without its hash), or in one table in global memory, for which one atomic a row is
// all the work. One bit of shared memory records that a key has occurred, unless its rows are counted
// anyway.
#pragma once

#include "direct/block.cuh"

namespace gpuagg {

struct Window {
    u64 base;      // the least unmixed word
    u32 keys;      // an even number
    u32 shift;     // of a key's distance to its slot
    u32* present;  // a bit for each key, where the states are in global memory
};

GPUAGG_INLINE u32 mark_words(u32 keys) { return (keys + 31) / 32; }

// A tile of WARP * UNROLL rows, one warp's. True if rows were listed beyond the limit.
template <class Q, class Space, class Kept, bool MARKED, bool WHOLE, u32 UNROLL>
GPUAGG_INLINE bool take_direct(const Args& a, const Window& w, const Column* columns, u32* present,
                               const typename Kept::Memory& memory, u64 base) {
    using K = typename Q::Key;
    const u32 lane = threadIdx.x % WARP;
    const u32 share = threadIdx.x & (a.replicas - 1);
    typename Q::Values row[UNROLL];
    u32 at[UNROLL];
    u32 lost = 0;
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j) {
        const u64 i = base + j * WARP + lane;
        at[j] = NONE;
        if (WHOLE || i < a.rows) {
            Kind kind;
            const u64 distance = K::plain(columns, static_cast<i64>(i), kind) - w.base;
            row[j].read(columns, static_cast<i64>(i));
            if (kind == Kind::key && distance < w.keys) at[j] = static_cast<u32>(distance);
            else if (kind != Kind::drop) lost |= 1u << j;
        }
    }
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j)
        if (at[j] != NONE) {
            if constexpr (MARKED) {
                const u32 bit = 1u << at[j] % 32;
                if (!(peek(present + at[j] / 32) & bit)) atomicOr(present + at[j] / 32, bit);
            }
            const u32 slot = Space::of_block ? at[j] : at[j] << w.shift;
            Kept::update(Space{}, memory, {slot, slot * a.replicas + share}, row[j],
                           static_cast<u32>(base + j * WARP + lane));
        }
    return list_lost<UNROLL>(a, lost, base + lane);
}

// Tiles after which blocks look at what the others have found: by then most values that the first
// rows had to try are known to be no extremes, and later much is gained once more.
constexpr u32 FIRST_LOOK = 4;
constexpr u32 LAST_LOOK = 24;

template <class Q, class Space, class Kept, bool MARKED, u32 UNROLL>
GPUAGG_INLINE void take_all(const Args& a, const Window& w, const Column* columns, u32* present,
                            const typename Kept::Memory& memory) {
    constexpr u32 TILE = WARP * UNROLL;
    const u32 warps = blockDim.x / WARP;
    const u64 stride = static_cast<u64>(gridDim.x) * warps * TILE;
    u64 base = (static_cast<u64>(blockIdx.x) * warps + threadIdx.x / WARP) * TILE + a.first;
    bool stop = false;
    u32 tiles = 0;
    for (; base + TILE <= a.rows && !stop; base += stride) {
        stop = take_direct<Q, Space, Kept, MARKED, true, UNROLL>(a, w, columns, present, memory,
                                                                 base);
        if constexpr (Space::of_block) {
            if constexpr (Kept::far) {
                ++tiles;
                if (tiles == FIRST_LOOK || tiles == LAST_LOOK)
                    for (u32 s = threadIdx.x; s < w.keys; s += blockDim.x) Kept::refresh(memory, s);
            }
        }
    }
    if (base < a.rows && !stop)
        take_direct<Q, Space, Kept, MARKED, false, UNROLL>(a, w, columns, present, memory, base);
}

// In shared memory `replicas` threads in a row each have a copy of the states. Rows outside of the
// window are listed. FAR: whether extremes of float64 lie in the global table.
template <class Q, class Space, bool FAR, u32 THREADS, u32 UNROLL>
__global__ void __launch_bounds__(THREADS, 1)
    direct(const __grid_constant__ Args a, const __grid_constant__ Window w,
           const __grid_constant__ Columns<Q> columns) {
    extern __shared__ u64 shared[];
    if (called_off(a)) return;
    u32* present = reinterpret_cast<u32*>(shared);
    const u32 marks = mark_words(w.keys);
    const auto global = Q::All::carve(a.table.cells, a.table.slots + EXTRA_SLOTS, 1);
    for (u32 i = threadIdx.x; i < marks; i += blockDim.x) present[i] = 0;
    if constexpr (Space::of_block) {
        using Kept = Block<typename Q::All, FAR>;
        char* cells = reinterpret_cast<char*>(present + (marks + 1) / 2 * 2);
        const auto memory = Kept::carve(cells, w.keys, a.replicas, global);
        for (u32 i = threadIdx.x; i < w.keys * a.replicas; i += blockDim.x)
            Kept::clear(memory, {i / a.replicas, i});
        __syncthreads();
        take_all<Q, Space, Kept, !Kept::shows, UNROLL>(a, w, columns, present, memory);
        __syncthreads();
        for (u32 s = threadIdx.x; s < w.keys; s += blockDim.x) {
            const bool occurs = Kept::shows ? Kept::occurs(memory, s, a.replicas)
                                            : (present[s / 32] >> s % 32 & 1u) != 0;
            if (!occurs) continue;
            Kept::merge(memory, global, s, a.replicas);
            a.table.words[s] = mix(w.base + s);  // every writer writes the same
        }
    } else {
        __syncthreads();
        take_all<Q, Space, typename Q::All, true, UNROLL>(a, w, columns, present, global);
        __syncthreads();
        for (u32 i = threadIdx.x; i < marks; i += blockDim.x)
            if (present[i] & ~peek(w.present + i)) atomicOr(w.present + i, present[i]);
    }
}

}  // namespace gpuagg
