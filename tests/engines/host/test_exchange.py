"""The hash that brings equal keys to one output, whatever their partition holds them in."""

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask.dataframe.shuffle import partitioning_index
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.engines.host.exchange import bucket_of
from tests.data import KEYS, VALUES

MANY = 1009


def places(values: Any, promised: Any) -> list[int]:
    return bucket_of([pd.Series(values).array], [promised], MANY).tolist()


def arrow(dtype: pa.DataType) -> pd.ArrowDtype:
    return pd.ArrowDtype(dtype)


def test_within_range_and_the_same_in_any_order():
    keys = [np.arange(1000), np.array(["a", "b"] * 500, dtype=object)]
    dtypes = [np.dtype("int64"), np.dtype(object)]
    buckets = bucket_of(keys, dtypes, 7)
    assert set(buckets.tolist()) == set(range(7))
    assert (bucket_of([k[::-1] for k in keys], dtypes, 7)[::-1] == buckets).all()


def test_spread_evenly():
    counts = np.bincount(bucket_of([np.arange(70_000)], [np.dtype("int64")], 7))
    assert counts.max() < 1.1 * counts.min()


# dtypes that Dask hashes by value and without regard to what else there is
PLAIN = [
    name
    for name in KEYS
    if not name.startswith(("date", "time", "duration", "decimal", "period", "binary", "bool"))
    or name in ("datetime64[us]", "datetime64[s]", "timedelta64[ns]", "bool")
]


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("nulls", [False, True])
def test_as_promised_it_is_dasks_own(name: str, nulls: bool):
    """A merge after the group-by relies on it: it shuffles only the other side."""
    key = KEYS[name] if nulls else KEYS[name].dropna()
    if key.dtype.kind == "f":
        key = key + 0.0  # Dask's hash tells -0.0 from 0.0
    theirs = partitioning_index(key.to_frame(), MANY, cast_dtype="float64")
    assert places(key, key.dtype) == theirs.tolist()


TEXTS = {
    "of one length": [f"id{i % 700:03d}" for i in range(60_000)],
    "of many bits": [f"{i * 2654435761 % 2**32:032b}" for i in range(3_000)],
    "of several lengths": ["x" * (i % 7) + str(i % 900) for i in range(60_000)],
    "long": ["long " * 20 + str(i % 11) for i in range(3_000)],
}


@pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("dtype", ["str", "string[pyarrow]", "string[python]"])
@pytest.mark.parametrize("first", [None, ""])
def test_repeated_text_has_the_hash_of_each_row(texts: list[str], dtype: str, first: str | None):
    texts = [first, *texts, first]
    theirs = partitioning_index(pd.DataFrame({"k": pd.Series(texts, dtype=dtype)}), MANY)
    assert places(pd.array(texts, dtype=dtype), pd.Series(texts, dtype=dtype).dtype) == list(theirs)


def test_of_several_keys_it_is_dasks_own():
    frame = pd.DataFrame({"a": KEYS["int64"], "b": KEYS["str"], "c": KEYS["datetime64[us]"]})
    # a column of text keeps Dask from casting the numbers
    theirs = partitioning_index(frame.astype({"a": "float64"}), MANY)
    ours = bucket_of([frame[c].array for c in frame], list(frame.dtypes), MANY)
    assert ours.tolist() == theirs.tolist()


# ways in which partitions hold the same keys; the first is as the metadata promises
WAYS: dict[str, list[pd.Series]] = {
    "int64": [
        pd.Series([0, 1, 5]),
        pd.Series([0, 1, 5], dtype="int8"),
        pd.Series([0.0, 1, 5]),
        pd.Series([-0.0, 1, 5], dtype="float32"),
        pd.Series([0, 1, 5], dtype="UInt16"),
        pd.Series([0, 1, 5], dtype="double[pyarrow]"),
        pd.Series([False, True, 5], dtype=object),
        pd.Series([Decimal("0.0"), Decimal("1.00"), 5.0], dtype=object),
        pd.Series([Decimal("0"), Decimal("1"), Decimal("5")], dtype=arrow(pa.decimal128(9, 3))),
        pd.Series([0, 1, 5], dtype="category"),
    ],
    "bool": [
        pd.Series([True, False]),
        pd.Series([True, False], dtype="boolean"),
        pd.Series([True, False], dtype="bool[pyarrow]"),
        pd.Series([1.0, 0.0]),
        pd.Series([True, False], dtype=object),
        pd.Series([np.True_, np.False_], dtype=object),
    ],
    "decimal": [
        pd.Series([Decimal("0.10"), Decimal("2.00")], dtype=arrow(pa.decimal128(12, 2))),
        pd.Series([Decimal("0.100"), Decimal("2.000")], dtype=arrow(pa.decimal128(38, 3))),
        pd.Series([Decimal("0.1"), Decimal("2")], dtype=object),
    ],
    "str": [
        pd.Series(["a", "bc"], dtype="str"),
        pd.Series(["a", "bc"], dtype=object),
        pd.Series(["a", "bc"], dtype="string"),
        pd.Series(["a", "bc"], dtype=arrow(pa.string())),
        pd.Series(["a", "bc"], dtype="category"),
    ],
    "object": [
        pd.Series([1, 2.5, "x"], dtype=object),
        pd.Series([1.0, Decimal("2.50"), "x"], dtype=object),
        pd.Series([True, 2.5, "x"], dtype=object),
    ],
    "datetime": [
        pd.Series(pd.to_datetime(["1960-01-02", "2020-05-06"])).astype("datetime64[us]"),
        pd.Series(pd.to_datetime(["1960-01-02", "2020-05-06"])).astype("datetime64[s]"),
        pd.Series(pd.to_datetime(["1960-01-02", "2020-05-06"])).astype("datetime64[ns]"),
        pd.Series([pd.Timestamp("1960-01-02"), datetime.datetime(2020, 5, 6)], dtype=object),
        pd.Series(pd.to_datetime(["1960-01-02", "2020-05-06"])).astype(arrow(pa.timestamp("ms"))),
    ],
    "date": [
        pd.Series([datetime.date(1960, 1, 2), None], dtype=arrow(pa.date32())),
        pd.Series([datetime.date(1960, 1, 2), None], dtype=arrow(pa.date64())),
        pd.Series([datetime.date(1960, 1, 2), None], dtype=object),
    ],
    "category": [
        pd.Series(pd.Categorical(["a", "b"], categories=["a", "b"])),
        pd.Series(pd.Categorical(["a", "b"], categories=["b", "c", "a"])),
        pd.Series(["a", "b"], dtype="str"),
    ],
}


@pytest.mark.parametrize("kind", WAYS)
def test_equal_keys_go_together(kind: str):
    promised, *others = WAYS[kind]
    expected = places(promised, promised.dtype)
    assert len(set(expected)) == len(expected)  # they are hashed, not all put in one place
    for other in others:
        assert places(other, promised.dtype) == expected, other.dtype


@pytest.mark.parametrize("name", [*KEYS, *(n for n in VALUES if n not in KEYS)])
def test_the_rest_of_the_partition_does_not_matter(name: str):
    column = (KEYS | VALUES)[name]
    alone = [places(column.iloc[[i]], column.dtype)[0] for i in range(40)]
    assert alone == places(column.iloc[:40], column.dtype)


@given(
    st.lists(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
        | st.decimals(allow_nan=False, allow_infinity=False) | st.dates() | st.binary(max_size=3),
        max_size=8,
    ),
    st.sampled_from(["int64", "float64", "str", "object", "category", "datetime64[ns]"]),
)  # fmt: skip
def test_any_objects_under_any_promise(values: list[Any], promised: str):
    dtype = pd.Series([], dtype=promised).dtype
    got = places(pd.Series(values, dtype=object), dtype)
    for i, a in enumerate(values):
        for j, b in enumerate(values):
            assert a != b or got[i] == got[j], (a, b)


def test_objects_that_cannot_be_compared_by_text_share_an_output():
    class Box:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Box)

        def __hash__(self) -> int:
            return 1

    for equal in ([Box(), Box()], [(1, "a"), (1.0, "a")]):
        assert len(set(places(pd.Series(equal, dtype=object), np.dtype(object)))) == 1
