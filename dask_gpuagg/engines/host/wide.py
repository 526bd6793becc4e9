"""Many plain columns: their states are reduced, merged and finished many columns at a time.

pandas spends some ten microseconds on each column that it hands out, reduces or takes up, which is
all of the time of small partitions. A call for all columns of one dtype reads them from one block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dask_gpuagg.engines.host import compiled
from dask_gpuagg.engines.host.reducer import Fields, Reducer
from dask_gpuagg.engines.host.stacking import MANY_COLUMNS, Columns
from dask_gpuagg.engines.host.states import sums_fit
from dask_gpuagg.plan import Plan

# values of a block, which may be a copy
_BLOCK = 1 << 23
# states of one field: its name, and how rows are reduced to it
_FIELDS = {"count": ("n", "count"), "isum": ("sum", "sum"), "fsum": ("sum", "sum")}
_FIELDS |= {name: (name, name) for name in ("min", "max")}

Block = npt.NDArray[Any]
States = dict[int, Fields]


def update(
    reducer: Reducer, columns: Mapping[int, pd.Series] | Sequence[pd.Series], plan: Plan
) -> States:
    """Reduce rows to the states of many columns of one dtype, by their positions in the plan."""
    states: States = {}
    dtypes = getattr(columns, "dtypes", columns)

    def dtype_of(i: int, use: Any) -> Any:
        return getattr(dtypes[use.columns[0]], "dtype", dtypes[use.columns[0]])

    for state, dtype, positions in _alike(plan, dtype_of):
        field, how = _FIELDS[state]
        kind = _summed(dtype) if how == "sum" else dtype
        places = [plan.states[i].columns[0] for i in positions]
        if state == "fsum" and dtype.kind in "iu" and _may_wrap(columns, places):
            continue
        reduced = _reduce(reducer, _blocks(columns, places), kind, how, {})
        if state == "fsum":
            reduced = reduced.astype(np.float64, copy=False)
        states |= {i: {field: row} for i, row in zip(positions, reduced, strict=True)}
    return states


def merge(reducer: Reducer, table: pd.DataFrame, plan: Plan) -> States:
    """Merge rows of the states of many columns, by their positions in the plan."""
    states: States = {}
    dtypes = dict(zip(table.columns, table.dtypes, strict=True))

    def dtype_of(i: int, use: Any) -> Any:
        return dtypes[f"s{i}.{_FIELDS[use.state][0]}"]

    for state, dtype, positions in _alike(plan, dtype_of):
        field, how = _FIELDS[state]
        block = table[[f"s{i}.{field}" for i in positions]].to_numpy().T
        # an inf - inf of a partition is NaN and has to stay NaN: partial sums are never skipped
        how, options = (how, {}) if how in ("min", "max") else ("sum", {"skipna": False})
        reduced = _reduce(reducer, [block], dtype, how, options)
        states |= {i: {field: row} for i, row in zip(positions, reduced, strict=True)}
    return states


def join(columns: Mapping[Any, Any], index: pd.Index | None = None) -> pd.DataFrame:
    """Join columns to a frame, those of one plain dtype next to each other in one block."""
    blocks: dict[Any, list[Any]] = {}
    for name, values in columns.items():
        plain = isinstance(values, np.ndarray)
        blocks.setdefault(values.dtype if plain else name, []).append(name)
    frames = [
        # pandas looks a Python string up faster than one of Arrow's
        pd.DataFrame(np.array([columns[n] for n in names]).T, index, pd.Index(names, dtype=object))
        if isinstance(dtype, np.dtype)
        else pd.DataFrame({name: columns[name] for name in names}, index, copy=False)
        for dtype, names in blocks.items()
    ]
    return pd.concat(frames, axis=1) if len(frames) > 1 else frames[0]


def _alike(
    plan: Plan, dtype_of: Callable[[int, Any], Any]
) -> list[tuple[str, np.dtype[Any], list[int]]]:
    """The states that are many of one name and plain dtype: name, dtype and positions."""
    if len(plan.states) < MANY_COLUMNS:
        return []
    alike: dict[tuple[str, Any], list[int]] = {}
    for i, use in enumerate(plan.states):
        if use.state in _FIELDS:
            alike.setdefault((use.state, dtype_of(i, use)), []).append(i)
    return [
        (state, dtype, positions)
        for (state, dtype), positions in alike.items()
        if len(positions) >= MANY_COLUMNS and compiled.can_read(dtype)
    ]


def _summed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of sums, which have 64 bits."""
    return np.dtype({"i": np.int64, "u": np.uint64, "f": np.float64}[dtype.kind])


def _blocks(columns: Any, places: Sequence[int]) -> Iterator[Block]:
    """Values of columns, some of them at a time; shape (columns, rows)."""
    step = max(_BLOCK // max(len(columns[places[0]]), 1), 1)
    for start in range(0, len(places), step):
        some = places[start : start + step]
        if isinstance(columns, Columns):
            yield columns.block(some)
        else:
            yield np.array([columns[place].to_numpy() for place in some])


def _may_wrap(columns: Any, places: Sequence[int]) -> bool:
    """Whether a sum of integers can leave 64 bits, where its rounding is not that of float64."""
    return not all(map(sums_fit, _blocks(columns, places)))


def _reduce(
    reducer: Reducer, blocks: Iterable[Block], dtype: Any, how: str, options: Mapping[str, Any]
) -> Block:
    """Reduce columns as a dtype; shape (columns, groups)."""
    parts = [reducer.reduce_block(b.astype(dtype, copy=False), how, options) for b in blocks]
    return np.concatenate(parts) if len(parts) > 1 else parts[0]
