"""When the compiled loops run, and what they are given.

pandas reads codes and values once per reduction; the loops of ``loops.py`` read them once per
column. They are worth their price from some thousand rows on, so that a small query neither
imports Numba nor waits for the compiler.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# below this, calling pandas costs no more than the rows do
LEAST_ROWS = 20_000
# rows that are converted at a time, where codes or values have another dtype
_BLOCK = 1 << 16
_MOST = np.iinfo(np.int32).max

FIELDS = {
    "count": ("count",),
    "isum": ("sum",),
    "fsum": ("sum",),
    "min": ("min",),
    "max": ("max",),
    "moments": ("count", "sum", "m2"),
}
"""By state of the registry, the fields of one column that it is made of."""


def usable(rows: int, slots: int = 0) -> bool:
    """Whether the loops take so many rows, with numbers below ``slots``.

    Parameters
    ----------
    rows : int
    slots : int
    """
    if not LEAST_ROWS <= rows <= _MOST or slots > _MOST:
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
    from dask_gpuagg.engines import loops

    counts = np.zeros(n, np.int64)
    loops.count_rows(codes, counts)
    return counts


def reduce(
    codes: Array, n: int, values: Array, wanted: Collection[str], skipna: bool
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

    Returns
    -------
    dict of str to ndarray of shape (n,)
        By field, and perhaps more than the wanted ones. Integers have no ``count``, which is
        that of the rows, and no ``min`` and ``max`` where a group has no rows. Their sum is in
        64 bits and wraps; every other sum is in float64.
    """
    if values.dtype.kind == "f":
        return _floats(codes, n, values, wanted, skipna)
    fields = _integers(codes, n, values, wanted)
    if "m2" in wanted:
        fields |= _floats(codes, n, values, ("m2",), skipna)
    return fields


def _floats(
    codes: Array, n: int, values: Array, wanted: Collection[str], skipna: bool
) -> dict[str, Array]:
    from dask_gpuagg.engines import loops

    places = {
        "count": loops.COUNT,
        "sum": loops.SUM,
        "min": loops.MIN,
        "max": loops.MAX,
        "m2": loops.M2,
    }
    extremes = "min" in wanted or "max" in wanted
    last = max(loops.MAX if extremes else loops.COUNT, *(places[field] for field in wanted))
    acc = np.zeros((n, last + 1))
    if extremes:
        acc[:, loops.MIN : loops.MAX + 1] = np.inf, -np.inf
    for start, block in blocks(values, np.float64):
        of_block = codes[start : start + len(block)]
        loops.reduce_floats(of_block, block, acc, skipna, "sum" in wanted, extremes, "m2" in wanted)
    fields = {field: acc[:, places[field]].copy() for field in wanted}
    for field in ("min", "max"):
        if field in fields:
            fields[field][acc[:, loops.COUNT] == 0] = np.nan
            fields[field] = fields[field].astype(values.dtype, copy=False)
    if "count" in fields:
        fields["count"] = fields["count"].astype(np.int64)
    return fields


def _integers(codes: Array, n: int, values: Array, wanted: Collection[str]) -> dict[str, Array]:
    from dask_gpuagg.engines import loops

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
