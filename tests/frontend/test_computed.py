"""``compute()`` of results of which Dask announced several outputs."""

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask._expr import FinalizeCompute
from dask.dataframe.dask_expr._repartition import RepartitionToFewer

import dask_gpuagg
from dask_gpuagg.frontend import hook
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.reporting.runs import forget

ROWS = 3_000
DATA = pd.DataFrame({"k": np.arange(ROWS) * 7919 % 101, "v": np.arange(ROWS) % 13 * 0.5})
SPEC = {"v": ["sum", "count"]}


def query(split_out: int | None = 3, partitions: int = 8):
    rows = dd.from_pandas(DATA, npartitions=partitions)
    return rows.groupby("k").agg(SPEC, split_out=split_out)


def nodes(expression) -> list[str]:
    return [type(node).__name__ for node in expression.optimize(fuse=False).walk()]


@pytest.mark.parametrize("partitions", [1, 8, 40])
@pytest.mark.parametrize("split_out", [1, 3])
def test_one_output_is_made_at_once(raising, split_out, partitions):
    result = query(split_out, partitions)
    assert result.npartitions == split_out
    assert RepartitionToFewer.__name__ not in nodes(FinalizeCompute(result.expr))
    pd.testing.assert_frame_equal(result.compute().sort_index(), DATA.groupby("k").agg(SPEC))


def steps(*collections) -> list[str]:
    """Steps that are run where collections are computed together, whose results are right."""
    forget()
    for found in dask.compute(*collections):
        frame = found.sort_index() - (1 if found["v"]["count"].sum() > ROWS else 0)
        pd.testing.assert_frame_equal(frame, DATA.groupby("k").agg(SPEC), check_dtype=False)
    return [run.step for run in dask_gpuagg.last_runs()]


def test_outputs_are_divided_only_for_what_reads_them(raising):
    """As ``compute()`` has it, which puts its collections into a sequence."""
    few, more = (query(None, partitions) for partitions in (40, 60))
    assert few.optimize().npartitions > 1
    for collections in ((few,), (few, few), (few, more)):
        assert "divide" not in steps(*collections)
    assert "divide" in steps(few, few + 1)


def test_others_have_the_outputs_that_were_announced(raising):
    """Persisted ones, those that something else is made of, and those computed together."""
    expected = DATA.groupby("k").agg(SPEC)
    persisted = query().persist()
    assert persisted.npartitions == 3
    assert len([len(part) for part in persisted.partitions]) == 3
    pd.testing.assert_frame_equal(persisted.compute().sort_index(), expected)
    more = query() + 1
    assert RepartitionToFewer.__name__ in nodes(FinalizeCompute(more.expr))
    pd.testing.assert_frame_equal(more.compute().sort_index(), expected + 1)
    for found in dask.compute(query(), query()):
        pd.testing.assert_frame_equal(found.sort_index(), expected)
    two = query().repartition(npartitions=2)
    assert two.npartitions == 2
    pd.testing.assert_frame_equal(two.compute().sort_index(), expected)


def test_what_stock_dask_runs_is_brought_together(monkeypatch):
    def refuse(*_: object) -> None:
        raise Unsupported("not today")

    monkeypatch.setattr(hook, "route", refuse)
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "silent"}):
        result = query()
        assert RepartitionToFewer.__name__ in nodes(FinalizeCompute(result.expr))
        found = result.compute().sort_index()
    pd.testing.assert_frame_equal(found, DATA.groupby("k").agg(SPEC))
