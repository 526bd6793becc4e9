"""Results with several partitions whose labels get other names are merged with all rows."""

from collections.abc import Callable
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg

_ROWS = 6000
_RANDOM = np.random.default_rng(7)
ROWS = pd.DataFrame(
    {
        "k": _RANDOM.integers(0, 1500, _ROWS),
        "j": _RANDOM.integers(0, 20, _ROWS),
        "w": _RANDOM.integers(0, 1500, _ROWS),
        "v": _RANDOM.integers(0, 1000, _ROWS),
    }
)


def _columns_set_before(d: Any) -> Any:
    result = d.groupby("k").agg({"v": ["sum", "max"]})
    result.columns = ["total", "most"]
    return result.reset_index()


def _columns_set_after(d: Any) -> Any:
    result = d.groupby("k").agg({"v": ["sum", "max"]}).reset_index()
    result.columns = ["k", "total", "most"]
    return result


def _columns_swapped(d: Any) -> Any:
    result = d.groupby("k")[["v", "w"]].max().reset_index()
    result.columns = ["w", "most", "k"]
    return result


def _index_set(d: Any) -> Any:
    result = d.groupby("k").v.sum()
    result.index = result.index // 10
    return result.reset_index()


FORMS: dict[str, Callable[[Any], Any]] = {
    "named": lambda d: d.groupby("k").agg(total=("v", "sum"), rows=("w", "count")).reset_index(),
    "columns set before": _columns_set_before,
    "columns set after": _columns_set_after,
    "columns swapped": _columns_swapped,
    "renamed": lambda d: d.groupby("k")[["v"]].sum().rename(columns={"v": "total"}).reset_index(),
    "renamed by a function": lambda d: (
        d.groupby("k")[["v"]].sum().rename(columns=str.upper).reset_index()
    ),
    "key renamed": lambda d: (
        d.groupby("w")[["k", "v"]].sum().reset_index().rename(columns={"k": "q", "w": "k"})
    ),
    "two keys": lambda d: d.groupby(["k", "j"]).agg(total=("v", "sum")).reset_index(),
    "index named as the value": lambda d: (
        d.groupby("w").w.count().to_frame("k").reset_index().rename(columns={"w": "q"})
    ),
    "value named as the index": lambda d: (
        d.groupby("k").w.max().rename("k").reset_index(drop=True).to_frame()
    ),
    "index dropped": lambda d: d.groupby("k")[["k", "v"]].count().reset_index(drop=True),
    "index named anew": lambda d: d.groupby("w").v.sum().rename_axis("k").reset_index(),
    "index values renamed": lambda d: d.groupby("k").v.sum().rename(lambda k: -k).reset_index(),
    "index values set": _index_set,
    "prefix": lambda d: d.groupby("w")[["k"]].max().add_prefix("_").reset_index(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_merge_finds_all_groups_of_a_result_whose_labels_were_renamed(form: str) -> None:
    frame = dd.from_pandas(ROWS, npartitions=16, sort=False)
    with dask_gpuagg.enabled():
        groups = FORMS[form](frame)
        assert groups.optimize().npartitions > 1
        on = {"two keys": ["k", "j"], "prefix": ["w"]}.get(form, ["k"])
        result = frame.merge(groups, on=on, suffixes=("", "_of")).compute()
    expected = ROWS.merge(FORMS[form](ROWS), on=on, suffixes=("", "_of"))
    order = list(expected.columns)
    in_order = (rows.sort_values(order, ignore_index=True) for rows in (result, expected))
    pd.testing.assert_frame_equal(*in_order)


def test_groups_that_were_renamed_are_merged_without_a_shuffle_of_theirs() -> None:
    frame = dd.from_pandas(ROWS, npartitions=32, sort=False)
    with dask_gpuagg.enabled():
        total = frame.groupby("k").agg(total=("v", "sum"), split_out=32)
        groups = total.reset_index().rename(columns={"k": "group"})
        plan = frame.merge(groups, left_on="k", right_on="group").optimize(fuse=False)
        shuffles = [n for n in plan.walk() if type(n).__name__ == "DiskShuffle"]
    assert len(shuffles) == 1  # of the rows
