// The states of a list that read the same column, so that a kernel can take one column at a time.
#pragma once

#include "aggregate/list.cuh"

namespace gpuagg {

constexpr u32 NO_INPUT = ~0u;

// The only input that a state reads.
template <class S> struct InputOf { static constexpr u32 value = NO_INPUT; };
template <template <u32> class S, u32 I> struct InputOf<S<I>> {
    static constexpr u32 value = I;
};
template <template <class, u32> class S, class T, u32 I> struct InputOf<S<T, I>> {
    static constexpr u32 value = I;
};
template <class N, u32 I> struct InputOf<MomentsOf<N, OfValues<I>>> {
    static constexpr u32 value = I;
};

// Whether a state is made of the numbers of its rows.
template <class S> struct Numbered { static constexpr bool value = false; };
template <u32 I> struct Numbered<FirstRow<I>> { static constexpr bool value = true; };
template <u32 I> struct Numbered<LastRow<I>> { static constexpr bool value = true; };
template <class... S> struct Numbered<States<S...>> {
    static constexpr bool value = (Numbered<S>::value || ... || false);
};

// The states of input I that are made of its values, or of the numbers of its rows.
template <u32 I, bool NUMBERS> struct OfInput {
    template <class S>
    static constexpr bool has = InputOf<S>::value == I && Numbered<S>::value == NUMBERS;
};

// The states of a list that are `Kind`, and where a table of all of them keeps these.
template <class Kind, class L> struct Pick;
template <class Kind> struct Pick<Kind, States<>> {
    using Type = States<>;
    static constexpr u64 bits = 0;
    static GPUAGG_INLINE Type::Memory of(const States<>::Memory&) { return {}; }
    static GPUAGG_INLINE void put(const States<>::Value&, States<>::Value&) {}
};
template <bool, class S, class L> struct Prepended { using Type = L; };
template <class S, class... Rest> struct Prepended<true, S, States<Rest...>> {
    using Type = States<S, Rest...>;
};
template <class Kind, class S, class... Rest> struct Pick<Kind, States<S, Rest...>> {
    static constexpr bool has = Kind::template has<S>;
    using Next = Pick<Kind, States<Rest...>>;
    using Type = typename Prepended<has, S, typename Next::Type>::Type;
    static GPUAGG_INLINE typename Type::Memory of(const typename States<S, Rest...>::Memory& m) {
        if constexpr (has) return {m.head, Next::of(m.tail)};
        else return Next::of(m.tail);
    }
    static constexpr u64 bits = (has ? 1ull : 0ull) | Next::bits << 1;
    // Their values, to where the list has them.
    static GPUAGG_INLINE void put(const typename Type::Value& some,
                                  typename States<S, Rest...>::Value& all) {
        if constexpr (has) {
            all.head = some.head;
            Next::put(some.tail, all.tail);
        } else {
            Next::put(some, all.tail);
        }
    }
};

}  // namespace gpuagg
