"""Sums of floats without rounding: a row of integers for each group, whatever order rows come in.

A float64 is a 53-bit integer times a power of two. It is cut at the multiples of 32 bits into at
most three *slices*, and the slices of one place, a *bin*, are summed in an integer of 64 bits.
Integers add up to the same in every order, so the bins of a group do not depend on kernels,
partitions or workers. At the end the sum is rounded once, to the nearest float64: it is what
``math.fsum`` gives.

Bins that hold a sum without rounding are Kulisch's; small ones with room for carries are those of
R. M. Neal, Fast exact summation using small and large superaccumulators, arXiv:1505.05571, 2015;
S. Collange et al., Numerical reproducibility for the parallel reduction on multi- and many-core
architectures, Parallel Computing 49, 2015, sum so on GPUs. J. Demmel and H. D. Nguyen, Parallel
reproducible summation, IEEE Transactions on Computers 64, 2015, keep the highest bins alone, which
need a pass over a group's values, or a window of bins that moves with the largest of them.

The functions take arrays of NumPy, or of CuPy where ``xp`` is that module: both give the same.
"""

from collections.abc import Iterable, Mapping
from typing import Any

# Bits of a bin. Bin 0 starts at the lowest bit of the smallest float64, which is 2**-ONE.
WIDTH = 32
ONE = 1074
# Fields of the state beside the bins: the number of values, and how many are NaN, inf and -inf.
COUNT = "n"
SPECIAL = ("nan", "above", "below")
# The highest bin is left as it is up to here: so many partials more may be added to it.
_TOP = 1 << 40

Digits = dict[int, Any]


def label(place: int) -> str:
    """The name of the field that holds a bin."""
    return f"b{place}"


def digits_of(fields: Mapping[str, Any]) -> Digits:
    """The bins among the fields of a state, by their places."""
    return {int(name[1:]): v for name, v in fields.items() if name[1:].isdigit()}


def united(names: Iterable[Iterable[str]]) -> list[str]:
    """The names of the columns of several tables, each once: a bin that a table lacks is 0."""
    return list(dict.fromkeys(name for table in names for name in table))


def sliced(values: Any, xp: Any) -> tuple[Any, list[Any]]:
    """The lowest bin of each float64, and its slices in that bin and the two above it.

    Slices have the sign of the value; those of a value that is not finite are 0.
    """
    u64 = xp.uint64
    bits = values.view(u64)
    exponent = (bits >> u64(52)) & u64(0x7FF)
    mantissa = bits & u64((1 << 52) - 1)
    mantissa = xp.where(exponent > u64(0), mantissa | u64(1 << 52), mantissa)
    mantissa = xp.where(exponent == u64(0x7FF), u64(0), mantissa)
    start = xp.maximum(exponent, u64(1)) - u64(1)
    shift = start & u64(WIDTH - 1)
    sign = xp.where(bits >> u64(63) > u64(0), -1, 1)
    low = mantissa << shift
    # in two steps: a shift by 64 bits is none
    high = (mantissa >> u64(1)) >> (u64(63) - shift)
    parts = (low & u64(0xFFFFFFFF), low >> u64(WIDTH), high)
    return (start >> u64(5)).astype(xp.int64), [part.astype(xp.int64) * sign for part in parts]


def of_integers(values: Any) -> Digits:
    """The bins of an array, or Series of any engine, of int64 or uint64."""
    place, shift = divmod(ONE, WIDTH)
    first = 1 << (WIDTH - shift)
    parts = (
        values % first * (1 << shift),
        values // first % (1 << WIDTH),
        values // (first << WIDTH),  # with the sign: all three are of a division rounded down
    )
    return {place + i: part.astype("int64") for i, part in enumerate(parts)}


def added(some: Digits, others: Digits) -> Digits:
    """The sums of two rows of bins."""
    places = {*some, *others}
    return {j: some.get(j, 0) + others[j] if j in others else some[j] for j in places}


def carried(digits: Digits, xp: Any, narrow_top: bool = False) -> Digits:
    """Sums with less than 32 bits in every bin but the highest, which has the sign.

    Bins may be up to 2**63 - 2**32, of either sign. By ``narrow_top`` the highest one has less than
    32 bits too, its sign apart.
    """
    if not digits:
        return {}
    result: Digits = {}
    nothing = xp.zeros_like(next(iter(digits.values())))
    carry = nothing
    places = range(min(digits), max(digits) + 1)
    for j in places:
        held = digits.get(j, nothing) + carry
        if j == places[-1]:
            result[j] = held
            break
        result[j], carry = held & 0xFFFFFFFF, held >> WIDTH
    top = result[places[-1]]
    if narrow_top or (len(top) and int(xp.abs(top).max()) >= _TOP):
        result[places[-1]], result[places[-1] + 1] = top & 0xFFFFFFFF, top >> WIDTH
    return result


def settled(fields: Mapping[str, Any], xp: Any) -> dict[str, Any]:
    """The fields of a state, whose bins may be full, with carries done."""
    digits = carried(digits_of(fields), xp)
    others = {name: values for name, values in fields.items() if not name[1:].isdigit()}
    return others | {label(j): digits[j] for j in sorted(digits)}


def total(fields: Mapping[str, Any], xp: Any) -> Any:
    """The sum of each group, rounded once to the nearest float64, and to the even one of two.

    It is 0.0 of no values; an infinity of a sum beyond the largest float64, and where values are
    infinite; NaN where one is NaN, or where infinities have both signs.
    """
    sums = _rounded(digits_of(fields), xp)
    if sums is None:
        sums = xp.zeros(len(fields[COUNT]))
    if fields.keys().isdisjoint(SPECIAL):
        return sums
    nothing = xp.zeros_like(fields[COUNT])
    nan, above, below = (fields.get(name, nothing) > 0 for name in SPECIAL)
    sums = xp.where(below, -xp.inf, xp.where(above, xp.inf, sums))
    return xp.where(nan | (above & below), xp.nan, sums)


def _rounded(digits: Digits, xp: Any) -> Any:
    if not digits:
        return None
    u64 = xp.uint64
    digits = carried(digits, xp)
    negative = digits[max(digits)] < 0
    sign = xp.where(negative, -1, 1)
    digits = carried({j: values * sign for j, values in digits.items()}, xp, narrow_top=True)
    # the highest bin that is not 0, the two below it, and whether anything is below these
    highest = xp.full(len(sign), -1, dtype=xp.int64)
    for j in sorted(digits):
        highest = xp.where(digits[j] != 0, j, highest)
    nothing = xp.zeros(len(sign), dtype=xp.int64)
    parts, below = [nothing, nothing, nothing], xp.zeros(len(sign), dtype=bool)
    for j, values in digits.items():
        parts = [xp.where(highest == j + i, values, part) for i, part in enumerate(parts)]
        below = below | ((highest > j + 2) & (values != 0))
    first, second, third = (part.astype(u64) for part in parts)
    # bits of the highest bin, from the exponent that it has as a float
    floats = xp.maximum(parts[0], 1).astype(xp.float64)
    bits = (floats.view(u64) >> u64(52)) - u64(1022)
    # the 64 bits from the highest one on
    upper = (((first << u64(WIDTH)) | second) << (u64(WIDTH) - bits)) | (third >> bits)
    below = below | ((third & ((u64(1) << bits) - u64(1))) != 0)
    top = xp.maximum(WIDTH * highest + bits.astype(xp.int64) - 1, 0)
    # 53 of them are kept; sums below 2**-1021 have no more bits than fit
    mantissa, rest = upper >> u64(11), upper & u64(0x7FF)
    up = (rest > u64(0x400)) | ((rest == u64(0x400)) & (below | ((mantissa & u64(1)) > u64(0))))
    # a carry out of the mantissa is one of the exponent
    normal = (xp.maximum(top - 52, 0).astype(u64) << u64(52)) + mantissa + up.astype(u64)
    tiny = upper >> xp.maximum(63 - top, 0).astype(u64)
    result = xp.where(top >= 52, xp.minimum(normal, u64(0x7FF << 52)), tiny)
    result = xp.where(highest >= 0, result, u64(0))
    result = result | (xp.where(negative, u64(1), u64(0)) << u64(63))
    return result.view(xp.float64)
