"""Frames with every class of column, and what each group's rows give by plain Python."""

import functools
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

ROWS = 3_000
LETTERS = ["delta", "alpha", "", "echo", "bravo", "charlie"]


def masked(values: Any, rng: Any, dtype: Any = None) -> pa.Array:
    """Values, an eighth of them null; the rows of the last group have none at all."""
    return pa.array(values, type=dtype, mask=rng.random(ROWS) < 0.125)


@functools.cache
def arrow() -> pa.Table:
    """The rows; float columns hold NaN and null."""
    rng = np.random.default_rng(8)
    cents = rng.integers(-(10**6), 10**6, ROWS)
    floats = rng.normal(0.0, 1.0, ROWS).round(1)
    floats[rng.random(ROWS) < 0.1] = np.nan
    keys = rng.integers(0, 9, ROWS).astype("float64")
    keys[keys == 4] = np.nan
    # sums of a group leave 64 bits
    ticks = (1 << 62) + rng.integers(-(1 << 40), 1 << 40, ROWS)
    wide = [Decimal(int(c)) * 10**18 + Decimal(int(c)) / 1000 for c in cents]
    columns = {
        "k": rng.integers(0, 40, ROWS),
        "g": masked(keys, rng),
        "e": masked([Decimal(int(c) % 5) * 10**20 for c in cents], rng, pa.decimal128(30, 3)),
        "i": rng.integers(-50, 50, ROWS),
        "b": masked(rng.random(ROWS) < 0.9, rng),
        "f": masked(floats, rng),
        "x": rng.normal(1e6, 1.0, ROWS),
        "y": masked(rng.normal(0.0, 1.0, ROWS), rng),
        "t": masked(ticks, rng, pa.int64()).cast(pa.timestamp("ns")),
        "td": masked(cents, rng, pa.int64()).cast(pa.duration("us")),
        "d32": masked([Decimal(int(c)) / 100 for c in cents], rng, pa.decimal128(9, 2)),
        "d64": masked([Decimal(int(c)) * 10**9 for c in cents], rng, pa.decimal128(18, 2)),
        "d128": masked(wide, rng, pa.decimal128(34, 3)),
        "s": masked(rng.choice(LETTERS, ROWS), rng, pa.string()),
    }
    return pa.table(columns)


def frame(rows: pa.Table) -> Any:
    """The rows on the device, with labels of their own; adds the categories ``c`` and ``o``."""
    import cudf

    gdf = cudf.DataFrame.from_arrow(rows)
    gdf["d32"] = gdf["d32"].astype(cudf.Decimal32Dtype(9, 2))
    gdf["d64"] = gdf["d64"].astype(cudf.Decimal64Dtype(18, 2))
    strings = rows["s"].to_pandas()
    gdf["c"] = cudf.Series(pd.Categorical(strings, categories=[*LETTERS, "never"]))
    gdf["o"] = cudf.Series(pd.Categorical(strings, categories=LETTERS, ordered=True))
    gdf.index = cudf.RangeIndex(100, 100 + 2 * len(gdf), 2)
    return gdf


def on_device(rows: Any, npartitions: int) -> Any:
    """Rows of cuDF, of pandas or of a dictionary, as a dask-cudf collection."""
    import cudf
    import dask_cudf

    table = rows if isinstance(rows, cudf.DataFrame) else cudf.DataFrame(rows)
    return dask_cudf.from_cudf(table, npartitions=npartitions)


def collection(npartitions: int) -> Any:
    """The rows of ``frame`` as a dask-cudf collection."""
    return on_device(frame(arrow()), npartitions)


def python(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Values as Python's; datetimes and durations as ticks, categories as their values."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def key(value: Any) -> Any:
    """A key: a NaN one is a null one."""
    return None if isinstance(value, float) and math.isnan(value) else value


def groups_of(
    rows: pa.Table, keys: Sequence[str], column: str, dropna: bool = True
) -> dict[Any, list[Any]]:
    """The values of each group, in the order of the rows."""
    groups: dict[Any, list[Any]] = {}
    levels = [python(rows[k]) for k in keys]
    for value, *parts in zip(python(rows[column]), *levels, strict=True):
        label = tuple(key(p) for p in parts)
        if not (dropna and None in label):
            groups.setdefault(label, []).append(value)
    return groups


def by_key(result: Any, levels: int = 1) -> dict[Any, Any]:
    """A computed Series by key."""
    table = result.rename("value").reset_index()
    # names of levels may be missing
    table.columns = [f"k{i}" for i in range(levels)] + ["value"]
    columns = [python(c) for c in table.to_arrow(preserve_index=False).columns]
    labels = [tuple(key(p) for p in parts) for parts in zip(*columns[:levels], strict=True)]
    assert len(set(labels)) == len(labels)
    return dict(zip(labels, columns[levels], strict=True))


def expected(groups: dict[Any, list[Any]], function: Callable[[list[Any]], Any]) -> dict[Any, Any]:
    """A function of the values of each group, null for those without any."""
    answer = {}
    for label, values in groups.items():
        some = [v for v in values if v is not None]
        answer[label] = function(some) if some else None
    return answer


def assert_equal(ours: dict[Any, Any], theirs: dict[Any, Any], rtol: float = 0.0) -> None:
    """The same groups with the same values; NaN equals NaN."""
    assert ours.keys() == theirs.keys()
    for label, value in theirs.items():
        mine = ours[label]
        if isinstance(value, float) and mine is not None:
            np.testing.assert_allclose(mine, value, rtol=rtol, atol=1e-12, err_msg=str(label))
        else:
            assert mine == value, label
