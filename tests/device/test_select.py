"""Quantiles and distinct values without a sort, against pandas and against sorted rows."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dask_gpuagg.cuda.algorithms import select as selection
from dask_gpuagg.cuda.algorithms.select import Selector
from dask_gpuagg.cuda.runtime.driver import Stopwatch
from tests.device.frames import on_device
from tests.device.test_kernels import VALUE_TYPES, columns_of
from tests.device.test_sgb import BETWEEN, ROWS, compare, encoded, keys_of, values_of

HOW = pytest.mark.parametrize("how", ["select", "sort"])
SHAPES = ["uniform", "sorted", "zipf"]
QUANTILES = (0.0, 0.01, 0.37, 0.5, 1.0)


def rows_of(frame: pd.DataFrame, how: str, stopwatch: Any = None) -> tuple[pd.Series, Any, Any]:
    """The keys of the groups, the rows to be selected from or sorted, and the column ``v``."""
    from dask_gpuagg.engines.device.groups import SortedRows

    keys, codes = encoded(frame, ["k"])
    (column,) = columns_of(frame, ["v"])
    return keys["k"], SortedRows(codes, len(keys), stopwatch, how), column


def both(frame: pd.DataFrame) -> tuple[pd.Series, Any, Any]:
    """The keys, and rows to be selected from and to be sorted, of one numbering of the groups.

    Groups come in no order: another numbering of the same rows has another one.
    """
    from dask_gpuagg.engines.device.groups import SortedRows

    keys, codes = encoded(frame, ["k"])
    select, sort = (SortedRows(codes, len(keys), None, how) for how in ("select", "sort"))
    return keys["k"], select, sort


def column_of(values: Any) -> Any:
    """A column in which NaN stays NaN."""
    import cudf

    return cudf.Series(values, nan_as_null=False).to_pylibcudf()[0]


def bits_of(column: Any) -> list[Any]:
    """Values of a column, floats by their bits so that NaN and both zeros are told apart."""
    values = column.to_arrow().to_pylist()
    return [None if v is None else np.float64(v).tobytes() if isinstance(v, float) else v
            for v in values]  # fmt: skip


# ---- quantiles -----------------------------------------------------------------------------------


@HOW
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", VALUE_TYPES)
def test_quantiles(dtype: str, share: float, how: str) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"k": rng.integers(0, 500, ROWS), "v": values_of(dtype, ROWS, share, rng)})
    keys, rows, column = rows_of(frame, how)
    grouped = frame.astype({"v": "Float64"}).groupby("k").v
    for q, between in itertools.product(QUANTILES, BETWEEN):
        compare(rows.quantile(column, q, between), keys, grouped.quantile(q, between))


@HOW
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("groups", [1, 2, 255, 256, 1_000, 3_000, 9_000, 20_000, 65_536])
def test_medians(groups: int, shape: str, how: str) -> None:
    """Counts in shared memory of several blocks and of one, and in global memory."""
    rng = np.random.default_rng(groups)
    n = 2_000_000
    frame = pd.DataFrame({"k": keys_of(shape, groups, n, rng), "v": rng.normal(0, 1e6, n)})
    frame["v"] = frame["v"].astype("Float64").mask(rng.random(n) < 0.1)
    keys, rows, column = rows_of(frame, how)
    compare(rows.quantile(column, 0.5, "linear"), keys, frame.groupby("k").v.median())


SPECIAL = {
    "equal": [7.25],
    "few": [1.0, 2.0, 3.0],
    "zeros": [0.0, -0.0],
    "odd": [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, -5e-324, 1.5, -1e300],
}


@pytest.mark.parametrize("wide", [False, True])
def test_a_group_with_most_of_the_rows(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words are sorted, or are a large block's."""
    monkeypatch.setattr(selection, "WIDE_GROUP", 0 if wide else 2**31)
    rng = np.random.default_rng(14)
    keys_ = np.where(rng.random(ROWS) < 0.9, 7, rng.integers(0, 200, ROWS))
    frame = pd.DataFrame({"k": keys_, "v": rng.normal(size=ROWS)})
    stopwatch = Stopwatch()
    keys, rows, column = rows_of(frame, "select", stopwatch)
    for q in (0.5, 0.9):
        compare(rows.quantile(column, q, "linear"), keys, frame.groupby("k").v.quantile(q))
    names = stopwatch.milliseconds()
    assert ("read_ranks" in names) == wide


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("groups", [1, 300])
def test_special_values_as_sorted(groups: int, name: str) -> None:
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"k": rng.integers(0, groups, ROWS)})
    values = rng.choice(np.array(SPECIAL[name]), ROWS)
    column = column_of(values)
    keys, ours, theirs = both(frame)
    # one zero; NumPy sorts NaN last
    of_key = {k: np.sort(v.to_numpy()) for k, v in pd.Series(values + 0.0).groupby(frame["k"])}
    for q, between in itertools.product(QUANTILES, BETWEEN):
        made = [rows.quantile(column, q, between) for rows in (ours, theirs)]
        assert bits_of(made[0]) == bits_of(made[1]), (q, between)
        expected = [number_of(of_key[key], q, between) for key in keys]
        np.testing.assert_array_equal(made[0].to_arrow().to_numpy(zero_copy_only=False), expected)


def number_of(ordered: Any, q: float, between: str) -> float:
    at = q * (len(ordered) - 1)
    low, high = ordered[int(np.floor(at))], ordered[int(np.ceil(at))]
    share = at - np.floor(at)
    with np.errstate(invalid="ignore"):
        return {
            "lower": low,
            "higher": high,
            "nearest": ordered[int(np.rint(at))],
            "midpoint": low * 0.5 + high * 0.5,
            "linear": low * (1 - share) + high * share if share else low,
        }[between]


@pytest.mark.parametrize("dtype", ["Int64", "UInt64", "Int8", "UInt8", "Int32"])
def test_ends_of_integers_as_sorted(dtype: str) -> None:
    rng = np.random.default_rng(3)
    limits = np.iinfo(dtype.lower())
    values = rng.choice(np.array([limits.min, limits.max, 0, 1], dtype.lower()), ROWS)
    frame = pd.DataFrame({"k": rng.integers(0, 9, ROWS), "v": values})
    (column,) = columns_of(frame, ["v"])
    _, ours, theirs = both(frame)
    for q, between in itertools.product(QUANTILES, BETWEEN):
        made = [rows.quantile(column, q, between) for rows in (ours, theirs)]
        assert bits_of(made[0]) == bits_of(made[1]), (q, between)
    assert bits_of(ours.nunique(column)) == bits_of(theirs.nunique(column))


@HOW
@pytest.mark.parametrize("dtype", ["datetime64[ns]", "timedelta64[us]"])
def test_ticks(how: str, dtype: str) -> None:
    rng = np.random.default_rng(4)
    ticks = (1 << 61) + rng.integers(-(1 << 40), 1 << 40, ROWS)
    frame = pd.DataFrame({"k": rng.integers(0, 200, ROWS), "v": ticks.view(dtype)})
    frame["v"] = frame["v"].mask((rng.random(ROWS) < 0.2) | (frame["k"] == 3))
    keys, rows, column = rows_of(frame, how)
    valid = frame["v"].notna().to_numpy()
    of_group = pd.Series(ticks[valid]).groupby(frame["k"].to_numpy()[valid])
    ordered = {key: np.sort(values.to_numpy()) for key, values in of_group}
    for q, between in itertools.product((0.0, 0.25, 0.5, 1.0), BETWEEN):
        ours = rows.quantile(column, q, between)
        assert ours.type() == column.type()
        made = dict(zip(keys, ours.to_arrow().cast(pa.int64()).to_pylist(), strict=True))
        assert made.pop(3) is None
        assert made == {key: tick_of(values, q, between) for key, values in ordered.items()}


def tick_of(ordered: Any, q: float, between: str) -> int:
    at = q * (len(ordered) - 1)
    low, high = int(ordered[int(np.floor(at))]), int(ordered[int(np.ceil(at))])
    share, gap = at - np.floor(at), high - low
    steps = {
        "lower": 0,
        "higher": gap,
        "midpoint": gap // 2,
        "nearest": gap if share > 0.5 or (share == 0.5 and q > 0.5) else 0,
        "linear": int(gap * share),
    }
    return low + steps[between]


def test_a_wrong_bracket_costs_a_second_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "ERRORS", 0.0)
    monkeypatch.setattr(selection, "SPARE", 0.0)
    # both go by brackets of the usual width
    monkeypatch.setattr("dask_gpuagg.engines.device.groups.stride_of", lambda rows, groups: 8)
    monkeypatch.setattr(selection, "room_of", lambda rows, inside: rows)
    missed, narrow = [], Selector.narrow

    def watched(*args: Any) -> Any:
        tally = narrow(*args)
        missed.append(tally.missed)
        return tally

    monkeypatch.setattr(Selector, "narrow", watched)
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"k": rng.integers(0, 700, ROWS), "v": rng.normal(size=ROWS)})
    keys, rows, column = rows_of(frame, "select")
    for q in (0.1, 0.5):
        missed.clear()
        compare(rows.quantile(column, q, "linear"), keys, frame.groupby("k").v.quantile(q))
        assert len(missed) == 2
        assert missed[0] > 0
        assert missed[1] == 0


def test_without_room_rows_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "room_of", lambda rows, inside: 10)
    rng = np.random.default_rng(6)
    frame = pd.DataFrame({"k": rng.integers(0, 700, ROWS), "v": rng.normal(size=ROWS)})
    stopwatch = Stopwatch()
    keys, rows, column = rows_of(frame, "select", stopwatch)
    compare(rows.quantile(column, 0.5, "linear"), keys, frame.groupby("k").v.median())
    assert "quantiles_f64" in stopwatch.milliseconds()


def test_a_slice_of_a_column() -> None:
    import pylibcudf as plc

    rng = np.random.default_rng(7)
    v = values_of("Int32", ROWS + 77, 0.3, rng)
    frame = pd.DataFrame({"k": rng.integers(0, 50, ROWS), "v": v[77:].reset_index(drop=True)})
    keys, rows, _ = rows_of(frame, "select")
    (longer,) = columns_of(pd.DataFrame({"v": v}), ["v"])
    (column,) = plc.copying.slice(longer, [77, ROWS + 77])
    expected = frame.astype({"v": "Float64"}).groupby("k").v.median()
    compare(rows.quantile(column, 0.5, "linear"), keys, expected)
    compare(rows.nunique(column), keys, frame.groupby("k").v.nunique())


# ---- distinct values -----------------------------------------------------------------------------


@HOW
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", VALUE_TYPES)
def test_nunique(dtype: str, share: float, how: str) -> None:
    rng = np.random.default_rng(9)
    frame = pd.DataFrame({"k": rng.integers(0, 500, ROWS), "v": values_of(dtype, ROWS, share, rng)})
    keys, rows, column = rows_of(frame, how)
    compare(rows.nunique(column), keys, frame.groupby("k").v.nunique())


@HOW
@pytest.mark.parametrize("distinct", [1, 5_000, 2_000_000])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("groups", [1, 1_000, 20_000])
def test_nunique_of_shapes(groups: int, shape: str, distinct: int, how: str) -> None:
    rng = np.random.default_rng(groups)
    n = 2_000_000
    values = rng.integers(-(2**62), 2**62, distinct)[rng.integers(0, distinct, n)]
    frame = pd.DataFrame({"k": keys_of(shape, groups, n, rng), "v": values})
    keys, rows, column = rows_of(frame, how)
    compare(rows.nunique(column), keys, frame.groupby("k").v.nunique())


@pytest.mark.parametrize("name", SPECIAL)
def test_distinct_special_values_as_sorted(name: str) -> None:
    rng = np.random.default_rng(10)
    frame = pd.DataFrame({"k": rng.integers(0, 3_000, ROWS)})
    column = column_of(rng.choice(np.array(SPECIAL[name]), ROWS))
    _, ours, theirs = both(frame)
    assert bits_of(ours.nunique(column)) == bits_of(theirs.nunique(column))


def test_a_full_table_is_followed_by_a_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "TABLE_BYTES", 4_096)
    rng = np.random.default_rng(11)
    frame = pd.DataFrame({"k": rng.integers(0, 5, ROWS), "v": rng.normal(size=ROWS)})
    keys, rows, column = rows_of(frame, "select")
    compare(rows.nunique(column), keys, frame.groupby("k").v.nunique())


# ---- who is chosen, and whole queries ------------------------------------------------------------


@pytest.mark.parametrize(("rows", "selected"), [(selection.ROWS_FROM, True), (100_000, False)])
def test_few_groups_of_many_rows_are_selected(rows: int, selected: bool) -> None:
    rng = np.random.default_rng(12)
    frame = pd.DataFrame({"k": rng.integers(0, 64, rows), "v": rng.normal(size=rows)})
    stopwatch = Stopwatch()
    _, of_rows, column = rows_of(frame, "auto", stopwatch)
    of_rows.quantile(column, 0.5, "linear")
    names = stopwatch.milliseconds()
    assert ("count_in_blocks" in names, "quantiles_f64" in names) == (selected, not selected)
    of_rows.nunique(column)
    names = stopwatch.milliseconds()
    assert ("count_parts" in names, "count_distinct_8" in names) == (selected, not selected)


@pytest.mark.parametrize("npartitions", [1, 3])
def test_collections(npartitions: int, raising: None) -> None:
    import cudf

    rng = np.random.default_rng(13)
    n = selection.ROWS_FROM + 1
    frame = pd.DataFrame(
        {
            "k": pd.Series(rng.integers(0, 100, n)).astype("Int32").mask(rng.random(n) < 0.01),
            "v": pd.Series(rng.normal(size=n)).astype("Float64").mask(rng.random(n) < 0.1),
            "i": rng.integers(0, 1_000_000, n),
            # so few ticks that the float64 of pandas holds them
            "t": np.datetime64(0, "ns") + rng.integers(0, 10**12, n),
        }
    )
    gdf = cudf.DataFrame(frame)
    ours = on_device(gdf, npartitions).groupby("k", sort=True)
    theirs = frame.groupby("k", sort=True)
    # each output is sorted
    medians = ours[["v", "i"]].median().compute().to_pandas().sort_index()
    expected = theirs[["v", "i"]].median().astype(float)
    np.testing.assert_allclose(medians.astype(float), expected, rtol=1e-12)
    distinct = ours["i"].nunique().compute().to_pandas()
    assert (distinct.to_numpy() == theirs["i"].nunique().to_numpy()).all()
    spec = {"t": "median", "v": ["median", "nunique"]}
    mixed = ours.agg(spec).compute().to_pandas()
    ticks = frame["t"].astype("int64").groupby(frame["k"])
    low, high = (ticks.quantile(0.5, interpolation=side).to_numpy() for side in BETWEEN[1:3])
    assert (mixed["t", "median"].to_numpy().astype("int64") == low + (high - low) // 2).all()
    assert (mixed["v", "nunique"].to_numpy() == theirs["v"].nunique().to_numpy()).all()
