"""Quantiles of several chunks by brackets on the device: those of pandas and of an exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.planning import lower
from dask_gpuagg.planning.nodes import GroupByNarrowed
from tests.comparison import same
from tests.data import in_pieces
from tests.device.test_allocations import refusals, sorted_rows
from tests.planning.test_chunks import nodes

ROWS, PARTITIONS = 30_000, 5


@pytest.fixture(autouse=True)
def _planned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(lower, "ROWS_FROM", 0)
    monkeypatch.setattr(lower, "ROWS_OF_A_GROUP", 20)
    settings = {"gpuagg.fallback": "raise", "gpuagg.compile": "wait", "scheduler": "sync"}
    with dask_gpuagg.enabled(), dask.config.set(settings):
        yield


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "k": rng.integers(0, 200, ROWS),
            "f": np.where(rng.random(ROWS) < 0.1, np.nan, rng.integers(0, 3, ROWS)),
            "s": rng.choice(["a", "bb", "é"], ROWS),
            "v": pd.Series(rng.normal(0, 1e6, ROWS)).mask(rng.random(ROWS) < 0.1),
            "x": rng.normal(size=ROWS).astype("float32"),
            "i": rng.integers(-(2**40), 2**40, ROWS),
            "few": rng.integers(0, 4, ROWS).astype("int32"),
            "n": np.full(ROWS, np.nan),
        }
    )


def held(pdf: pd.DataFrame) -> Any:
    made = dd.from_pandas(pdf, npartitions=PARTITIONS, sort=False)
    return made.to_backend("cudf").persist(scheduler="sync")


QUERIES: dict[str, Callable[..., Any]] = {
    "median": lambda d, **by: d.groupby("k", **by).agg({"v": "median"}),
    "method": lambda d, **by: d.groupby("k", **by).v.median(),
    "quantile": lambda d, **by: d.groupby("k", **by).agg({"v": "quantile", "i": "quantile"}),
    "several columns": lambda d, **by: d.groupby("k", **by)[["x", "i", "few", "n"]].agg("median"),
    "beside others": lambda d, **by: d.groupby("k", **by).agg(
        {"v": ["median", "sum", "count"], "i": ["max"], "few": "nunique"}
    ),
    "two keys": lambda d, **by: d.groupby(["s", "f"], **by).agg({"v": "median", "i": "median"}),
    "of a filter": lambda d, **by: d[d.v > 0].groupby("s", **by).agg({"v": "median"}),
}


@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("name", QUERIES)
def test_answers_are_those_of_an_exchange(
    name: str, dropna: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = QUERIES[name](held(frame()), dropna=dropna)
    assert len(list(nodes(query, GroupByNarrowed))) == 1
    got = query.compute().to_pandas()
    monkeypatch.setattr(lower, "ROWS_FROM", 1 << 60)
    query = QUERIES[name](held(frame()), dropna=dropna)
    assert len(list(nodes(query, GroupByNarrowed))) == 0
    same(got, query.compute().to_pandas(), rtol=1e-12)
    pandas = QUERIES[name](frame(), dropna=dropna)
    same(got, pandas, check_dtype=False, check_index_type=False, check_names=False, rtol=1e-6)


@pytest.mark.parametrize("where", [-1e12, 1e12])
def test_a_second_count(where: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets made of values that all lie on one side."""
    from dask_gpuagg.engines.device import narrowed

    sample = narrowed.sample

    def astray(*given: Any) -> Any:
        made = sample(*given)
        made["v0"] = made["v0"].astype("float64") * 0 + where
        return made

    monkeypatch.setattr(narrowed, "sample", astray)
    query = held(frame()).groupby("k").agg({"v": "median"})
    dask_gpuagg.reporting.runs.forget()
    got = query.compute().to_pandas().sort_index()
    pd.testing.assert_frame_equal(got, frame().groupby("k").agg({"v": "median"}))
    found = dask_gpuagg.reporting.runs.session.measured().totals
    assert "recount" in {what.step for what in found}


def test_chunks_without_some_groups_and_without_rows() -> None:
    pdf = frame().sort_values("k", ignore_index=True)
    query = held(pdf)
    got = query[query.k < 50].groupby("k").agg({"v": "median"}).compute().to_pandas()
    expected = pdf[pdf.k < 50].groupby("k").agg({"v": "median"})
    pd.testing.assert_frame_equal(got.sort_index(), expected)
    nothing = query[query.v > 1e30].groupby("k").agg({"v": "median"}).compute()
    assert len(nothing) == 0


def test_several_outputs() -> None:
    query = held(frame()).groupby("k").agg({"v": "median"}, split_out=3)
    parts = [part.to_pandas() for part in dask.compute(*query.to_delayed())]
    assert len(parts) == 3
    expected = frame().groupby("k").agg({"v": "median"})
    pd.testing.assert_frame_equal(pd.concat(parts).sort_index(), expected)


@pytest.mark.parametrize("what", ["float64", "float32", "int32", "uint64"])
def test_a_partition_of_another_dtype(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are compared in the dtype that all have together: what an exchange gives."""
    import cudf

    pdf = frame().assign(i=frame().i // 2**20)
    pieces = [pdf.iloc[:9_000], pdf.iloc[9_000:20_000].copy(), pdf.iloc[20_000:]]
    pieces[1]["i"] = pieces[1].i.abs().astype(what)

    def grouped() -> Any:
        made = in_pieces([cudf.from_pandas(each) for each in pieces])
        return made.persist(scheduler="sync").groupby("k").agg({"i": ["median", "sum"]})

    query = grouped()
    assert len(list(nodes(query, GroupByNarrowed))) == 1
    dask_gpuagg.reporting.runs.forget()
    got = query.compute().to_pandas()
    assert "widen" in {found.step for found in dask_gpuagg.reporting.runs.session.measured().totals}
    monkeypatch.setattr(lower, "ROWS_FROM", 1 << 60)
    same(got, grouped().compute().to_pandas(), check_exact=True)


@pytest.mark.parametrize("once", [True, False])
def test_each_failed_allocation_costs_an_answer_or_nothing(once: bool) -> None:
    """A step is tried again once memory is given back; then its error has sizes."""
    query = held(frame()).groupby("k").agg({"v": "median"})
    assert len(list(nodes(query, GroupByNarrowed))) == 1
    query = query.optimize(fuse=False)
    graph, keys = dict(query.__dask_graph__()), query.__dask_keys__()
    errors, _ = refusals(graph, keys, sorted_rows(dask.get(graph, keys)), once)
    assert bool(errors) != once
