// Adds to a slot that other threads add to. Whether the slot lies in shared or in global memory is
// a type, because the two have different native instructions (sm_90: shared memory adds 32-bit
// integers only, everything else there is a compare-and-swap loop).
#pragma once

#include "core/types.cuh"

namespace gpuagg {

struct Shared { static constexpr bool of_block = true; };
struct Global { static constexpr bool of_block = false; };

GPUAGG_INLINE void add(Shared, u32* cell, u32 v) { atomicAdd(cell, v); }
GPUAGG_INLINE void add(Global, u32* cell, u32 v) { atomicAdd(cell, v); }
GPUAGG_INLINE void add(Shared, f64* cell, f64 v) { atomicAdd(cell, v); }
GPUAGG_INLINE void add(Global, f64* cell, f64 v) { atomicAdd(cell, v); }
GPUAGG_INLINE void add(Global, u64* cell, u64 v) { atomicAdd(cell, v); }

// Two native 32-bit adds make an exact 64-bit one, whatever order the carries come in.
GPUAGG_INLINE void add(Shared, u64* cell, u64 v) {
    u32* half = reinterpret_cast<u32*>(cell);
    const u32 low = static_cast<u32>(v);
    const u32 before = atomicAdd(half, low);
    const u32 high = static_cast<u32>(v >> 32) + (before + low < before ? 1u : 0u);
    if (high) atomicAdd(half + 1, high);
}

template <class T> GPUAGG_INLINE T peek(const T* cell) {
    return *static_cast<const volatile T*>(cell);
}

// A look first: once a group has seen a few rows, hardly any row improves its extreme.
template <class Space, class T> GPUAGG_INLINE void lower(Space, T* cell, T v) {
    if (v < peek(cell)) atomicMin(cell, v);
}
template <class Space, class T> GPUAGG_INLINE void raise(Space, T* cell, T v) {
    if (v > peek(cell)) atomicMax(cell, v);
}

template <class Space> GPUAGG_INLINE void multiply(Space, u64* cell, u64 v) {
    u64 held = peek(cell), seen;
    do {
        seen = held;
        held = atomicCAS(cell, seen, seen * v);
    } while (held != seen);
}
template <class Space> GPUAGG_INLINE void multiply(Space, f64* cell, f64 v) {
    u64* word = reinterpret_cast<u64*>(cell);
    u64 held = peek(word), seen;
    do {
        seen = held;
        const f64 product = __longlong_as_double(static_cast<i64>(seen)) * v;
        held = atomicCAS(word, seen, static_cast<u64>(__double_as_longlong(product)));
    } while (held != seen);
}

}  // namespace gpuagg
