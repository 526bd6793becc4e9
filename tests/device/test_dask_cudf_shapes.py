"""Results of other shapes on dask-cudf collections, unobserved categories, functions of users."""

import functools
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.device.frames import (
    LETTERS,
    arrow,
    assert_equal,
    by_key,
    collection,
    expected,
    groups_of,
    key,
    on_device,
)

pytestmark = pytest.mark.usefixtures("raising")


@pytest.mark.parametrize("npartitions", [1, 5])
@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("column", ["i", "f", "s", "td"])
def test_value_counts(column: str, dropna: bool, npartitions: int) -> None:
    grouped = collection(npartitions).groupby("g", dropna=dropna, sort=True)
    ours = grouped[column].value_counts().compute()
    theirs: dict[Any, int] = {}
    for label, values in groups_of(arrow(), ["g"], column, dropna).items():
        for v in values:
            if key(v) is not None:
                theirs[*label, v] = theirs.get((*label, v), 0) + 1
    counts = by_key(ours, 2)
    assert counts == theirs
    # frequent values first
    pairs = [(label, -n) for (label, _), n in counts.items()]
    assert pairs == sorted(pairs, key=lambda p: (p[0] is None, p[0] or 0.0, p[1]))


def test_counts_of_categories_name_all_of_them() -> None:
    ours = by_key(collection(4).groupby("k").o.value_counts().compute(), 2)
    groups = groups_of(arrow(), ["k"], "s")
    assert ours == {(*g, x): vs.count(x) for g, vs in groups.items() for x in LETTERS}


# pandas ignores ddof where values are null
@pytest.mark.parametrize("npartitions", [1, 5])
@pytest.mark.parametrize(
    ("name", "columns", "options"),
    [("cov", ["x", "y", "i"], {}), ("corr", ["x", "y", "i"], {}), ("cov", ["x", "i"], {"ddof": 0})],
)
def test_matrices(name: str, columns: list[str], options: Any, npartitions: int) -> None:
    groups = collection(npartitions).groupby("k", sort=True)[columns]
    ours = getattr(groups, name)(**options).compute()
    pdf = arrow().select(["k", *columns]).to_pandas()
    theirs = getattr(pdf.groupby("k")[columns], name)(**options)
    pd.testing.assert_frame_equal(ours.to_pandas(), theirs, rtol=1e-6, check_index_type=False)


def test_a_nan_value_is_no_null_in_matrices() -> None:
    import cudf

    x = pa.array([1.0, float("nan"), 2.0, 3.0, None, 5.0])
    gdf = cudf.DataFrame.from_arrow(pa.table({"k": [0, 0, 0, 1, 1, 1], "x": x}))
    ours = on_device(gdf, 2).groupby("k", sort=True)[["x"]].cov().compute()
    first, second = ours["x"].to_arrow().to_pylist()
    assert first != first
    assert second == 2.0


@pytest.mark.parametrize("split_out", [1, 3])
@pytest.mark.parametrize("npartitions", [1, 5])
def test_functions_of_users(npartitions: int, split_out: int) -> None:
    import dask.dataframe as dd

    extent = dd.Aggregation(
        "extent",
        lambda g: (g.min(), g.max()),
        lambda low, high: (low.min(), high.max()),
        lambda low, high: high - low,
    )
    total = dd.Aggregation("total", lambda g: g.sum(), lambda g: g.sum())
    grouped = collection(npartitions).groupby("g", dropna=False)
    ours = grouped.agg({"i": [extent, "sum", total], "t": "mean"}, split_out=split_out).compute()
    groups = groups_of(arrow(), ["g"], "i", False)
    assert_equal(by_key(ours["i", "extent"]), expected(groups, lambda v: max(v) - min(v)))
    assert_equal(by_key(ours["i", "total"]), expected(groups, sum))
    assert_equal(by_key(ours["i", "sum"]), expected(groups, sum))


class Recording:
    """A chunk that says which library's group-by it was given."""

    seen: set[str] = set()  # noqa: RUF012

    def __call__(self, grouped: Any) -> Any:
        self.seen.add(type(grouped).__module__.partition(".")[0])
        return grouped.sum()


def test_functions_of_users_are_given_cudfs_group_bys() -> None:
    import dask.dataframe as dd

    chunk = Recording()
    total = dd.Aggregation("total", chunk, lambda g: g.sum())
    collection(3).groupby("k").agg({"i": total}).compute()
    assert chunk.seen == {"cudf"}


@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("keys", [["c"], ["c", "g"], ["g", "c"], ["k"]], ids="+".join)
@pytest.mark.parametrize(("npartitions", "split_out"), [(1, 1), (5, 1), (5, 3)])
def test_unobserved(keys: list[str], dropna: bool, npartitions: int, split_out: int) -> None:
    spec = {"i": ["count", "max", "sum", "nunique"], "y": ["mean", "median"]}
    grouped = collection(npartitions).groupby(keys, observed=False, dropna=dropna)
    ours = grouped.agg(spec, split_out=split_out).compute()
    pdf = arrow().select(["k", "g", "i", "y", "s"]).to_pandas()
    pdf["c"] = pd.Categorical(pdf["s"], categories=[*LETTERS, "never"])
    theirs = pdf.groupby(keys, observed=False, dropna=dropna).agg(spec)
    n = len(keys)
    for column, name in theirs.columns:
        reference = {}
        for label, value in theirs[column, name].items():
            parts = label if isinstance(label, tuple) else (label,)
            reference[tuple(None if pd.isna(p) else p for p in parts)] = value
        sizes = theirs["i", "count"].to_numpy()
        for label, size in zip(list(reference), sizes, strict=True):
            value = reference[label]
            if (name == "sum" and size == 0) or pd.isna(value):
                reference[label] = None  # in cuDF the sum of nothing is null
            elif name in ("count", "max", "sum", "nunique"):
                reference[label] = int(value)
        assert_equal(by_key(ours[column, name], n), reference, rtol=1e-9)


@pytest.mark.parametrize("npartitions", [1, 5])
def test_whole_groups_of_unobserved_categories(npartitions: int) -> None:
    """Of values without nulls: a group is empty because no row has its category."""
    grouped = collection(npartitions).groupby("c", observed=False)
    ours = grouped.agg({"i": ["median", "nunique", "list"]}).compute()
    groups = groups_of(arrow(), ["s"], "i") | {("never",): []}
    assert_equal(by_key(ours["i", "median"]), expected(groups, lambda v: float(np.median(v))))
    assert_equal(by_key(ours["i", "nunique"]), {k: len(set(v)) for k, v in groups.items()})
    lists = by_key(ours["i", "list"])
    assert {k: v or [] for k, v in lists.items()} == groups


def test_unobserved_categories_have_no_label() -> None:
    with pytest.raises(ValueError, match="all NA"):
        collection(2).groupby("c", observed=False).i.idxmin().compute()


def test_ddof() -> None:
    ddf = collection(4)
    pdf = arrow().select(["k", "x"]).to_pandas()
    for ddof in (0, 2):
        ours = ddf.groupby("k").agg({"x": functools.partial(np.var, ddof=ddof)}).compute()
        theirs = {(k,): v for k, v in pdf.groupby("k").x.var(ddof=ddof).items()}
        assert_equal(by_key(ours["x"]), theirs, rtol=1e-6)
        assert_equal(by_key(ddf.groupby("k").x.std(ddof=ddof).compute()),
                     {k: v**0.5 for k, v in theirs.items()}, rtol=1e-6)  # fmt: skip


@pytest.mark.parametrize("name", ["var", "std", "sem"])
def test_the_input_is_left_alone(name: str) -> None:
    ddf = collection(3)[["k", "x", "d64"]].persist()
    before = ddf.compute()
    ddf.groupby("k").agg({"x": name, "d64": name}).compute()
    after = ddf.compute()
    assert list(after.columns) == list(before.columns)
    assert after.to_arrow().equals(before.to_arrow())
