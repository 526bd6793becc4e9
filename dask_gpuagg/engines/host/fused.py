"""When the compiled loops run, and what they are given.

pandas reads codes and values once per reduction; the loops of ``loops.py`` read them once per
column. Once loaded they are faster at any number of rows; loading them is what has to pay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Loaded, the loops take a third of pandas' time even at 1,000 rows. But a process spends 0.2 s on
# loading them, the first one another second on compiling, and up to here they save about a
# millisecond per partition. The same bound whether they are loaded or not: the partial of a
# partition is to be the same in every process, to the last bit.
LEAST_ROWS = 50_000
# where pandas reduces many columns in one call, which it does as quickly up to here
_FEW_ROWS = 10_000
# rows that are converted at a time, where codes or values have another dtype
_BLOCK = 1 << 16
_MOST = np.iinfo(np.int32).max
# accumulators of a group where its rows follow each other
_LANES = 4
_SAMPLE = 1 << 10
# From so many rows on, which come from memory, one that is late delays those after it that are
# added to the same accumulators. So there are about so many, at most so many of a group.
_ROWS_FROM_MEMORY = 1 << 17
_ACCUMULATORS = 4096
_MOST_LANES = 64
# columns that are summed together
SUMMED = 4
# rows of a group from which on that is faster
_ROWS_OF_SUMMED = 16

FIELDS = {
    "count": ("count",),
    "isum": ("sum",),
    "fsum": ("sum",),
    "min": ("min",),
    "max": ("max",),
    "moments": ("count", "sum", "m2"),
}
"""By state of the registry, the fields of one column that it is made of."""


def usable(rows: int, slots: int = 0, columns: int = 1) -> bool:
    """Whether the loops take so many rows, with numbers below ``slots``.

    Parameters
    ----------
    rows : int
    slots : int
    columns : int
        That are read. Several save as much together as one of more rows, if there are not so few
        rows that the calls of the loops are all of the time.
    """
    if rows < LEAST_ROWS and (rows < _FEW_ROWS or rows * columns < LEAST_ROWS):
        return False
    if max(rows, slots) > _MOST:
        return False
    import numba

    # interpreted, the loops would take minutes
    return not vars(numba.config)["DISABLE_JIT"]


def reads(dtype: Any) -> bool:
    """Whether the loops read a column of this dtype: plain integers, float32 and float64."""
    if not isinstance(dtype, np.dtype):
        return False
    return dtype.kind in "iu" or (dtype.kind == "f" and dtype.itemsize in (4, 8))


def frozen(values: Array, dtype: Any) -> Array:
    """The values contiguous and read-only in the dtype: one signature for the compiler."""
    array = np.ascontiguousarray(values, dtype=dtype).view()
    array.flags.writeable = False
    return array


def blocks(values: Array, dtype: Any) -> Iterator[tuple[int, Array]]:
    """First row and values of blocks in the dtype; one block where nothing is converted."""
    same = values.dtype == dtype and values.flags.c_contiguous
    step = max(len(values), 1) if same else _BLOCK
    for start in range(0, len(values), step):
        yield start, frozen(values[start : start + step], dtype)


def count(codes: Array, n: int) -> npt.NDArray[np.int64]:
    """Rows of each group.

    Parameters
    ----------
    codes : ndarray of int32 in ``range(n)``
    n : int

    Returns
    -------
    ndarray of int64, shape (n,)
    """
    from dask_gpuagg.engines.host import loops

    counts = np.zeros(n, np.int64)
    loops.count_rows(codes, counts)
    return counts


def lanes_of(codes: Array, n: int) -> int:
    """Accumulators of a group that are the fastest: several for sorted keys, or few groups.

    For then a row is often of the same group as the row before.
    """
    rows = np.arange(0, len(codes) - 1, 1 + len(codes) // _SAMPLE)
    follows = np.count_nonzero(codes[rows] == codes[rows + 1]) > len(rows) / 8
    return _LANES if follows and n < len(codes) // 64 else 1


def reduce(
    codes: Array, n: int, values: Array, wanted: Collection[str], skipna: bool, lanes: int
) -> dict[str, Array]:
    """Reduce one column to all wanted fields.

    Parameters
    ----------
    codes : ndarray of int32 in ``range(n)``, read-only, shape (rows,)
    n : int
    values : ndarray of a dtype that :func:`reads` accepts, shape (rows,)
    wanted : collection of str
        Of ``count``, ``sum``, ``min``, ``max`` and ``m2``.
    skipna : bool
        Whether NaN is null; otherwise a sum with one is NaN.
    lanes : int
        Accumulators of each group at least, a power of two: ``lanes_of`` the codes.

    Returns
    -------
    dict of str to ndarray of shape (n,)
        By field, and perhaps more than the wanted ones. Integers have no ``count``, which is
        that of the rows, and no ``min`` and ``max`` where a group has no rows. Their sum is in
        64 bits and wraps; every other sum is in float64.
    """
    if values.dtype.kind == "f":
        return _floats(codes, n, values, wanted, skipna, lanes)
    fields = _integers(codes, n, values, wanted)
    if "m2" in wanted:
        fields |= _floats(codes, n, values, ("m2",), skipna, lanes)
    return fields


def _floats(
    codes: Array, n: int, values: Array, wanted: Collection[str], skipna: bool, lanes: int
) -> dict[str, Array]:
    from dask_gpuagg.engines.host import loops

    places = {
        "count": loops.COUNT,
        "sum": loops.SUM,
        "min": loops.MIN,
        "max": loops.MAX,
        "m2": loops.M2,
    }
    if "m2" not in wanted:  # whose lanes are slow to fold
        lanes = _spread_out(lanes, n, len(codes))
    if "sum" in wanted and {"sum", "count"} >= {*wanted}:
        return sums(codes, n, [values], "count" in wanted, skipna, lanes)[0]
    extremes = "min" in wanted or "max" in wanted
    last = max(loops.MAX if extremes else loops.COUNT, *(places[field] for field in wanted))
    acc = np.zeros((n * lanes, last + 1))
    if extremes:
        acc[:, loops.MIN : loops.MAX + 1] = np.inf, -np.inf
    what = "sum" in wanted, extremes, "m2" in wanted
    for start, block in blocks(values, np.float64):
        of_block = codes[start : start + len(block)]
        loops.reduce_floats(of_block, block, acc, lanes, skipna, *what)
    if lanes > 1:
        acc = _folded(acc.reshape(n, lanes, last + 1), *what)
    fields = {field: acc[:, places[field]].copy() for field in wanted}
    for field in ("min", "max"):
        if field in fields:
            fields[field][acc[:, loops.COUNT] == 0] = np.nan
            fields[field] = fields[field].astype(values.dtype, copy=False)
    if "count" in fields:
        fields["count"] = fields["count"].astype(np.int64)
    return fields


def _spread_out(lanes: int, n: int, rows: int) -> int:
    """Accumulators of a group where one column is read from memory: for few groups, many."""
    while rows >= _ROWS_FROM_MEMORY and lanes < _MOST_LANES and 2 * n * lanes <= _ACCUMULATORS:
        lanes *= 2
    return lanes


def sums_pay(rows: int, n: int) -> bool:
    """Whether columns are summed faster together: accumulators of many groups are far apart."""
    return n * _ROWS_OF_SUMMED <= rows


def sums(
    codes: Array, n: int, columns: Sequence[Array], counts: bool, skipna: bool, lanes: int
) -> list[dict[str, Array]]:
    """Sums of one column, or of several in one read of the rows.

    Parameters
    ----------
    codes, n, skipna, lanes
        As of ``reduce``.
    columns : sequence of ndarray
        One of float64 or float32, or ``SUMMED`` of float64.
    counts : bool
        Whether the values are counted too.

    Returns
    -------
    list of dict of str to ndarray of shape (n,)
    """
    from dask_gpuagg.engines.host import loops, loops_sums

    acc = np.zeros((n * lanes, len(columns), loops.SUM + 1))
    read: Iterator[tuple[int, tuple[Array, ...]]]
    if len(columns) == 1:
        read = ((start, (block,)) for start, block in blocks(columns[0], np.float64))
    else:
        read = iter([(0, tuple(frozen(values, np.float64) for values in columns))])
    for start, rows in read:
        of_rows = codes[start : start + len(rows[0])]
        loops_sums.sum_columns(of_rows, rows, acc, lanes, skipna, counts)
    made = []
    for j in range(len(columns)):
        fields = acc[:, j]
        if lanes > 1:
            fields = _folded(fields.reshape(n, lanes, loops.SUM + 1), True, False, False)
        made.append({"sum": fields[:, loops.SUM].copy()})
        if counts:
            made[-1]["count"] = fields[:, loops.COUNT].astype(np.int64)
    return made


def _folded(acc: Array, sums: bool, extremes: bool, spread: bool) -> Array:
    """One row of accumulators per group, from shape (groups, lanes, fields)."""
    from dask_gpuagg.engines.host import loops

    n, lanes, width = acc.shape
    folded = np.zeros((n, width))
    if sums:
        # compensated as well: the losses of the lanes are added after their sums
        parts = acc[:, :, [loops.SUM, loops.LOST]] * (1.0, -1.0)
        codes = frozen(np.repeat(np.arange(n), 2 * lanes), np.int32)
        values = frozen(parts.transpose(0, 2, 1).ravel(), np.float64)
        loops.reduce_floats(codes, values, folded, 1, False, True, False, False)
    folded[:, loops.COUNT] = acc[:, :, loops.COUNT].sum(axis=1)
    if extremes:
        folded[:, loops.MIN] = acc[:, :, loops.MIN].min(axis=1)
        folded[:, loops.MAX] = acc[:, :, loops.MAX].max(axis=1)
    if spread:
        folded[:, loops.M2] = _folded_m2(*acc[:, :, [loops.COUNT, loops.MEAN, loops.M2]].T)
    return folded


def _folded_m2(counts: Array, means: Array, m2s: Array) -> Array:
    """Chan, Golub, LeVeque 1979, lane by lane: equal means leave 0."""
    count, mean = counts[0], means[0]
    m2: Array = m2s[0]
    with np.errstate(invalid="ignore", over="ignore"):
        for c, m, s in zip(counts[1:], means[1:], m2s[1:], strict=True):
            share = c / np.maximum(count + c, 1.0)
            deviation = m - mean
            # in this order no square of a large mean meets a count of 0
            m2 = m2 + s + deviation * (deviation * (count * share))
            mean = mean + deviation * share
            count = count + c
    return m2


def _integers(codes: Array, n: int, values: Array, wanted: Collection[str]) -> dict[str, Array]:
    from dask_gpuagg.engines.host import loops

    extremes = "min" in wanted or "max" in wanted
    if not extremes and "sum" not in wanted:
        return {}
    wide = np.dtype(np.uint64 if values.dtype.kind == "u" else np.int64)
    acc = np.zeros((n, 3 if extremes else 1), wide)
    if extremes:
        acc[:, 1:] = np.iinfo(wide).max, np.iinfo(wide).min
    for start, block in blocks(values, wide):
        of_block = codes[start : start + len(block)]
        loops.reduce_integers(of_block, block, acc, "sum" in wanted, extremes)
    fields = {"sum": acc[:, 0].copy()} if "sum" in wanted else {}
    if extremes and not (acc[:, 1] > acc[:, 2]).any():
        fields["min"] = acc[:, 1].astype(values.dtype)
        fields["max"] = acc[:, 2].astype(values.dtype)
    return fields
