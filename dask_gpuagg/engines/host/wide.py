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
from dask_gpuagg.engines.host.stacking import Columns
from dask_gpuagg.plan import Plan

# states, or outputs, from which on blocks are faster
MANY = 32
# values of a block, which may be a copy
_BLOCK = 1 << 23
# states of one field: its name, and how rows are reduced to it
_FIELDS = {"count": ("n", "count"), "isum": ("sum", "sum"), "fsum": ("sum", "sum")}
_FIELDS |= {name: (name, name) for name in ("min", "max")}
# outputs that are such a field
_SAME = frozenset(("sum", "count", "min", "max"))

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


def finish(states: Mapping[str, Fields], plan: Plan, meta: Any, index: pd.Index) -> Any:
    """Return the outputs as a frame; ``None`` where one of them has rules of its own."""
    if meta.ndim == 1 or len(plan.outputs) < MANY or plan.deviating:
        return None
    blocks: dict[Any, tuple[list[int], list[Block]]] = {}
    for i, (output, dtype) in enumerate(zip(plan.outputs, meta.dtypes, strict=True)):
        fields = {k: v for s in output.states for k, v in states[f"s{s}"].items()}
        if output.custom or not isinstance(dtype, np.dtype):
            return None
        if output.aggregation == "mean" and fields.keys() == {"sum", "n"}:
            sums, n = fields["sum"], fields["n"]
            with np.errstate(invalid="ignore", divide="ignore"):
                values = sums / np.where(n == 0, np.nan, n)
        elif output.aggregation in _SAME and len(fields) == 1:
            (values,) = fields.values()
        else:
            return None
        if not isinstance(values, np.ndarray) or values.dtype != dtype or dtype.kind not in "iuf":
            return None
        places, arrays = blocks.setdefault(dtype, ([], []))
        places.append(i)
        arrays.append(values)
    frames = [pd.DataFrame(np.array(arrays).T, index, places) for places, arrays in blocks.values()]
    result = frames[0]
    if len(frames) > 1:
        result = pd.concat(frames, axis=1)[range(len(plan.outputs))]
    # a user may name them: those of the metadata stay as they are
    result.columns = meta.columns.view()
    return result


def _alike(
    plan: Plan, dtype_of: Callable[[int, Any], Any]
) -> list[tuple[str, np.dtype[Any], list[int]]]:
    """The states that are many of one name and plain dtype: name, dtype and positions."""
    if len(plan.states) < MANY:
        return []
    alike: dict[tuple[str, Any], list[int]] = {}
    for i, use in enumerate(plan.states):
        if use.state in _FIELDS:
            alike.setdefault((use.state, dtype_of(i, use)), []).append(i)
    return [
        (state, dtype, positions)
        for (state, dtype), positions in alike.items()
        if len(positions) >= MANY and compiled.can_read(dtype)
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
    for block in _blocks(columns, places):
        if block.size and block.itemsize == 8:
            largest = max(abs(int(block.min())), abs(int(block.max())))
            if largest * block.shape[1] > np.iinfo(np.int64).max:
                return True
    return False


def _reduce(
    reducer: Reducer, blocks: Iterable[Block], dtype: Any, how: str, options: Mapping[str, Any]
) -> Block:
    """Reduce columns as a dtype; shape (columns, groups)."""
    parts = []
    for block in blocks:
        if how == "count" and (dtype.kind != "f" or not np.isnan(block).any()):
            parts.append(np.broadcast_to(reducer.size, (len(block), reducer.n)))
            continue
        values = block.astype(dtype, copy=False)
        grouped = pd.DataFrame(values.T, copy=False).groupby(reducer.grouper)
        parts.append(getattr(grouped, how)(**options).to_numpy().T)
    return np.ascontiguousarray(np.concatenate(parts) if len(parts) > 1 else parts[0])
