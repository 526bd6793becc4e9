// One policy per state of dask_gpuagg/states.py that a kernel makes. A policy has
//   Value      what one row, or many, contribute: held in registers
//   none()     the identity
//   take()     the Value of one row; false when the row adds nothing
//   fold()     two Values into one
//   Memory     where a table keeps the state: one array for each field, replicated or not
//   add()      a Value into a slot that other threads add to
//   read()     a slot as a Value; replicas are folded by the caller
// Merging partials is the same as updating, from inputs that hold the fields of the partials.
#pragma once

#include "aggregate/atomics.cuh"
#include "aggregate/row.cuh"

namespace gpuagg {

// Where in its arrays a slot's state lies: `own` counts slots, `shared` counts replicas.
struct Place {
    u32 slot;
    u32 replica;  // slot * replicas + thread's share
};

// How two values of a field become one: the identity, in registers, and in a table's cell.
template <class F> struct Sum {
    static constexpr F identity = 0;
    static GPUAGG_INLINE void apply(F& a, F b) { a += b; }
    template <class S> static GPUAGG_INLINE void merge(S s, F* cell, F v) { add(s, cell, v); }
};
template <class F> struct Product {
    static constexpr F identity = 1;
    static GPUAGG_INLINE void apply(F& a, F b) { a *= b; }
    template <class S> static GPUAGG_INLINE void merge(S s, F* cell, F v) { multiply(s, cell, v); }
};
template <class F, F IDENTITY> struct Least {
    static constexpr F identity = IDENTITY;
    static GPUAGG_INLINE void apply(F& a, F b) { a = b < a ? b : a; }
    template <class S> static GPUAGG_INLINE void merge(S s, F* cell, F v) { lower(s, cell, v); }
};
template <class F, F IDENTITY> struct Greatest {
    static constexpr F identity = IDENTITY;
    static GPUAGG_INLINE void apply(F& a, F b) { a = b > a ? b : a; }
    template <class S> static GPUAGG_INLINE void merge(S s, F* cell, F v) { raise(s, cell, v); }
};
// Truths: 1 and 0.
struct AnyTrue : Greatest<u32, 0> {
    static GPUAGG_INLINE void apply(u32& a, u32 b) { a |= b; }
};
struct AllTrue : Least<u32, 1> {
    static GPUAGG_INLINE void apply(u32& a, u32 b) { a &= b; }
};

// What a row contributes to a field; false when it adds nothing.
struct EachRow {
    template <class R, class F> static GPUAGG_INLINE bool take(const R&, u32, F& x) {
        x = 1u;
        return true;
    }
};
template <u32 I> struct EachValid {
    template <class R, class F> static GPUAGG_INLINE bool take(const R& row, u32, F& x) {
        x = 1u;
        return cell<I>(row).valid;
    }
};
// AS: what the value is converted to first; integers wrap at 64 bits, signed and unsigned alike.
template <class AS, u32 I> struct ValueAs {
    template <class R, class F> static GPUAGG_INLINE bool take(const R& row, u32, F& x) {
        x = static_cast<F>(static_cast<AS>(cell<I>(row).value));
        return cell<I>(row).valid;
    }
};
template <u32 I> struct Truth {
    template <class R, class F> static GPUAGG_INLINE bool take(const R& row, u32, F& x) {
        x = cell<I>(row).value != 0 ? 1u : 0u;
        return cell<I>(row).valid;
    }
};
// NaN never improves an extreme; a group of nothing else keeps the identity (see output/).
template <class T, u32 I> struct InOrderOf {
    template <class R, class F> static GPUAGG_INLINE bool take(const R& row, u32, F& x) {
        const T value = cell<I>(row).value;
        x = Ordered<T>::of(value);
        if constexpr (Traits<T>::floating) return cell<I>(row).valid && value == value;
        return cell<I>(row).valid;
    }
};
template <u32 I, u32 ADDED> struct NumberOf {
    template <class R, class F> static GPUAGG_INLINE bool take(const R& row, u32 number, F& x) {
        x = number + ADDED;
        return cell<I>(row).valid;
    }
};
// A state of one field, of which every replica has a copy, or a slot has one.
template <class F, class Operation, class Source, bool REPLICATED> struct Cell {
    struct Value { F x; };
    struct Memory { F* x; };
    static GPUAGG_INLINE u32 at(Place p) { return REPLICATED ? p.replica : p.slot; }
    static GPUAGG_INLINE constexpr u32 bytes(u32 replicas) {
        return sizeof(F) * (REPLICATED ? replicas : 1);
    }
    static GPUAGG_INLINE Memory carve(char* base, u32, u32) { return {reinterpret_cast<F*>(base)}; }
    static GPUAGG_INLINE Value read(const Memory& m, Place p) { return {m.x[at(p)]}; }
    static GPUAGG_INLINE void write(const Memory& m, Place p, Value v) { m.x[at(p)] = v.x; }
    static GPUAGG_INLINE Value none() { return {Operation::identity}; }
    template <class R> static GPUAGG_INLINE bool take(const R& row, u32 number, Value& v) {
        return Source::take(row, number, v.x);
    }
    static GPUAGG_INLINE void fold(Value& a, Value b) { Operation::apply(a.x, b.x); }
    template <class S> static GPUAGG_INLINE void add(S s, const Memory& m, Place p, Value v) {
        Operation::merge(s, m.x + at(p), v.x);
    }
};
template <class F, class Operation, class Source>
using Replicated = Cell<F, Operation, Source, true>;
// Extremes are looked at far more often than they change, so one copy serves all lanes.
template <class F, class Operation, class Source>
using OneCopy = Cell<F, Operation, Source, false>;

struct Size : Replicated<u32, Sum<u32>, EachRow> {};
template <u32 I> struct Count : Replicated<u32, Sum<u32>, EachValid<I>> {};
template <u32 I> struct IntegerSum : Replicated<u64, Sum<u64>, ValueAs<i64, I>> {};
// In float64 whatever the column is: float32 keeps its small addends.
template <u32 I> struct FloatSum : Replicated<f64, Sum<f64>, ValueAs<f64, I>> {};
template <u32 I> struct IntegerProduct : Replicated<u64, Product<u64>, ValueAs<i64, I>> {};
template <u32 I> struct FloatProduct : Replicated<f64, Product<f64>, ValueAs<f64, I>> {};

template <class T> using Order = typename Ordered<T>::Type;
template <class T, u32 I>
struct Min : OneCopy<Order<T>, Least<Order<T>, Ordered<T>::highest>, InOrderOf<T, I>> {};
template <class T, u32 I>
struct Max : OneCopy<Order<T>, Greatest<Order<T>, Ordered<T>::lowest>, InOrderOf<T, I>> {};
// Whether any valid value is true, and whether all are. Of none: false, true.
template <u32 I> struct Any : OneCopy<u32, AnyTrue, Truth<I>> {};
template <u32 I> struct All : OneCopy<u32, AllTrue, Truth<I>> {};
// The number of the first or last row that has a value; NONE where no row has.
template <u32 I> struct FirstRow : OneCopy<u32, Least<u32, NONE>, NumberOf<I, 0>> {};
// One more than the row's number, so that 0 is "no row".
template <u32 I> struct LastRow : OneCopy<u32, Greatest<u32, 0>, NumberOf<I, 1>> {};
// A word that all rows of a group have in common, or that they differ: no row's word is one of these.
constexpr u64 NO_WITNESS = ~0ull;
constexpr u64 CONFLICT = ~1ull;
GPUAGG_INLINE bool is_witness(u64 word) { return word < CONFLICT; }

struct Agreement {
    static constexpr u64 identity = NO_WITNESS;
    static GPUAGG_INLINE void apply(u64& a, u64 b) {
        if (a == NO_WITNESS) a = b;
        else if (b != NO_WITNESS && b != a) a = CONFLICT;
    }
    template <class S> static GPUAGG_INLINE void merge(S, u64* cell, u64 v) {
        u64 held = peek(cell);
        if (held == v || v == NO_WITNESS) return;
        if (held == NO_WITNESS) held = atomicCAS(cell, NO_WITNESS, v);
        if (held != NO_WITNESS && held != v) atomicExch(cell, CONFLICT);
    }
};
template <u32 I> struct WordOf {
    template <class R> static GPUAGG_INLINE bool take(const R& row, u32, u64& x) {
        x = cell<I>(row).value;
        return true;
    }
};
template <u32 I> struct Witness : OneCopy<u64, Agreement, WordOf<I>> {};

// The least number of a group's rows, below a check of their keys that all of them have in common: in the
// high half, and never 0 there.
constexpr u64 UNLIKE = 0;
struct AgreementAbove {
    static constexpr u64 identity = NO_WITNESS;
    static GPUAGG_INLINE bool alike(u64 a, u64 b) {
        return a == NO_WITNESS || b == NO_WITNESS || ((a ^ b) >> 32) == 0;
    }
    static GPUAGG_INLINE void apply(u64& a, u64 b) {
        a = !alike(a, b) ? UNLIKE : b < a ? b : a;
    }
    template <class S> static GPUAGG_INLINE void merge(S, u64* cell, u64 v) {
        u64 held = peek(cell);
        if (v < held) held = atomicMin(cell, v);
        // whatever others write meanwhile, nothing is less
        if (!alike(held, v)) atomicMin(cell, UNLIKE);
    }
};
template <u32 I> struct CheckedRow : OneCopy<u64, AgreementAbove, WordOf<I>> {};

// decimal128: the low word's carry goes into the high word.
template <u32 I> struct WideSum {
    struct Value { u64 low, high; };
    struct Memory { u64 *low, *high; };
    static GPUAGG_INLINE constexpr u32 bytes(u32 replicas) { return 16 * replicas; }
    static GPUAGG_INLINE Memory carve(char* base, u32 slots, u32 replicas) {
        u64* low = reinterpret_cast<u64*>(base);
        return {low, low + static_cast<u64>(slots) * replicas};
    }
    static GPUAGG_INLINE Value none() { return {0ull, 0ull}; }
    template <class R> static GPUAGG_INLINE bool take(const R& row, u32, Value& v) {
        const i128 x = static_cast<i128>(cell<I>(row).value);
        v = {static_cast<u64>(x), static_cast<u64>(static_cast<u128>(x) >> 64)};
        return cell<I>(row).valid;
    }
    static GPUAGG_INLINE void fold(Value& a, Value b) {
        a.low += b.low;
        a.high += b.high + (a.low < b.low ? 1ull : 0ull);
    }
    template <class S> static GPUAGG_INLINE void add(S s, const Memory& m, Place p, Value v) {
        const u64 before = atomicAdd(m.low + p.replica, v.low);
        gpuagg::add(s, m.high + p.replica, v.high + (before + v.low < before ? 1ull : 0ull));
    }
    static GPUAGG_INLINE Value read(const Memory& m, Place p) {
        return {m.low[p.replica], m.high[p.replica]};
    }
    static GPUAGG_INLINE void write(const Memory& m, Place p, Value v) {
        m.low[p.replica] = v.low;
        m.high[p.replica] = v.high;
    }
};

// Count, and first and second sums of the distances from a pivot, which is a value of the group
// itself: whoever finds none yet claims it. So a mean of 1e9 costs no digits, a constant gives a
// second moment of exactly 0, and one pass suffices. Shifted data: Chan, Golub, LeVeque 1983,
// equation 1.5b, with one pivot per slot.
template <class N, class Source> struct MomentsOf {
    struct Value {
        N n;
        f64 pivot, s1, s2;
    };
    struct Memory {
        u64* pivot;
        f64 *s1, *s2;
        N* n;
    };
    // a NaN that no arithmetic makes
    static constexpr u64 UNSET = ~0ull;
    static GPUAGG_INLINE constexpr u32 bytes(u32 replicas) { return 8 + (16 + sizeof(N)) * replicas; }
    static GPUAGG_INLINE Memory carve(char* base, u32 slots, u32 replicas) {
        const u64 all = static_cast<u64>(slots) * replicas;
        u64* pivot = reinterpret_cast<u64*>(base);
        f64* s1 = reinterpret_cast<f64*>(pivot + slots);
        return {pivot, s1, s1 + all, reinterpret_cast<N*>(s1 + 2 * all)};
    }
    static GPUAGG_INLINE Value none() { return {N(0), __longlong_as_double(-1ll), 0.0, 0.0}; }
    template <class R> static GPUAGG_INLINE bool take(const R& row, u32, Value& v) {
        return Source::take(row, v);
    }
    static GPUAGG_INLINE void shift(Value& v, f64 pivot) {
        const f64 d = v.pivot - pivot;
        const f64 n = static_cast<f64>(v.n);
        v.s2 += d * (2.0 * v.s1 + n * d);
        v.s1 += n * d;
        v.pivot = pivot;
    }
    static GPUAGG_INLINE void fold(Value& a, Value b) {
        if (b.n == N(0)) return;
        if (a.n == N(0)) {
            a = b;
            return;
        }
        shift(b, a.pivot);
        a.n += b.n;
        a.s1 += b.s1;
        a.s2 += b.s2;
    }
    template <class S> static GPUAGG_INLINE void add(S s, const Memory& m, Place p, Value v) {
        if (v.n == N(0)) return;
        u64* cell = m.pivot + p.slot;
        u64 held = peek(cell);
        if (held == UNSET) {
            // any NaN stands for the group as well as the one that came
            const u64 mine = v.pivot == v.pivot
                                 ? static_cast<u64>(__double_as_longlong(v.pivot))
                                 : 0x7ff8000000000000ull;
            const u64 before = atomicCAS(cell, UNSET, mine);
            held = before == UNSET ? mine : before;
        }
        shift(v, __longlong_as_double(static_cast<i64>(held)));
        gpuagg::add(s, m.n + p.replica, v.n);
        gpuagg::add(s, m.s1 + p.replica, v.s1);
        gpuagg::add(s, m.s2 + p.replica, v.s2);
    }
    static GPUAGG_INLINE Value read(const Memory& m, Place p) {
        return {m.n[p.replica], __longlong_as_double(static_cast<i64>(m.pivot[p.slot])),
                m.s1[p.replica], m.s2[p.replica]};
    }
    static GPUAGG_INLINE void write(const Memory& m, Place p, Value v) {
        m.pivot[p.slot] = static_cast<u64>(__double_as_longlong(v.pivot));
        m.n[p.replica] = v.n;
        m.s1[p.replica] = v.s1;
        m.s2[p.replica] = v.s2;
    }
    static GPUAGG_INLINE f64 mean(const Value& v) { return v.pivot + v.s1 / static_cast<f64>(v.n); }
    static GPUAGG_INLINE f64 m2(const Value& v) {
        const f64 m = v.s2 - v.s1 * (v.s1 / static_cast<f64>(v.n));
        return m < 0.0 ? 0.0 : m;  // a rounding error of a constant; NaN stays
    }
};

template <u32 I> struct OfValues {
    template <class R, class V> static GPUAGG_INLINE bool take(const R& row, V& v) {
        v.n = 1;
        v.pivot = static_cast<f64>(cell<I>(row).value);
        v.s1 = v.s2 = 0.0;
        return cell<I>(row).valid;
    }
};
// Fields of partials: rows, mean, second moment.
template <u32 N, u32 MEAN, u32 M2> struct OfPartials {
    template <class R, class V> static GPUAGG_INLINE bool take(const R& row, V& v) {
        v.n = static_cast<decltype(v.n)>(cell<N>(row).value);
        v.pivot = cell<MEAN>(row).value;
        v.s1 = 0.0;
        v.s2 = cell<M2>(row).value;
        return v.n != 0;
    }
};
template <u32 I> using Moments = MomentsOf<u32, OfValues<I>>;
template <u32 N, u32 MEAN, u32 M2> using MergedMoments = MomentsOf<u64, OfPartials<N, MEAN, M2>>;

}  // namespace gpuagg
