"""Partitions whose columns have other dtypes than the metadata promised, brought together.

Dask's metadata is a promise that files and functions break: a column of integers of which one
file holds a null, dates that the metadata calls objects, an unmatched row of a join. A partial is
made of what its partition holds. If that differs from the plan, the partial carries the dtypes
that were found (``DTYPES``), and its states are those of ``plan.retyped(dtypes)``. Before partials
merge, they are brought to one plan: that of the dtypes that their columns have together, as a
concatenation would have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask_gpuagg.plan import Plan

# entry of a partial beside its tables: the dtype of each column of the plan
DTYPES = "dtypes"


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
    pairs = [engine.as_found(v, c) for v, c in zip(columns, plan.columns, strict=True)]
    dtypes = tuple(dtype for _, dtype in pairs)
    same = all(d == c.dtype for d, c in zip(dtypes, plan.columns, strict=True))
    return [values for values, _ in pairs], None if same else dtypes


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
    # a partial without a row has no say, unless there is no other
    some = [d for d, t in zip(dtypes, tables, strict=True) if _rows(t)] or dtypes
    common = tuple(engine.common_dtype(each) for each in zip(*some, strict=True))
    together = plan.retyped(common)
    moved = [
        engine.retyped(t, plan.retyped(d), together) for t, d in zip(tables, dtypes, strict=True)
    ]
    return moved, together, None if common == promised else common


def _rows(tables: dict[str, Any]) -> int:
    return len(next(iter(tables.values())))
