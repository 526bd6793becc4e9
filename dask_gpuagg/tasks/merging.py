"""Partials to one partial or to an output, brought to one plan before.

Dask's metadata is a promise that files and functions break: a column of integers of which one
file holds a null, dates that the metadata calls objects, an unmatched row of a join. A partial is
made of what its partition holds. If that differs from the plan, the partial carries the dtypes of
the partition (``DTYPES``), and its states are those of ``retyped(plan, dtypes)``. Before partials
merge, all get one plan: that of the dtypes that their columns have together, as a concatenation
would have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from dask_gpuagg import exact_sums
from dask_gpuagg.decomposition import retyped
from dask_gpuagg.dtypes import INTEGRAL, dtype_class, ticks_of
from dask_gpuagg.engines import columns_of, engine_of
from dask_gpuagg.engines.protocol import Engine
from dask_gpuagg.plan import Partial, Plan, StateUse
from dask_gpuagg.states import STATES

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
    pairs = [as_found(v, c.dtype, engine) for v, c in zip(columns, plan.columns, strict=True)]
    dtypes = tuple(dtype for _, dtype in pairs)
    same = all(d == c.dtype for d, c in zip(dtypes, plan.columns, strict=True))
    return [values for values, _ in pairs], None if same else dtypes


def as_found(values: Any, promised: Any, engine: Engine) -> tuple[Any, Any]:
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
        return as_found(engine.of_categories(values), promised, engine)
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
    common = united(dtypes, rows, engine)
    together = retyped(plan, common)
    moved = [replanned(t, retyped(plan, d), together) for t, d in zip(tables, dtypes, strict=True)]
    if owned:
        for partial in partials:
            partial.clear()
    return moved, together, None if common == promised else common


def united(
    dtypes: Sequence[tuple[Any, ...]], rows: Sequence[int], engine: Engine
) -> tuple[Any, ...]:
    """The dtypes that the columns of several partitions have together.

    Those of a partition without rows do not count, unless none has rows.
    """
    some = [of_partition for of_partition, n in zip(dtypes, rows, strict=True) if n] or dtypes
    return tuple(engine.common_dtype(of_column) for of_column in zip(*some, strict=True))


def replanned(tables: Partial, own: Plan, together: Plan) -> Partial:
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
    if mine.state == "limbs":
        alike = alike and dtype_class(column.dtype) == dtype_class(other.dtype)
    if not alike:
        raise TypeError(
            f"column {column.label!r}: values of dtype {column.dtype} in one partition cannot be "
            f"aggregated with those of dtype {other.dtype} in all"
        )


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
