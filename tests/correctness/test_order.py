"""Results that depend on the order of rows, however partials are brought together."""

from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.aggregations import REGISTRY, Kind
from tests.comparison import compare
from tests.data import partitioned

pytestmark = pytest.mark.usefixtures("plugin", "synchronous")

_rng = np.random.default_rng(10034)
_N = 240
# a tree of several levels, whatever its width
MANY_PARTITIONS = 10
DATA = pd.DataFrame(
    {
        "k": _rng.integers(0, 20, _N),
        "x": np.where(_rng.random(_N) < 0.2, np.nan, np.arange(_N) % 50.0),
        "y": _rng.integers(-4, 5, _N),
        "s": pd.Series([f"t{i}" for i in _rng.integers(0, 60, _N)], dtype="str"),
    },
    index=pd.Index(_rng.permutation(_N), name="row"),
)
EVERYTHING = {
    "x": [
        n if n != "list" else list
        for n, r in REGISTRY.items()
        if r.in_agg and n != "size" and r.kind is not Kind.SKETCH
    ],
    "y": ["size", "first", "last", "idxmin", "idxmax", "sum", list],
    "s": ["sum", "first", "last", "nunique", "min", "max", list],
}


def everything(frame: Any, **options: Any) -> Any:
    return frame.groupby("k").agg(EVERYTHING, **options)


@pytest.mark.parametrize(
    ("method", "split_out", "npartitions"),
    [
        (None, None, 1),
        (None, None, MANY_PARTITIONS),
        ("tasks", 3, MANY_PARTITIONS),
        ("disk", True, MANY_PARTITIONS),
    ],
)
def test_everything_under_every_plan(method: str | None, split_out: Any, npartitions: int):
    options = {"split_out": split_out, "shuffle_method": method}
    compare(everything, partitioned(DATA, npartitions), options=options)


@pytest.mark.parametrize("split_every", [2, False])
def test_everything_by_trees_of_every_width(split_every: Any):
    compare(everything, partitioned(DATA, MANY_PARTITIONS), options={"split_every": split_every})


@pytest.mark.parametrize("name", ["idxmin", "idxmax"])
@pytest.mark.parametrize("split_out", [1, 3])
def test_first_of_tied_extremes(name: str, split_out: int):
    data, options = partitioned(DATA.assign(y=DATA["y"] // 4), 13), {"split_out": split_out}
    compare(lambda f, **o: f.groupby("k").agg({"y": name}, **o), data, options=options)


@pytest.mark.parametrize("name", ["idxmin", "idxmax"])
@pytest.mark.parametrize("npartitions", [1, 3])
def test_extreme_of_nothing_is_an_error(name: str, npartitions: int):
    data = DATA.assign(x=DATA["x"].mask(DATA["k"] == 3))
    with pytest.raises(ValueError, match="all NA"):
        getattr(data.groupby("k")["x"], name)()
    for query in (lambda g: getattr(g["x"], name)(), lambda g: g.agg({"x": name})):
        with pytest.raises(ValueError, match="all NA"):
            query(partitioned(data, npartitions).groupby("k")).compute()


def test_threads():
    with dask.config.set(scheduler="threads"):
        compare(everything, partitioned(DATA, MANY_PARTITIONS), options={"split_out": 3})
