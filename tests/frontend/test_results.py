"""Results have the partitions that Dask announced, and pipelines on them work as on any others."""

import operator
from collections.abc import Callable
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.dask_expr._expr import MapAlign, MaybeAlignPartitions

import dask_gpuagg
from tests.announced import ON_THE_HOST, QUERIES, ROWS, both
from tests.comparison import same
from tests.merging import pieces_of


@pytest.fixture(autouse=True)
def _here() -> Any:
    with dask.config.set({"scheduler": "synchronous", "gpuagg.fallback": "raise"}):
        yield


# of 24 partitions Dask announces several outputs
@pytest.mark.parametrize(
    ("name", "npartitions"),
    [*((name, 24) for name in (QUERIES | ON_THE_HOST)), ("sum", 1), ("median", 1), ("agg", 1)],
)
def test_partitions_are_those_of_stock_dask(name: str, npartitions: int) -> None:
    query = {**QUERIES, **ON_THE_HOST}[name]
    ours, theirs = both(query, dd.from_pandas(ROWS, npartitions=npartitions, sort=False))
    assert ours == theirs


@pytest.mark.parametrize("name", [name for name in QUERIES if name.endswith("split_out=True")])
def test_partitions_are_those_that_repartition_makes(name: str) -> None:
    """Of ten rows there are nine at most, however many are asked for."""
    rows = dd.from_pandas(ROWS.head(10), npartitions=2).repartition(npartitions=25)
    ours, theirs = both(QUERIES[name], rows)
    assert ours == theirs


def test_keys_that_dask_hashes_otherwise_are_promised_nowhere() -> None:
    rows = ROWS.assign(k=ROWS.k.map(str).astype(object))
    with dask.config.set({"dataframe.convert-string": False}):
        result = dd.from_pandas(rows, npartitions=40, sort=False).groupby("k").x.sum()
        with dask_gpuagg.enabled():
            expr = result.expr.rewrite(kind="tune", rewritten={})
            assert expr.npartitions == 3
            assert not expr.unique_partition_mapping_columns_from_shuffle


# rows in the partitions that Dask gives them, as many as a result has
SHUFFLED: dict[str, Callable[[Any], Any]] = {
    "applied": lambda d: d.groupby("k").y.apply(max, meta=d._meta.groupby("k").y.max()),
    "distinct": lambda d: d.drop_duplicates("k", split_out=4).map_partitions(
        lambda p: p.set_index("k").y
    ),
    "aligned": lambda d: (
        d.groupby("k").agg({"y": "max"}).assign(z=d.groupby("k").j.max(split_out=4)).y
    ),
    "partitioned by the keys": lambda d: (
        d.shuffle("k", npartitions=4).groupby("k").y.max(split_out=4)
    ),
}


COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "subtracted": lambda a, b: a - b,
    "a ufunc": lambda a, b: np.subtract(a, b),
    "by partitions": lambda a, b: a.map_partitions(operator.sub, b),
    "beside each other": lambda a, b: dd.concat([a.rename("a"), b.rename("b")], axis=1).eval("a-b"),
}


# Dask hashes dates by their text
@pytest.mark.parametrize(("dtype", "fallback"), [("int64", "raise"), ("date32[pyarrow]", "silent")])
@pytest.mark.parametrize(
    ("other", "combined"),
    [
        *((name, "subtracted") for name in SHUFFLED if name != "applied"),
        *(("applied", name) for name in COMBINED),
    ],
)
def test_results_meet_rows_that_dask_shuffled(
    other: str, combined: str, dtype: str, fallback: str
) -> None:
    rows = ROWS.assign(k=ROWS.k.astype("int32[pyarrow]").astype(dtype), y=ROWS.k * 2)
    collection = dd.from_pandas(rows, npartitions=4, sort=False)
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": fallback}):
        sums = collection.groupby("k").x.sum(split_out=4)
        got = COMBINED[combined](sums, SHUFFLED[other](collection)).compute()
    groups = rows.groupby("k")
    same(got, groups.x.sum() - groups.y.max(), check_names=False, check_dtype=False)


def _is_lazy(frame: Any) -> bool:
    return isinstance(frame, dd.DataFrame)


def _outputs_of(frame: Any, outputs: int) -> dict[str, int]:
    return {"split_out": outputs} if _is_lazy(frame) else {}


def _persisted(result: Any) -> Any:
    return result.persist() if _is_lazy(result) else result


RESULTS: dict[str, Callable[[Any], Any]] = {
    "frame": lambda d: d.groupby("k").agg({"x": "sum", "y": "max"}),
    "filtered": lambda d: d[d.y > 30].groupby("k")[["x", "y"]].mean(),
    "several": lambda d: d.groupby("k").agg({"x": "sum", "y": "sum"}, **_outputs_of(d, 3)),
    "sorted": lambda d: d.groupby("k", sort=True).agg({"x": "min", "y": "count"}),
    "persisted": lambda d: _persisted(d.groupby("k")[["x", "y"]].sum()),
    "whole groups": lambda d: d.groupby("k").agg({"x": "median", "y": "sum"}),
}


def _parts(r: Any) -> Any:
    if not _is_lazy(r):
        return r
    return pd.concat([r.get_partition(i).compute() for i in range(r.npartitions)])


# older releases of Dask align the Series of a lookup by its labels, which is wrong
GATHERS_LOOKUPS = MapAlign._lower is not MaybeAlignPartitions._lower

# of a result and of the rows that it was made of; on pandas' frames they give what is expected
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "computed": lambda r, d: r,
    "a lookup in itself": lambda r, d: r.y.map(r.y),
    "a lookup": lambda r, d: d.k.map(r.x),
    "is in": lambda r, d: d[
        d.k.isin(r[r.x > 0].index.compute() if _is_lazy(r) else r[r.x > 0].index)
    ],
    "query": lambda r, d: r.query("x > 0 and y > 1"),
    "by partitions": lambda r, d: (
        r.map_partitions(lambda p: p.assign(z=p.x * 2)) if _is_lazy(r) else r.assign(z=r.x * 2)
    ),
    "delayed": lambda r, d: pd.concat(dask.compute(*r.to_delayed())) if _is_lazy(r) else r,
    "partition by partition": lambda r, d: _parts(r),
    "added": lambda r, d: r.x + r.y,
    "added to another": lambda r, d: r.x + d.groupby("k").y.sum(**_outputs(r)),
    "filtered by another": lambda r, d: r[d.groupby("k").y.sum(**_outputs(r)) > 300],
    "assigned": lambda r, d: r.assign(z=d.groupby("k").y.max(**_outputs(r))),
    "beside each other": lambda r, d: _concat(r, axis=1),
    "below each other": lambda r, d: _concat(r, axis=0),
    "merged on the key": lambda r, d: d.merge(r.reset_index(), on="k", suffixes=("", "_of")),
    "merged on the index": lambda r, d: d.merge(
        r, left_on="k", right_index=True, suffixes=("", "_of")
    ),
    "joined": lambda r, d: d.set_index("k")[["j"]].join(r),
    "merged with another": lambda r, d: r.reset_index().merge(
        d.groupby("k").j.max(**_outputs(r)).reset_index(), on="k"
    ),
    "renamed and merged": lambda r, d: d.merge(
        r.rename(columns={"x": "total"}).reset_index(), on="k", suffixes=("", "_of")
    ),
    "grouped again": lambda r, d: r.reset_index().groupby("y").x.sum(),
    "sorted": lambda r, d: r.sort_values(["x", "y"]),
    "indexed by a value": lambda r, d: r.reset_index().set_index("x"),
    "repartitioned": lambda r, d: r.repartition(npartitions=2) if _is_lazy(r) else r,
    "repartitioned, added": lambda r, d: (
        r.x + r.repartition(npartitions=r.npartitions).y if _is_lazy(r) else r.x + r.y
    ),
    "head": lambda r, d: len(r.head(3, npartitions=-1) if _is_lazy(r) else r.head(3)),
    "persisted again": lambda r, d: _persisted(r) + 1,
    "optimized": lambda r, d: r.optimize().x + r.y if _is_lazy(r) else r.x + r.y,
}


def _outputs(r: Any) -> dict[str, int]:
    """Outputs of another group-by that has as many as a result."""
    return _outputs_of(r, r.npartitions) if _is_lazy(r) and r.npartitions > 1 else {}


def _concat(r: Any, axis: int) -> Any:
    if axis == 1:
        other = (r.x * 2).rename("z")
        return dd.concat([r, other], axis=1) if _is_lazy(r) else pd.concat([r, other], axis=1)
    return dd.concat([r, r * 2]) if _is_lazy(r) else pd.concat([r, r * 2])


def _plain(answer: Any) -> Any:
    answer = answer.compute() if hasattr(answer, "compute") else answer
    if isinstance(answer, pd.Series):
        answer = answer.to_frame("value")
    if not isinstance(answer, pd.DataFrame):
        return answer
    # row labels of merges are numbers
    rows = answer.reset_index(drop=answer.index.name is None)
    rows = rows[sorted(rows.columns, key=str)]
    rows.columns = range(rows.shape[1])
    return rows.sort_values(list(rows.columns), ignore_index=True)


# few groups make a tree, and 500 bytes an exchange of several pieces
@pytest.mark.parametrize(
    ("result", "nbytes"),
    [*((name, 500) for name in RESULTS if name != "filtered"), ("filtered", 10**8)],
)
def test_pipelines_on_results(result: str, nbytes: int) -> None:
    collection = dd.from_pandas(ROWS, npartitions=4, sort=False)
    with pieces_of(nbytes), dask_gpuagg.enabled():
        groups = RESULTS[result](collection)
        for name, operation in OPERATIONS.items():
            if "lookup" in name and not GATHERS_LOOKUPS:
                continue
            got = _plain(operation(groups, collection))
            want = _plain(operation(RESULTS[result](ROWS), ROWS))
            if isinstance(want, pd.DataFrame):
                pd.testing.assert_frame_equal(got, want, check_dtype=False, obj=name)
            else:
                assert got == pytest.approx(want), name


def test_nothing_is_left_after_disable() -> None:
    """A persisted result in several partitions is any other collection of Dask."""
    collection = dd.from_pandas(ROWS, npartitions=16, sort=False)
    with dask_gpuagg.enabled():
        persisted = collection.groupby("k").x.sum().persist()
    dask_gpuagg.disable()
    assert persisted.npartitions == 2
    means = persisted / collection.groupby("k").x.count()
    same(means.compute(), ROWS.groupby("k").x.mean(), check_names=False)
    assert type(persisted.expr).__module__.startswith("dask.")
