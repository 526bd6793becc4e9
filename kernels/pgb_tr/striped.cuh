// The aggregation of partitions whose keys have slots of their own (words.cuh): nothing is looked for,
// and what a slot has for its key's word is a byte that says that the key has occurred.
#pragma once

#include "pgb_tr/append.cuh"
#include "pgb_ur/moved.cuh"

namespace gpuagg {

// The slots from `first` on of a partition.
template <class Q> struct StripedTable {
    u8* marks;
    typename Q::All::Memory memory;
    const Partitions& p;
    u32 replicas, partition, first;
    GPUAGG_INLINE bool has(u32 s) const { return marks[s] != 0; }
    GPUAGG_INLINE u64 word(u32 s) const {
        return Striped::word(p.words, partition, first + s, p.count);
    }
    // Lanes begin with different copies, which lie in different banks.
    GPUAGG_INLINE u32 copy(u32 s, u32 r) const { return s * replicas + ((s + r) & (replicas - 1)); }
    GPUAGG_INLINE typename Q::All::Value value(u32 s) const {
        auto value = Q::All::read(memory, {s, copy(s, 0)});
        for (u32 r = 1; r < replicas; ++r)
            Q::All::fold(value, Q::All::read(memory, {s, copy(s, r)}));
        return value;
    }
    GPUAGG_INLINE void clear(u32 s) const {
        marks[s] = 0;
        for (u32 r = 0; r < replicas; ++r) Q::All::clear(memory, {s, copy(s, r)});
    }
};

// A tile of WARP * UNROLL rows, one warp's.
template <class Q, bool WHOLE, u32 UNROLL>
GPUAGG_INLINE void take_striped(const Args& a, const Partitions& p, const Column* moved,
                                const StripedTable<Q>& table, u32 base, u32 end) {
    using Row = typename Q::Values;
    using V = typename Bits<Inputs<Row>::masked>::Type;
    const u32 share = threadIdx.x & (table.replicas - 1);
    Row row[UNROLL];
    u32 slot[UNROLL], number[UNROLL];
    V valid[UNROLL];
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j) slot[j] = NONE;
    read_tile<Q, WHOLE>(p, moved, base, end, row, number, valid, [&](u32 j, u32 at) {
        slot[j] = Striped::load(p.words, at) - table.first;
    });
    gather_tile<Q>(moved, row, number, valid, [&](u32 j) { return slot[j] < a.shared_slots; });
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j)
        if (slot[j] < a.shared_slots) {
            table.marks[slot[j]] = 1;
            Q::All::update(Shared{}, table.memory, {slot[j], slot[j] * table.replicas + share},
                           row[j], number[j]);
        }
}

// `replicas` threads in a row each have a copy of the states. A partition's slots come in
// a.slices parts where they exceed the table.
template <class Q, class O, u32 KEY_TARGETS, u32 THREADS, u32 UNROLL>
__global__ void __launch_bounds__(THREADS, 1)
    aggregate_striped(const __grid_constant__ Args a, const __grid_constant__ Partitions p,
                      const __grid_constant__ Columns<Q> moved,
                      const __grid_constant__ Targets<O, KEY_TARGETS> to) {
    extern __shared__ u64 shared[];
    __shared__ u32 ticket, groups, first;
    if (not_final(a)) return;
    constexpr u32 TILE = WARP * UNROLL;
    const u32 slots = a.shared_slots;
    u8* const marks = reinterpret_cast<u8*>(shared);
    char* const cells = reinterpret_cast<char*>(shared + (slots + 7) / 8);
    StripedTable<Q> table{marks, Q::All::carve(cells, slots, a.replicas), p, a.replicas, 0, 0};
    const u32 stride = blockDim.x / WARP * TILE;
    for (u32 s = threadIdx.x; s < slots; s += blockDim.x) table.clear(s);
    for (;;) {
        if (threadIdx.x == 0) {
            groups = 0;
            ticket = atomicAdd(p.ticket, 1u);
        }
        __syncthreads();
        if (ticket >= p.count * a.slices) return;
        // blocks that run side by side take the parts of the same partition
        table.partition = ticket / a.slices;
        table.first = ticket % a.slices * slots;
        const u32 begin = begin_of(p, table.partition);
        const u32 end = begin + held_of(p, table.partition);
        u32 base = begin + threadIdx.x / WARP * TILE;
        for (; base + TILE <= end; base += stride)
            take_striped<Q, true, UNROLL>(a, p, moved, table, base, end);
        if (base < end) take_striped<Q, false, UNROLL>(a, p, moved, table, base, end);
        __syncthreads();
        append_groups<Q, O, KEY_TARGETS>(a, moved, to, table, slots, &groups, &first);
        __syncthreads();
    }
}

}  // namespace gpuagg
