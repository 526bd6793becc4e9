"""Small columns of every dtype, as values and as keys."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

ROWS = 120

_rng = np.random.default_rng(20240229)
_whole = pd.Series(_rng.integers(-5, 6, ROWS))
_null = _rng.random(ROWS) < 0.25
_days = pd.Timestamp("2020-02-27") + pd.to_timedelta(_whole, unit="D")


def arrow(dtype: pa.DataType) -> pd.ArrowDtype:
    """The pandas dtype of an Arrow type."""
    return pd.ArrowDtype(dtype)


def _nullable(values: pd.Series) -> pd.Series:
    return values.mask(_null)


def _numbers() -> dict[str, pd.Series]:
    signed, unsigned = _whole, _whole.abs()
    columns = {
        name: (unsigned if name.startswith("u") else signed).astype(name)
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint32", "uint64")
    }
    columns["bool"] = signed > 0
    for name in ("float16", "float32", "float64"):
        columns[name] = _nullable((signed / 4).astype(name))
    for name in ("Int8", "Int32", "Int64", "UInt64", "Float32", "Float64"):
        columns[name] = _nullable((unsigned if name.startswith("U") else signed).astype(name))
    columns["boolean"] = _nullable((signed > 0).astype("boolean"))
    for name in ("int8", "int64", "uint64", "float", "double"):
        numbers = (unsigned if name.startswith("u") else signed).astype(f"{name}[pyarrow]")
        columns[f"{name}[pyarrow]"] = _nullable(numbers)
    columns["bool[pyarrow]"] = _nullable((signed > 0).astype("bool[pyarrow]"))
    quarters = pd.Series([Decimal(int(i)) / 4 for i in signed])
    columns["decimal128"] = _nullable(quarters.astype(arrow(pa.decimal128(10, 2))))
    return columns


def _times() -> dict[str, pd.Series]:
    columns = {}
    for unit in ("s", "ns"):
        columns[f"datetime64[{unit}]"] = _nullable(_days.astype(f"datetime64[{unit}]"))
        lengths = pd.to_timedelta(_whole, unit="D").astype(f"timedelta64[{unit}]")
        columns[f"timedelta64[{unit}]"] = _nullable(lengths)
    columns["datetime64[us, tz]"] = _nullable(_days.astype("datetime64[us]")).dt.tz_localize(
        "Europe/Berlin"
    )
    moments = _nullable(_days.astype("datetime64[us]"))
    columns["timestamp[pyarrow]"] = moments.astype(arrow(pa.timestamp("us")))
    columns["timestamp[tz][pyarrow]"] = moments.dt.tz_localize("UTC").astype(
        arrow(pa.timestamp("us", "UTC"))
    )
    lengths = _nullable(pd.to_timedelta(_whole, unit="D").astype("timedelta64[us]"))
    columns["duration[pyarrow]"] = lengths.astype(arrow(pa.duration("us")))
    return columns


def _texts() -> dict[str, pd.Series]:
    text = _nullable(_whole.map(lambda i: f"t{i}").astype("str"))
    return {
        "str": text,
        "string": text.astype("string"),
        "string[pyarrow]": text.astype(arrow(pa.string())),
        "category": text.astype("category"),
        "ordered category": text.astype("category").cat.as_ordered(),
        "category of int": _nullable(_whole).astype("category"),
    }


def _others() -> dict[str, pd.Series]:
    days = _nullable(_days.astype("datetime64[us]"))
    clock = pd.Series([datetime.time(int(i) % 24, 5) for i in _whole.abs()])
    return {
        "date32[pyarrow]": days.astype(arrow(pa.date32())),
        "date64[pyarrow]": days.astype(arrow(pa.date64())),
        "time64[pyarrow]": _nullable(clock.astype(arrow(pa.time64("us")))),
        "time32[pyarrow]": _nullable(clock.astype(arrow(pa.time32("s")))),
        "period": _nullable(_days.dt.to_period("D")),
        "binary[pyarrow]": _nullable(
            pd.Series([b"%d" % i for i in _whole]).astype(arrow(pa.binary()))
        ),
    }


VALUES: dict[str, pd.Series] = _numbers() | _times() | _texts() | _others()


def _key_columns() -> dict[str, pd.Series]:
    few = pd.Series(_rng.integers(-2, 3, ROWS))
    null = _rng.random(ROWS) < 0.2
    signed_zero = few.astype("float64").where(few != 0, np.where(null, 0.0, -0.0))
    days = (pd.Timestamp("2021-03-27") + pd.to_timedelta(few, unit="D")).astype("datetime64[us]")
    text = few.map(lambda i: f"key{i}").astype("str")
    plain = {name: few.astype(name) for name in ("int8", "int64", "bool")}
    plain["int64 far apart"] = few * 2**61
    plain["uint64"] = few.astype("int64").to_numpy().view("uint64")
    plain = {name: pd.Series(values) for name, values in plain.items()}
    nullable = {
        "float64": signed_zero,
        "float32": signed_zero.astype("float32"),
        "Float64": signed_zero.astype("Float64"),
        "Int8": few.astype("Int8"),
        "Int64": few.astype("Int64"),
        "boolean": (few > 0).astype("boolean"),
        "int64[pyarrow]": few.astype("int64[pyarrow]"),
        "double[pyarrow]": few.astype("double[pyarrow]"),
        "bool[pyarrow]": (few > 0).astype("bool[pyarrow]"),
        "decimal128": pd.Series([Decimal(int(i)) / 4 for i in few]).astype(
            arrow(pa.decimal128(10, 2))
        ),
        "datetime64[us]": days,
        "datetime64[s]": days.astype("datetime64[s]"),
        "datetime64[us, tz]": days.dt.tz_localize("Europe/Berlin"),
        "timedelta64[ns]": pd.to_timedelta(few, unit="h").astype("timedelta64[ns]"),
        "timestamp[pyarrow]": days.astype(arrow(pa.timestamp("us"))),
        "date32[pyarrow]": days.astype(arrow(pa.date32())),
        "time64[pyarrow]": (days.dt.normalize() + pd.to_timedelta(few, unit="h") - days)
        .map(lambda t: datetime.time(t.components.hours))
        .astype(arrow(pa.time64("us"))),
        "period": days.dt.to_period("D"),
        "binary[pyarrow]": text.map(str.encode).astype(arrow(pa.binary())),
        "duration[pyarrow]": pd.to_timedelta(few, unit="h").astype(arrow(pa.duration("us"))),
        "str": text,
        "string": text.astype("string"),
        "string[pyarrow]": text.astype(arrow(pa.string())),
        "category": text.astype("category"),
        "ordered category": text.astype("category").cat.as_ordered(),
        "category of int": few.astype("category"),
        "category with unused": text.astype("category").cat.add_categories(["z", "key-9"]),
    }
    return plain | {name: values.mask(null) for name, values in nullable.items()}


KEYS: dict[str, pd.Series] = _key_columns()


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
