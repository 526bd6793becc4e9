// One table in shared memory for each partition, whose groups are then final: the aggregation of
// PGB-TR (Wu 2025, section 4.2). Blocks take partitions by ticket.
#pragma once

#include "pgb_tr/append.cuh"
#include "pgb_tr/crowds.cuh"
#include "pgb_tr/slots.cuh"
#include "pgb_ur/moved.cuh"

namespace gpuagg {

// A tile of WARP * UNROLL rows, one warp's. False once a row of the block found the table full.
template <class Q, class W, bool WHOLE, u32 UNROLL, class C>
GPUAGG_INLINE bool take_moved(const Partitions& p, const Column* moved,
                              typename W::Stored* keys, u32 slots,
                              const typename Q::All::Memory& memory, C& crowds, Part part, u32 base,
                              u32 end, u32* full) {
    using Row = typename Q::Values;
    using V = typename Bits<Inputs<Row>::masked>::Type;
    using Key = typename W::Stored;
    Row row[UNROLL];
    Key key[UNROLL];
    u32 slot[UNROLL], number[UNROLL];
    V valid[UNROLL];
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j) key[j] = static_cast<Key>(EMPTY);
    read_tile<Q, WHOLE>(p, moved, base, end, row, number, valid,
                        [&](u32 j, u32 at) { key[j] = W::load(p.words, at); });
    u32 left = 0;
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j) {
        // no row has an empty slot's key, which here stands for a row to leave out
        const u64 word = W::word(p.words, key[j]);
        if (!part.has(word)) key[j] = static_cast<Key>(EMPTY);
        slot[j] = first_slot(home_in_partition(word, p.count), slots);
        if (key[j] == static_cast<Key>(EMPTY)) slot[j] = NONE;
        else if (peek(keys + slot[j]) != key[j]) left |= 1u << j;
    }
    gather_tile<Q>(moved, row, number, valid, [&](u32 j) { return slot[j] != NONE; });
    const bool stop = settle_keys(keys, slots, key, slot, left);
    __syncwarp();
    crowds.watch(slot[0]);
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j)
        if (slot[j] != NONE) slot[j] = crowds.place(slot[j]);
#pragma unroll
    for (u32 j = 0; j < UNROLL; ++j)
        if (slot[j] != NONE)
            Q::All::update(Shared{}, memory, {slot[j], slot[j]}, row[j], number[j]);
    if (stop) *full = 1;
    return !__any_sync(ALL_LANES, stop || peek(full));
}

// A partition's table of hashed keys, as the groups that are appended see it.
template <class Q, class W> struct HashedTable {
    using Key = typename W::Stored;
    Key* keys;
    typename Q::All::Memory memory;
    const Words& words;
    GPUAGG_INLINE bool has(u32 s) const { return keys[s] != static_cast<Key>(EMPTY); }
    GPUAGG_INLINE u64 word(u32 s) const { return W::word(words, keys[s]); }
    GPUAGG_INLINE typename Q::All::Value value(u32 s) const { return Q::All::read(memory, {s, s}); }
    GPUAGG_INLINE void clear(u32 s) const {
        keys[s] = static_cast<Key>(EMPTY);
        Q::All::clear(memory, {s, s});
    }
};

// `moved` are the partitions' copies, or the input's own columns where values are gathered.
template <class Q, class O, u32 KEY_TARGETS, class C, class W, u32 THREADS, u32 UNROLL>
__global__ void __launch_bounds__(THREADS, 1)
    aggregate(const __grid_constant__ Args a, const __grid_constant__ Partitions p,
              const __grid_constant__ Columns<Q> moved,
              const __grid_constant__ Targets<O, KEY_TARGETS> to) {
    extern __shared__ u64 shared[];
    __shared__ u32 partition, full, groups, first;
    if (not_final(a)) return;
    constexpr u32 TILE = WARP * UNROLL;
    const u32 slots = a.shared_slots;
    typename W::Stored* const keys = reinterpret_cast<typename W::Stored*>(shared);
    // an even number of slots keeps what is behind the keys aligned
    const auto memory =
        Q::All::carve(reinterpret_cast<char*>(keys + slots), slots + C::COPIES, 1);
    const HashedTable<Q, W> table{keys, memory, p.words};
    C crowds(memory, slots);
    const u32 stride = blockDim.x / WARP * TILE;
    Part part{0, 0};
    bool clean = false, take = true;
    u32 begin = 0, end = 0;
    for (;;) {
        if (!clean) {
            for (u32 s = threadIdx.x; s < slots; s += blockDim.x) table.clear(s);
            crowds.clear();
            clean = true;
        }
        if (threadIdx.x == 0) {
            full = 0;
            groups = 0;
            if (take) partition = atomicAdd(p.ticket, 1u);
        }
        __syncthreads();
        if (partition >= p.count) return;
        if (take) {
            take = false;
            part = {a.slices - 1, 0};
            begin = begin_of(p, partition);
            end = begin + held_of(p, partition);
        }
        u32 base = begin + threadIdx.x / WARP * TILE;
        bool fits = true;
        // the trip count is the warp's, so that its lanes meet at every barrier
        for (; fits && base + TILE <= end; base += stride)
            fits = take_moved<Q, W, true, UNROLL>(p, moved, keys, slots, memory, crowds, part,
                                                       base, end, &full);
        if (fits && base < end)
            take_moved<Q, W, false, UNROLL>(p, moved, keys, slots, memory, crowds, part, base,
                                                 end, &full);
        __syncthreads();
        if (full) {
            part.split();
            clean = false;
        } else {
            crowds.fold();
            append_groups<Q, O, KEY_TARGETS>(a, moved, to, table, slots,
                                             &groups, &first);
            take = !part.next(0, a.slices - 1);
        }
        __syncthreads();
    }
}

}  // namespace gpuagg
