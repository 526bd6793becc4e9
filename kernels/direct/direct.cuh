// Group-by of keys from a narrow range: the distance from the least key is the slot, so nothing is
// looked for. The states lie in the shared memory of each SM while they fit there (HGB of Wu 2025,
// section 4.2, without its hash), or in one table in global memory, for which one atomic a row is
// all the work. One bit of shared memory records that a key has occurred, unless its rows are counted
// anyway.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

struct Window {
    u64 base;      // the least unmixed word
    u32 keys;      // an even number
    u32 shift;     // of a key's distance to its slot
    u32* present;  // a bit for each key, where the states are in global memory
};

GPUAGG_INLINE u32 mark_words(u32 keys) { return (keys + 31) / 32; }

template <class S> struct CountsRows { static constexpr bool value = false; };
template <> struct CountsRows<Size> { static constexpr bool value = true; };

// The slots of a block once its rows are read, state by state: whether a count of rows shows that a
// key has occurred, and the copies of a slot's states added to the global table.
template <class L> struct BlockSlots;

template <> struct BlockSlots<States<>> {
    using Memory = States<>::Memory;
    static constexpr bool counted = false;
    static GPUAGG_INLINE bool occurs(const Memory&, u32, u32) { return false; }
    static GPUAGG_INLINE void merge(const Memory&, const Memory&, u32, u32) {}
};

template <class S, class... Rest> struct BlockSlots<States<S, Rest...>> {
    using Tail = BlockSlots<States<Rest...>>;
    using Memory = typename States<S, Rest...>::Memory;
    static constexpr bool counted = CountsRows<S>::value || Tail::counted;
    static GPUAGG_INLINE bool occurs(const Memory& m, u32 slot, u32 replicas) {
        if constexpr (CountsRows<S>::value) {
            u32 rows = 0;
            for (u32 r = 0; r < replicas; ++r) rows |= m.head.x[slot * replicas + r];
            return rows != 0;
        } else {
            return Tail::occurs(m.tail, slot, replicas);
        }
    }
    static GPUAGG_INLINE void merge(const Memory& m, const Memory& global, u32 slot, u32 replicas) {
        auto value = S::read(m.head, {slot, slot * replicas});
        for (u32 r = 1; r < replicas; ++r)
            S::fold(value, S::read(m.head, {slot, slot * replicas + r}));
        S::add(Global{}, global.head, {slot, slot}, value);
        Tail::merge(m.tail, global.tail, slot, replicas);
    }
};

// A tile of WARP * UNROLL rows, one warp's. True if rows were listed beyond the limit.
template <class Q, class Space, bool MARKED, bool WHOLE, u32 UNROLL>
GPUAGG_INLINE bool take_direct(const Args& a, const Window& w, const Column* columns, u32* present,
                               const typename Q::All::Memory& memory, u64 base) {
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
            Q::All::update(Space{}, memory, {slot, slot * a.replicas + share}, row[j],
                           static_cast<u32>(base + j * WARP + lane));
        }
    return list_lost<UNROLL>(a, lost, base + lane);
}

template <class Q, class Space, bool MARKED, u32 UNROLL>
GPUAGG_INLINE void take_all(const Args& a, const Window& w, const Column* columns, u32* present,
                            const typename Q::All::Memory& memory) {
    constexpr u32 TILE = WARP * UNROLL;
    const u32 warps = blockDim.x / WARP;
    const u64 stride = static_cast<u64>(gridDim.x) * warps * TILE;
    u64 base = (static_cast<u64>(blockIdx.x) * warps + threadIdx.x / WARP) * TILE + a.first;
    bool stop = false;
    for (; base + TILE <= a.rows && !stop; base += stride)
        stop = take_direct<Q, Space, MARKED, true, UNROLL>(a, w, columns, present, memory, base);
    if (base < a.rows && !stop)
        take_direct<Q, Space, MARKED, false, UNROLL>(a, w, columns, present, memory, base);
}

// In shared memory `replicas` threads in a row each have a copy of the states. Rows outside of the
// window are listed.
template <class Q, class Space, u32 THREADS, u32 UNROLL>
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
        using Slots = BlockSlots<typename Q::All>;
        char* cells = reinterpret_cast<char*>(present + (marks + 1) / 2 * 2);
        const auto memory = Q::All::carve(cells, w.keys, a.replicas);
        for (u32 i = threadIdx.x; i < w.keys * a.replicas; i += blockDim.x)
            Q::All::clear(memory, {i / a.replicas, i});
        __syncthreads();
        take_all<Q, Space, !Slots::counted, UNROLL>(a, w, columns, present, memory);
        __syncthreads();
        for (u32 s = threadIdx.x; s < w.keys; s += blockDim.x) {
            const bool occurs = Slots::counted ? Slots::occurs(memory, s, a.replicas)
                                               : (present[s / 32] >> s % 32 & 1u) != 0;
            if (!occurs) continue;
            Slots::merge(memory, global, s, a.replicas);
            a.table.words[s] = mix(w.base + s);  // every writer writes the same
        }
    } else {
        __syncthreads();
        take_all<Q, Space, true, UNROLL>(a, w, columns, present, global);
        __syncthreads();
        for (u32 i = threadIdx.x; i < marks; i += blockDim.x)
            if (present[i] & ~peek(w.present + i)) atomicOr(w.present + i, present[i]);
    }
}

}  // namespace gpuagg
