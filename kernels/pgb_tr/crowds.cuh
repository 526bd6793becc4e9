// Slots that many rows of a block want at once. What is added to one address waits for what came
// before, some 80 cycles for each row and in all of the block, while other rows take 2: a key with
// one in forty of a block's rows is all that the block waits for. Such a slot gets a copy of its
// states for each lane, behind the table's own slots.
#pragma once

#include "aggregate/list.cuh"

namespace gpuagg {

// KEYS: as many slots get copies; S: the list of states.
template <class S, u32 KEYS> struct Crowds {
    static constexpr u32 COPIES = KEYS * WARP;
    static constexpr u32 TAGS = 256;
    // Rows of one warp that share a slot: a pair is common among many slots, three are no chance.
    static constexpr u32 ALIKE = 3;
    static constexpr u32 TAKEN = NONE - 1;

    typename S::Memory memory;
    u32 slots;   // of the table; copies are behind them
    u32* tags;   // of a few bits of a slot's number: the slot and which of KEYS it is
    u32* owner;  // of copies: their slot
    u32* count;

    GPUAGG_INLINE Crowds(const typename S::Memory& memory_, u32 slots_)
        : memory(memory_), slots(slots_) {
        __shared__ u32 tags_[TAGS], owner_[KEYS], count_;
        tags = tags_;
        owner = owner_;
        count = &count_;
    }

    // By the whole block, which then meets before it updates.
    GPUAGG_INLINE void clear() {
        for (u32 i = threadIdx.x; i < COPIES; i += blockDim.x)
            S::clear(memory, {slots + i, slots + i});
        forget();
    }

    // By a whole warp: looks whether its lanes want the same slot.
    GPUAGG_INLINE void watch(u32 slot) {
        const u32 alike = __match_any_sync(ALL_LANES, slot);
        if (__popc(alike) < ALIKE || slot == NONE) return;
        if (threadIdx.x % WARP != __ffs(alike) - 1) return;
        u32* const tag = tags + slot % TAGS;
        if (peek(tag) != NONE || peek(count) >= KEYS) return;
        if (atomicCAS(tag, NONE, TAKEN) != NONE) return;
        const u32 key = atomicAdd(count, 1u);
        if (key >= KEYS) return;
        owner[key] = slot;
        atomicExch(tag, slot * KEYS + key);  // others read it meanwhile
    }

    // Where this lane updates a slot.
    GPUAGG_INLINE u32 place(u32 slot) const {
        const u32 tag = peek(tags + slot % TAGS);
        return tag / KEYS == slot ? slots + tag % KEYS * WARP + threadIdx.x % WARP : slot;
    }

    // Adds the copies to their slots and empties them: by the whole block, after all rows.
    GPUAGG_INLINE void fold() {
        const u32 lane = threadIdx.x % WARP;
        const u32 keys = *count < KEYS ? *count : KEYS;
        for (u32 key = threadIdx.x / WARP; key < keys; key += blockDim.x / WARP) {
            const u32 first = slots + key * WARP, slot = owner[key];
            if (lane == 0) {
                auto value = S::read(memory, {slot, slot});
#pragma unroll 1
                for (u32 i = first; i < first + WARP; ++i) S::fold(value, S::read(memory, {i, i}));
                S::write(memory, {slot, slot}, value);
            }
            __syncwarp();
            S::clear(memory, {first + lane, first + lane});
        }
        __syncthreads();
        forget();
    }

  private:
    GPUAGG_INLINE void forget() {
        for (u32 i = threadIdx.x; i < TAGS; i += blockDim.x) tags[i] = NONE;
        if (threadIdx.x == 0) *count = 0;
    }
};

// For even keys: no slot has copies.
struct NoCrowds {
    static constexpr u32 COPIES = 0;
    template <class M> GPUAGG_INLINE NoCrowds(const M&, u32) {}
    GPUAGG_INLINE void clear() {}
    GPUAGG_INLINE void watch(u32) {}
    GPUAGG_INLINE u32 place(u32 slot) const { return slot; }
    GPUAGG_INLINE void fold() {}
};

}  // namespace gpuagg
