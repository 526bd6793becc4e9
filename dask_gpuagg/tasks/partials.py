"""Partitions are reduced to partials, partials are merged, both of other dtypes than promised too.

Dask's metadata is a promise that files and functions break: a column of integers of which one
file holds a null, dates that the metadata calls objects, an unmatched row of a join. A partial is
made of what its partition holds. If that differs from the plan, the partial carries the dtypes of
the partition (``DTYPES``), and its states are those of ``retyped(plan, dtypes)``. Before partials
merge, all get one plan: that of the dtypes that their columns have together, as a concatenation
would have them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pandas as pd
from dask.dataframe.groupby import _groupby_raise_unaligned, _is_aligned
from dask.dataframe.utils import is_index_like, is_series_like

from dask_gpuagg import exact_sums
from dask_gpuagg.decomposition import retyped
from dask_gpuagg.dtypes import INTEGRAL, dtype_class, ticks_of
from dask_gpuagg.engines import DEVICE, HOST, Engine, columns_of, engine_name, engine_of, has_column
from dask_gpuagg.plan import Partial, Plan, StateUse
from dask_gpuagg.reporting.events import Fallback, FellBack, emit
from dask_gpuagg.states import STATES
from dask_gpuagg.streaming import stream
from dask_gpuagg.tasks.reading import Chunk, Frame, frame_of, this_task

# entry of a partial beside its tables: the dtype of each column of the plan
DTYPES = "dtypes"
_LIMB = 1 << 32


def combined(partials: Sequence[Partial], plan: Plan, owned: bool = False) -> Partial:
    """Several partials as one; ``owned`` as for ``finalized``."""
    if len(partials) == 1:
        return partials[0]
    tables, together, dtypes = unify(partials, plan, engine_of(partials[0]), owned)
    return labelled(engine_of(tables[0]).combine(tables, together, owned), dtypes)


def finalized(
    partials: Sequence[Partial],
    plan: Plan,
    meta: Any,
    bucket: tuple[int, int] | None = None,
    owned: bool = False,
) -> Any:
    """The output of all partials of its groups; ``bucket`` is its number, and how many there are.

    Partials that are ``owned`` nobody else needs: they may leave the device while they merge, and
    the output may take its memory from them.
    """
    tables, together, _ = unify(partials, plan, engine_of(partials[0]), owned)
    return engine_of(tables[0]).finalize(tables, together, meta, bucket, owned)


def labelled(tables: Partial, dtypes: tuple[Any, ...] | None) -> Partial:
    """A partial with the dtypes of its columns, where they are not as the plan has them."""
    return tables if dtypes is None else tables | {DTYPES: dtypes}


def tables_of(partial: Partial) -> Partial:
    """The tables of a partial, by name, without its dtypes."""
    return {name: table for name, table in partial.items() if name != DTYPES}


def bytes_of(partial: Partial, engine: Engine) -> int:
    """Bytes of the tables of a partial, roughly."""
    tables = tables_of(partial).values()
    return sum(engine.bytes_of(columns_of(t, list(t.columns))) for t in tables)


def differing(
    columns: Sequence[Any], plan: Plan, engine: Engine
) -> tuple[Sequence[Any], tuple[Any, ...] | None]:
    """The columns of a partition as its partial takes them, and their dtypes if these differ."""
    # those of a wide frame are no Series yet
    if getattr(columns, "dtypes", None) == [column.dtype for column in plan.columns]:
        return columns, None
    if plan.shape == "values" and isinstance(columns[0].dtype, pd.CategoricalDtype):
        return list(columns), None  # pandas counts every category, whatever was promised
    if plan.shape == "values" and dtype_class(plan.columns[0].dtype) == "category":
        (values,) = columns
        if len(values) and bool(values.isna().all()):
            return [values], None  # no values, and no categories that would be counted
    pairs = [
        reconciled_dtype(v, c.dtype, engine) for v, c in zip(columns, plan.columns, strict=True)
    ]
    dtypes = tuple(dtype for _, dtype in pairs)
    same = all(d == c.dtype for d, c in zip(dtypes, plan.columns, strict=True))
    return [values for values, _ in pairs], None if same else dtypes


def reconciled_dtype(values: Any, promised: Any, engine: Engine) -> tuple[Any, Any]:
    """A column of a partition, and the dtype under which its partial is merged.

    The dtype is the promised one where values can be merged with those of that dtype; they are cast
    where that loses none.
    """
    if values.dtype == promised:
        return values, promised
    cls = dtype_class(values.dtype)
    if cls == dtype_class(promised) == "category":
        return values, promised  # categories may differ from partition to partition
    if cls == "category" and len(values):
        return reconciled_dtype(engine.of_categories(values), promised, engine)
    return engine.compatible(values, promised)


def unify(
    partials: Sequence[Partial], plan: Plan, engine: Engine, owned: bool = False
) -> tuple[list[Partial], Plan, tuple[Any, ...] | None]:
    """Bring partials to one plan; those that are ``owned`` are emptied where they are replaced."""
    if not any(DTYPES in partial for partial in partials):
        return list(partials), plan, None
    promised = tuple(column.dtype for column in plan.columns)
    tables = list(map(tables_of, partials))
    dtypes = [partial.get(DTYPES, promised) for partial in partials]
    rows = [len(next(iter(of_partial.values()))) for of_partial in tables]
    common = common_dtypes(dtypes, rows, engine)
    together = retyped(plan, common)
    moved = [
        converted_to_plan(t, retyped(plan, d), together)
        for t, d in zip(tables, dtypes, strict=True)
    ]
    if owned:
        for partial in partials:
            partial.clear()
    return moved, together, None if common == promised else common


def common_dtypes(
    dtypes: Sequence[tuple[Any, ...]], rows: Sequence[int], engine: Engine
) -> tuple[Any, ...]:
    """The dtypes that the columns of several partitions have together.

    Those of a partition without rows do not count, unless none has rows.
    """
    some = [of_partition for of_partition, n in zip(dtypes, rows, strict=True) if n] or dtypes
    return tuple(engine.common_dtype(of_column) for of_column in zip(*some, strict=True))


def converted_to_plan(tables: Partial, own: Plan, together: Plan) -> Partial:
    """A partial as if it had been made by another plan of the same outputs.

    A sum of integers in one partition may be one of floats in all of them, and a state may have
    another number. Columns keep the dtypes of the partition: stacking partials unites them.
    """
    same = (own.states, own.columns) == (together.states, together.columns)
    if "groups" not in tables or same or own.shape != "groups":  # others' outputs name no states
        return tables
    groups = tables["groups"]
    columns = {name: groups[name] for name in groups.columns if not name.startswith("s")}
    for j, i in sorted(sources(own, together).items()):
        prefix, use = f"s{i}.", together.states[j]
        fields = {n.removeprefix(prefix): groups[n] for n in groups.columns if n.startswith(prefix)}
        if use.state == "limbs":
            ratio = _ticks(use, together) // _ticks(own.states[i], own)
            fields = rescaled(fields["hi"], fields["lo"], ratio)
        elif use.state == "moments" and _is_duration(use, together):
            ratio = _ticks(use, together) // _ticks(own.states[i], own)
            fields |= {"mean": fields["mean"] * ratio, "m2": fields["m2"] * float(ratio) ** 2}
        elif use.state == "xsum" and own.states[i].state == "isum":
            fields = _exact(fields["sum"])
        elif use.state == "isum" and own.states[i].state == "xsum":
            assert not len(groups), "of floats with rows the common dtype is no integer"
            fields = {"sum": fields[exact_sums.COUNT]}
        elif use.state in ("isum", "iprod"):
            fields = {name: _signed(values, use, together) for name, values in fields.items()}
        columns |= {f"s{j}.{name}": values for name, values in fields.items()}
    return tables | {"groups": type(groups)(columns)}


def sources(own: Plan, together: Plan) -> dict[int, int]:
    """Map each state of one plan to the state of another plan that serves the same output."""
    source: dict[int, int] = {}
    for mine, theirs in zip(own.outputs, together.outputs, strict=True):
        for i, j in zip(mine.states, theirs.states, strict=True):
            _require_mergeable(own, own.states[i], together, together.states[j])
            # the same state is preferred to others that serve
            if j not in source or own.states[i] == together.states[j]:
                source[j] = i
    return source


def _require_mergeable(own: Plan, mine: StateUse, together: Plan, theirs: StateUse) -> None:
    if mine.custom is not None or not mine.columns:
        return
    column, other = own.columns[mine.columns[0]], together.columns[theirs.columns[0]]
    alike = STATES[mine.state].fields == STATES[theirs.state].fields
    if {mine.state, theirs.state} == {"isum", "xsum"}:
        return
    if mine.state == "limbs" or _is_duration(mine, own) or _is_duration(theirs, together):
        alike = alike and dtype_class(column.dtype) == dtype_class(other.dtype)
    if not alike:
        raise TypeError(
            f"column {column.label!r}: values of dtype {column.dtype} in one partition cannot be "
            f"aggregated with those of dtype {other.dtype} in all"
        )


def _is_duration(use: StateUse, plan: Plan) -> bool:
    return use.state == "moments" and dtype_class(plan.columns[use.columns[0]].dtype) == "timedelta"


def _exact(sums: Any) -> dict[str, Any]:
    """Sums of integers, null of no values, as exact sums of one value."""
    valid = sums.notna()
    digits = exact_sums.of_integers(sums.fillna(0))
    of_bins = {exact_sums.label(place): values for place, values in digits.items()}
    return {exact_sums.COUNT: valid.astype("int64")} | of_bins


def _ticks(use: StateUse, plan: Plan) -> int:
    return ticks_of(plan.columns[use.columns[0]].dtype)


def rescaled(high: Any, low: Any, ratio: int) -> dict[str, Any]:
    """Sums in two halves, times a ratio of at most 2**30: the lower half keeps 32 bits."""
    if ratio == 1:
        return {"hi": high, "lo": low}
    high, low = (high + low // _LIMB) * ratio, (low % _LIMB) * ratio
    return {"hi": high + low // _LIMB, "lo": low % _LIMB}


def _signed(values: Any, use: StateUse, plan: Plan) -> Any:
    """Sums of integers modulo 2**64 with the sign that a plan gives them.

    Stacked, signed and unsigned ones would become floats.
    """
    cls = dtype_class(plan.columns[use.columns[0]].dtype)
    if cls not in INTEGRAL:
        return values
    return values.astype("uint64" if cls == "uint" else "int64")


# share of a worker's memory for a batch: three are held at a time, beside what is read ahead
_SHARE_OF_A_WORKER = 16
_NOT_PINNED = FellBack(
    Fallback(
        "a group-by of host partitions", "runs on the host", "the host has no pinned memory left"
    )
)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Columns that a plan reads of one partition, or of several stacked ones.

    ``index`` are row labels, or row numbers of stacked partitions, where no state reads them;
    ``dtypes`` those of the columns, where they are not as the plan has them.
    """

    keys: Sequence[Any]
    columns: Sequence[Any]
    index: Any
    dtypes: tuple[Any, ...] | None

    def __len__(self) -> int:
        return len(self.keys[0])

    @property
    def nbytes(self) -> int:
        """Bytes of the columns, roughly."""
        engine = engine_of(self.keys[0])
        return engine.bytes_of(self.keys) + engine.bytes_of(self.columns)

    def __getitem__(self, span: slice) -> Inputs:
        """Some of the rows, not copied."""
        keys = [key.iloc[span] for key in self.keys]
        columns = [column.iloc[span] for column in self.columns]
        return Inputs(keys, columns, self.index[span], self.dtypes)


def inputs_of(frame: Any, by: Sequence[Any], plan: Plan, mask: Any = None) -> Inputs:
    """Read the columns of a partition, of those rows for which ``mask`` is true.

    A key Series that is not aligned raises ``ValueError``.
    """
    engine, index = engine_of(frame), frame.index
    keys: Sequence[Any]
    keys, columns = _columns_of(frame, by, plan)
    if mask is not None:
        keys, columns, index = engine.filtered(keys, columns, index, mask, plan)
    columns, dtypes = differing(columns, plan, engine)
    return Inputs(keys, columns, index, dtypes)


def inputs_there(chunk: Chunk, plan: Plan) -> list[Inputs]:
    """Read the columns of a chunk whose partitions are there."""
    frames = (frame_of(part, chunk.results) for part in chunk.parts)
    return [inputs_of(frame, by, plan, mask) for frame, by, mask in frames]


def partial_of(inputs: Inputs, plan: Plan, engine: Engine) -> Partial:
    """The partial of the inputs of one or several partitions."""
    own = plan if inputs.dtypes is None else retyped(plan, inputs.dtypes)
    tables = engine.partial(inputs.keys, inputs.columns, inputs.index, own)
    return labelled(tables, inputs.dtypes)


def partials_of(parts: Sequence[Inputs], plan: Plan) -> list[Partial]:
    """The partials of partitions, of which as many as possible are stacked and reduced at once."""
    if goes_to_device(parts[0].keys[0], plan):
        return _streamed(iter(parts), plan)
    engine = engine_of(parts[0].keys[0])
    partials: list[Any] = []
    for run in stackable(parts, plan, engine):
        _add_run(partials, run, plan, engine)
    return engine.restored(partials)


def partials_of_stream(
    frames: Iterator[Frame], plan: Plan, saw: Callable[..., None]
) -> list[Partial]:
    """The partials of partitions that are read one by one.

    Small partitions are collected and reduced together, and partials are merged when they have
    grown to twice the rows of the last merge: neither all rows nor all partials are held at once.
    """
    partials: list[Partial] = []
    waiting: list[Inputs] = []
    left = size = 0

    def inputs() -> Iterator[Inputs]:
        nonlocal size
        for frame, by, mask in frames:
            part = [inputs_of(frame, by, plan, mask)]
            nbytes = part[0].nbytes
            saw(engine_for(frame, plan), len(part[0]), nbytes=nbytes)
            size += nbytes
            # a generator that waits keeps its variables
            del frame, by, mask
            yield part.pop()

    rest = inputs()
    first = [next(rest)]
    streamed = goes_to_device(first[0].keys[0], plan)
    parts = _behind(first, rest)
    if streamed:
        return _streamed(parts, plan)
    for part in parts:
        waiting.append(part)
        del part
        if size < _BYTES_OF_A_CALL:
            continue
        partials += partials_of(waiting, plan)
        waiting.clear()
        size = 0
        rows = sum(map(rows_of, partials))
        if plan.is_one_table and len(partials) > 1 and rows > max(_FEW_ROWS, 2 * left):
            partials = [combined(partials, plan, owned=True)]
            left = rows_of(partials[0])
    return [*partials, *(partials_of(waiting, plan) if waiting else [])]


def _behind(first: list[Inputs], rest: Iterator[Inputs]) -> Iterator[Inputs]:
    """Yield out of a list, and then the rest; unlike ``chain``, keep nothing."""
    yield first.pop()
    yield from rest


def engine_for(data: Any, plan: Plan) -> str | None:
    """The engine that groups a frame or a column, by ``gpuagg.engine``."""
    return DEVICE if goes_to_device(data, plan) else engine_name(data)


def rows_of(partial: Partial) -> int:
    """Rows of the largest table of a partial: groups, distinct pairs, or whole rows."""
    return max(map(len, tables_of(partial).values()))


# bytes of partitions that are collected before they are reduced; stacking holds them twice
_BYTES_OF_A_CALL = 128 << 20
# Rows below which a partition is not halved where memory lacks.
_ROWS_TO_HALVE = 1 << 17
# rows of partials that are merged at the end only
_FEW_ROWS = 1 << 22


def stackable(parts: Sequence[Inputs], plan: Plan, engine: Engine) -> list[Sequence[Inputs]]:
    """Runs of partitions that are stacked: consecutive ones of equal dtypes."""
    if len(parts) == 1:
        return [parts]
    filled = [part for part in parts if len(part)] or parts[:1]
    if any(STATES[use.state].by_partition for use in plan.states):
        return [[part] for part in filled]
    runs: list[list[Inputs]] = []
    before: list[Any] = []
    for part in filled:
        of_columns = getattr(part.columns, "dtypes", None)
        dtypes = [key.dtype for key in part.keys]
        dtypes += of_columns or [column.dtype for column in part.columns]
        # categories are united later, group by group instead of row by row
        pairs = zip(before, dtypes, strict=False)
        alike = all(a is b or (dtype_class(a) != "category" and bool(a == b)) for a, b in pairs)
        if runs and part.dtypes == runs[-1][-1].dtypes and alike:
            runs[-1].append(part)
        else:
            runs.append([part])
        before = dtypes
    return [piece for run in runs for piece in engine.divided(run)]


def _add_run(partials: list[Any], run: Sequence[Inputs], plan: Plan, engine: Engine) -> None:
    """Add the partials of stacked partitions: one, or more where memory does not suffice for it."""

    def at_once() -> list[Partial]:
        return [partial_of(stacked(run, engine, plan), plan, engine)]

    def in_halves() -> list[Partial]:
        parts = run if len(run) > 1 else run[0]
        half = len(parts) // 2
        for part in (parts[:half], parts[half:]):
            _add_run(partials, [part] if isinstance(part, Inputs) else part, plan, engine)
        return []

    is_divisible = len(run) > 1 or (
        len(run[0]) >= _ROWS_TO_HALVE and not any(STATES[u.state].by_partition for u in plan.states)
    )
    what = f"{sum(map(len, run)):,} rows"
    partials += engine.within_memory(what, at_once, in_halves if is_divisible else None, partials)


def stacked(run: Sequence[Inputs], engine: Engine, plan: Plan) -> Inputs:
    """Inputs of equal dtypes, stacked, or as they lie where the plan's kernels take them so."""
    if len(run) == 1:
        return run[0]
    columns = engine.stacked([(*part.keys, *part.columns) for part in run], plan)
    keys = len(run[0].keys)
    index = getattr(columns[0], "index", None)  # columns in pieces have none
    return Inputs(columns[:keys], columns[keys:], index, run[0].dtypes)


def finished_of(parts: Sequence[Inputs], plan: Plan, meta: Any) -> Any:
    """The output of all partitions."""
    engine = engine_of(parts[0].keys[0])
    runs = stackable(parts, plan, engine)
    if len(runs) == 1 and runs[0][0].dtypes is None:
        output = engine.direct(runs[0], plan, meta)
        if output is not None:
            return output
    return finalized(partials_of(parts, plan), plan, meta, owned=True)


def _columns_of(frame: Any, by: Sequence[Any], plan: Plan) -> tuple[list[Any], Sequence[Any]]:
    """The key and value columns of a partition."""
    if not all(isinstance(key, str) or _is_aligned(frame, key) for key in by):
        _groupby_raise_unaligned(frame, by=list(by))
    keys = [key_of(frame, b) for b in by]
    if frame.ndim == 1:
        return keys, [frame for _ in plan.columns]
    return keys, columns_of(frame, [column.label for column in plan.columns])


def key_of(frame: Any, by: Any) -> Any:
    """Values of one key of a partition."""
    if is_series_like(by):
        return by
    if is_index_like(by):
        return by.to_series()
    if callable(by):
        return frame.index.map(by).to_series()
    if frame.ndim == 2 and has_column(frame, by):
        return columns_of(frame, [by])[0]
    return frame.index.get_level_values(by).to_series()


def goes_to_device(column: Any, plan: Plan) -> bool:
    """Whether the GPU groups partitions with such a column of pandas."""
    return engine_name(column) == HOST and stream.streams(plan)


def _streamed(parts: Iterator[Inputs], plan: Plan) -> list[Partial]:
    """The partials of host partitions from the GPU; of other dtypes than the plan's by the host."""
    gpu = importlib.import_module("dask_gpuagg.streaming.gpu")
    worker, _ = this_task()
    limit = None if worker is None else worker.memory_manager.memory_limit
    max_bytes = limit // _SHARE_OF_A_WORKER if limit else None

    def is_exact(part: Inputs) -> bool:
        return part.dtypes is None and stream.is_as_promised(part.keys, part.columns, plan)

    partials: list[Partial] = []
    with gpu.exclusive() as device:
        if device is None:
            emit(_NOT_PINNED)
        for exact, run in groupby(parts, is_exact):
            if exact and device is not None:
                partials += stream.partials_of(run, plan, device, max_bytes)
            else:
                partials += (partial_of(part, plan, engine_of(part.keys[0])) for part in run)
    return partials
