// Keys too frequent for any partition: a block keeps their states in its own shared memory, with
// several accumulators for each, and their rows are not scattered. The two keys that have slots of
// their own behind every table go the same way.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

constexpr u32 HOT_AT_MOST = 384;
// The hottest, whose states have copies for different lanes.
constexpr u32 HOT_COPIED = 16;
// Rows of a thread whose values are read together.
constexpr u32 HOT_BATCH = 4;

struct HotKeys {
    u64 words[HOT_AT_MOST];  // the hottest first
    u32 count;
    u32 buckets;
    u32 replicas;  // of the states of the hottest: a power of two, a warp's lanes at most
};

// Two cells for the two extra keys, then one for each hot key. A key is looked for in one bucket only,
// which holds the hottest of those that fall there: the others are rows like all others. So there is
// no loop, in which a warp would wait for its unluckiest lane.
template <class Q> struct HotTable {
    using K = typename Q::Key;
    u64* words;
    u32* buckets;
    u32* touched;  // the extra cells
    typename Q::All::Memory memory;
    u32 cells, bucket_count, replicas;

    GPUAGG_INLINE HotTable() {}
    GPUAGG_INLINE HotTable(char* at, const HotKeys& keys)
        : cells(EXTRA_SLOTS + keys.count), bucket_count(keys.buckets), replicas(keys.replicas) {
        const u32 all = first_copy() + HOT_COPIED * replicas;
        words = reinterpret_cast<u64*>(at);
        buckets = reinterpret_cast<u32*>(words + first_copy());
        touched = buckets + bucket_count;
        memory = Q::All::carve(reinterpret_cast<char*>(touched + EXTRA_SLOTS), all, 1);
        for (u32 i = threadIdx.x; i < bucket_count; i += blockDim.x) buckets[i] = NONE;
        for (u32 i = threadIdx.x; i < all; i += blockDim.x) Q::All::clear(memory, {i, i});
        if (threadIdx.x < EXTRA_SLOTS) touched[threadIdx.x] = 0;
        __syncthreads();
        for (u32 i = EXTRA_SLOTS + threadIdx.x; i < cells; i += blockDim.x) {
            words[i] = keys.words[i - EXTRA_SLOTS];
            atomicMin(buckets + first_slot(static_cast<u32>(words[i] >> 32), bucket_count), i);
        }
        __syncthreads();
    }

    // The cell of a hot key; NONE for all others.
    GPUAGG_INLINE u32 find(const Probe& probe) const {
        if (probe.kind == Kind::drop) return NONE;
        if (probe.kind != Kind::key) return probe.kind == Kind::null ? 1u : 0u;
        const u32 cell = buckets[first_slot(probe.home, bucket_count)];
        return cell != NONE && words[cell] == probe.word ? cell : NONE;
    }

    GPUAGG_INLINE void update(u32 cell, const typename Q::Values& row, u32 number) {
        if (cell < EXTRA_SLOTS) touched[cell] = 1;
        u32 to = cell;
        if (cell < HOT_COPIED)
            to = first_copy() + cell * replicas + (threadIdx.x & (replicas - 1));
        Q::All::update(Shared{}, memory, {to, to}, row, number);
    }

    // Adds what was gathered to a table that all blocks share. A hot key without rows here adds
    // nothing to its group, which there is: the sample has seen it.
    GPUAGG_INLINE void merge(const Args& a, const Column* columns) {
        __syncthreads();
        const auto global = Q::All::carve(a.target.cells, a.target.slots + EXTRA_SLOTS, 1);
        for (u32 i = threadIdx.x; i < cells; i += blockDim.x) {
            if (i < EXTRA_SLOTS && touched[i] == 0) continue;
            auto value = Q::All::read(memory, {i, i});
            const u32 first = first_copy() + i * replicas;
            if (i < HOT_COPIED)
                for (u32 c = first; c < first + replicas; ++c)
                    Q::All::fold(value, Q::All::read(memory, {c, c}));
            const u64 word = i < EXTRA_SLOTS ? 0 : words[i];
            const Probe probe = beside(asked<K>(columns, word, i, 0));
            const u32 slot = gpuagg::find<K>(a.target.words, a.target.slots, a.target.limit,
                                             &a.counters->claimed, a.probes, columns, probe);
            if (slot == NONE) atomicAdd(&a.counters->homeless, 1u);
            else Q::All::add(Global{}, global, {slot, slot}, value);
        }
    }

  private:
    // An even number of cells keeps what is behind them aligned.
    GPUAGG_INLINE u32 first_copy() const { return (cells + 1) / 2 * 2; }
};

}  // namespace gpuagg
