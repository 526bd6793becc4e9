"""Columns of Python objects, of which pandas takes the dtype from the values of each partition."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_gpuagg
from tests.comparison import assert_same
from tests.data import in_pieces
from tests.judging import judge

pytestmark = pytest.mark.usefixtures("synchronous", "unconverted")


@pytest.fixture(scope="module")
def unconverted() -> Iterator[None]:
    """Python objects are not made strings when a collection is made."""
    with dask.config.set({"dataframe.convert-string": False}):
        yield


KINDS = {
    "timedelta": [pd.Timedelta(1, "s"), pd.Timedelta(3, "ms")],
    "timestamp": [pd.Timestamp("2020"), pd.Timestamp("2021-02-03")],
    "period": [pd.Period("2020-01"), pd.Period("2021-02")],
    "interval": [pd.Interval(0, 1), pd.Interval(1, 2)],
    "decimal": [Decimal("0.5"), Decimal("1.25")],
    "text": ["a", "b"],
}


def objects(values: list[Any]) -> pd.Series:
    return pd.Series(values, dtype=object)


@pytest.mark.parametrize("name", ["first", "last", "min", "max", "count"])
@settings(max_examples=settings.default.max_examples // 3)
@given(data=st.data())
def test_objects_stay_objects(name: str, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    rows = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([*KINDS[kind], None])), max_size=5)
    pieces = [
        pd.DataFrame({"k": [k for k, _ in part], "v": objects([v for _, v in part])}).astype(
            {"k": "int64"}
        )
        for part in data.draw(st.lists(rows, min_size=1, max_size=3))
    ]
    judge(
        lambda frame, **options: frame.groupby("k").agg({"v": [name]}, **options),
        lambda: dd.from_map(lambda i: pieces[i], range(len(pieces)), meta=pieces[0][:0]),
        pieces,
        [{}, {"split_out": 2}],
    )


@pytest.mark.parametrize("kind", ["timedelta", "decimal"])
def test_the_sum_of_a_group_without_values_is_zero(kind: str) -> None:
    one, other = KINDS[kind]
    frame = pd.DataFrame({"k": [1, 2, 2, 3], "v": objects([None, one, other, None])})
    with dask_gpuagg.enabled():
        ddf = dd.from_pandas(frame, npartitions=2, sort=False)
        got = ddf.groupby("k").agg({"v": ["sum"]}).compute()
    expected = frame.groupby("k").agg({"v": ["sum"]})
    assert got.dtypes.tolist() == [np.dtype(object)]
    assert_same(got, expected)
    assert got.loc[1].tolist() == [0]


def promised(pieces: list[pd.DataFrame], **dtypes: str) -> Callable[[], Any]:
    """A collection of these partitions, whose metadata has other dtypes."""
    return lambda: in_pieces(pieces, pieces[0].iloc[:0].astype(dtypes))


def of_groups(*columns: pd.Series) -> list[pd.DataFrame]:
    """One partition for each column ``v`` of three groups."""
    return [pd.DataFrame({"k": [0, 1, 2], "v": column}) for column in columns]


LENGTHS = pd.Series([pd.Timedelta(1, "h"), None, None], dtype="timedelta64[us]")
TWO_PLANS: list[dict[str, Any]] = [{}, {"split_out": 2, "shuffle_method": "tasks"}]


@pytest.mark.parametrize(
    "pieces",
    [
        of_groups(objects([None, pd.Timedelta(2, "h"), None])),
        of_groups(objects([None, pd.Timedelta(2, "h"), None]), LENGTHS),
        of_groups(LENGTHS, objects([None] * 3)),
        of_groups(LENGTHS, pd.Series([np.nan] * 3)),
    ],
    ids=["objects", "beside durations", "no object", "NaN"],
)
@pytest.mark.parametrize("plan", TWO_PLANS, ids=["tree", "exchange"])
def test_durations_that_some_partition_holds_as_objects(
    pieces: list[pd.DataFrame], plan: dict[str, Any]
):
    """They are durations, also in sums, of which pandas makes objects."""
    asked = {"v": ["sum", "max", "mean", "count"]}
    collection = promised(pieces, v="timedelta64[us]")
    with dask_gpuagg.enabled():
        got = collection().groupby("k").agg(asked, **plan).compute().sort_index()
    whole = pd.concat(pieces)
    durations = whole.assign(v=pd.to_timedelta(whole.v).astype("timedelta64[us]"))
    pd.testing.assert_frame_equal(got, durations.groupby("k").agg(asked))


@pytest.mark.parametrize("name", ["first", "last"])
@pytest.mark.parametrize("null", [None, np.nan, pd.NaT])
@pytest.mark.parametrize("plan", TWO_PLANS, ids=["tree", "exchange"])
def test_a_group_without_an_object_has_none(name: str, null: Any, plan: dict[str, Any]):
    pieces = of_groups(objects([null, "a", null]), objects([null, "b", "c"]))
    with dask_gpuagg.enabled():
        query = getattr(promised(pieces)().groupby("k").v, name)(**plan)
        got = query.compute().sort_index()
    want = getattr(pd.concat(pieces).groupby("k").v, name)()
    pd.testing.assert_series_equal(got, want)
    assert got[0] is None


@pytest.mark.parametrize("plan", TWO_PLANS, ids=["tree", "exchange"])
def test_counted_values_of_partitions_without_one(plan: dict[str, Any]):
    nothing = pd.Series([np.nan] * 3, dtype="float32")
    pieces = of_groups(objects([None, None, 1]), nothing)
    collection = promised(pieces, v="int64")
    judge(lambda f, **o: f.groupby("k").v.value_counts(**o), collection, pieces, [plan])
    with dask_gpuagg.enabled():
        got = collection().groupby("k").v.value_counts(**plan).compute()
    assert got.index.get_level_values("v").dtype == "int64"


@pytest.mark.parametrize("plan", TWO_PLANS, ids=["tree", "exchange"])
@pytest.mark.parametrize(
    "held", [pd.Series(["a", "b", "c"], dtype="str"), pd.Series([1, 2, 3], dtype="int64[pyarrow]")]
)
def test_nan_where_nulls_were_promised_makes_no_other_dtype(held: pd.Series, plan: dict[str, Any]):
    pieces = of_groups(pd.Series([np.nan] * 3), held)
    pieces[1]["k"] += 3
    collection = promised(pieces, v=str(held.dtype))
    judge(lambda f, **o: f.groupby("k").v.max(**o), collection, pieces, [plan])
    # of the partition that holds values no row has a group
    pieces[1]["k"] = pieces[1].k.where(pieces[1].k < 0)
    with dask_gpuagg.enabled():
        got = collection().groupby("k").v.max(**plan).compute()
    assert got.dtype == held.dtype
    assert got.isna().tolist() == [True] * 3


def test_text_of_promised_categories_is_sorted_as_text():
    """Outputs of whole rows are joined before they are sorted, each with categories of its own."""
    pieces = [
        pd.DataFrame({"k": pd.Series(list(keys), dtype="str"), "x": 1.0}) for keys in ("bdae", "cb")
    ]
    with dask_gpuagg.enabled():
        groups = promised(pieces, k="category")().groupby("k", sort=True)
        got = groups.agg({"x": ["sum", list]}).compute()
    assert got.index.tolist() == list("abcde")
    assert got.index.dtype == pd.CategoricalDtype(list("abcde"))
