"""Quantiles of few groups by brackets: whole queries, and when they are not planned so."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.engines.host import narrowed as brackets
from dask_gpuagg.planning import lower
from dask_gpuagg.planning.nodes import GroupByNarrowed
from tests.comparison import same
from tests.data import in_pieces
from tests.planning.test_chunks import nodes

ROWS, PARTITIONS = 4_000, 6


@pytest.fixture(autouse=True)
def _planned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(lower, "ROWS_FROM", 0)
    monkeypatch.setattr(lower, "ROWS_OF_A_GROUP", 20)
    settings = {"gpuagg.fallback": "raise", "scheduler": "sync", "num_workers": 2}
    with dask_gpuagg.enabled(), dask.config.set(settings):
        yield


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    values = rng.normal(size=ROWS).round(2)
    return pd.DataFrame(
        {
            "k": rng.integers(0, 9, ROWS),
            "f": np.where(rng.random(ROWS) < 0.1, np.nan, rng.integers(0, 3, ROWS)),
            "s": rng.choice(["a", "bb", "é"], ROWS),
            "c": pd.Categorical(rng.choice(["x", "y"], ROWS), categories=["z", "y", "x"]),
            "b": np.arange(ROWS) % 3 == 0,
            "d": pd.Categorical.from_codes(np.arange(ROWS) % 3, ["q", "p", "o"]),
            "v": np.where(rng.random(ROWS) < 0.1, np.nan, values),
            "i": rng.integers(-(2**40), 2**40, ROWS),
            "n": np.full(ROWS, np.nan),
            "t": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 99, ROWS), unit="D"),
        }
    )


def held(pdf: pd.DataFrame | None = None) -> Any:
    pdf = frame() if pdf is None else pdf
    return dd.from_pandas(pdf, npartitions=PARTITIONS, sort=False).persist()


def by_narrowing(query: Any) -> bool:
    return len(list(nodes(query, GroupByNarrowed))) == 1


QUERIES: dict[str, Callable[..., Any]] = {
    "median": lambda d, **by: d.groupby("k", **by).agg({"v": "median"}),
    "median of i": lambda d, **by: d.groupby("k", **by).i.median(),
    "of a Series": lambda d, **by: d.v.groupby(d.k, **by).median(),
    "several columns": lambda d, **by: d.groupby("k", **by)[["v", "i", "n"]].agg("median"),
    "beside others": lambda d, **by: d.groupby("k", **by).agg(
        {"v": ["median", "sum", "count"], "i": ["quantile", "max"], "t": ["min", "last"]}
    ),
    "beside distinct values": lambda d, **by: d.groupby("k", **by).agg(
        {"v": ["median", "nunique"], "i": "nunique"}
    ),
    "two keys": lambda d, **by: d.groupby(["s", "k"], **by).agg({"v": "median", "i": "median"}),
    "null keys": lambda d, **by: d.groupby("f", **by).agg({"v": "median", "n": "median"}),
    "categories": lambda d, **by: d.groupby("c", **by).agg({"v": "median"}),
    "booleans": lambda d, **by: d.groupby("b", **by).agg({"v": "median", "i": "quantile"}),
    "all categories": lambda d, **by: d.groupby("d", **by).agg({"v": "median", "i": "quantile"}),
    "categories and text": lambda d, **by: d.groupby(["c", "f"], **by).agg({"v": "median"}),
    "of new columns": lambda d, **by: d.assign(w=d.v * 2).groupby("k", **by).agg({"w": "median"}),
    "of a filter": lambda d, **by: d[d.v > 0].groupby("k", **by).agg({"v": "median"}),
    "by a computed key": lambda d, **by: d.groupby(d.k % 3, **by).agg({"v": "median"}),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "null keys are groups": {"dropna": False},
    "sorted": {"sort": True},
    "unobserved": {"observed": False},
}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, "as it is") for name in QUERIES),
        *((name, "null keys are groups") for name in ("null keys", "categories and text")),
        *((name, "sorted") for name in ("two keys", "null keys", "categories")),
        *((name, "unobserved") for name in ("categories", "all categories", "categories and text")),
    ],
)
def test_answers_are_those_of_pandas(name: str, options: str):
    by = {"observed": True, **OPTIONS[options]}
    query = QUERIES[name](held(), **by)
    assert by_narrowing(query)
    got, expected = query.compute(), QUERIES[name](frame(), **by)
    if options == "sorted":  # each of the outputs that Dask announced
        outputs = dask.compute(*query.to_delayed())
        assert all(output.index.is_monotonic_increasing for output in outputs)
    same(got, expected, check_index_type=False, rtol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "how"),
    [("int32", "linear"), ("uint32", "midpoint"), ("int64", "midpoint"), ("uint64", "linear")],
)
@pytest.mark.parametrize("sample", ["auto", "never"])
def test_integers_whose_sums_and_gaps_overflow(dtype: str, how: str, sample: str):
    """Narrowed or exchanged: what pandas gives, to the last bit."""
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    values = np.full(ROWS, limits.max, dtype) - rng.integers(0, 2000, ROWS).astype(dtype)
    values[-2:] = limits.min, limits.max
    pdf = pd.DataFrame({"k": rng.integers(0, 9, ROWS), "v": values})
    pdf.loc[ROWS - 2 :, "k"] = 9  # a group of two
    with dask.config.set({"gpuagg.sample": sample}):
        query = held(pdf).groupby("k")[["v"]].agg("quantile", q=0.37, interpolation=how)
        assert by_narrowing(query) == (sample == "auto")
        got = query.compute().sort_index()
    expected = pdf.groupby("k")[["v"]].quantile(0.37, interpolation=how)
    pd.testing.assert_frame_equal(got, expected, check_exact=True)


@pytest.mark.parametrize("split_out", [2, True])
def test_several_outputs(split_out: Any):
    query = held().groupby("k").agg({"v": "median"}, split_out=split_out)
    assert by_narrowing(query)
    assert query.npartitions > 1
    same(query.compute(), frame().groupby("k").agg({"v": "median"}))
    parts = dask.compute(*query.to_delayed())
    assert sum(map(len, parts)) == 9


def test_a_frame_of_this_process():
    """Its partitions are made once, whatever the number of passes."""
    query = dd.from_pandas(frame(), npartitions=PARTITIONS).groupby("k").agg({"v": "median"})
    assert by_narrowing(query)
    (node,) = nodes(query, GroupByNarrowed)
    layer = node._layer()
    made = {}
    for key, task in layer.items():
        if key[0].startswith(("gpuagg_sample", "gpuagg_count", "gpuagg_recount")):
            made.setdefault(key[1], []).append(task.args[1])
    assert len(made) == PARTITIONS
    for of_chunk in made.values():
        tasks = [parts[0][0][0] for parts in of_chunk]
        assert len(tasks) == 3
        assert tasks[0] is tasks[1] is tasks[2]
    same(query.compute(), frame().groupby("k").agg({"v": "median"}))


def test_a_second_count(monkeypatch: pytest.MonkeyPatch):
    aim = brackets.aim

    def astray(*given: Any) -> brackets.Brackets:
        found = aim(*given)
        ends = [(np.full_like(low, 5), np.full_like(high, 6)) for low, high in found.ends]
        return brackets.Brackets(found.keys, ends, others=True)

    monkeypatch.setattr(brackets, "aim", astray)
    query = held().groupby("k").agg({"v": "median", "i": "quantile"})
    assert by_narrowing(query)
    expected = frame().groupby("k").agg({"v": "median", "i": "quantile"})
    got, steps = steps_of(query)
    pd.testing.assert_frame_equal(got, expected)
    assert steps == {"sample", "aim", "count", "widen", "recount", "finalize"}


def partly(change: Callable[[pd.Series], Any]) -> list[pd.DataFrame]:
    """Partitions of which one has other integers than the metadata promises."""
    pdf = frame()
    pieces = [pdf.iloc[:1000], pdf.iloc[1000:2000].copy(), pdf.iloc[2000:]]
    pieces[1]["i"] = change(pieces[1]["i"])
    return pieces


DIFFERENT: dict[str, Callable[[pd.Series], Any]] = {
    "floats": lambda i: i.astype("float64"),
    "floats with nulls": lambda i: i.where(i > 0),
    "narrow floats": lambda i: i.astype("float32"),
    "narrow integers": lambda i: (i // 2**20).astype("int32"),
    "unsigned": lambda i: i.abs().astype("uint64"),
    "nothing": lambda i: pd.Series([None] * len(i), i.index, dtype=object),
}


def steps_of(query: Any) -> tuple[Any, set[str]]:
    """The result, and the steps that made it."""
    dask_gpuagg.reporting.runs.forget()
    return query.compute().sort_index(), {run.step for run in dask_gpuagg.last_runs()}


@pytest.mark.parametrize("what", DIFFERENT)
def test_partitions_that_are_not_as_promised(what: str, monkeypatch: pytest.MonkeyPatch):
    """Values are compared in the dtype that all have together: what an exchange gives."""
    name = "beside others"
    query = QUERIES[name](in_pieces(partly(DIFFERENT[what])).persist())
    assert by_narrowing(query)
    got, steps = steps_of(query)
    assert {"sample", "aim", "count", "widen", "finalize"} <= steps
    monkeypatch.setattr(lower, "ROWS_FROM", ROWS + 1)
    query = QUERIES[name](in_pieces(partly(DIFFERENT[what])).persist())
    assert not by_narrowing(query)
    pd.testing.assert_frame_equal(got, query.compute().sort_index(), check_exact=True)


@pytest.mark.parametrize("what", ["Int64", "bool"])
def test_values_that_are_no_plain_numbers_together(what: str, monkeypatch: pytest.MonkeyPatch):
    """All rows are brought together, and every step says what it did."""
    pieces = partly(lambda i: i.astype(what))
    query = QUERIES["median of i"](in_pieces(pieces).persist())
    assert by_narrowing(query)
    got, steps = steps_of(query)
    assert steps == {"sample", "aim", "count", "finalize"}
    (last,) = [run for run in dask_gpuagg.last_runs() if run.step == "finalize"]
    assert (last.rows, last.groups) == (ROWS, len(got))
    monkeypatch.setattr(lower, "ROWS_FROM", ROWS + 1)
    expected = QUERIES["median of i"](in_pieces(pieces).persist()).compute().sort_index()
    pd.testing.assert_series_equal(got, expected, check_exact=True)


@pytest.mark.parametrize("share", [0.9, 0.01])
def test_many_more_groups_than_the_sample_of_keys_had(share: float):
    """All rows come together where most are of groups that nobody expected."""
    rng = np.random.default_rng(0)
    rows, pieces = 8_000, []
    for i in range(13):
        keys = np.arange(rows) + i * rows + 1
        alone = rng.random(rows) < share
        if i in (0, 6, 12):  # whose keys the planner sees
            alone[:] = False
        pieces.append(pd.DataFrame({"k": np.where(alone, keys, 0), "v": rng.normal(size=rows)}))
    query = in_pieces(pieces).persist().groupby("k").agg({"v": "median"})
    assert by_narrowing(query)
    got, steps = steps_of(query)
    assert ("widen" in steps) == (share < 0.5)
    pd.testing.assert_frame_equal(got, pd.concat(pieces).groupby("k").agg({"v": "median"}))


def test_empty_partitions_and_no_rows():
    pdf = frame()
    pieces = [pdf.iloc[:0], pdf.iloc[:1500], pdf.iloc[:0], pdf.iloc[1500:]]
    query = in_pieces(pieces).persist().groupby("k").agg({"v": "median"})
    same(query.compute(), pdf.groupby("k").agg({"v": "median"}))
    ddf = held()
    nothing = ddf[ddf.v > 1e9].groupby("k").agg({"v": "median"}).compute()
    pd.testing.assert_frame_equal(nothing, pdf.iloc[:0].groupby("k").agg({"v": "median"}))


def test_explain_tells():
    query = held().groupby("k").agg({"v": "median"})
    text = str(dask_gpuagg.explain(query))
    assert "quantiles narrowed in two passes into 1 output: about 9 groups of 4,000 rows" in text
    assert "1 aim" in text
    query.compute()
    assert "sample, host:" in str(dask_gpuagg.explain(query))
    assert "narrowed" in dask_gpuagg.explain(query)._repr_html_()


def test_what_is_not_narrowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ddf = held()
    others = {
        "lists": ddf.groupby("k").agg({"v": ["median", "list"]}),
        "times": ddf.groupby("k").agg({"t": "median"}),
        "labels": ddf.groupby("k").agg({"v": ["median", "idxmax"]}),
        "one partition": held().partitions[0].groupby("k").agg({"v": "median"}),
        "users' functions": ddf.map_partitions(lambda part: part).groupby("k").v.median(),
        "what takes long": ddf.assign(u=ddf.s.str.upper()).groupby("u").v.median(),
        "many groups": ddf.groupby("i").agg({"v": "median"}),
    }
    frame()[["k", "v"]].to_parquet(tmp_path / "a.parquet")
    frame()[["k", "v"]].to_parquet(tmp_path / "b.parquet")
    others["files"] = dd.read_parquet(tmp_path).groupby("k").agg({"v": "median"})
    for name, query in others.items():
        assert not by_narrowing(query), name
    query = ddf.groupby("k").agg({"v": "median"})
    assert by_narrowing(query)
    for name, limit in {"ROWS_FROM": ROWS + 1, "ROWS_OF_A_TASK": ROWS // 2}.items():
        with monkeypatch.context() as patch:
            patch.setattr(lower, name, limit)
            assert not by_narrowing(query), name


def test_between_processes_fewer_rows_are_enough(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lower, "ROWS_FROM", 2 * ROWS)
    query = held().groupby("k").agg({"v": "median"})
    assert not by_narrowing(query)
    monkeypatch.setattr(lower, "current_client", object)
    assert by_narrowing(query)


@pytest.mark.parametrize("narrows", [False, True])
@pytest.mark.parametrize("outputs", [1, 3])
def test_results_that_are_combined_have_their_groups_in_the_same_outputs(
    narrows: bool, outputs: int, monkeypatch: pytest.MonkeyPatch
):
    """Of few outputs too, where the rows of whole groups are exchanged into more of them."""
    monkeypatch.setattr(lower, "ROWS_FROM", 0 if narrows else ROWS + 1)
    pdf = frame().astype({"i": "Int64"})  # whose medians are not narrowed
    with dask.config.set({"gpuagg.chunk": 1}):
        grouped = held(pdf).groupby("k")
        of = {
            "sum": grouped.agg({"v": "sum"}, split_out=outputs).v,
            "narrowed": grouped.agg({"v": "median"}, split_out=outputs).v,
            "exchanged": grouped.agg({"i": "median"}, split_out=outputs).i,
        }
        assert by_narrowing(of["narrowed"]) is narrows
        expected = {
            "sum": pdf.groupby("k").v.sum(),
            "narrowed": pdf.groupby("k").v.median(),
            "exchanged": pdf.groupby("k").i.median(),
        }
        for one, other in itertools.combinations(of, 2):
            got = (of[one] - of[other]).compute().sort_index()
            wanted = expected[one] - expected[other]
            assert got.index.tolist() == wanted.index.tolist(), (one, other)
            np.testing.assert_allclose(got.astype(float), wanted.astype(float))


def test_the_estimate_of_a_filter_is_its_own():
    ddf = held(frame().assign(k=lambda f: f.k + 100))
    ddf[ddf.v > 1e9].groupby("k").agg({"v": "median"}).compute()
    assert by_narrowing(ddf.groupby("k").agg({"v": "median"}))
