"""Small columns of every dtype, as values and as keys."""

import datetime
from decimal import Decimal
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

from dask_gpuagg.decomposition import make_plan
from dask_gpuagg.plan import Column, Plan, Requested

ROWS = 120

_rng = np.random.default_rng(20240229)


def arrow(dtype: pa.DataType) -> pd.ArrowDtype:
    """The pandas dtype of an Arrow type."""
    return pd.ArrowDtype(dtype)


def columns_of(whole: pd.Series, null: Any) -> dict[str, pd.Series]:
    """Columns of every dtype made of small integers; those that hold nulls have some."""
    quarters = pd.Series([Decimal(int(i)) / 4 for i in whole])
    days = pd.Timestamp("2020-02-27") + pd.to_timedelta(whole, unit="D")
    moments = days.astype("datetime64[us]")
    lengths = pd.to_timedelta(whole, unit="D").astype("timedelta64[us]")
    clock = pd.Series([datetime.time(int(i) % 24, 5) for i in whole])
    text = whole.map(lambda i: f"t{i}").astype("str")

    def numbers(name: str) -> pd.Series:
        return (whole.abs() if name[0] in "uU" else whole).astype(name)

    plain = ("int8", "int16", "int32", "int64", "uint8", "uint32", "uint64")
    masked = ("Int8", "Int32", "Int64", "UInt64", "Float32", "Float64")
    of_arrow = ("int8", "int64", "uint64", "float", "double")
    nullable = {
        **{name: (whole / 4).astype(name) for name in ("float16", "float32", "float64")},
        **{name: numbers(name) for name in (*masked, *(f"{n}[pyarrow]" for n in of_arrow))},
        **{name: (whole > 0).astype(name) for name in ("boolean", "bool[pyarrow]")},
        "decimal128": quarters.astype(arrow(pa.decimal128(10, 2))),
        **{f"datetime64[{u}]": days.astype(f"datetime64[{u}]") for u in ("s", "us", "ns")},
        **{f"timedelta64[{u}]": lengths.astype(f"timedelta64[{u}]") for u in ("s", "ns")},
        # across the end of winter time
        "datetime64[us, tz]": (moments + pd.Timedelta(30, "D")).dt.tz_localize("Europe/Berlin"),
        "timestamp[pyarrow]": moments.astype(arrow(pa.timestamp("us"))),
        "timestamp[tz][pyarrow]": moments.dt.tz_localize("UTC").astype(
            arrow(pa.timestamp("us", "UTC"))
        ),
        "duration[pyarrow]": lengths.astype(arrow(pa.duration("us"))),
        "str": text,
        "string": text.astype("string"),
        "string[pyarrow]": text.astype(arrow(pa.string())),
        "date32[pyarrow]": moments.astype(arrow(pa.date32())),
        "date64[pyarrow]": moments.astype(arrow(pa.date64())),
        "time64[pyarrow]": clock.astype(arrow(pa.time64("us"))),
        "time32[pyarrow]": clock.astype(arrow(pa.time32("s"))),
        "period": days.dt.to_period("D"),
        "binary[pyarrow]": text.map(str.encode).astype(arrow(pa.binary())),
    }
    columns = {name: numbers(name) for name in plain} | {"bool": whole > 0}
    columns |= {name: values.mask(null) for name, values in nullable.items()}
    return columns | {
        "category": columns["str"].astype("category"),
        "ordered category": columns["str"].astype("category").cat.as_ordered(),
        "category of int": whole.mask(null).astype("category"),
    }


VALUES = columns_of(pd.Series(_rng.integers(-5, 6, ROWS)), _rng.random(ROWS) < 0.25)


# dtypes of keys: one of those that are grouped alike
_AS_KEYS = (
    *("int8", "int64", "bool", "Int8", "Int64", "boolean", "int64[pyarrow]", "double[pyarrow]"),
    *("bool[pyarrow]", "decimal128", "datetime64[us]", "datetime64[s]", "datetime64[us, tz]"),
    *("timedelta64[ns]", "timestamp[pyarrow]", "date32[pyarrow]", "time64[pyarrow]", "period"),
    *("binary[pyarrow]", "duration[pyarrow]", "str", "string", "string[pyarrow]", "category"),
    *("ordered category", "category of int"),
)


def _key_columns() -> dict[str, pd.Series]:
    few, null = pd.Series(_rng.integers(-2, 3, ROWS)), _rng.random(ROWS) < 0.2
    columns = columns_of(few, null)
    signed_zero = few.astype("float64").where(few != 0, np.where(null, 0.0, -0.0)).mask(null)
    return {
        **{name: columns[name] for name in _AS_KEYS},
        **{name: signed_zero.astype(name) for name in ("float64", "float32", "Float64")},
        "int64 far apart": few * 2**61,
        "uint64": pd.Series(few.to_numpy().view("uint64")),
        "category with unused": columns["category"].cat.add_categories(["z", "key-9"]),
    }


KEYS = _key_columns()


def plan_of(rows: pd.DataFrame, by: list[str], *requested: Requested, **flags: bool) -> Plan:
    """Make the plan of a sorted group-by of these rows that drops null keys."""
    columns = {label: Column(label, dtype) for label, dtype in rows.dtypes.items()}
    keys = [columns[label] for label in by]
    flags = {"dropna": True, "observed": True, "sort": True} | flags
    return make_plan(keys, list(columns.values()), requested, **flags)


def partitioned(frame: Any, npartitions: int) -> Any:
    """The rows as they are, in this many partitions."""
    return dd.from_pandas(frame, npartitions=npartitions, sort=False)


def in_pieces(pieces: list[pd.DataFrame], meta: pd.DataFrame | None = None) -> Any:
    """One partition for each frame, empty ones included."""
    return dd.from_map(
        _piece,
        list(range(len(pieces))),
        pieces=pieces,
        meta=pieces[0].iloc[:0] if meta is None else meta,
    )


def _piece(number: int, pieces: list[pd.DataFrame]) -> pd.DataFrame:
    return pieces[number]
