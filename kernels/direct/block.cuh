// The states of a block that groups by distance: its slots are those of the global table, so that not
// all of a state must lie in shared memory.
#pragma once

#include "core/query.cuh"

namespace gpuagg {

// As it is, in shared memory until the block is done.
template <class S> struct Near : S {
    using Memory = typename S::Memory;
    static constexpr bool far = false, shows = false;
    static GPUAGG_INLINE Memory carve(char* base, u32 slots, u32 replicas,
                                      const typename S::Memory&) {
        return S::carve(base, slots, replicas);
    }
    static GPUAGG_INLINE void clear(const Memory& m, Place p) { S::write(m, p, S::none()); }
    static GPUAGG_INLINE bool occurs(const Memory&, u32, u32) { return false; }
    static GPUAGG_INLINE void refresh(const Memory&, u32) {}
    static GPUAGG_INLINE void merge(const Memory& m, const typename S::Memory& global, u32 slot,
                                    u32 replicas) {
        auto value = S::read(m, {slot, slot * replicas});
        for (u32 r = 1; r < replicas; ++r) S::fold(value, S::read(m, {slot, slot * replicas + r}));
        S::add(Global{}, global, {slot, slot}, value);
    }
};

// A count of rows shows that a key has occurred.
struct Counted : Near<Size> {
    static constexpr bool shows = true;
    static GPUAGG_INLINE bool occurs(const Memory& m, u32 slot, u32 replicas) {
        u32 rows = 0;
        for (u32 r = 0; r < replicas; ++r) rows |= m.x[slot * replicas + r];
        return rows != 0;
    }
};

// An extreme of float64 in the global table at once; shared memory has 4 bytes, the upper half of a
// bound that every value beyond the extreme passes, and hardly another. Integers that have their
// upper halves in common would all pass. The greatest value is the least of the inverted ones.
template <class S, bool GREATEST> struct Far : S {
    struct Memory {
        i32* bound;
        i64* far;
    };
    static constexpr bool far = true, shows = false;
    static constexpr i32 UNBOUND = 0x7fffffff;  // beyond infinity
    static GPUAGG_INLINE constexpr u32 bytes(u32) { return 4; }
    static GPUAGG_INLINE Memory carve(char* base, u32, u32, const typename S::Memory& global) {
        return {reinterpret_cast<i32*>(base), global.x};
    }
    static GPUAGG_INLINE void clear(const Memory& m, Place p) { m.bound[p.slot] = UNBOUND; }
    static GPUAGG_INLINE bool occurs(const Memory&, u32, u32) { return false; }
    static GPUAGG_INLINE i64 turned(i64 x) { return GREATEST ? ~x : x; }
    static GPUAGG_INLINE i32 upper(i64 x) { return static_cast<i32>(x >> 32); }
    static GPUAGG_INLINE i32 above(i64 x) {
        return upper(x) == UNBOUND ? UNBOUND : upper(x + 0xffffffffll);
    }
    template <class Space>
    static GPUAGG_INLINE void add(Space, const Memory& m, Place p, typename S::Value v) {
        const i64 x = turned(v.x);
        if (upper(x) >= peek(m.bound + p.slot)) return;
        i64 least = turned(peek(m.far + p.slot));
        if (x < least) {
            if (GREATEST) atomicMax(m.far + p.slot, v.x);
            else atomicMin(m.far + p.slot, v.x);
            least = x;
        }
        atomicMin(m.bound + p.slot, above(least));
    }
    // What other blocks have found.
    static GPUAGG_INLINE void refresh(const Memory& m, u32 slot) {
        atomicMin(m.bound + slot, above(turned(peek(m.far + slot))));
    }
    static GPUAGG_INLINE void merge(const Memory&, const typename S::Memory&, u32, u32) {}
};

template <class S, bool FAR> struct InBlock { using Type = Near<S>; };
template <bool FAR> struct InBlock<Size, FAR> { using Type = Counted; };
template <u32 I> struct InBlock<Min<f64, I>, true> { using Type = Far<Min<f64, I>, false>; };
template <u32 I> struct InBlock<Max<f64, I>, true> { using Type = Far<Max<f64, I>, true>; };

// A list of states, as States is. FAR: whether extremes may lie far.
template <class L, bool FAR> struct Block;

template <bool FAR> struct Block<States<>, FAR> {
    struct Memory {};
    static constexpr bool far = false, shows = false;
    static GPUAGG_INLINE bool occurs(const Memory&, u32, u32) { return false; }
    static GPUAGG_INLINE Memory carve(char*, u32, u32, const States<>::Memory&) { return {}; }
    static GPUAGG_INLINE void clear(const Memory&, Place) {}
    template <class Space, class R>
    static GPUAGG_INLINE void update(Space, const Memory&, Place, const R&, u32) {}
    static GPUAGG_INLINE void refresh(const Memory&, u32) {}
    static GPUAGG_INLINE void merge(const Memory&, const States<>::Memory&, u32, u32) {}
};

template <class S, class... Rest, bool FAR> struct Block<States<S, Rest...>, FAR> {
    using Head = typename InBlock<S, FAR>::Type;
    using Tail = Block<States<Rest...>, FAR>;
    using InGlobal = typename States<S, Rest...>::Memory;
    struct Memory {
        typename Head::Memory head;
        typename Tail::Memory tail;
    };
    static constexpr bool far = Head::far || Tail::far;
    // whether the states themselves show which keys have occurred
    static constexpr bool shows = Head::shows || Tail::shows;
    static GPUAGG_INLINE bool occurs(const Memory& m, u32 slot, u32 replicas) {
        return Head::shows ? Head::occurs(m.head, slot, replicas)
                           : Tail::occurs(m.tail, slot, replicas);
    }
    static GPUAGG_INLINE Memory carve(char* base, u32 slots, u32 replicas, const InGlobal& global) {
        char* next = base + static_cast<u64>(slots) * Head::bytes(replicas);
        return {Head::carve(base, slots, replicas, global.head),
                Tail::carve(next, slots, replicas, global.tail)};
    }
    static GPUAGG_INLINE void clear(const Memory& m, Place p) {
        Head::clear(m.head, p);
        Tail::clear(m.tail, p);
    }
    template <class Space, class R>
    static GPUAGG_INLINE void update(Space s, const Memory& m, Place p, const R& row, u32 number) {
        typename S::Value v;
        if (S::take(row, number, v)) Head::add(s, m.head, p, v);
        Tail::update(s, m.tail, p, row, number);
    }
    static GPUAGG_INLINE void refresh(const Memory& m, u32 slot) {
        Head::refresh(m.head, slot);
        Tail::refresh(m.tail, slot);
    }
    static GPUAGG_INLINE void merge(const Memory& m, const InGlobal& global, u32 slot,
                                    u32 replicas) {
        Head::merge(m.head, global.head, slot, replicas);
        Tail::merge(m.tail, global.tail, slot, replicas);
    }
};

}  // namespace gpuagg
