"""Group-bys of a merge of cuDF frames, whose rows are reduced before the merge or not."""

from collections.abc import Callable
from typing import Any

import dask
import pandas as pd
import pytest

from dask_gpuagg.frontend import merges
from tests.comparison import same
from tests.device.frames import on_device
from tests.frontend.test_eager import DIM, FACTS, FORMS, MERGEABLE, MERGES, joins_of


@pytest.fixture(autouse=True)
def _of_few_rows(plugin: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merges, "ROWS_FROM", 0)
    monkeypatch.setattr(merges, "MOST_LEFT", float("inf"))


def compare(query: Callable[[Any, Any], Any], of_dims: int = 1) -> None:
    """Compare with the query without the reduction, all but roundings."""
    lazy = query(on_device(FACTS, 4), on_device(DIM, of_dims))
    assert joins_of(lazy)
    got = lazy.compute().to_pandas()
    with dask.config.set({"gpuagg.eager-merge": False}):
        assert not joins_of(lazy)
        without = lazy.compute().to_pandas()
    same(got, without, check_exact=False, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("name", MERGEABLE)
def test_every_aggregation_of_states_that_merge(name: str, how: str) -> None:
    # what dask-cudf refuses in .agg
    if name in ("size", "prod", "any", "all", "sem"):
        compare(lambda f, d: getattr(f.merge(d, on="k", how=how).groupby("region").y, name)())
    else:
        compare(lambda f, d: f.merge(d, on="k", how=how).groupby("region").agg({"y": [name]}))


@pytest.mark.parametrize("form", sorted(FORMS.keys() - {"named", "series"}))
def test_forms(form: str) -> None:
    compare(lambda f, d: FORMS[form](f.merge(d, on="k")))


@pytest.mark.parametrize("by", ["region", "k"])
@pytest.mark.parametrize("merge", sorted(MERGES.keys() - {"by integers and floats"}))
def test_merges(merge: str, by: str) -> None:
    compare(lambda f, d: MERGES[merge](f, d).groupby(by).y.sum())


@pytest.mark.parametrize("dropna", [True, False])
def test_null_keys(dropna: bool) -> None:
    facts = FACTS.assign(k=FACTS.k.astype("Int64").where(FACTS.k != 3))
    dim = DIM.assign(k=DIM.k.astype("Int64").where(DIM.k != 5), region=DIM.region.where(DIM.k != 1))
    f, d = on_device(facts, 3), on_device(dim, 1)
    lazy = f.merge(d, on="k").groupby("region", dropna=dropna).x.sum()
    got = lazy.compute().to_pandas().sort_index()
    with dask.config.set({"gpuagg.eager-merge": False}):
        without = lazy.compute().to_pandas().sort_index()
    pd.testing.assert_series_equal(got, without)


def test_sides_of_several_partitions() -> None:
    compare(lambda f, d: f.merge(d, on="k").groupby("region").x.sum(), of_dims=3)
