"""Partials of one side of a merge are joined with the rows of the other side.

A row of such a partial stands for the rows of its side that are alike in the keys of the merge and
in the keys of the group-by that lie on this side. Each of them meets the same rows of the other
side, so the states of the partial's row meet them too, once for each.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from dask.dataframe.multi import merge_chunk

from dask_gpuagg.dtypes import INTEGRAL, dtype_class
from dask_gpuagg.engines import DEVICE, engine_name, engine_of
from dask_gpuagg.plan import Partial, Plan
from dask_gpuagg.reporting.runs import task
from dask_gpuagg.tasks.partials import DTYPES, labelled, rows_of, tables_of, unify

_ROW = "row"


@dataclass(frozen=True, slots=True)
class Join:
    """How partials of one side of a merge, their own, meet the rows of the other side.

    Columns are named by their place among the columns of the merge: a key of both sides that has
    one label is one column there. ``own`` are the names of the partials' keys, ``other`` labels and
    names of the columns that are read of the other side, ``keys`` the names of the result's keys,
    and ``categories`` those of columns that are categories in the merge.
    """

    how: str
    is_left: bool
    own: tuple[str, ...]
    other: tuple[tuple[Hashable, str], ...]
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    keys: tuple[str, ...]
    categories: tuple[str, ...]

    def __call__(self, own: Any, other: Any) -> Any:
        """Merge the keys of a partial, with the number of each row, as Dask merges partitions."""
        names = dict.fromkeys([*own.columns, *other.columns])
        dtypes = ("category" if name in self.categories else object for name in names)
        columns = {n: pd.Series([], dtype=dtype) for n, dtype in zip(names, dtypes, strict=True)}
        return merge_chunk(
            *((own, other) if self.is_left else (other, own)),
            how=self.how,
            left_on=list(self.left_on),
            right_on=list(self.right_on),
            result_meta=pd.DataFrame(columns, index=pd.RangeIndex(0)),
        )


def gpuagg_join_side(partial: Partial, other: Any, plan: Plan, join: Join) -> Partial:
    """Task: a partial of one side of a merge to one of the merge, by the keys of the plan."""
    with task(plan, "join") as done:
        engine, groups = engine_of(partial), tables_of(partial)["groups"]

        def joined() -> Partial:
            table = _joined(groups, other, plan, join)
            of_merge = labelled({"groups": table}, partial.get(DTYPES))
            (tables,), together, dtypes = unify([of_merge], plan, engine)
            return labelled(engine.regrouped(tables, together), dtypes)

        result = engine.within_memory(f"joining a partial of {len(groups):,} rows", joined)
        done.saw(engine.NAME, len(groups), rows_of(result))
        return result


def _joined(groups: Any, other: Any, plan: Plan, join: Join) -> Any:
    """The groups of a partial by the keys of a plan, of which several rows may be alike."""
    own = groups[[f"k{i}" for i in range(len(join.own))]]
    own.columns = list(join.own)
    own = own.assign(**{_ROW: np.arange(len(own))})
    other = other[[label for label, _ in join.other]]
    other.columns = [name for _, name in join.other]
    if engine_name(other) == DEVICE:
        other = other.nans_to_nulls()  # as the keys of a partial
    merged = join(own, other)
    fields = groups[[name for name in groups.columns if name.startswith("s")]]
    table = fields.take(merged[_ROW]).reset_index(drop=True)
    merged = merged.reset_index(drop=True)
    for i, name in enumerate(join.keys):
        table.insert(i, f"k{i}", merged[name])
    if plan.dropna and not plan.drops_late:
        complete = functools.reduce(operator.and_, (merged[name].notna() for name in join.keys))
        table = table[complete].reset_index(drop=True)
    if not len(table):
        # floats that held nulls alone, of rows without a partner, say nothing of the key's dtype
        keys = {f"k{i}": key.dtype for i, key in enumerate(plan.keys)}
        integers = {name: d for name, d in keys.items() if dtype_class(d) in INTEGRAL}
        table = table.astype(integers)
    return table
