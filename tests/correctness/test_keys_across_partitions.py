"""One key is one group, whatever else the partitions hold that it lies in."""

from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.comparison import assert_same, keys_of
from tests.data import KEYS, in_pieces
from tests.judging import together

pytestmark = pytest.mark.usefixtures("plugin", "synchronous")

QUERIES: dict[str, Callable[..., Any]] = {
    "partials": lambda f, **o: f.groupby("k", **o.pop("flags")).agg({"x": ["count", "sum"]}, **o),
    "method": lambda f, **o: f.groupby("k", **o.pop("flags")).x.max(**o),
    "distinct": lambda f, **o: f.groupby("k", **o.pop("flags")).x.nunique(**o),
    "rows": lambda f, **o: f.groupby("k", **o.pop("flags")).agg({"x": ["median", list]}, **o),
    "two keys": lambda f, **o: f.groupby(["j", "k"], **o.pop("flags")).agg({"x": ["sum"]}, **o),
}
PLANS: dict[str, dict[str, Any]] = {
    "tree": {"split_out": 1, "split_every": 2},
    "exchange": {"split_out": 2, "shuffle_method": "tasks"},
    "disk": {"split_out": 3, "shuffle_method": "disk"},
}
EXAMPLES = settings(max_examples=max(settings.default.max_examples // 20, 1))


def with_nulls(key: pd.Series, null: np.ndarray) -> pd.Series:
    """The key with nulls: integers become floats, as readers have it, flags and wide ones objects.

    Floats would round integers beyond 53 bits.
    """
    if key.dtype in ("bool", "uint64"):
        return key.astype(object).where(~null, None)
    return key.mask(null)


@pytest.mark.parametrize("key", KEYS)
@EXAMPLES
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.sampled_from([3, 1, 0, 5]), min_size=2, max_size=4),
    holed=st.integers(0, 3),
    query=st.sampled_from(sorted(QUERIES)),
    dropna=st.booleans(),
)
# the two partitions of the issue: [True, None, False] and [True, True, False]
@example(seed=0, sizes=[3, 3], holed=0, query="rows", dropna=False)
@example(seed=0, sizes=[3, 3], holed=1, query="partials", dropna=False)
def test_nulls_in_one_partition(
    key: str, seed: int, sizes: list[int], holed: int, query: str, dropna: bool
):
    # beside a null pandas makes floats of wide keys, of which two may be one
    dropna = dropna or key == "uint64"
    rng = np.random.default_rng(seed)
    values = KEYS[key].dropna().drop_duplicates()
    pieces = []
    for number, size in enumerate(sizes):
        column = values.iloc[rng.integers(0, len(values), size)].reset_index(drop=True)
        if number == holed % len(sizes):
            column = with_nulls(column, rng.random(size) < 0.4)
        numbers = pd.DataFrame({"j": rng.integers(0, 2, size), "x": rng.integers(-4, 5, size)})
        pieces.append(numbers.assign(k=column))
    meta = pieces[0].iloc[:0].assign(k=values.iloc[:0])
    flags = {"dropna": dropna, "observed": True}
    want = QUERIES[query](together(pieces), flags=flags)
    for options in PLANS.values():
        got = QUERIES[query](as_they_are(pieces, meta), flags=flags, **options).compute()
        assert_same(got, want)


# objects that are equal, and have one hash
SPELLINGS: dict[str, list[Any]] = {
    "one": [1, 1.0, True],
    "decimals": [Decimal("1.0"), Decimal("1.00"), Decimal("2"), Decimal("2.000")],
    "zeros": [0.0, -0.0, 0, False],
    "numbers": [2, 2.0, Decimal("2.0"), 1, True, Decimal("1.00"), 0.5, Decimal("0.50")],
    "numbers and text": [1, 1.0, "a", "1", True, -0.0, 0],
    "tuples": [(1, 2.0), (1.0, 2), (True, 2), (2, 1)],
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@EXAMPLES
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.sampled_from([3, 1, 0, 5]), min_size=2, max_size=4),
    nulls=st.booleans(),
    dropna=st.booleans(),
)
def test_equal_objects_are_one_group(
    spelling: str, seed: int, sizes: list[int], nulls: bool, dropna: bool
):
    rng = np.random.default_rng(seed)
    pool = [*SPELLINGS[spelling], *([None] if nulls else [])]
    keys = [[pool[i] for i in rng.integers(0, len(pool), size)] for size in sizes]
    pieces = [
        pd.DataFrame({"k": pd.Series(some, dtype=object), "x": pd.Series(1, range(len(some)))})
        for some in keys
    ]
    want = Counter(key for some in keys for key in some if key is not None or not dropna)
    meta = pd.DataFrame({"k": pd.Series([], dtype=object), "x": pd.Series([], dtype="int64")})
    for options in PLANS.values():
        for names in (["count"], ["count", "median"]):
            groups = as_they_are(pieces, meta).groupby("k", dropna=dropna)
            got = groups.agg({"x": names}, **options).compute()
            found = [key for (key,) in keys_of(got.index)]
            assert len(found) == len(set(found)), f"groups {found}"
            assert dict(zip(found, got.iloc[:, 0], strict=True)) == dict(want)


# dtypes that partitions may hold one number in; flags are Python's truths
FORMS = (
    *("int64", "int8", "uint64", "float64", "float32", "bool", "object", "flags"),
    *("Int64", "Float64", "int64[pyarrow]", "double[pyarrow]"),
)


def held_as(form: str, values: list[int]) -> pd.Series:
    if form == "flags":
        return pd.Series(list(map(bool, values)), dtype=object)
    return pd.Series(values, dtype=form)


@pytest.mark.parametrize("promised", FORMS)
@EXAMPLES
@given(forms=st.lists(st.sampled_from(FORMS), min_size=2, max_size=4))
def test_equal_numbers_of_several_dtypes_are_one_group(promised: str, forms: list[str]):
    pieces = [pd.DataFrame({"k": held_as(form, [0, 1, 1]), "x": [1, 2, 4]}) for form in forms]
    meta = pd.DataFrame({"k": held_as(promised, []), "x": pd.Series([], dtype="int64")})
    for options in PLANS.values():
        for names in (["sum"], ["sum", "median"]):
            got = as_they_are(pieces, meta).groupby("k").agg({"x": names}, **options).compute()
            sums = dict(zip(got.index, got.iloc[:, 0], strict=True))
            assert len(got) == 2, f"groups {list(got.index)}"
            assert sums == {0: len(forms), 1: 6 * len(forms)}


@pytest.mark.parametrize("plan", ["tree", "exchange"])
@pytest.mark.parametrize("query", ["partials", "distinct", "rows", "two keys"])
@pytest.mark.parametrize("promised", ["int64", "int8", "Int64", "int64[pyarrow]", "bool"])
def test_a_partition_of_null_keys_has_no_dtype(promised: str, query: str, plan: str):
    """Its rows leave; floats, which hold the nulls, would make floats of the other keys."""
    pieces = [
        pd.DataFrame({"j": 1, "k": pd.Series([0, 1, 1]).astype(promised), "x": [1, 2, 4]}),
        pd.DataFrame({"j": 1, "k": [np.nan, np.nan], "x": [3, 3]}),
        pd.DataFrame({"j": 1, "k": pd.Series([np.nan], dtype="float32"), "x": [3]}),
        pd.DataFrame({"j": 1, "k": pd.Series([None], dtype=object), "x": [3]}),
    ]
    frame = as_they_are(pieces, pieces[0].iloc[:0])
    got = QUERIES[query](frame, flags={}, **PLANS[plan]).compute()
    assert got.index.get_level_values("k").dtype == promised
    assert sorted(got.index.get_level_values("k")) == [0, 1]


def as_they_are(pieces: list[pd.DataFrame], meta: pd.DataFrame) -> Any:
    """The partitions under this metadata, none of them converted to what it says."""
    with dask.config.set({"dataframe.convert-string": False}):
        return in_pieces(pieces, meta)


@pytest.mark.parametrize("name", ["unique", "max"])
def test_categories_beside_text_are_what_the_result_promises(name: str):
    """Dask's metadata of ``unique`` has no categories, that of other methods has them."""
    pieces = [
        pd.DataFrame({"k": pd.Series(["a", "b"], dtype="category"), "x": [1, 2]}),
        pd.DataFrame({"k": pd.Series(["a"], dtype="str"), "x": [3]}),
    ]
    lazy = getattr(as_they_are(pieces, pieces[0].iloc[:0]).groupby("k", observed=True).x, name)()
    assert (lazy.compute().index.dtype == "category") == (lazy._meta.index.dtype == "category")


@pytest.mark.parametrize("filled", [0, 1])
@pytest.mark.parametrize("keys", ["k", ["k", "j"]], ids=["one key", "two keys"])
def test_ordered_categories_of_a_partition_without_rows_may_be_others(keys: Any, filled: int):
    kind, other = (pd.CategoricalDtype(c, ordered=True) for c in (["b", "a"], ["a", "b", "c"]))
    rows = pd.DataFrame({"k": pd.Series(["a", "b"], dtype=kind), "j": 0, "x": [1, 2]})
    none = rows.iloc[:0].astype({"k": other})
    pieces = [rows, none] if filled == 0 else [none, rows]
    got = as_they_are(pieces, none).groupby(keys, observed=True, sort=True).x.sum().compute()
    pd.testing.assert_series_equal(got, rows.groupby(keys, observed=True).x.sum())


def test_keys_of_a_partition_without_rows_have_their_width():
    pieces = [pd.DataFrame({"k": pd.Series(k, dtype="float32"), "x": k}) for k in ([0.5], [])]
    meta = pd.DataFrame({"k": pd.Series([], dtype="float64"), "x": pd.Series([], dtype="float64")})
    assert as_they_are(pieces, meta).groupby("k").x.max().compute().index.dtype == "float32"
