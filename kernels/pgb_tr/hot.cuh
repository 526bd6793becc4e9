// Keys too frequent for any partition: a block keeps their states in its own shared memory, with
// several accumulators for each, and their rows are not scattered. The two keys that have slots of
// their own behind every table may go the same way.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

// Hot rows of a thread whose values are read together, and rows that are looked up together: with
// more of them registers would spill, for which the L1 cache has no room.
constexpr u32 HOT_BATCH = 2;
constexpr u32 HOT_RANKED = 4;
// Bytes of a group's states beyond which hot rows are listed first, so that every lane has one: so are
// those of more than two inputs, whose values would fill the registers.
constexpr u32 LISTED_FROM = 16;

// Which keys are hot: two cells for the two extra keys, then one for each. A key is looked for in one
// bucket only, which holds the two hottest of those that fall there; the host leaves out the others,
// whose rows are like all others. So there is no loop, in which a warp would wait for the lane with
// the most probes.
struct HotIndex {
    static constexpr u32 NO_CELL = 0xffffu;
    u64* words;
    u32* buckets;  // two cells each
    u32 cells, bucket_count;
    bool extras;

    GPUAGG_INLINE HotIndex() {}
    // By the whole block, into memory for `room` words of cells and for the buckets.
    GPUAGG_INLINE HotIndex(u64* at, const HotKeys& keys)
        : words(at), cells(EXTRA_SLOTS + keys.count), bucket_count(keys.buckets),
          extras(keys.extras) {
        buckets = reinterpret_cast<u32*>(words + room());
        for (u32 i = threadIdx.x; i < bucket_count; i += blockDim.x) buckets[i] = NONE;
        __syncthreads();
        // the hottest of a bucket in its low half, then the other one in its high half
        for (u32 i = EXTRA_SLOTS + threadIdx.x; i < cells; i += blockDim.x) {
            words[i] = keys.words[i - EXTRA_SLOTS];
            atomicMin(bucket(static_cast<u32>(words[i] >> 32)), NO_CELL << 16 | i);
        }
        __syncthreads();
        for (u32 i = EXTRA_SLOTS + threadIdx.x; i < cells; i += blockDim.x) {
            u32* const own = bucket(static_cast<u32>(words[i] >> 32));
            const u32 first = peek(own) & NO_CELL;
            if (first != i) atomicMin(own, i << 16 | first);
        }
        __syncthreads();
    }

    // An even number of cells keeps what is behind them aligned.
    GPUAGG_INLINE u32 room() const { return (cells + 1) / 2 * 2; }
    GPUAGG_INLINE u32* bucket(u32 home) const { return buckets + first_slot(home, bucket_count); }

    // The cell of a hot key; NONE for all others. Without a branch, so that several are under way at
    // once: any home is in some bucket.
    GPUAGG_INLINE u32 find(const Probe& probe) const {
        const u32 held = *bucket(probe.home), first = held & NO_CELL, second = held >> 16;
        const u64 one = words[first != NO_CELL ? first : 0];
        const u64 other = words[second != NO_CELL ? second : 0];
        u32 cell = first != NO_CELL && one == probe.word ? first : NONE;
        if (second != NO_CELL && other == probe.word) cell = second;
        if (probe.kind == Kind::key) return cell;
        return !extras || probe.kind == Kind::drop ? NONE : probe.kind == Kind::null ? 1u : 0u;
    }
};

// The states of hot keys.
template <class Q> struct HotTable {
    using K = typename Q::Key;
    HotIndex index;
    u32* touched;  // the extra cells
    typename Q::All::Memory memory;
    u32 replicas;

    GPUAGG_INLINE HotTable() {}
    GPUAGG_INLINE HotTable(char* at, const HotKeys& keys)
        : index(reinterpret_cast<u64*>(at), keys), replicas(keys.replicas) {
        const u32 all = index.room() + HOT_COPIED * replicas;
        touched = index.buckets + index.bucket_count;
        memory = Q::All::carve(reinterpret_cast<char*>(touched + EXTRA_SLOTS), all, 1);
        for (u32 i = threadIdx.x; i < all; i += blockDim.x) Q::All::clear(memory, {i, i});
        if (threadIdx.x < EXTRA_SLOTS) touched[threadIdx.x] = 0;
        __syncthreads();
    }

    GPUAGG_INLINE void update(u32 cell, const typename Q::Values& row, u32 number) {
        if (cell < EXTRA_SLOTS) touched[cell] = 1;
        u32 to = cell;
        if (cell < HOT_COPIED)
            to = index.room() + cell * replicas + (threadIdx.x & (replicas - 1));
        Q::All::update(Shared{}, memory, {to, to}, row, number);
    }

    // Adds what was gathered to a table that all blocks share. A hot key without rows here adds
    // nothing to its group, which there is: the sample has seen it. Its other rows are in other
    // blocks' tables, and none is in a partition.
    GPUAGG_INLINE void merge(const Args& a, const Column* columns) {
        __syncthreads();
        const auto global = Q::All::carve(a.target.cells, a.target.slots + EXTRA_SLOTS, 1);
        for (u32 i = threadIdx.x; i < index.cells; i += blockDim.x) {
            if (i < EXTRA_SLOTS && touched[i] == 0) continue;
            auto value = Q::All::read(memory, {i, i});
            const u32 first = index.room() + i * replicas;
            if (i < HOT_COPIED)
                for (u32 c = first; c < first + replicas; ++c)
                    Q::All::fold(value, Q::All::read(memory, {c, c}));
            const u64 word = i < EXTRA_SLOTS ? 0 : index.words[i];
            const Probe probe = beside(asked<K>(columns, word, i, 0));
            const u32 slot = gpuagg::find<K>(a.target.words, a.target.slots, a.target.limit,
                                             &a.counters->claimed, a.probes, columns, probe);
            if (slot == NONE) atomicAdd(&a.counters->unplaced, 1u);
            else Q::All::add(Global{}, global, {slot, slot}, value);
        }
    }
};

}  // namespace gpuagg
