// From the slots of a table to columns: number the groups, then write keys and outputs densely.
#pragma once

#include "core/query.cuh"
#include "output/exact_total.cuh"

namespace gpuagg {

template <class... O> struct Outputs {
    static constexpr u32 count = sizeof...(O);
};

// Where all columns of a result go, as a kernel's parameter: the keys', then those of the outputs O.
template <class O, u32 KEY_TARGETS> struct Targets {
    Target target[KEY_TARGETS + O::count];
    GPUAGG_INLINE operator const Target*() const { return target; }
};

template <class L, u32 I, class O>
GPUAGG_INLINE void count_nulls(const Args& a, const typename L::Value& v, bool is_group) {
    if constexpr (O::nullable) {
        bool null = false;
        if (is_group) {
            typename O::T unused;
            null = !O::template make<L>(v, unused);
        }
        const u32 nulls = __ballot_sync(ALL_LANES, null);
        if (threadIdx.x % WARP == 0 && nulls) atomicAdd(&a.counters->nulls[I], __popc(nulls));
    }
}
template <class L, u32 I> GPUAGG_INLINE void count_all(const Args&, const typename L::Value&, bool) {}
template <class L, u32 I, class O, class... Rest>
GPUAGG_INLINE void count_all(const Args& a, const typename L::Value& v, bool is_group) {
    count_nulls<L, I, O>(a, v, is_group);
    count_all<L, I + 1, Rest...>(a, v, is_group);
}
// Whether a group's state says that its rows have several keys.
template <class S> struct Ambiguous {
    static GPUAGG_INLINE bool of(const typename S::Value&) { return false; }
};
template <u32 I> struct Ambiguous<Witness<I>> {
    static GPUAGG_INLINE bool of(const typename Witness<I>::Value& v) { return v.x == CONFLICT; }
};
template <u32 I> struct Ambiguous<CheckedRow<I>> {
    static GPUAGG_INLINE bool of(const typename CheckedRow<I>::Value& v) { return v.x == UNLIKE; }
};
template <> struct Ambiguous<States<>> {
    static GPUAGG_INLINE bool of(const States<>::Value&) { return false; }
};
template <class S, class... Rest> struct Ambiguous<States<S, Rest...>> {
    static GPUAGG_INLINE bool of(const typename States<S, Rest...>::Value& v) {
        return Ambiguous<S>::of(v.head) || Ambiguous<States<Rest...>>::of(v.tail);
    }
};
template <class L, class... O>
GPUAGG_INLINE void count_outputs(Outputs<O...>, const Args& a, const typename L::Value& v,
                                 bool is_group) {
    count_all<L, 0, O...>(a, v, is_group);
    if (is_group && Ambiguous<L>::of(v)) a.counters->ambiguous = 1;
}

// Lists the occupied slots, and counts the nulls of every output, so that the host needs one copy of
// the counters to make the columns.
template <class Q, class O>
__global__ void __launch_bounds__(SMALL_BLOCK)
    collect(const __grid_constant__ Args a) {
    constexpr u32 STEPS = 8;  // one atomic for so many times 32 slots
    const u32 all = a.table.slots + EXTRA_SLOTS;
    const auto memory = Q::All::carve(a.table.cells, all, 1);
    const u32 lane = threadIdx.x % WARP;
    const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x * STEPS;
    u64 base = (blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x - lane) * STEPS;
    for (; base < all; base += stride) {
        u32 mine = 0, found = 0, first = 0;  // lane j keeps the groups of step j
#pragma unroll
        for (u32 j = 0; j < STEPS; ++j) {
            const u64 i = base + j * WARP + lane;
            const u32 groups = __ballot_sync(ALL_LANES, i < all && a.table.words[i] != EMPTY);
            if (lane == j) mine = groups;
            found += __popc(groups);
        }
        if (found == 0) continue;
        if (lane == 0) first = atomicAdd(&a.counters->groups, found);
        first = __shfl_sync(ALL_LANES, first, 0);
#pragma unroll 1
        for (u32 j = 0; j < STEPS; ++j) {
            const u32 groups = __shfl_sync(ALL_LANES, mine, j);
            if (groups == 0) continue;
            const bool is_group = groups >> lane & 1u;
            auto value = Q::All::none();
            if (is_group) {
                const u32 slot = static_cast<u32>(base + j * WARP + lane);
                a.order[first + __popc(groups & ((1u << lane) - 1))] = slot;
                value = Q::All::read(memory, {slot, slot});
            }
            first += __popc(groups);
            count_outputs<typename Q::All>(O{}, a, value, is_group);
        }
    }
}

// By whole warps, but for columns without a mask.
GPUAGG_INLINE void put_mask(const Target& to, u32 group, bool valid, bool is_group) {
    if (!to.mask) return;
    const u32 word = __ballot_sync(ALL_LANES, valid && is_group);
    if (group % WARP == 0 && is_group) to.mask[group / WARP] = word;
}

template <class T>
GPUAGG_INLINE void put(const Target& to, u32 group, T value, bool valid, bool is_group) {
    if (is_group) static_cast<T*>(to.data)[group] = value;
    put_mask(to, group, valid, is_group);
}

template <class L>
GPUAGG_INLINE void write_outputs(Outputs<>, const Target*, u32, const typename L::Value&, bool) {}
template <class L, class O, class... Rest>
GPUAGG_INLINE void write_outputs(Outputs<O, Rest...>, const Target* to, u32 group,
                                 const typename L::Value& v, bool is_group) {
    typename O::T value{};
    bool valid = true;
    if (is_group) valid = O::template make<L>(v, value);
    put(*to, group, value, valid, is_group);
    write_outputs<L>(Outputs<Rest...>{}, to + 1, group, v, is_group);
}

// Key columns: unpacked, the last one first, or the representative row to gather them from.
template <bool KEEP, class P, class U>
GPUAGG_INLINE void write_parts(U&, const Target*, u32, bool) {}
template <bool KEEP, class P, class U, class C, class... Rest>
GPUAGG_INLINE void write_parts(U& unpack, const Target* to, u32 group, bool is_group) {
    write_parts<KEEP, P, U, Rest...>(unpack, to + 1, group, is_group);
    bool valid;
    const auto value = unpack.template next<C>(valid);
    put(*to, group, value, valid, is_group);
}
template <class L, bool KEEP, class... C>
GPUAGG_INLINE void write_key(Packed<KEEP, C...>, const Column*, const Target* to, u32 group,
                             const Probe& probe, const typename L::Value&, bool is_group) {
    using P = Packed<KEEP, C...>;
    // the key that mixes to EMPTY is no exception here: its word is EMPTY
    Unpack<KEEP, P> unpack{unmix(probe.word), probe.kind == Kind::null};
    write_parts<KEEP, P, Unpack<KEEP, P>, C...>(unpack, to, group, is_group);
}
template <class L, class VALUES, bool KEEP, u32 RANGES, class... C>
GPUAGG_INLINE void write_key(RangedBy<VALUES, KEEP, RANGES, C...>, const Column* columns,
                             const Target* to, u32 group, const Probe& probe,
                             const typename L::Value&, bool is_group) {
    using P = RangedBy<VALUES, KEEP, RANGES, C...>;
    UnpackRanged<P> unpack{unmix(probe.word), columns + RANGES + P::columns};
    write_parts<KEEP, P, UnpackRanged<P>, C...>(unpack, to, group, is_group);
}
template <class L, bool KEEP, u32 W, u32 WITNESSES, u32 STATE, class... C>
GPUAGG_INLINE void write_key(Wide<KEEP, W, WITNESSES, STATE, C...>, const Column*, const Target* to,
                             u32 group, const Probe& probe, const typename L::Value& v, bool is_group) {
    using P = Wide<KEEP, W, WITNESSES, STATE, C...>;
    UnpackWide<KEEP> unpack{P::key(probe.word, Nth<STATE, L>::of(v).x)};
    write_parts<KEEP, P, UnpackWide<KEEP>, C...>(unpack, to, group, is_group);
}
template <class L, bool KEEP, u32 W, u32 WITNESSES, u32 STATE, u32 RANGES, class... C>
GPUAGG_INLINE void write_key(WideRanged<KEEP, W, WITNESSES, STATE, RANGES, C...>,
                             const Column* columns, const Target* to, u32 group,
                             const Probe& probe, const typename L::Value& v, bool is_group) {
    using P = WideRanged<KEEP, W, WITNESSES, STATE, RANGES, C...>;
    const u128 key = P::key(probe.word, Nth<STATE, L>::of(v).x);
    UnpackWideRanged<P> unpack{key, columns + RANGES + P::columns};
    write_parts<KEEP, P, UnpackWideRanged<P>, C...>(unpack, to, group, is_group);
}
// The states, as bits, that the key columns are made of beside the word.
template <class K> struct KeyStates { static constexpr u64 bits = 0; };
template <bool KEEP, u32 W, u32 WITNESSES, u32 STATE, class... C>
struct KeyStates<Wide<KEEP, W, WITNESSES, STATE, C...>> {
    static constexpr u64 bits = bit_of(STATE);
};
template <bool KEEP, u32 W, u32 WITNESSES, u32 STATE, u32 RANGES, class... C>
struct KeyStates<WideRanged<KEEP, W, WITNESSES, STATE, RANGES, C...>> {
    static constexpr u64 bits = bit_of(STATE);
};
template <bool KEEP, u32 W, u32 CHECKS, u32 STATE, class... C>
struct KeyStates<Hashed<KEEP, W, CHECKS, STATE, C...>> {
    static constexpr u64 bits = bit_of(STATE);
};
// Codes, from which output/coded.cuh makes the key columns.
template <class L, bool KEEP, u32 W, class... C>
GPUAGG_INLINE void write_key(Coded<KEEP, W, C...>, const Column*, const Target* to, u32 group,
                             const Probe& probe, const typename L::Value&, bool is_group) {
    put(*to, group, unmix(probe.word), true, is_group);
}
template <class L, bool KEEP, u32 W, u32 CHECKS, u32 STATE, class... C>
GPUAGG_INLINE void write_key(Hashed<KEEP, W, CHECKS, STATE, C...>, const Column*, const Target* to,
                             u32 group, const Probe&, const typename L::Value& v, bool is_group) {
    put(*to, group, static_cast<i32>(static_cast<u32>(Nth<STATE, L>::of(v).x)), true, is_group);
}
template <class L, bool KEEP, class... C>
GPUAGG_INLINE void write_key(ByRow<KEEP, C...>, const Column*, const Target* to, u32 group,
                             const Probe& probe, const typename L::Value&, bool is_group) {
    put(*to, group, static_cast<i32>(probe.word >> 32), true, is_group);
}

// Groups that the host did not wait to know the number of.
constexpr u32 COUNTED = 0xffffffffu;

template <class Q, class O, u32 KEY_TARGETS>
__global__ void __launch_bounds__(SMALL_BLOCK)
    write(const __grid_constant__ Args a, const __grid_constant__ Columns<Q> columns,
          const __grid_constant__ Targets<O, KEY_TARGETS> to) {
    using K = typename Q::Key;
    const auto memory = Q::All::carve(a.table.cells, a.table.slots + EXTRA_SLOTS, 1);
    const u32 lane = threadIdx.x % WARP;
    const u32 stride = gridDim.x * blockDim.x;
    const u32 groups = a.groups == COUNTED ? a.counters->groups : a.groups;
    for (u32 base = blockIdx.x * blockDim.x + threadIdx.x - lane; base < groups; base += stride) {
        const u32 group = base + lane;
        const bool is_group = group < groups;
        Probe probe{EMPTY, 0u, Kind::empty};
        auto value = Q::All::none();
        if (is_group) {
            const u32 slot = slot_of_group(a, group);
            probe = asked<K>(columns, a.table.words[slot], slot, a.table.slots);
            value = Q::All::read(memory, {slot, slot});
        }
        write_key<typename Q::All>(K{}, columns, to, group, probe, value, is_group);
        write_outputs<typename Q::All>(O{}, to + KEY_TARGETS, group, value, is_group);
    }
}

}  // namespace gpuagg
