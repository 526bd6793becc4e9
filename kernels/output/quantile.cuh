// Quantiles of a group from the two values on either side of its place.
#pragma once

#include "core/types.cuh"

namespace gpuagg {

enum class Between : u32 { linear, lower, higher, midpoint, nearest };

// Where a quantile lies among n > 0 values: ranks from 0 to n - 1, in float64.
struct RankOf {
    f64 at, lower, upper;
    GPUAGG_INLINE RankOf(f64 q, u64 n) {
        // rounded before anything is subtracted from it, so that whole places stay whole
        at = __dmul_rn(q, static_cast<f64>(n - 1));
        lower = floor(at);
        upper = ceil(at);
    }
    GPUAGG_INLINE f64 share() const { return at - lower; }
};

// Numbers: as libcudf's, in float64 whatever the values are. Products are rounded before they are added,
// so that all kernels make the same of the same values.
struct Numbers {
    template <class T> using Made = f64;
    static GPUAGG_INLINE f64 weighted(f64 a, f64 of_a, f64 b, f64 of_b) {
        return __dadd_rn(__dmul_rn(a, of_a), __dmul_rn(b, of_b));
    }
    template <class T>
    static GPUAGG_INLINE f64 between(T lower, T upper, const RankOf& place, f64, Between how) {
        const f64 low = static_cast<f64>(lower), high = static_cast<f64>(upper);
        const f64 share = place.share();
        switch (how) {
            case Between::lower: return low;
            case Between::higher: return high;
            case Between::nearest: return rint(place.at) == place.lower ? low : high;
            case Between::midpoint: return weighted(low, 0.5, high, 0.5);
            default: return share == 0.0 ? low : weighted(low, 1.0 - share, high, share);
        }
    }
};

// Datetimes and durations: whole ticks, of which float64 would lose the last digits.
struct Ticks {
    template <class T> using Made = T;
    template <class T>
    static GPUAGG_INLINE T between(T lower, T upper, const RankOf& place, f64 q, Between how) {
        const f64 share = place.share();
        const i64 gap = static_cast<i64>(upper) - static_cast<i64>(lower);
        i64 step = 0;
        switch (how) {
            case Between::lower: break;
            case Between::higher: step = gap; break;
            case Between::nearest:
                step = share > 0.5 || (share == 0.5 && q > 0.5) ? gap : 0;
                break;
            case Between::midpoint: step = gap / 2; break;
            default: step = static_cast<i64>(static_cast<f64>(gap) * share);
        }
        return static_cast<T>(lower + step);
    }
};

}  // namespace gpuagg
