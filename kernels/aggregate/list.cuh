// A list of states as one: what a kernel is written against.
#pragma once

#include "aggregate/exact_sum.cuh"

namespace gpuagg {

template <class... S> struct States;

template <> struct States<> {
    struct Value {};
    struct Memory {};
    static GPUAGG_INLINE constexpr u32 bytes(u32) { return 0; }
    static GPUAGG_INLINE Memory carve(char*, u32, u32) { return {}; }
    static GPUAGG_INLINE void clear(const Memory&, Place) {}
    static GPUAGG_INLINE void write(const Memory&, Place, const Value&) {}
    static GPUAGG_INLINE Value none() { return {}; }
    template <class Space, class R>
    static GPUAGG_INLINE void update(Space, const Memory&, Place, const R&, u32) {}
    template <class R> static GPUAGG_INLINE void fold_row(Value&, const R&, u32) {}
    static GPUAGG_INLINE void fold(Value&, const Value&) {}
    template <class Space>
    static GPUAGG_INLINE void add(Space, const Memory&, Place, const Value&) {}
    static GPUAGG_INLINE Value read(const Memory&, Place) { return {}; }
};

template <class S, class... Rest> struct States<S, Rest...> {
    using Tail = States<Rest...>;
    struct Value {
        typename S::Value head;
        typename Tail::Value tail;
    };
    struct Memory {
        typename S::Memory head;
        typename Tail::Memory tail;
    };
    // Bytes of one slot.
    static GPUAGG_INLINE constexpr u32 bytes(u32 replicas) { return S::bytes(replicas) + Tail::bytes(replicas); }
    static GPUAGG_INLINE Memory carve(char* base, u32 slots, u32 replicas) {
        char* next = base + static_cast<u64>(slots) * S::bytes(replicas);
        return {S::carve(base, slots, replicas), Tail::carve(next, slots, replicas)};
    }
    static GPUAGG_INLINE void clear(const Memory& m, Place p) {
        S::write(m.head, p, S::none());
        Tail::clear(m.tail, p);
    }
    static GPUAGG_INLINE void write(const Memory& m, Place p, const Value& v) {
        S::write(m.head, p, v.head);
        Tail::write(m.tail, p, v.tail);
    }
    static GPUAGG_INLINE Value none() { return {S::none(), Tail::none()}; }
    template <class Space, class R>
    static GPUAGG_INLINE void update(Space s, const Memory& m, Place p, const R& row, u32 number) {
        typename S::Value v;
        if (S::take(row, number, v)) S::add(s, m.head, p, v);
        Tail::update(s, m.tail, p, row, number);
    }
    template <class R> static GPUAGG_INLINE void fold_row(Value& into, const R& row, u32 number) {
        typename S::Value v;
        if (S::take(row, number, v)) S::fold(into.head, v);
        Tail::fold_row(into.tail, row, number);
    }
    static GPUAGG_INLINE void fold(Value& into, const Value& v) {
        S::fold(into.head, v.head);
        Tail::fold(into.tail, v.tail);
    }
    template <class Space>
    static GPUAGG_INLINE void add(Space s, const Memory& m, Place p, const Value& v) {
        S::add(s, m.head, p, v.head);
        Tail::add(s, m.tail, p, v.tail);
    }
    static GPUAGG_INLINE Value read(const Memory& m, Place p) {
        return {S::read(m.head, p), Tail::read(m.tail, p)};
    }
};

// The Value of state I, as its own policy's.
template <u32 I, class L> struct Nth;
template <class S, class... Rest> struct Nth<0, States<S, Rest...>> {
    using State = S;
    static GPUAGG_INLINE const typename S::Value& of(const typename States<S, Rest...>::Value& v) {
        return v.head;
    }
};
template <u32 I, class S, class... Rest> struct Nth<I, States<S, Rest...>> {
    using Next = Nth<I - 1, States<Rest...>>;
    using State = typename Next::State;
    static GPUAGG_INLINE const typename State::Value&
    of(const typename States<S, Rest...>::Value& v) {
        return Next::of(v.tail);
    }
};

}  // namespace gpuagg
