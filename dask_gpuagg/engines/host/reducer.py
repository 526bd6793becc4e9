"""Reductions of columns over one grouping: compiled loops, pandas' or Arrow's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pandas.api.typing import SeriesGroupBy

from dask_gpuagg import exact_sums
from dask_gpuagg.engines.host import compiled
from dask_gpuagg.engines.host.grouping import Codes

Fields = dict[str, Any]
Array = npt.NDArray[Any]

# values that one call of pandas reduces: they are copied next to each other
_MOST_VALUES = 1 << 20
# a bin of exact sums takes the slices of so many rows
_ROWS_OF_A_BIN = 1 << 30
_INFINITE = 0x7FF


class Reducer:
    """Reductions over one dense grouping: codes below ``n``, the number of groups.

    Groups that no code names get the identity of a reduction.
    """

    def __init__(self, codes: Codes, n: int) -> None:
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
        fields.update(compiled.FIELDS.get(state, ()))

    def by_loops(self, values: pd.Series, field: str, skipna: bool = True) -> Any:
        """A field of a column by the compiled loops; ``None`` where they do not apply."""
        codes = self._small_codes
        if codes is None or not compiled.can_read(values.dtype):
            return None
        _, fields = self._by_loops.setdefault((id(values), skipna), (values, {}))
        if field not in fields:
            _, expected = self._expected.get(id(values), (values, set()))
            # a field that could not be made is not tried again
            missing = {field} | (expected - fields.keys())
            fields |= dict.fromkeys(missing) | compiled.reduce(
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
        if not compiled.can_read(values.dtype):
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
        if counts is None and compiled.can_read(values.dtype):
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
        bits = compiled.read_only(values, np.float64).view(np.uint64)
        lowest, highest = _exponents(bits, by_loops)
        fields = self._not_finite(values, nan_is_null) if highest == _INFINITE else {}
        digits: exact_sums.Digits = {}
        for start in range(0, len(bits) if lowest < _INFINITE else 0, _ROWS_OF_A_BIN):
            rows = slice(start, start + _ROWS_OF_A_BIN)
            low = (max(lowest, 1) - 1) >> 5
            high = (max(min(highest, _INFINITE - 1), 1) - 1) >> 5
            # the highest slice is two bins above the lowest
            acc = np.zeros((self.n, high + 3 - low), np.int64)
            add_slices = compiled.import_loops().add_slices if by_loops else _add_slices
            add_slices(codes[rows], bits[rows], acc, low)
            of_rows = {low + j: acc[:, j] for j in range(acc.shape[1])}
            digits = exact_sums.carried(exact_sums.added(digits, of_rows), np)
        # copies: a column of the accumulators keeps all of them
        used = {j: np.ascontiguousarray(part) for j, part in digits.items() if part.any()}
        return fields | {exact_sums.label(j): used[j] for j in sorted(used)}

    def _not_finite(self, values: Array, nan_is_null: bool) -> Fields:
        nan, above, below = exact_sums.SPECIAL
        rows = {above: values == np.inf, below: values == -np.inf}
        if not nan_is_null:
            rows[nan] = np.isnan(values)
        return {name: self.count(some) for name, some in rows.items() if some.any()}

    @cached_property
    def _small_codes(self) -> npt.NDArray[np.int32] | None:
        """The codes as the compiled loops take them, or ``None`` where those do not run."""
        columns = sum(bool(f) and compiled.can_read(v.dtype) for v, f in self._expected.values())
        if not compiled.should_run(len(self.codes), self.n, columns):
            return None
        return compiled.read_only(self.codes, np.int32)

    @cached_property
    def _lanes(self) -> int:
        return 1 if self._small_codes is None else compiled.lanes_of(self._small_codes, self.n)

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
            return compiled.count(self._small_codes, self.n)
        return np.bincount(self.codes, minlength=self.n)

    def count(self, valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Rows of each group for which ``valid`` holds."""
        if valid.all():
            return self.size
        return np.bincount(self.codes[valid], minlength=self.n)

    def medians(self, values: pd.Series) -> npt.NDArray[np.float64] | None:
        """Median of each group, of 64-bit numbers; ``None`` where pandas makes them."""
        dtype, codes = values.dtype, self._small_codes
        if codes is None or not (compiled.can_read(dtype) and dtype.itemsize == 8):
            return None
        return compiled.medians(codes, self.n, values.to_numpy(np.float64))

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
        lowest, highest = compiled.import_loops().exponents(bits)
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
