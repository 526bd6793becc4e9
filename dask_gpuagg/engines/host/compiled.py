"""Reductions of columns over one grouping: by the compiled loops, by pandas or by Arrow.

pandas reads codes and values once per reduction; the loops of ``loops.py`` read them once per
column. Once loaded they are faster at any number of rows; loading them is what has to pay.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pandas.api.typing import SeriesGroupBy

from dask_gpuagg import exact_sums

Array = npt.NDArray[Any]
Numbered = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]

# Loaded, the loops take a third of pandas' time even at 1,000 rows. But a process spends 0.2 s on
# loading them, the first one another second on compiling, and up to here they save about a
# millisecond per partition. The same bound whether they are loaded or not: the partial of a
# partition is to be the same in every process, to the last bit.
LEAST_ROWS = 50_000
# The libraries take 140 MiB beside 190 MiB of Dask, pandas and Arrow. A worker with less is paused
# by Dask as soon as they are loaded, and for ever.
LEAST_MEMORY = 600 << 20
# where pandas reduces many columns in one call, which it does as quickly up to here
_FEW_ROWS = 10_000
# rows that are converted at a time, where codes or values have another dtype
BLOCK = 1 << 16
_MOST = np.iinfo(np.int32).max
# accumulators of a group where its rows follow each other
_LANES = 4
_SAMPLE = 1 << 10
# Bytes of accumulators from which rows are put in the order of runs of groups, where groups have
# more rows than this: a group's first row costs no miss, for groups are numbered by them.
_CACHED, _MANY_ROWS, _BITS_OF_A_RUN = 12 << 20, 4, 13

FIELDS = {
    "count": ("count",),
    "isum": ("sum",),
    "fsum": ("sum",),
    "min": ("min",),
    "max": ("max",),
    "moments": ("count", "sum", "m2"),
}
"""By state of the registry, the fields of one column that it is made of."""


def import_loops() -> ModuleType:
    """Import the loops at their first use: they import Numba."""
    from dask_gpuagg.engines.host import loops

    return loops


def should_run(rows: int, slots: int = 0, columns: int = 1) -> bool:
    """Whether the loops take so many rows, with numbers below ``slots``.

    Several columns save as much together as one of more rows, unless rows are so few that the calls
    of the loops are all of the time.
    """
    if rows < LEAST_ROWS and (rows < _FEW_ROWS or rows * columns < LEAST_ROWS):
        return False
    if max(rows, slots) > _MOST or not _has_room():
        return False
    import numba

    # interpreted, the loops would take minutes
    return not vars(numba.config)["DISABLE_JIT"]


def _has_room() -> bool:
    """Whether the memory limit of the worker, if a worker runs this, admits Numba's libraries."""
    distributed = sys.modules.get("distributed.worker")
    if distributed is None:
        return True
    try:
        limit = distributed.get_worker().memory_manager.memory_limit
    except ValueError:  # no worker runs this
        return True
    return limit is None or limit >= LEAST_MEMORY


def can_read(dtype: Any) -> bool:
    """Whether the loops read a column of this dtype: plain integers, float32 and float64."""
    if not isinstance(dtype, np.dtype):
        return False
    return dtype.kind in "iu" or (dtype.kind == "f" and dtype.itemsize in (4, 8))


def read_only(values: Array, dtype: Any) -> Array:
    """Contiguous and read-only in the dtype: one signature for the compiler."""
    array = np.ascontiguousarray(values, dtype=dtype).view()
    array.flags.writeable = False
    return array


def blocks(values: Array, dtype: Any) -> Iterator[tuple[int, Array]]:
    """First row and values of blocks in the dtype; one block where nothing is converted."""
    same = values.dtype == dtype and values.flags.c_contiguous
    step = max(len(values), 1) if same else BLOCK
    for start in range(0, len(values), step):
        yield start, read_only(values[start : start + step], dtype)


# Reductions of columns by group.


def count(codes: Array, n: int) -> npt.NDArray[np.int64]:
    """Count the rows of each group; codes are of int32."""
    counts = np.zeros(n, np.int64)
    import_loops().count_rows(codes, counts)
    return counts


def lanes_of(codes: Array, n: int) -> int:
    """Accumulators of a group that are the fastest: several for sorted keys, or few groups.

    For then a row is often of the same group as the row before.
    """
    rows = np.arange(0, len(codes) - 1, 1 + len(codes) // _SAMPLE)
    follows = np.count_nonzero(codes[rows] == codes[rows + 1]) > len(rows) / 8
    return _LANES if follows and n < len(codes) // 64 else 1


def reduce(
    codes: Array, n: int, values: Array, fields: Collection[str], skipna: bool, lanes: int
) -> dict[str, Array]:
    """Reduce one column to fields: ``count``, ``sum``, ``min``, ``max`` and ``m2``, and maybe more.

    Codes are read-only int32; a group has at least ``lanes`` accumulators, a power of two. Integers
    have no ``count``, which is that of the rows, and no extremes where a group has no rows. Their
    sum is in 64 bits and wraps, every other sum in float64; without ``skipna`` NaN makes it NaN.
    """
    if values.dtype.kind == "f":
        return _reduce_floats(codes, n, values, fields, skipna, lanes)
    reduced = _reduce_integers(codes, n, values, fields)
    if "m2" in fields:
        reduced |= _reduce_floats(codes, n, values, ("m2",), skipna, lanes)
    return reduced


def _reduce_floats(
    codes: Array, n: int, values: Array, fields: Collection[str], skipna: bool, lanes: int
) -> dict[str, Array]:
    loops = import_loops()
    places = loops.PLACES
    extremes = "min" in fields or "max" in fields
    if "m2" in fields:
        lanes = 1
    last = max(loops.MAX if extremes else loops.COUNT, *(places[field] for field in fields))
    acc = np.zeros((n * lanes, last + 1))
    if extremes:
        acc[:, loops.MIN : loops.MAX + 1] = np.inf, -np.inf
    has_sum, has_m2 = "sum" in fields, "m2" in fields
    if acc.nbytes > _CACHED and len(codes) > _MANY_ROWS * n and values.dtype.itemsize >= 4:
        codes, values = _by_runs(codes, n, values)
    for start, block in blocks(values, np.float64):
        of_block = codes[start : start + len(block)]
        loops.reduce_floats(of_block, block, acc, lanes, skipna, has_sum, extremes, has_m2)
    if lanes > 1:
        acc = _folded(acc.reshape(n, lanes, last + 1), has_sum, extremes)
    reduced = {field: acc[:, places[field]].copy() for field in fields}
    for field in reduced.keys() & {"min", "max"}:
        reduced[field][acc[:, loops.COUNT] == 0] = np.nan
        reduced[field] = reduced[field].astype(values.dtype, copy=False)
    if "count" in reduced:
        reduced["count"] = reduced["count"].astype(np.int64)
    return reduced


def _by_runs(codes: Array, n: int, values: Array) -> tuple[Array, Array]:
    """Rows in the order of runs of groups, so that the accumulators of one stay in the cache."""
    runs = read_only(codes >> _BITS_OF_A_RUN, np.int32)
    counts = count(runs, (n >> _BITS_OF_A_RUN) + 1)
    ordered = scattered(codes, runs, counts)
    return read_only(ordered, np.int32), scattered(values, runs, counts)


def _folded(acc: Array, sums: bool, extremes: bool) -> Array:
    """One row of accumulators per group, from shape (groups, lanes, fields)."""
    loops = import_loops()
    n, lanes, width = acc.shape
    folded = np.zeros((n, width))
    if sums:
        # compensated as well: the losses of the lanes are added after their sums
        parts = acc[:, :, [loops.SUM, loops.LOST]] * (1.0, -1.0)
        codes = read_only(np.repeat(np.arange(n), 2 * lanes), np.int32)
        values = read_only(parts.transpose(0, 2, 1).ravel(), np.float64)
        loops.reduce_floats(codes, values, folded, 1, False, True, False, False)
    folded[:, loops.COUNT] = acc[:, :, loops.COUNT].sum(axis=1)
    if extremes:
        folded[:, loops.MIN] = acc[:, :, loops.MIN].min(axis=1)
        folded[:, loops.MAX] = acc[:, :, loops.MAX].max(axis=1)
    return folded


def _reduce_integers(
    codes: Array, n: int, values: Array, fields: Collection[str]
) -> dict[str, Array]:
    extremes = "min" in fields or "max" in fields
    if not extremes and "sum" not in fields:
        return {}
    wide = np.dtype(np.uint64 if values.dtype.kind == "u" else np.int64)
    acc = np.zeros((n, 3 if extremes else 1), wide)
    if extremes:
        acc[:, 1:] = np.iinfo(wide).max, np.iinfo(wide).min
    for start, block in blocks(values, wide):
        of_block = codes[start : start + len(block)]
        import_loops().reduce_integers(of_block, block, acc, "sum" in fields, extremes)
    reduced = {"sum": acc[:, 0].copy()} if "sum" in fields else {}
    if extremes and not (acc[:, 1] > acc[:, 2]).any():
        reduced["min"] = acc[:, 1].astype(values.dtype)
        reduced["max"] = acc[:, 2].astype(values.dtype)
    return reduced


# Dense numbers of rows, in order of appearance, and the code of every number.


def number(values: Array, low: int, size: int) -> Numbered:
    """Number distinct integers of ``range(low, low + size)`` by direct addressing."""
    # all in the bits of int64: the difference is taken modulo 2**64
    low -= (low >> 63) << 64 if low > 0 else 0
    wide = np.uint64 if values.dtype == np.uint64 else np.int64
    return number_blocks(blocks(values, wide), len(values), low, size)


def number_blocks(parts: Iterable[tuple[int, Array]], rows: int, low: int, size: int) -> Numbered:
    """Number distinct integers of 64 bits that come in blocks, with the first row of each."""
    # untouched pages of the first two cost nothing
    slots, present = np.zeros(size, np.int32), np.empty(min(rows, size), np.int64)
    codes = np.empty(rows, np.int32)
    distinct = 0
    for start, block in parts:
        of_block = codes[start : start + len(block)]
        signed = block.view(np.int64)
        distinct = import_loops().number_integers(signed, low, slots, present, distinct, of_block)
    return codes, present[:distinct].copy()


def number_hashed(values: Array, step: int | None = None) -> Numbered:
    """Number distinct integers of int64, of any range, by a hash table that has room for all.

    With a ``step`` the table has room for the integers there are and those of so many rows more: of
    few integers it stays in the cache.
    """
    rows, distinct = len(values), 0
    step = max(rows, 1) if step is None else step
    present, codes = np.empty(rows, np.int64), np.empty(rows, np.int32)
    values = read_only(values, np.int64)
    number = import_loops().number_hashed
    table, shift = hash_table(step)
    for start in range(0, rows, step):
        if 2 * (distinct + step) > len(table):
            table, shift = hash_table(2 * (distinct + step))
            before = read_only(present[:distinct].copy(), np.int64)
            number(before, table, shift, present, 0, np.empty(distinct, np.int32))
        block = slice(start, start + step)
        distinct = number(values[block], table, shift, present, distinct, codes[block])
    return codes, present[:distinct].copy()


def hash_table(rows: int) -> tuple[npt.NDArray[np.int32], int]:
    """Slots of a hash table for rows, at most half of which are taken, and the loops' shift."""
    width = max(2 * rows - 1, 1).bit_length()
    return np.zeros(1 << width, np.int32), 64 - width


# Rows in the order of their groups or outputs.


def can_order(table: pd.DataFrame) -> bool:
    """Whether the loops order a table: many rows of plain numbers of 4 or 8 bytes."""
    plain = all(can_read(dtype) and dtype.itemsize >= 4 for dtype in table.dtypes)
    return plain and should_run(len(table))


def scattered(values: Array, places: Array, counts: Array) -> Array:
    """Values of 4 or 8 bytes in the order of their places, stable.

    Places are read-only int32; ``counts`` has the number of rows of each.
    """
    kind = np.dtype(f"i{values.dtype.itemsize}")
    ordered = np.empty(len(values), values.dtype)
    starts = np.cumsum(counts) - counts
    values = read_only(values.view(kind), kind)
    import_loops().scatter(places, starts, values, ordered.view(kind))
    return ordered


def medians(codes: Array, n: int, values: Array) -> npt.NDArray[np.float64]:
    """The median of each group's float64 values that are no NaN; NaN of no values."""
    valid = ~np.isnan(values)
    if not valid.all():
        codes, values = codes[valid], values[valid]
    codes = read_only(codes, np.int32)
    counts = count(codes, n)
    ranks = np.where(counts > 0, (counts // 2, (counts - 1) // 2), -1)
    middle = np.full((2, n), np.nan)
    select(values, codes, counts, ranks, middle)
    with np.errstate(invalid="ignore", over="ignore"):
        between = (middle[0] + middle[1]) / 2
    result: npt.NDArray[np.float64] = np.where(counts % 2, middle[0], between)
    return result


def select(values: Array, codes: Array, counts: Array, ranks: Array, out: Array) -> None:
    """Write the order statistics of each group that are asked for.

    Values are numbers of 8 bytes, no NaN, and codes read-only int32. ``ranks``, of shape
    (statistics, groups), count from 0 and descend; -1 where ``out`` is to keep what it has.
    """
    ordered, ends = scattered(values, codes, counts), np.cumsum(counts)
    import_loops().select(ordered, ends, ranks, out)


def order_within(codes: Array, n: int, values: Array) -> npt.NDArray[np.int64]:
    """The order of rows by their groups, and by their values in each: NaN last, equal ones as any.

    By NumPy alone, for any number of rows; codes are of any integer type.
    """
    # codes of booleans and categories may have fewer bits than the mask
    codes = codes.astype(np.int64, copy=False)
    # NumPy sorts numbers by vector instructions, and integers of 16 bits by radix
    order = np.argsort(values)
    for shift in range(0, max(n - 1, 1).bit_length(), 16):
        digits = ((codes[order] >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    return order


# Reductions of columns by group, by whatever serves them.

Fields = dict[str, Any]

# values that one call of pandas reduces: they are copied next to each other
_MOST_VALUES = 1 << 20
# a bin of exact sums takes the slices of so many rows
_ROWS_OF_A_BIN = 1 << 30
_INFINITE = 0x7FF


class Reducer:
    """Reductions over one dense grouping: codes below ``n``, the number of groups.

    Groups that no code names get the identity of a reduction.
    """

    def __init__(self, codes: Array, n: int) -> None:
        self.codes = codes
        self.n = n
        # by identity of the column, which is kept alive so that no other column gets its identity
        self._shared: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._by_loops: dict[tuple[int, bool], tuple[Any, Fields]] = {}
        self._expected: dict[int, tuple[Any, set[str]]] = {}
        self._batched: dict[tuple[Any, ...], dict[int, tuple[Any, Any]]] = {}

    def shared(self, what: str, make: Callable[[Any], Any], values: Any) -> Any:
        """``make(values)``, computed once for all states that ask for it."""
        key = (what, id(values))
        if key not in self._shared:
            self._shared[key] = (values, make(values))
        return self._shared[key][1]

    def expect(self, state: str, values: pd.Series) -> None:
        """Announce a state of a column, to be made along with the column's other ones."""
        _, fields = self._expected.setdefault(id(values), (values, set()))
        fields.update(FIELDS.get(state, ()))

    def by_loops(self, values: pd.Series, field: str, skipna: bool = True) -> Any:
        """A field of a column by the compiled loops; ``None`` where they do not apply."""
        codes = self._small_codes
        if codes is None or not can_read(values.dtype):
            return None
        _, fields = self._by_loops.setdefault((id(values), skipna), (values, {}))
        if field not in fields:
            _, expected = self._expected.get(id(values), (values, set()))
            # a field that could not be made is not tried again
            missing = {field} | (expected - fields.keys())
            fields |= dict.fromkeys(missing) | reduce(
                codes, self.n, values.to_numpy(), missing, skipna, self._lanes
            )
        return fields[field]

    def sum(self, values: pd.Series, skipna: bool = True) -> Any:
        """Sum of each group, in 64 bits; that of no values is 0."""
        sums = self.by_loops(values, "sum", skipna)
        return self.by_pandas("sum", values, skipna=skipna) if sums is None else sums

    def by_pandas(self, how: str, values: pd.Series, **options: Any) -> Any:
        """``by(values)`` reduced by a method, along with other columns if that is expected of them.

        A call of pandas costs as much as reducing some ten thousand values: partitions of few rows
        and many columns would spend all of their time on calls.
        """
        if not can_read(values.dtype):
            return getattr(self.by(values), how)(**options).array
        done = self._batched.setdefault((how, *options.items()), {})
        if id(values) not in done:
            field = "m2" if how == "var" else how
            others = (
                column
                for identity, (column, fields) in self._expected.items()
                if field in fields
                and identity not in done
                and column is not values
                and column.dtype == values.dtype
            )
            limit = _MOST_VALUES // max(len(values), 1)
            columns = [values, *islice(others, max(limit - 1, 0))]
            results = self._reduce_batch(columns, how, options)
            for column, result in zip(columns, results, strict=True):
                done[id(column)] = column, result
        return done[id(values)][1]

    def counts(self, values: pd.Series) -> Any:
        """Values of each group that are not null."""
        counts = self.by_loops(values, "count")
        if counts is None and can_read(values.dtype):
            counts = self.by_pandas("count", values)
        return self.count(values.notna().to_numpy()) if counts is None else counts

    def _reduce_batch(self, columns: list[pd.Series], how: str, options: dict[str, Any]) -> Array:
        """Columns of one dtype reduced by one call; shape (columns, groups)."""
        if len(columns) == 1:
            if how == "count":
                return self.count(columns[0].notna().to_numpy())[np.newaxis]
            return np.asarray(getattr(self.by(columns[0]), how)(**options).to_numpy())[np.newaxis]
        return self.reduce_block(np.array([c.to_numpy() for c in columns]), how, options)

    def reduce_block(self, block: Array, how: str, options: Mapping[str, Any]) -> Array:
        """Columns of one dtype, shape (columns, rows), reduced by one call of pandas."""
        if how == "count" and not np.isnan(block).any():
            return np.broadcast_to(self.size, (len(block), self.n))
        grouped = pd.DataFrame(block.T, copy=False).groupby(self.grouper)
        return np.ascontiguousarray(getattr(grouped, how)(**options).to_numpy().T)

    def exact_sums(self, values: npt.NDArray[np.float64], nan_is_null: bool) -> Fields:
        """Fields of the state ``xsum``, all but the number of values: sums without rounding.

        The bins of each group, and the numbers of values that are not finite where there are any.
        """
        by_loops = self._small_codes is not None
        codes = self.codes if self._small_codes is None else self._small_codes
        bits = read_only(values, np.float64).view(np.uint64)
        lowest, highest = _exponents(bits, by_loops)
        fields: Fields = {}
        if highest == _INFINITE:
            nan, above, below = exact_sums.SPECIAL
            rows_of = {above: values == np.inf, below: values == -np.inf}
            rows_of |= {} if nan_is_null else {nan: np.isnan(values)}
            fields = {name: self.count(some) for name, some in rows_of.items() if some.any()}
        digits: exact_sums.Digits = {}
        for start in range(0, len(bits) if lowest < _INFINITE else 0, _ROWS_OF_A_BIN):
            rows = slice(start, start + _ROWS_OF_A_BIN)
            low = (max(lowest, 1) - 1) >> 5
            high = (max(min(highest, _INFINITE - 1), 1) - 1) >> 5
            # the highest slice is two bins above the lowest
            acc = np.zeros((self.n, high + 3 - low), np.int64)
            add_slices = import_loops().add_slices if by_loops else _add_slices
            add_slices(codes[rows], bits[rows], acc, low)
            of_rows = {low + j: acc[:, j] for j in range(acc.shape[1])}
            digits = exact_sums.carried(exact_sums.added(digits, of_rows), np)
        # copies: a column of the accumulators keeps all of them
        used = {j: np.ascontiguousarray(part) for j, part in digits.items() if part.any()}
        return fields | {exact_sums.label(j): used[j] for j in sorted(used)}

    @cached_property
    def _small_codes(self) -> npt.NDArray[np.int32] | None:
        """The codes as the compiled loops take them, or ``None`` where those do not run."""
        columns = sum(bool(f) and can_read(v.dtype) for v, f in self._expected.values())
        if not should_run(len(self.codes), self.n, columns):
            return None
        return read_only(self.codes, np.int32)

    @cached_property
    def _lanes(self) -> int:
        return 1 if self._small_codes is None else lanes_of(self._small_codes, self.n)

    @cached_property
    def grouper(self) -> Any:
        """The groups as pandas has them."""
        # a categorical's codes are taken as they are: pandas does not hash them again
        codes = pd.Categorical.from_codes(
            self.codes, categories=pd.RangeIndex(self.n), validate=False
        )
        rows = pd.Series(0, index=pd.RangeIndex(len(codes)), dtype="int8")
        # its grouper serves all columns, as the one of a DataFrameGroupBy does
        return rows.groupby(codes, sort=True, observed=False)._grouper

    def by(self, values: pd.Series) -> SeriesGroupBy[Any, Any]:
        """The values grouped by dense number, every number present, in order."""
        return values.groupby(self.grouper)

    @cached_property
    def size(self) -> npt.NDArray[np.int64]:
        """Rows of each group."""
        if self._small_codes is not None:
            return count(self._small_codes, self.n)
        return np.bincount(self.codes, minlength=self.n)

    def count(self, valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Rows of each group for which ``valid`` holds."""
        if valid.all():
            return self.size
        return np.bincount(self.codes[valid], minlength=self.n)

    def medians(self, values: pd.Series) -> npt.NDArray[np.float64] | None:
        """Median of each group, of 64-bit numbers; ``None`` where pandas makes them."""
        dtype, codes = values.dtype, self._small_codes
        if codes is None or not (can_read(dtype) and dtype.itemsize == 8):
            return None
        return medians(codes, self.n, values.to_numpy(np.float64))

    def first_row(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """First of the ascending row numbers ``rows`` in each group, -1 without one."""
        return self.last_row(rows[::-1])

    def last_row(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Last of the row numbers ``rows`` in each group, -1 without one."""
        last = np.full(self.n, -1, dtype=np.int64)
        last[self.codes[rows]] = rows  # the last write wins
        return last

    def arrow(self, values: pd.Series, function: str, empty: Any = None) -> Any:
        """Reduce by Arrow's hash aggregation; the result is a pandas array of n values.

        ``empty`` stands for a group without values.
        """
        table = pa.table({"code": self.codes, "value": _aligned(pa.array(values))})
        # one thread: Dask runs partitions side by side, and first/last need the row order
        reduced = table.group_by("code", use_threads=False).aggregate([("value", function)])
        places = np.full(self.n, -1, dtype=np.int64)
        places[reduced["code"].to_numpy()] = np.arange(len(reduced))
        column = reduced[f"value_{function}"].combine_chunks()
        result = column.take(pa.array(places, mask=places < 0))
        if empty is not None:
            result = result.fill_null(pa.scalar(empty).cast(result.type))
        if result.type != pa.array(values[:0]).type:
            # Arrow widens the precision of a decimal sum; the scale stays
            return pd.Series(result, dtype=pd.ArrowDtype(result.type)).array
        return pd.Series(result, dtype=values.dtype).array


def _aligned(values: Any) -> Any:
    """The array, copied if its buffers begin between words, as what a worker received may.

    Arrow's hash aggregation writes a warning to stderr of such buffers.
    """
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    buffers = [buffer for chunk in chunks for buffer in chunk.buffers() if buffer is not None]
    return values if all(b.address % 8 == 0 for b in buffers) else pa.concat_arrays(chunks)


def _exponents(bits: Array, by_loops: bool) -> tuple[int, int]:
    """The lowest and the highest exponent, 0x7ff and 0 of no values but zeros."""
    if by_loops:
        lowest, highest = import_loops().exponents(bits)
        return int(lowest), int(highest)
    exponents = bits[bits << np.uint64(1) != 0] >> np.uint64(52) & np.uint64(0x7FF)
    return int(exponents.min(initial=_INFINITE)), int(exponents.max(initial=0))


def _add_slices(codes: Array, bits: Array, acc: Array, low: int) -> None:
    place, slices = exact_sums.sliced(bits.view(np.float64), np)
    # zeros and values that are not finite have no slices, and may lie outside of the bins
    some = slices[0] | slices[1] | slices[2] != 0
    at = codes[some].astype(np.int64) * acc.shape[1] + place[some] - low
    flat = acc.reshape(-1)
    for i, part in enumerate(slices):
        np.add.at(flat, at + i, part[some])
