"""sort=True with several outputs: sorted one after the other, as pandas sorts the groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.planning.ranges import GroupByRanges
from tests.comparison import assert_same

ROWS = 6_000


@pytest.fixture(autouse=True)
def _planned() -> Iterator[None]:
    with (
        dask_gpuagg.enabled(),
        dask.config.set({"scheduler": "synchronous", "gpuagg.fallback": "raise"}),
    ):
        yield


def rows() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "k": rng.integers(0, 2000, ROWS),
            "j": rng.integers(0, 5, ROWS),
            "s": [f"é{n:x}" for n in rng.integers(0, 900, ROWS)],
            "c": pd.Categorical(rng.choice(list("dbca"), ROWS), categories=list("dbcae")),
            "o": pd.Series(rng.integers(0, 50, ROWS)).astype(object),
            "v": rng.integers(0, 9, ROWS),
        }
    )
    frame["f"] = rng.normal(size=ROWS).round(2)
    frame.loc[::7, "f"] = np.nan
    frame.loc[::11, "s"] = None
    return frame


FRAME = rows()


def collection(npartitions: int = 7) -> Any:
    return dd.from_pandas(FRAME, npartitions=npartitions)


def parts(query: Any) -> list[Any]:
    return list(dask.compute(*query.to_delayed()))


def has_ranges(query: Any) -> bool:
    return any(isinstance(n, GroupByRanges) for n in query.optimize(fuse=False).expr.walk())


SPECS: dict[str, Any] = {
    "states": {"v": ["sum", "mean"]},
    "pairs": {"v": ["nunique", "sum"]},
    "rows": {"v": ["median", "max"]},
}


@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("by", ["k", "s", "f", "c", ["s", "k"], ["f", "c", "j"]], ids=str)
def test_outputs_are_sorted_one_after_the_other(by: Any, spec: str, dropna: bool):
    def grouped(frame: Any) -> Any:
        return frame.groupby(by, sort=True, dropna=dropna, observed=True)

    query = grouped(collection()).agg(SPECS[spec], split_out=4)
    assert has_ranges(query)
    made = parts(query)
    assert len(made) == 4
    assert by == "c" or min(map(len, made)) > 0.2 * max(map(len, made))
    assert_same(pd.concat(made), grouped(FRAME).agg(SPECS[spec]), ordered=True)


METHODS: dict[str, Any] = {
    "sum": lambda g, **o: g.v.sum(**o),
    "mean": lambda g, **o: g[["v"]].mean(**o),
    "std": lambda g, **o: g.f.std(**o),
    "value_counts": lambda g, **o: g.j.value_counts(**o),
    "cov": lambda g, **o: g[["j", "v"]].cov(**o),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str):
    query = METHODS[name](collection().groupby("k", sort=True), split_out=True)
    assert query.npartitions == query.optimize().npartitions == 7
    made = pd.concat(parts(query))
    assert_same(made, METHODS[name](FRAME.groupby("k", sort=True)), ordered=name != "value_counts")
    assert made.index.get_level_values(0).is_monotonic_increasing


WHOLE = {
    "objects": {"by": "o"},
    "unobserved categories": {"by": ["c", "k"], "observed": False},
}


@pytest.mark.parametrize("case", WHOLE)
@pytest.mark.parametrize("npartitions", [1, 7])
def test_what_has_no_ranges_is_one_result_that_is_divided(case: str, npartitions: int):
    given = {"sort": True, "observed": True} | WHOLE[case]
    with dask.config.set({"dataframe.convert-string": False}):
        ddf = collection(npartitions)
    query = ddf.groupby(**given).v.agg(["sum"], split_out=3)
    assert not has_ranges(query)
    made = parts(query)
    assert max(map(len, made)) - min(map(len, made)) <= 1
    assert_same(pd.concat(made), FRAME.groupby(**given).v.agg(["sum"]), ordered=True)
