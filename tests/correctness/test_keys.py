"""Keys: nulls, signed zeros, categories, every dtype, and every way to write them."""

from decimal import Decimal
from itertools import pairwise
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask.dataframe.utils import clear_known_categories

import dask_gpuagg
from tests.comparison import assert_same, compare, keys_of
from tests.data import KEYS, ROWS, arrow, in_pieces, partitioned

pytestmark = pytest.mark.usefixtures("plugin", "synchronous")

_rng = np.random.default_rng(8)
_x = pd.Series(_rng.normal(size=ROWS)).mask(_rng.random(ROWS) < 0.2)
_y = pd.Series(_rng.integers(0, 5, ROWS))
_j = pd.Series(_rng.integers(0, 3, ROWS)).astype("float64").mask(_rng.random(ROWS) < 0.1)
SPEC = {"x": ["sum", "mean", "var", "first", "nunique", "min"], "y": ["sum", "median", "size"]}
CATEGORICAL = [name for name in KEYS if "category" in name]


def frame(key: str) -> pd.DataFrame:
    return pd.DataFrame({"k": KEYS[key], "j": _j, "x": _x, "y": _y})


@pytest.mark.parametrize(
    ("by", "dropna", "options"),
    [("k", True, {"split_out": 3}), ("k", False, {}), (["k", "j"], False, {"split_out": 3})],
    ids=str,
)
@pytest.mark.parametrize("key", KEYS)
def test_agg(key: str, by: Any, dropna: bool, options: dict[str, Any]):
    data = partitioned(frame(key), 4)
    compare(lambda f, **o: f.groupby(by, dropna=dropna).agg(SPEC, **o), data, options=options)


@pytest.mark.parametrize(
    ("by", "dropna", "split_out"), [("k", True, 1), (["k", "j"], False, 3)], ids=str
)
@pytest.mark.parametrize("key", KEYS)
def test_sort(key: str, dropna: bool, by: Any, split_out: int):
    spec, data = {"x": ["sum", "nunique"], "y": "median"}, partitioned(frame(key), 4)
    compare(
        lambda f, **o: f.groupby(by, dropna=dropna, sort=True).agg(spec, **o),
        data,
        options={"split_out": split_out},
        ordered=True,
    )


@pytest.mark.parametrize("by", ["k", ["j", "k"]], ids=str)
@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("key", CATEGORICAL)
def test_categories(key: str, observed: bool, dropna: bool, by: Any):
    flags, data = {"observed": observed, "dropna": dropna}, partitioned(frame(key), 4)
    options = {"split_out": 1 if observed == dropna else 3}
    compare(lambda f, **o: f.groupby(by, **flags).agg(SPEC, **o), data, options=options)


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("split_out", [1, 3])
def test_null_is_a_level(split_out: int, observed: bool):
    keys = pd.Series([None, "b", "a", "b", None, "a"], dtype=pd.CategoricalDtype(["a", "b", "c"]))
    data = pd.DataFrame({"k": keys, "j": keys.shift(2), "x": range(6)})
    flags, spec = {"observed": observed, "dropna": False}, ["sum", "var"]
    ddf, options = partitioned(data, 3), {"split_out": split_out}
    for by in (["k", "j"], ["k", "x"]):
        compare(lambda f, by=by, **o: f.groupby(by, **flags).x.agg(spec, **o), ddf, options=options)


@pytest.mark.parametrize("dtype", ["float64", "str", "category"])
def test_value_counts_with_null_keys_and_values(dtype: str):
    data = pd.DataFrame({"k": KEYS["float64"], "x": KEYS[dtype].sort_values().to_numpy()})
    compare(lambda f: f.groupby("k")["x"].value_counts(), partitioned(data, 7))


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("split_out", [1, 3])
@pytest.mark.parametrize("dropna", [True, False])
def test_other_categories_in_every_partition(dropna: bool, split_out: int, observed: bool):
    data = frame("category")
    cuts = [0, 10, 40, 41, 80, ROWS]
    pieces = [data.iloc[a:b] for a, b in pairwise(cuts)]
    pieces = [p.assign(k=p["k"].cat.remove_unused_categories()) for p in pieces]
    ddf = in_pieces(pieces, clear_known_categories(data.iloc[:0]))
    flags, options = {"observed": observed, "dropna": dropna}, {"split_out": split_out}
    compare(lambda f, **o: f.groupby("k", **flags).agg(SPEC, **o), ddf, options=options)


@pytest.mark.parametrize(("npartitions", "split_out"), [(1, 1), (3, 2)])
@pytest.mark.parametrize("dtype", ["float64", "Float64", "float[pyarrow]"])
def test_signed_zeros_beside_another_key(dtype: str, split_out: int, npartitions: int):
    zeros = pd.Series([0.0, -0.0, None, 1.5, -0.0, 0.0], dtype="float64").astype(dtype)
    data = pd.DataFrame({"k": zeros, "j": [1, 2, 1, 2, 2, 3], "x": range(6)})
    groups = partitioned(data, npartitions).groupby(["k", "j"])
    result = groups["x"].sum(split_out=split_out).compute()
    assert sorted(result.items()) == [((0.0, 1), 0), ((0.0, 2), 5), ((0.0, 3), 5), ((1.5, 2), 3)]
    assert result.index.levels[0].dtype == dtype


def test_float16_keys_are_refused_as_in_pandas():
    data = pd.DataFrame({"k": np.array([0, 1, 0], "float16"), "x": [1, 2, 3]})
    with pytest.raises(NotImplementedError):
        data.groupby("k")["x"].sum()
    with pytest.raises(NotImplementedError):
        partitioned(data, 2).groupby("k")["x"].sum().compute()


WAYS = {
    "one label in a list": lambda f: ["y"],
    "series": lambda f: f["y"],
    "computed series": lambda f: f["y"] % 2,
    "boolean series": lambda f: f["x"] > 0,
    "two series": lambda f: [f["y"] % 2, f["j"] + 1],
    "two series of one name": lambda f: [f["y"] % 2, f["y"] % 3],
    "label and series": lambda f: ["j", f["y"] % 2],
    "index": lambda f: f.index,
    "callable": lambda f: _third,
    "callable and label": lambda f: [_third, "y"],
    "renamed series": lambda f: f["y"].rename("x"),
}


def _third(label: int) -> int:
    return label % 3


@pytest.mark.parametrize("split_out", [None, 3])
@pytest.mark.parametrize("way", WAYS)
def test_ways_to_write_a_key(way: str, split_out: int | None):
    make, data, options = WAYS[way], partitioned(frame("int64"), 7), {"split_out": split_out}
    single = {"x": ["sum", "nunique", "median"]}
    compare(lambda f, **o: f.groupby(make(f)).agg(single, **o), data, options=options)
    compare(lambda f, **o: f.groupby(make(f))["x"].mean(**o), data, options=options)
    compare(lambda f, **o: f.groupby(make(f)).size(**o), data, options=options)


@pytest.mark.parametrize("name", ["sum", "first", "size"])
def test_series_grouped_by_series(name: str):
    data = partitioned(frame("int64"), 7)
    compare(lambda f: getattr(f["x"].groupby(f["y"]), name)(), data)
    compare(lambda f: getattr(f["y"].groupby(f["y"]), name)(), data)
    compare(lambda f: f["x"].groupby([f["y"], f["j"]]).agg(["sum", "nunique"]), data)


@pytest.mark.parametrize("split_out", [None, 3])
def test_the_key_is_aggregated(split_out: int | None):
    data, options = partitioned(frame("int64"), 7), {"split_out": split_out}
    spec = {"y": ["sum", "nunique", "first"], "x": ["count"]}
    compare(lambda f, **o: f.groupby("y").agg(spec, **o), data, options=options)
    compare(lambda f, **o: f.groupby("y")["y"].sum(**o), data, options=options)
    compare(lambda f, **o: f.groupby("y")["y"].agg("nunique", **o), data, options=options)


@pytest.mark.parametrize("split_out", [1, 3])
@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("nulls", [True, False])
def test_categories_meet_the_combinations_that_occur(nulls: bool, dropna: bool, split_out: int):
    """(1, 1) never occurs in the plain keys, so no category is combined with it."""
    one = None if nulls else 1.0
    data = pd.DataFrame(
        {
            "c": pd.Categorical([None, "a", "a", "b", "a"], categories=["a", "b", "x"]),
            "p": [0.0, one, one, 0.0, 2.0],
            "q": [0.0, 0.0, 0.0, one, 2.0],
            "y": range(5),
        }
    )
    by, spec = ["p", "c", "q"], {"y": ["sum", "count"]}
    flags, options = {"observed": False, "dropna": dropna}, {"split_out": split_out}
    ddf = partitioned(data, 2)
    compare(lambda f, **o: f.groupby(by, **flags).agg(spec, **o), ddf, options=options)


@pytest.mark.parametrize("split_out", [1, 3])
@pytest.mark.parametrize("by", ["c", ["c", "p"], ["p", "c"]], ids=str)
@pytest.mark.parametrize("name", ["cov", "corr"])
def test_matrices_of_groups_that_no_row_has(name: str, by: Any, split_out: int):
    data = pd.DataFrame(
        {
            "c": pd.Categorical([*"abacab", None, "a"], categories=list("dabcz")),
            "p": [0, 1, 0, 1, 2, 0, 1, 2],
            "x": [1.0, None, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
            "y": [1.0, 4.0, 2.0, 8.0, 5.0, 7.0, 1.0, 2.0],
        }
    )
    compare(
        lambda f, **o: getattr(f.groupby(by, observed=False)[["x", "y"]], name)(**o),
        partitioned(data, 3),
        options={"split_out": split_out},
    )


def test_a_matrix_under_a_null_key():
    """pandas makes the matrices of all levels, and then fails at the null one."""
    data = pd.DataFrame(
        {
            "c": pd.Categorical(["a", None, "a"], categories=["a", "z"]),
            "p": [0, 0, 0],
            "x": [1.0, 2.0, 4.0],
        }
    )
    lazy = partitioned(data, 2).groupby(["c", "p"], observed=False, dropna=False)[["x"]].cov()
    assert keys_of(lazy.compute().index) == [("a", 0, "x"), (None, 0, "x"), ("z", 0, "x")]


JOINED = {
    "date32": pd.Series(pd.date_range("2020", periods=ROWS // 6)).astype(arrow(pa.date32())),
    "bool[pyarrow]": pd.Series([True, False], dtype="bool[pyarrow]"),
    "period": pd.Series(pd.period_range("2020", periods=ROWS // 6)),
    "decimal": pd.Series([Decimal(i) for i in range(ROWS // 6)], dtype=arrow(pa.decimal128(9, 3))),
    "int64": pd.Series(range(ROWS // 6)),
    "str": pd.Series([f"key{i}" for i in range(ROWS // 6)], dtype="str"),
}


@pytest.mark.parametrize("key", JOINED)
def test_a_merge_after_an_exchange_finds_its_partners(key: str):
    """Dask shuffles only the other side of a merge where it takes the groups for shuffled."""
    right = pd.DataFrame({"k": JOINED[key], "w": range(len(JOINED[key]))})
    left = right.sample(ROWS, replace=True, random_state=1).assign(v=1)[["k", "v"]]
    groups = partitioned(left.reset_index(drop=True), 5).groupby("k").v.sum(split_out=4)
    merged = groups.reset_index().merge(
        partitioned(right, 4), on="k", broadcast=False, shuffle_method="tasks"
    )
    assert len(merged.compute()) == left.k.nunique()


@pytest.mark.parametrize("options", [{}, {"split_out": 2, "shuffle_method": "tasks"}])
def test_value_counts_has_the_categories_of_partitions_without_groups(options: dict[str, Any]):
    """Whether or not pieces of partials travel: one without rows may hold a category."""
    pieces = [
        pd.DataFrame({"k": [np.nan], "x": pd.Categorical([None], categories=["a"])}),
        pd.DataFrame({"k": [1.0], "x": pd.Categorical(["b"])}),
    ]
    got = in_pieces(pieces).groupby("k").x.value_counts(**options).compute()
    assert sorted(got.items()) == [((1.0, "a"), 0), ((1.0, "b"), 1)]


@pytest.mark.parametrize("options", [{}, {"split_out": 2}])
def test_value_counts_with_observed_false_of_plain_keys(options: dict[str, Any]):
    """There is no category to add, so the plan has them; the fixture makes a fallback an error."""
    ddf = partitioned(pd.DataFrame({"k": [1, 2, 1, 3] * 3, "x": [5, 6, 5, 7, 8, 6] * 2}), 3)
    compare(lambda f, **o: f.groupby("k", observed=False).x.value_counts(**o), ddf, options=options)


@pytest.mark.parametrize("options", [{}, {"split_out": 2, "shuffle_method": "tasks"}])
def test_value_counts_of_categories_where_text_was_promised(options: dict[str, Any]):
    pieces = [
        pd.DataFrame({"k": keys, "x": pd.Categorical([None, None], categories=["a"])})
        for keys in ([None, None], [1.0, 2.0])
    ]
    meta = pieces[0].iloc[:0].astype({"x": "str"})
    got = in_pieces(pieces, meta).groupby("k").x.value_counts(**options).compute()
    assert sorted(got.items()) == [((1.0, "a"), 0), ((2.0, "a"), 0)]


@pytest.mark.parametrize("options", [{}, {"split_out": 2, "shuffle_method": "tasks"}])
def test_sorted_groups_of_several_outputs_have_the_order_of_all_categories(options: dict[str, Any]):
    """The order of partitions' categories, whatever output a category's only group goes to."""
    pieces = [
        pd.DataFrame({"k": pd.Categorical(list(values), categories=list(values)), "x": 1.0})
        for values in ("db", "ac", "e")
    ]
    groups = in_pieces(pieces).groupby("k", sort=True)
    got = groups.agg({"x": ["sum", "median"]}, **options).compute()
    assert got.index.tolist() == list("dbace")


def test_every_output_of_text_has_the_promised_categories():
    """Outputs that are not gathered are partitions of the result, which says that it has them."""
    pieces = [
        pd.DataFrame({"k": pd.Series(list(keys), dtype="str"), "x": [1.0, 2.0]})
        for keys in ("ab", "cd", "ef")
    ]
    meta = pieces[0].iloc[:0].astype({"k": "category"})
    query = in_pieces(pieces, meta).groupby("k").x.median(split_out=2)
    assert query.npartitions == 2
    parts = dask.compute(*query.to_delayed())
    assert all(isinstance(part.index.dtype, pd.CategoricalDtype) for part in parts)
    assert sorted(label for part in parts for label in part.index) == list("abcdef")


@pytest.mark.parametrize("options", [{}, {"split_out": 2, "shuffle_method": "tasks"}])
@pytest.mark.parametrize(
    ("promised", "found"),
    [("datetime64[us, UTC]", "datetime64[us, UTC]"), ("int64[pyarrow]", "int64[pyarrow]"),
     ("int64", "float64"), ("bool", "float64")],
)  # fmt: skip
def test_keys_without_a_value_have_the_promised_dtype_if_it_holds_null(
    promised: str, found: str, options: dict[str, Any]
):
    pieces = [
        pd.DataFrame({"j": [j, j + 1], "k": pd.Series([None, None], dtype=held), "x": 1})
        for j, held in ((0, "object"), (2, "float64"))
    ]
    meta = pieces[0].iloc[:0].astype({"k": promised})
    got = in_pieces(pieces, meta).groupby(["j", "k"], dropna=False).x.sum(**options).compute()
    assert got.index.get_level_values("k").dtype == found
    assert got.droplevel("k").to_dict() == {0: 1, 1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("split_out", [1, 2])
def test_value_counts_of_text_without_values_has_no_categories(split_out: int):
    """Categories were promised, of which the partitions hold none."""
    empty = pd.DataFrame({"k": [1, 1, 2], "c": pd.Series([None] * 3, dtype="str")})
    promised = empty.iloc[:0].astype({"c": pd.CategoricalDtype(["a", "b"])})
    frame = dd.from_map(lambda _: empty, range(2), meta=promised, enforce_metadata=False)
    with dask_gpuagg.enabled():
        result = frame.groupby("k").c.value_counts(split_out=split_out).compute()
    assert len(result) == len(empty.groupby("k").c.value_counts()) == 0


@pytest.mark.parametrize(
    ("others", "by"), [(1, "a"), (10, "b")], ids=["by the left key", "by the right key"]
)
@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
def test_groups_of_merged_rows(others: int, how: str, by: str):
    """Dask takes all of them for partitioned by both keys: also where it sends one side to all
    partitions of the other, and where rows without a partner have a null key.
    """
    left = pd.DataFrame({"a": np.arange(60) % 11, "x": np.arange(60.0)})
    right = pd.DataFrame({"b": np.arange(0, 22, 2), "y": np.arange(11)})
    merged = left.merge(right, left_on="a", right_on="b", how=how)
    data = partitioned(left, 20).merge(
        partitioned(right, others), left_on="a", right_on="b", how=how
    )
    for dropna in (True, False):
        grouped, expected = data.groupby(by, dropna=dropna), merged.groupby(by, dropna=dropna)
        assert_same(grouped.x.sum(split_out=3).compute(), expected.x.sum())
        assert_same(grouped.x.median().compute(), expected.x.median())


@pytest.mark.parametrize("by", ["k", ["k", "x"], ["x", "k"]], ids=str)
def test_a_key_in_a_dictionary_of_arrow_stays_in_it(by: Any):
    kind = arrow(pa.dictionary(pa.int32(), pa.string()))
    keys = pd.Series(["a", "b", None, "a"] * 3, dtype=kind)
    data = partitioned(pd.DataFrame({"k": keys, "x": [1, 2, 3, 1] * 3, "y": range(12)}), 3)
    for dropna in (True, False):
        got = compare(lambda f, dropna=dropna: f.groupby(by, dropna=dropna).y.sum(), data)
        assert got.index.get_level_values("k").dtype == kind


@pytest.mark.parametrize("values", ["bool[pyarrow]", "int64[pyarrow]", "string[pyarrow]"])
def test_lists_of_arrows_values_by_a_key_in_a_dictionary(values: str):
    """Dask's sample rows have no such key, so metadata of no group has the dtype of the values."""
    kind = arrow(pa.dictionary(pa.int32(), pa.string()))
    keys = pd.Series(["a", "b", "a", "b"], dtype=kind)
    data = pd.DataFrame({"k": keys, "x": pd.Series([1, 0, 1, 1], dtype="int64[pyarrow]")})
    data["x"] = data["x"].astype(values)
    got = partitioned(data, 2).groupby("k").agg({"x": [list, "count"]}).compute()
    expected = {k: v.tolist() for k, v in data.x.groupby(keys.astype("str"))}
    assert got[("x", "list")].to_dict() == expected
