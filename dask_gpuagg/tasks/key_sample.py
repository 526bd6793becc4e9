"""The keys of some rows of a partition, from which the planner estimates the number of groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dask_gpuagg.engines import HOST, engine_name
from dask_gpuagg.plan import Plan
from dask_gpuagg.tasks.partials import Inputs, inputs_of
from dask_gpuagg.tasks.reading import frame_of

# Of few groups these rows have all; of millions, two samples share some dozens.
ROWS_OF_A_SAMPLE = 1 << 15


@dataclass(frozen=True, slots=True)
class KeySample:
    """Distinct keys of some rows.

    Attributes
    ----------
    keys : list of Series
        In pandas, one per key column.
    taken : int
        Rows that were looked at and that belong to a group.
    rows : int
        Rows of the partition that belong to a group, by the share of them in the sample.
    """

    keys: list[pd.Series]
    taken: int
    rows: int


def gpuagg_sample(
    parts: Sequence[Any], keys: Sequence[Any], *values: Any, plan: Plan, readers: int
) -> KeySample:
    """Task: the distinct keys of rows at equal distances; see ``gpuagg_chunk``.

    ``parts`` has one partition. Of sorted rows their distance shows every long run of equal keys.
    """
    (part,) = parts
    inputs = inputs_of(*frame_of(part, dict(zip(keys, values, strict=True))), plan)
    return _sampled(inputs, plan)


def gpuagg_sample_partition(frame: Any, *by: Any, plan: Plan) -> KeySample:
    """Task: the distinct keys of rows of one partition; see ``gpuagg_partial``."""
    return _sampled(inputs_of(frame, by, plan), plan)


def _sampled(inputs: Inputs, plan: Plan) -> KeySample:
    step = max(-(-len(inputs) // ROWS_OF_A_SAMPLE), 1)
    columns = [_on_host(key.iloc[::step]).array for key in inputs.keys]
    table = pd.DataFrame(dict(enumerate(columns)))
    kept = table.dropna() if plan.dropna else table
    distinct = kept.drop_duplicates(ignore_index=True)
    rows = len(inputs) * len(kept) // max(len(table), 1)
    return KeySample([distinct[i] for i in distinct], len(kept), rows)


def _on_host(column: Any) -> pd.Series:
    made: pd.Series = column if engine_name(column) == HOST else column.to_pandas()
    return made
