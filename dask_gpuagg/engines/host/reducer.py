"""Reductions of columns over one grouping: compiled loops, pandas' or Arrow's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pandas.api.typing import SeriesGroupBy

from dask_gpuagg.engines.host import batches, exact, fused, ordered
from dask_gpuagg.engines.host.grouping import Codes

Fields = dict[str, Any]


class Reducer:
    """Reductions over one dense grouping.

    Parameters
    ----------
    codes : ndarray of int in ``range(n)``, shape (rows,)
    n : int
        Number of groups. Groups that no code names get each reduction's identity.
    """

    def __init__(self, codes: Codes, n: int) -> None:
        self.codes = codes
        self.n = n
        # by identity of the column, which is kept alive so that no other column gets its identity
        self._shared: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._fused: dict[tuple[int, bool], tuple[Any, dict[str, Any]]] = {}
        self._expected: dict[int, tuple[Any, set[str]]] = {}
        self._batched: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def shared(self, what: str, make: Callable[[Any], Any], values: Any) -> Any:
        """``make(values)``, computed once for all states that ask for it."""
        key = (what, id(values))
        if key not in self._shared:
            self._shared[key] = (values, make(values))
        return self._shared[key][1]

    def expect(self, state: str, values: pd.Series) -> None:
        """Announce a state of a column, to be made along with the column's other ones."""
        _, fields = self._expected.setdefault(id(values), (values, set()))
        fields.update(fused.FIELDS.get(state, ()))

    def fused(self, values: pd.Series, field: str, skipna: bool = True) -> Any:
        """A field of a column by the compiled loops; ``None`` where they do not apply."""
        if not (self._small_codes is not None and fused.reads(values.dtype)):
            return None
        key = id(values), skipna
        _, fields = self._fused.setdefault(key, (values, {}))
        if field not in fields:
            _, expected = self._expected.get(id(values), (values, set()))
            # what was asked for and could not be made is not tried again
            wanted = {field} | (expected - fields.keys())
            if wanted <= {"sum", "count"} and id(values) in self._summed:
                self._sum_together(self._summed[id(values)], "count" in wanted, skipna)
            else:
                made = fused.reduce(
                    self._small_codes, self.n, values.to_numpy(), wanted, skipna, self._lanes
                )
                fields |= dict.fromkeys(wanted) | made
        return fields[field]

    def _sum_together(self, columns: Sequence[pd.Series], counts: bool, skipna: bool) -> None:
        codes: npt.NDArray[np.int32] | None = self._small_codes
        assert codes is not None
        arrays = [column.to_numpy() for column in columns]
        sums = fused.sums(codes, self.n, arrays, counts, skipna, self._lanes)
        for column, made in zip(columns, sums, strict=True):
            self._fused.setdefault((id(column), skipna), (column, {}))[1].update(made)

    @cached_property
    def _summed(self) -> dict[int, Sequence[pd.Series]]:
        """By identity of a column, those that are summed along with it: the same is expected."""
        if not fused.sums_pay(len(self.codes), self.n):
            return {}
        alike: dict[frozenset[str], list[pd.Series]] = {}
        for values, fields in self._expected.values():
            if values.dtype == np.float64 and {"sum"} <= fields <= {"sum", "count"}:
                alike.setdefault(frozenset(fields), []).append(values)
        found: dict[int, Sequence[pd.Series]] = {}
        for summed in alike.values():
            for i in range(0, len(summed) - fused.SUMMED + 1, fused.SUMMED):
                batch = summed[i : i + fused.SUMMED]
                found |= {id(values): batch for values in batch}
        return found

    def sum(self, values: pd.Series, skipna: bool = True) -> Any:
        """Sum of each group, in 64 bits; that of no values is 0."""
        sums = self.fused(values, "sum", skipna)
        return self.reduced("sum", values, skipna=skipna) if sums is None else sums

    def exact_sums(self, values: npt.NDArray[np.float64], nan_is_null: bool) -> Fields:
        """Sums without rounding, in bins; see ``exact.sums``."""
        small = self._small_codes
        codes = self.codes if small is None else small
        return exact.sums(codes, self.n, values, nan_is_null, small is not None)

    def reduced(self, how: str, values: pd.Series, **options: Any) -> Any:
        """``by(values)`` reduced, along with the other columns of which the same is expected."""
        if not batches.is_batched(values.dtype):
            return getattr(self.by(values), how)(**options).array
        key = how, *options.items()
        if (*key, id(values)) not in self._batched:
            field = "m2" if how == "var" else how
            others = [v for v, fields in self._expected.values() if field in fields]
            columns = batches.batch_of(values, others)
            made = batches.reduce(columns, self._grouper, how, options)
            for column, result in zip(columns, made, strict=True):
                self._batched[*key, id(column)] = column, result
        return self._batched[*key, id(values)][1]

    @cached_property
    def _small_codes(self) -> npt.NDArray[np.int32] | None:
        """The codes as the compiled loops take them, or ``None`` where those do not run."""
        columns = sum(bool(f) and fused.reads(v.dtype) for v, f in self._expected.values())
        if not fused.usable(len(self.codes), self.n, columns):
            return None
        return fused.frozen(self.codes, np.int32)

    @cached_property
    def _lanes(self) -> int:
        return 1 if self._small_codes is None else fused.lanes_of(self._small_codes, self.n)

    @cached_property
    def _grouper(self) -> Any:
        # a categorical's codes are taken as they are: pandas does not hash them again
        codes = pd.Categorical.from_codes(
            self.codes, categories=pd.RangeIndex(self.n), validate=False
        )
        rows = pd.Series(0, index=pd.RangeIndex(len(codes)), dtype="int8")
        # its grouper serves all columns, as the one of a DataFrameGroupBy does
        return rows.groupby(codes, sort=True, observed=False)._grouper

    def by(self, values: pd.Series) -> SeriesGroupBy[Any, Any]:
        """The values grouped by dense number, every number present, in order."""
        return values.groupby(self._grouper)

    @cached_property
    def size(self) -> npt.NDArray[np.int64]:
        """Rows of each group."""
        if self._small_codes is not None:
            return fused.count(self._small_codes, self.n)
        return np.bincount(self.codes, minlength=self.n)

    def count(self, valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Rows of each group for which ``valid`` holds."""
        if valid.all():
            return self.size
        return np.bincount(self.codes[valid], minlength=self.n)

    def medians(self, values: pd.Series) -> npt.NDArray[np.float64] | None:
        """Median of each group, of 64-bit numbers; ``None`` where pandas makes them."""
        dtype = values.dtype
        if not (isinstance(dtype, np.dtype) and dtype.kind in "iuf" and dtype.itemsize == 8):
            return None
        if self._small_codes is None:
            return None
        return ordered.medians(self._small_codes, self.n, values.to_numpy(np.float64))

    def placed(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Floats of rows, one of a group at most, by group; NaN where a group has none."""
        found = np.full(self.n, np.nan, values.dtype)
        found[self.codes] = values
        return found

    def first_row(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """For each group the first of the given ascending row numbers, -1 where none is."""
        first = np.full(self.n, -1, dtype=np.int64)
        backwards = rows[::-1]
        first[self.codes[backwards]] = backwards  # the last write wins: the first row
        return first

    def last_row(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """For each group the last of the given ascending row numbers, -1 where none is."""
        last = np.full(self.n, -1, dtype=np.int64)
        last[self.codes[rows]] = rows
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
