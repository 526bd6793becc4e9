"""``pd.Grouper`` with a frequency, beside pandas."""

from collections.abc import Callable
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.aggregations import REGISTRY
from tests.comparison import same

pytestmark = pytest.mark.usefixtures("plugin", "synchronous")

ROWS = 80
AGGREGATIONS = sorted(name for name, record in REGISTRY.items() if record.empty_bin)


def frame(nulls: float = 0.2) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    times = pd.Timestamp("1969-12-30 17:23:05") + pd.to_timedelta(rng.integers(0, 4e5, ROWS), "s")
    data = pd.DataFrame({"t": pd.Series(times).where(rng.random(ROWS) >= nulls)})
    data["k"] = rng.integers(0, 3, ROWS)
    data["j"] = data.k.where(rng.random(ROWS) < 0.8)
    data["v"] = pd.Series(rng.random(ROWS)).where(rng.random(ROWS) < 0.8)
    data["i"] = rng.integers(-9, 9, ROWS)
    data["b"] = rng.random(ROWS) < 0.5
    return data.assign(n=data.i.astype("Int64").where(data.b), m=data.i.astype("int64[pyarrow]"))


def grouper(freq: str = "D", **options: Any) -> Any:
    return pd.Grouper(key="t", freq=freq, **options)


def compare(query: Callable[[Any], Any], data: pd.DataFrame, npartitions: int = 4) -> None:
    """Compare bins in their order, values, labels and frequency with pandas and the metadata."""
    want = query(data)
    lazy = query(dd.from_pandas(data, npartitions=npartitions, sort=False))
    got = lazy.compute()
    assert lazy.npartitions == 1
    assert got.index.freq == lazy._meta.index.freq is not None
    frames = got, want, lazy._meta
    got, want, meta = (x.to_frame(x.name or "x") if x.ndim == 1 else x for x in frames)
    assert list(got.dtypes) == list(meta.dtypes)
    # pandas has floats in the place of integers where a bin is empty, and here they are always
    pd.testing.assert_frame_equal(got, want.astype(got.dtypes.to_dict()), check_freq=False)


# a day, and bins that divide none, by all aggregations; the other lengths by two
BINS = [(freq, name) for freq in ("D", "7min") for name in AGGREGATIONS]
BINS += [(f, name) for f in ("15min", "7D", "5h", "36h") for name in ("sum", "min")]


@pytest.mark.parametrize(("freq", "name"), BINS)
def test_all_bins(freq: str, name: str) -> None:
    columns = ["v", "i", "n", "m", *(["b"] if name != "quantile" else [])]
    compare(lambda f: getattr(f.groupby(grouper(freq))[columns], name)(), frame())
    compare(lambda f: f.groupby([grouper(freq)]).i.agg(name), frame())


QUERY = {"v": ["sum", "min"], "n": ["count", "max"]}
QUERIES: dict[str, Callable[[Any], Any]] = {
    "dict": lambda g: g.agg(QUERY),
    "named": lambda g: g.agg(low=("i", "min"), rows=("v", "size"), half=("v", "median")),
    "size": lambda g: g.size(),
    "least": lambda g: g.i.sum(min_count=2),
    "least of agg": lambda g: g[["v", "i"]].agg("max", min_count=3),
    "nulls": lambda g: g.v.agg("sum", skipna=False),
    "described": lambda g: g[["v", "i"]].describe(),
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
@pytest.mark.parametrize("freq", ["D", "7h"])
def test_calls(freq: str, query: Callable[[Any], Any]) -> None:
    compare(lambda f: query(f.groupby(grouper(freq), sort=False, dropna=False)), frame())


@pytest.mark.parametrize(
    ("unit", "zone"), [("s", None), ("ms", "UTC"), ("us", None), ("us", "UTC"), ("ns", None)]
)
def test_dtypes_of_keys(unit: str, zone: str | None) -> None:
    data = frame().assign(t=frame().t.dt.as_unit(unit).dt.tz_localize(zone))
    # some minutes, not days
    short = data.assign(t=data.t.min() + (data.t - data.t.min()) // 1000)
    freqs = {"D": data, "7h": data, "50s": short} | ({"1500ms": short} if unit != "s" else {})
    for freq, rows in freqs.items():
        compare(lambda f, freq=freq: f.groupby(grouper(freq)).agg(QUERY), rows)


@pytest.mark.parametrize("freq", ["D", "5h"])
def test_no_rows_and_empty_partitions(freq: str) -> None:
    for data, least in ((frame().iloc[:0], 0), (frame(nulls=1.0), 0), (frame(), 6), (frame(), 99)):
        compare(lambda f, i=least: f[f.i > i].groupby(grouper(freq)).agg(QUERY), data, 12)


@pytest.mark.parametrize(("freq", "dropna"), [("D", True), ("15min", False), ("7h", False)])
def test_with_other_keys_only_what_occurs(freq: str, dropna: bool) -> None:
    data, ddf = frame(), dd.from_pandas(frame(), npartitions=4)
    for by in (["k", grouper(freq)], [grouper(freq), "j"], ["j", "k", grouper(freq)]):
        for name in ("sum", "min", "first", "median"):
            groups = [f.groupby(by, dropna=dropna)[["v", "i"]] for f in (ddf, data)]
            same(*dask.compute(*(getattr(g, name)() for g in groups)))
    two = [grouper(freq), pd.Grouper(key="u", freq="3D")]
    data, ddf = (f.assign(u=f.t + pd.Timedelta("1D")) for f in (data, ddf))
    same(ddf.groupby(two, dropna=dropna).v.sum().compute(), data.groupby(two).v.sum())


def test_results_are_used_further() -> None:
    compare(lambda f: f.groupby(grouper()).agg(QUERY)[("v", "min")], frame())
    compare(lambda f: f.groupby(grouper()).v.sum() / f.groupby(grouper()).size(), frame())


PARAMETERS = [{"closed": "right"}, {"label": "right"}, {"origin": "epoch"}, {"offset": "1h"}]
PARAMETERS += [{"freq": "ME"}, {"freq": "ns"}, {"key": "i"}, {"key": None, "level": 0}]


@pytest.mark.parametrize("options", PARAMETERS, ids=str)
def test_parameters_that_are_refused(options: dict[str, Any]) -> None:
    key = pd.Grouper(**{"key": "t", "freq": "D", **options})
    with pytest.raises(dask_gpuagg.UnsupportedGroupBy, match=f"{list(options)[-1]}="):
        dd.from_pandas(frame(), npartitions=2).groupby(["k", key])


REFUSED: dict[str, Callable[[Any], Any]] = {
    "split_out": lambda f: f.groupby(grouper()).v.sum(split_out=2),
    "^first": lambda f: f.groupby(grouper()).v.first(),
    "sum of text": lambda f: f.assign(s=f.k.astype(str)).groupby(grouper()).s.sum(),
    "min_count of bool": lambda f: f.groupby(grouper()).b.max(min_count=2),
    "^head": lambda f: f.groupby(["k", grouper()]).head(1),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_calls_that_are_refused(reason: str) -> None:
    with pytest.raises(NotImplementedError, match=reason):
        REFUSED[reason](dd.from_pandas(frame(), npartitions=2))


def test_integers_that_are_no_floats_are_refused() -> None:
    data = frame().assign(i=2**60 + 1)
    with pytest.raises(ValueError, match="beyond 2"):
        dd.from_pandas(data, npartitions=2).groupby(grouper()).i.max().compute()
    compare(lambda f: f.assign(i=f.i.astype("Int64")).groupby(grouper()).i.max(), data)


def test_without_the_plugin_dask_refuses_it() -> None:
    dask_gpuagg.disable()
    with pytest.raises(NotImplementedError, match="not supported by Dask"):
        dd.from_pandas(frame(), npartitions=2).groupby(grouper())
