"""Columns as memory that a GPU takes, and back: nothing is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.streaming.columns import (
    CODES,
    FLOAT,
    NAT,
    TEXT,
    TICKS,
    Image,
    image_of,
    is_exact,
    restored,
    restored_text,
)

EXACT = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32",
    "float64", "M8[s]", "M8[ms]", "M8[us]", "M8[ns]", "m8[s]", "m8[ns]",
]  # fmt: skip
BITS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30)


def there_and_back(image: Image, dtype: Any) -> Any:
    """As the device does it: nulls become a mask, and the mask nulls."""
    if image.kind == TEXT:
        return restored_text(image.values.combine_chunks(), dtype)
    values = image.values
    if image.kind == FLOAT:
        valid = ~np.isnan(values)
    elif image.kind == TICKS:
        valid = values != NAT
    elif image.kind == CODES:
        valid = values != -1
    else:
        valid = np.ones(len(values), bool)
    # what lies under a null is anything
    blank = np.where(valid, values, values.dtype.type(0))
    return restored(blank, None if valid.all() else valid, dtype)


@pytest.mark.parametrize("dtype", EXACT)
@given(bits=BITS)
def test_every_bit_pattern_of_numbers_and_times(dtype: str, bits: list[int]) -> None:
    wanted = np.dtype(dtype)
    if wanted.kind == "b":
        values = np.array(bits, "uint64") % 2 == 1
    else:
        values = np.array(bits, "uint64").view(wanted)
    column = pd.Series(values)
    assert is_exact(column.dtype, key=False)
    back = there_and_back(image_of(column), column.dtype)
    pd.testing.assert_series_equal(pd.Series(back), column)


@given(codes=st.lists(st.integers(-1, 2), min_size=1), ordered=st.booleans())
def test_categories(codes: list[int], ordered: bool) -> None:
    made = pd.Categorical.from_codes(codes, categories=["b", "a", "c"], ordered=ordered)
    column = pd.Series(made)
    assert is_exact(column.dtype, key=True)
    assert not is_exact(column.dtype, key=False)
    back = there_and_back(image_of(column), column.dtype)
    pd.testing.assert_series_equal(pd.Series(back), column)


@pytest.mark.parametrize("unit", ["s", "ns"])
def test_times_in_a_zone(unit: str) -> None:
    column = pd.Series(pd.to_datetime(["2024-03-31 01:30", None, "2024-10-27 00:30"], utc=True))
    column = column.dt.tz_convert("Europe/Berlin").dt.as_unit(unit)
    back = there_and_back(image_of(column), column.dtype)
    pd.testing.assert_series_equal(pd.Series(back), column)


@given(st.lists(st.one_of(st.none(), st.text()), min_size=1))
def test_text(values: list[str | None]) -> None:
    column = pd.Series(pd.array(values, dtype=pd.StringDtype("pyarrow", na_value=np.nan)))
    assert is_exact(column.dtype, key=True)
    image = image_of(column)
    back = there_and_back(image, column.dtype)
    pd.testing.assert_series_equal(pd.Series(back), column)
    half = len(column) // 2
    part = restored_text(image.rows(0, half).values.combine_chunks(), column.dtype)
    pd.testing.assert_series_equal(pd.Series(part), column[:half])


def test_columns_of_a_block_are_not_copied_and_rows_of_them_neither() -> None:
    frame = pd.DataFrame(np.arange(20.0).reshape(10, 2), columns=["a", "b"]).copy()
    image = image_of(frame["a"])
    part = image.rows(2, 5)
    assert np.shares_memory(part.values, image.values)
    assert list(part.values) == [4.0, 6.0, 8.0]


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype("O"), np.dtype("f2"), np.dtype(">i8"), np.dtype("M8[D]"), np.dtype("c16"),
        pd.Int64Dtype(), pd.ArrowDtype(pa.int64()), pd.StringDtype("python"), pd.PeriodDtype("D"),
        np.dtype("m8[25s]"),
    ],
)  # fmt: skip
def test_what_is_not_exact(dtype: Any) -> None:
    assert not is_exact(dtype, key=True)


def test_a_null_among_integers_is_an_error() -> None:
    with pytest.raises(AssertionError, match="has none"):
        restored(np.array([1, 2]), np.array([True, False]), np.dtype("int64"))
