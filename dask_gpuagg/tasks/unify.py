"""Partitions whose columns have other dtypes than the metadata promised: one plan for all.

Dask's metadata is a promise that files and functions break: a column of integers of which one
file holds a null, dates that the metadata calls objects, an unmatched row of a join. A partial is
made of what its partition holds. If that differs from the plan, the partial carries the dtypes
that were found (``DTYPES``), and its states are those of ``retyped(plan, dtypes)``. Before partials
merge, all get one plan: that of the dtypes that their columns have together, as a
concatenation would have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from dask_gpuagg import exact_sums
from dask_gpuagg.decomposition import retyped
from dask_gpuagg.dtypes import INTEGRAL, dtype_class, ticks_of
from dask_gpuagg.plan import Plan, StateUse
from dask_gpuagg.states import STATES

# entry of a partial beside its tables: the dtype of each column of the plan
DTYPES = "dtypes"
_LIMB = 1 << 32


def differing(
    columns: Sequence[Any], plan: Plan, engine: Any
) -> tuple[list[Any], tuple[Any, ...] | None]:
    """The columns of a partition as its partial takes them, and their dtypes if these differ.

    Parameters
    ----------
    columns : sequence of Series
        One per column of the plan.
    plan : Plan
    engine : module
        Of the partition.

    Returns
    -------
    columns : list of Series
    dtypes : tuple of dtypes, or None
        ``None`` where every column is as the plan has it.
    """
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


def as_found(values: Any, promised: Any, engine: Any) -> tuple[Any, Any]:
    """A column of a partition, and the dtype under which its partial is merged.

    Parameters
    ----------
    values : Series
    promised : dtype
        Of the column, by the metadata.
    engine : module
        Of the partition.

    Returns
    -------
    values : Series
        Unchanged, or in a dtype nearer to the promised one where no value is lost by it.
    dtype : dtype
        The promised one where the values can be merged with those of that dtype.
    """
    if values.dtype == promised:
        return values, promised
    cls = dtype_class(values.dtype)
    if cls == dtype_class(promised) == "category":
        return values, promised  # categories may differ from partition to partition
    if cls == "category" and len(values):
        return as_found(engine.of_categories(values), promised, engine)
    found: tuple[Any, Any] = engine.compatible(values, promised)
    return found


def unify(
    partials: Sequence[dict[str, Any]], plan: Plan, engine: Any
) -> tuple[list[dict[str, Any]], Plan, tuple[Any, ...] | None]:
    """Bring partials to one plan.

    Parameters
    ----------
    partials : sequence of dict
        Tables, and ``DTYPES`` where these differ from the plan's.
    plan : Plan
    engine : module
        Of the partials.

    Returns
    -------
    tables : list of dict of str to DataFrame
    plan : Plan
        To which all the tables belong.
    dtypes : tuple of dtypes, or None
        Of the plan's columns, where they are not the promised ones.
    """
    if not any(DTYPES in partial for partial in partials):
        return list(partials), plan, None
    promised = tuple(column.dtype for column in plan.columns)
    tables = [{name: t for name, t in p.items() if name != DTYPES} for p in partials]
    dtypes = [partial.get(DTYPES, promised) for partial in partials]
    common = united(dtypes, [_rows(t) for t in tables], engine)
    together = retyped(plan, common)
    moved = [replanned(t, retyped(plan, d), together) for t, d in zip(tables, dtypes, strict=True)]
    return moved, together, None if common == promised else common


def united(dtypes: Sequence[tuple[Any, ...]], rows: Sequence[int], engine: Any) -> tuple[Any, ...]:
    """The dtypes that the columns of several partitions have together.

    Parameters
    ----------
    dtypes : sequence of tuples of dtypes
        Of each partition's columns.
    rows : sequence of int
        Of each partition. Dtypes of one without rows do not count, unless none has rows.
    engine : module
    """
    some = [each for each, n in zip(dtypes, rows, strict=True) if n] or dtypes
    return tuple(engine.common_dtype(each) for each in zip(*some, strict=True))


def _rows(tables: dict[str, Any]) -> int:
    return len(next(iter(tables.values())))


def replanned(tables: dict[str, Any], own: Plan, together: Plan) -> dict[str, Any]:
    """A partial as if it had been made by another plan of the same outputs.

    Parameters
    ----------
    tables : dict of str to DataFrame
    own : Plan
        By which it was made.
    together : Plan
        Of the dtypes that all partitions have together: a sum of integers in one partition may be
        one of floats in all of them, and the number of a state may be another.

    Returns
    -------
    dict of str to DataFrame
        With the columns that the common plan names. They still have the dtypes of the partition:
        stacking partials unites them.
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
    """For each state of one plan, the state of another that serves the same output.

    Parameters
    ----------
    own, together : Plan
        Of the same outputs, with columns of other dtypes.

    Returns
    -------
    dict of int to int
        Number of the state in ``own``, by that in ``together``.

    Raises
    ------
    TypeError
        Where the states of an output differ in their fields.
    """
    source: dict[int, int] = {}
    for mine, theirs in zip(own.outputs, together.outputs, strict=True):
        for i, j in zip(mine.states, theirs.states, strict=True):
            _require_mergeable(own, own.states[i], together, together.states[j])
            # of several states that serve, the one that is the same
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
    known = sums.notna()
    digits = exact_sums.of_integers(sums.fillna(0))
    of_bins = {exact_sums.label(place): values for place, values in digits.items()}
    return {exact_sums.COUNT: known.astype("int64")} | of_bins


def _ticks(use: StateUse, plan: Plan) -> int:
    return ticks_of(plan.columns[use.columns[0]].dtype)


def rescaled(high: Any, low: Any, ratio: int) -> dict[str, Any]:
    """Sums in two halves, times a ratio of at most 2**30: the lower half keeps 32 bits.

    Parameters
    ----------
    high, low : Series of int64
        The lower half of several partials together may have more than 32 bits.
    ratio : int
    """
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
