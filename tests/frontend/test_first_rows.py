"""``head`` and ``tail`` of groups: rows, labels and order are pandas'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.dask_expr.io.parquet import ReadParquet

import dask_gpuagg
from dask_gpuagg.frontend.first_rows import RowsOfGroups
from dask_gpuagg.planning.first_rows import GroupByRows
from dask_gpuagg.reporting.fallbacks import FallbackWarning, UnsupportedGroupBy

ROWS = 900


pytestmark = pytest.mark.usefixtures("raising")


def rows() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "k": rng.integers(0, 40, ROWS),
            "s": rng.choice(["é", "b", "", "long text"], ROWS),
            "c": pd.Categorical(rng.choice(list("dba"), ROWS), categories=list("dbae")),
            "f": rng.integers(0, 30, ROWS) / 2,
            "v": rng.random(ROWS),
        },
        index=rng.permutation(ROWS),
    )
    frame.loc[::7, "f"] = np.nan
    frame.loc[::9, "s"] = None
    return frame


FRAME = rows()
CALLS: dict[str, Callable[[Any], Any]] = {
    "head": lambda g: g.head(3),
    "default": lambda g: g.head(),
    "tail": lambda g: g.tail(2),
    "column": lambda g: g.v.head(2),
    "columns": lambda g: g[["v", "k"]].tail(1),
    "nothing": lambda g: g.head(0),
    "more than there are": lambda g: g.tail(10_000),
}


def collection(npartitions: int = 7) -> Any:
    return dd.from_pandas(FRAME, npartitions=npartitions, sort=False)


def check(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if got.ndim == 1:
        pd.testing.assert_series_equal(got, want)
    else:  # Dask converts text
        text = {c: got[c].dtype for c in got if c == "s"}
        pd.testing.assert_frame_equal(got, want.astype(text))


@pytest.mark.parametrize("npartitions", [1, 20])
@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("by", ["k", "s", "f", "c", ["s", "f"]], ids=str)
def test_rows_are_pandas(by: Any, call: str, dropna: bool, npartitions: int):
    given: dict[str, Any] = {"dropna": dropna, "observed": True}
    query = CALLS[call](collection(npartitions).groupby(by, **given))
    assert any(isinstance(node, GroupByRows) for node in query.optimize(fuse=False).expr.walk())
    assert query.npartitions == 1
    check(query.compute(), CALLS[call](FRAME.groupby(by, **given)))


def test_keys_that_are_computed():
    ddf = collection()
    check(
        ddf.groupby([ddf.k % 3, "s"]).head(2).compute(),
        FRAME.groupby([FRAME.k % 3, "s"]).head(2),
    )
    check(ddf.v.groupby(ddf.k).tail(1).compute(), FRAME.v.groupby(FRAME.k).tail(1))


def test_only_the_columns_that_are_needed_are_read(tmp_path: Any):
    FRAME.to_parquet(tmp_path / "rows.parquet")
    query = dd.read_parquet(tmp_path).groupby("k").v.head(1)
    (read,) = (n for n in query.expr.simplify().walk() if isinstance(n, ReadParquet))
    assert sorted(read.columns) == ["k", "v"]


@pytest.mark.parametrize("arguments", [{"n": -1}, {"n": 2, "split_out": 2}])
def test_what_partitions_do_not_know_is_left_to_dask(arguments: dict[str, int]):
    query = collection().groupby("k").head(**arguments)
    assert not any(isinstance(node, RowsOfGroups) for node in query.expr.walk())
    with pytest.raises(UnsupportedGroupBy, match=r"\.head\(\) .* with a negative n, or with sever"):
        query.compute()
    with (
        dask.config.set({"gpuagg.fallback": "warn"}),
        pytest.warns(FallbackWarning, match=r"\.head\(\) runs with stock Dask: made with") as told,
    ):
        query.compute()
    assert len(told) == 1


@pytest.mark.parametrize("call", ["head", "tail"])
def test_it_is_counted_as_planned(call: str):
    query = CALLS[call](collection().groupby("k"))
    with dask_gpuagg.profile() as ran:
        dask_gpuagg.explain(query)  # counts nothing
    assert ran.planned == 0
    with dask_gpuagg.profile() as ran:
        query.compute()
    assert ran.planned == 1
    assert {step.step for step in ran.steps} == {"partial", "finalize"}


class TestFallback:
    def test_stock_dask_runs_while_the_plugin_is_off(self):
        query = collection().groupby("k").head(2)
        with dask.config.set({"gpuagg.enabled": False}):
            got = query.compute()
        check(got.sort_index(), FRAME.groupby("k").head(2).sort_index())

    def test_the_reason_is_reported(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("dask_gpuagg.frontend.first_rows.cluster_problem", lambda: "no worker")
        query = collection().groupby("k").tail(2)
        with pytest.raises(UnsupportedGroupBy, match="no worker"):
            query.compute()
        with (
            dask.config.set({"gpuagg.fallback": "warn"}),
            pytest.warns(FallbackWarning, match="no worker"),
        ):
            got = query.compute()
        check(got.sort_index(), FRAME.groupby("k").tail(2).sort_index())

    def test_an_error_where_stock_dask_cannot(self):
        query = collection().groupby(["k", "s"], dropna=False).head(1)
        with (
            dask.config.set({"gpuagg.enabled": False}),
            pytest.raises(
                UnsupportedGroupBy, match="the plugin is off; stock Dask refuses it: ValueError"
            ),
        ):
            query.compute()


@pytest.mark.parametrize("npartitions", [1, 20])
@pytest.mark.parametrize("call", ["head", "tail"])
def test_explain_says_what_runs(call: str, npartitions: int):
    query = CALLS[call](collection(npartitions).groupby("k"))
    (found,) = dask_gpuagg.explain(query).groupbys
    assert (found.what, found.engine) == (f".{call}({3 if call == 'head' else 2})", "host")
    assert found.reasons == ()
    graph = query.optimize(fuse=False).__dask_graph__()
    assert sum(n for _, n in found.physical.tasks) == len(graph) - npartitions
    with dask_gpuagg.profile() as ran:
        query.compute()
    assert {step.step: step.calls for step in ran.steps} == dict(found.physical.tasks)
    text = str(dask_gpuagg.explain(query))
    assert "merge    tree into 1 output: a group has at most" in text
    # those of other tests too
    assert "ran      partial, host: " in text
    assert "states" not in text
    assert "bytes" not in text


def test_explain_of_files_that_dask_reads_as_one_partition(tmp_path: Any):
    wide = pd.DataFrame({f"c{i}": np.arange(48.0) for i in range(20)} | {"k": np.arange(48) % 3})
    dd.from_pandas(wide, npartitions=12).to_parquet(tmp_path)
    query = dd.read_parquet(tmp_path).groupby("k").c0.head(1)
    (found,) = dask_gpuagg.explain(query).groupbys
    (read,) = query.optimize(fuse=False).expr.find_operations(GroupByRows)
    assert found.physical.partitions == read.npartitions < 12


@pytest.mark.parametrize("arguments", [{"n": -1}, {"n": 2, "split_out": 2}])
def test_explain_of_what_is_left_to_dask(arguments: dict[str, int]):
    (found,) = dask_gpuagg.explain(collection().groupby("k").tail(**arguments)).groupbys
    assert (found.what, found.engine) == (".tail()", "stock Dask")
    assert "with a negative n, or with several outputs" in str(found)
