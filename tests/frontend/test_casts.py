"""``astype`` of decimals and dates: what pandas gives, by Arrow."""

import datetime
import decimal

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_gpuagg
from dask_gpuagg.frontend import casts

UNITS = ("s", "ms", "us", "ns")


def _column(values: list, kind: pa.DataType) -> pd.Series:
    """A column in two chunks, one of which begins inside its buffer."""
    whole = pa.array(values, kind)
    chunks = pa.chunked_array([whole, whole[1:]])
    return pd.Series(pd.arrays.ArrowExtensionArray(chunks), name="x")


@st.composite
def _decimals(draw: st.DrawFn) -> pd.Series:
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    # most have few digits, so that all of a column are exact
    digits = draw(st.integers(1, precision))
    integers = draw(st.lists(st.none() | st.integers(1 - 10**digits, 10**digits - 1), max_size=6))
    with decimal.localcontext() as context:
        context.prec = 80
        values = [None if n is None else decimal.Decimal(n).scaleb(-scale) for n in integers]
    return _column(values, pa.decimal128(precision, scale))


@given(_decimals(), st.sampled_from(["float64", np.float64, "float32"]))
def test_decimals_become_the_nearest_floats(column, dtype):
    pd.testing.assert_series_equal(casts.cast(column, dtype), column.astype(dtype), rtol=0, atol=0)


@given(
    st.lists(st.none() | st.dates(), max_size=6),
    st.lists(st.dates(datetime.date(1900, 1, 1), datetime.date(2200, 1, 1)), max_size=6),
    st.sampled_from(UNITS),
)
def test_dates_become_times(any_days, days, unit):
    for column in (_column(any_days, pa.date32()), _column(days, pa.date32())):
        try:
            expected = column.astype(f"datetime64[{unit}]")
        except pd.errors.OutOfBoundsDatetime:
            with pytest.raises(pd.errors.OutOfBoundsDatetime):
                casts.cast(column, f"datetime64[{unit}]")
        else:
            pd.testing.assert_series_equal(casts.cast(column, f"datetime64[{unit}]"), expected)


@pytest.fixture
def frame():
    cents = [decimal.Decimal(n).scaleb(-2) for n in range(60)]
    return pd.DataFrame(
        {
            "price": pd.Series(cents, dtype=pd.ArrowDtype(pa.decimal128(15, 2))),
            "day": pd.Series(pd.date_range("2020", periods=60).date, dtype="date32[pyarrow]"),
            "k": np.arange(60) % 7,
            "code": np.arange(60).astype(str),
        }
    )


@pytest.mark.parametrize(
    "dtypes",
    [
        "str",
        {"price": "float64"},
        {"price": np.float64, "day": "datetime64[us]", "k": "int8"},
        {"code": "int64", "price": "float32"},
        pd.Series({"price": "float64", "k": "int8"}),
        {},
    ],
)
def test_frames_keep_their_columns(frame, dtypes):
    before = frame.copy()
    pd.testing.assert_frame_equal(casts.cast(frame, dtypes), frame.astype(dtypes))
    pd.testing.assert_frame_equal(frame, before)


def test_columns_of_one_name(frame):
    twice = frame[["price", "price"]]
    result = casts.cast(twice, "float64")
    pd.testing.assert_frame_equal(result, twice.astype("float64"))
    with pytest.raises(KeyError, match="absent"):
        casts.cast(frame, {"absent": "float64"})


def test_labels_and_columns_of_two_levels(frame):
    labels = pd.Index(frame.price)
    pd.testing.assert_index_equal(casts.cast(labels, "float64"), labels.astype("float64"))
    levels = pd.concat({"x": frame[["price"]], "y": frame[["k"]]}, axis=1)
    for dtypes in ({"x": "float64"}, {("x", "price"): "float64"}):
        pd.testing.assert_frame_equal(casts.cast(levels, dtypes), levels.astype(dtypes))
    series = pd.Series({"price": "float64"})
    pd.testing.assert_series_equal(casts.cast(frame.price, series), frame.price.astype("float64"))


@pytest.mark.parametrize("grouped", [True, False])
def test_queries_cast_by_arrow(frame, grouped, monkeypatch):
    """Below a group-by and without one; ``disable()`` leaves Dask's own."""
    d = dd.from_pandas(frame, npartitions=3).astype({"price": "float64", "day": "datetime64[s]"})
    query = d.groupby("k").price.sum() if grouped else d.price.sum()
    plain = frame.astype({"price": "float64"})
    expected = plain.groupby("k").price.sum() if grouped else plain.price.sum()
    calls = []
    real = casts._column
    monkeypatch.setattr(casts, "_column", lambda *args: calls.append(args) or real(*args))
    with dask.config.set(scheduler="sync"):
        with dask_gpuagg.enabled():
            result = query.compute()
        assert calls
        calls.clear()
        stock = query.compute()
        assert not calls
    for found in (result, stock):
        if grouped:
            pd.testing.assert_series_equal(found.sort_index(), expected)
        else:
            assert found == pytest.approx(expected)


def test_arrow_files_whose_metadata_says_object(frame, tmp_path):
    frame.to_parquet(tmp_path / "rows.parquet")
    d = dd.read_parquet(tmp_path, filesystem="arrow")
    assert d.price.dtype == object
    with dask_gpuagg.enabled():
        result = d.astype({"price": "float64"}).groupby("k").price.max().compute()
    expected = frame.astype({"price": "float64"}).groupby("k").price.max()
    pd.testing.assert_series_equal(result.sort_index(), expected, check_index_type=False)
