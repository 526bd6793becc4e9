"""Columns of Python objects, of which pandas takes the dtype from the values of each partition."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_gpuagg
from tests.comparison import assert_same
from tests.judging import judge_plans

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
    judge_plans(
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
