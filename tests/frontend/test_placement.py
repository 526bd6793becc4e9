"""Results that cuDF combines by position have their groups in the order of the keys."""

from collections.abc import Callable
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.frontend import hook
from tests.comparison import same

pytestmark = pytest.mark.usefixtures("raising")

RNG = np.random.default_rng(2)
# text has its groups in the order of appearance
KEYS = [f"key {n}" for n in RNG.permutation(400) % 90]
FRAME = pd.DataFrame({"k": KEYS, "x": RNG.normal(size=400), "y": 1})

BY_POSITION: dict[str, Callable[[Any], Any]] = {
    "min_count": lambda g: g.x.sum(min_count=5),
    "where": lambda g: g.x.sum().where(g.y.count() > 4),
    "mask": lambda g: g.x.sum().mask(g.y.count() > 4),
    "filter of a frame": lambda g: g[["x", "y"]].sum()[g.y.count() > 4],
    "filter of a column": lambda g: g.x.sum()[g.y.count() > 4],
    "below others": lambda g: g.x.sum() + g.x.sum().where(g.y.count() > 4),
}


@pytest.fixture
def as_cudf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "is_cudf", lambda meta: True)


def compare(result: Any, query: Callable[[Any], Any]) -> None:
    same(result, query(FRAME.groupby("k")), check_index_type=False)


@pytest.mark.usefixtures("as_cudf")
@pytest.mark.parametrize("npartitions", [1, 5, 32])
@pytest.mark.parametrize("name", BY_POSITION)
def test_groups_are_in_order(name: str, npartitions: int) -> None:
    rows = dd.from_pandas(FRAME, npartitions=npartitions, sort=False)
    query = BY_POSITION[name]
    result = query(rows.groupby("k"))
    assert result.optimize().npartitions == (3 if npartitions == 32 else 1)
    parts = dask.compute(*result.optimize().to_delayed())
    compare(result.compute(), query)
    assert all(part.index.is_monotonic_increasing for part in parts)


@pytest.mark.usefixtures("as_cudf")
def test_what_is_combined_by_labels_is_not_sorted() -> None:
    groups = dd.from_pandas(FRAME, npartitions=3, sort=False).groupby("k")
    assert not hook.placement_of((groups.x.sum() / groups.y.count()).expr).in_order
    result = groups.x.sum()
    assert not hook.placement_of(result[result > 0].expr).in_order
    assert not result.compute().index.is_monotonic_increasing


@pytest.mark.usefixtures("as_cudf")
def test_beside_stock_all_are_stock() -> None:
    groups = dd.from_pandas(FRAME, npartitions=3, sort=False).groupby("k")
    result = groups.x.var().where(groups.y.count() > 4)
    settings = {"gpuagg.deterministic": True, "gpuagg.fallback": "silent"}
    with dask.config.set(settings):
        assert not hook.placement_of(result.expr).in_order
        reasons = [reason.reason for reason in dask_gpuagg.why_not(result)]
        compare(result.compute(), lambda g: g.x.var().where(g.y.count() > 4))
    assert len(reasons) == 2
    assert "it is combined with a group-by that stock Dask runs" in reasons


def test_pandas_combines_by_labels() -> None:
    groups = dd.from_pandas(FRAME, npartitions=3, sort=False).groupby("k")
    result = groups.x.sum().where(groups.y.count() > 4)
    assert not hook.placement_of(result.expr).in_order
    computed = result.compute()
    assert not computed.index.is_monotonic_increasing
    compare(computed, BY_POSITION["where"])
