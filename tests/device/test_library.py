"""libcudf's group-by in place of kernels that cannot be compiled: the kernels' own answers."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dask_gpuagg
from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.runtime import kernels
from dask_gpuagg.cuda.runtime.compiler import CompileError, KernelsUnavailable
from dask_gpuagg.reporting.fallbacks import FallbackWarning
from dask_gpuagg.reporting.runs import forget
from tests.device.frames import on_device
from tests.device.test_kernels import on_host

ROWS = 20_000
NUMBERS = ["Int8", "Int16", "Int64", "UInt8", "UInt32", "UInt64", "Float32", "Float64", "boolean"]
STATES = ["size", "count", "sum", "float_sum", "prod", "min", "max", "any", "all", "first", "last"]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """From its call on no kernel can be compiled."""

    def refuse(source: str, architecture: str) -> bytes:
        raise CompileError("gpuagg.cu(1): error: nothing compiles today")

    def break_it() -> None:
        monkeypatch.setattr(kernels, "_known", Cache(1024))
        monkeypatch.setattr(kernels, "cubin", refuse)

    with dask.config.set({"gpuagg.fallback": "silent"}):
        yield break_it


def table(seed: int, share: float) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = {
        "i": rng.integers(0, 40, ROWS),
        "f": np.where(rng.random(ROWS) < 0.1, -0.0, rng.integers(0, 9, ROWS) / 3),
        "s": rng.choice(["", "a", "äöü€", "x" * 40], ROWS),
        "t": np.datetime64("2026-01-01", "ns") + rng.integers(0, 99, ROWS),
        "d": (rng.integers(-99, 99, ROWS) * 10**9).astype("timedelta64[ns]"),
    }
    frame = pd.DataFrame(rows)
    frame["i"] = frame["i"].astype("Int64")
    for name in frame:
        frame.loc[rng.random(ROWS) < share, name] = None
    for dtype in NUMBERS:
        numbers = rng.integers(0, 2 if dtype == "boolean" else 100, ROWS)
        # products of some hundred of them stay finite
        numbers = rng.uniform(0.5, 1.9, ROWS) if dtype.startswith("Float") else numbers
        values = pd.Series(numbers).astype(dtype)
        values[rng.random(ROWS) < share] = None
        # some groups have no value at all
        values[(frame["i"] < 3).fillna(False)] = None if share else values.iloc[0]
        frame[dtype] = values
    return frame


def columns_of(frame: pd.DataFrame) -> dict[str, Any]:
    import cudf

    # kept with the columns: they lie in its memory
    gpu = cudf.from_pandas(frame)
    return {name: gpu[name].to_pylibcudf()[0] for name in frame}


def with_nan(columns: dict[str, Any]) -> None:
    """Values that are NaN and not null, alone in some groups."""
    import cudf

    rng = np.random.default_rng(1)
    x = rng.normal(size=ROWS)
    x[rng.random(ROWS) < 0.2] = np.nan
    # groups of one row are NaN alone where it is
    columns["alone"] = cudf.Series(np.arange(ROWS)).to_pylibcudf()[0]
    for name, dtype in {"nan": "float64", "narrow nan": "float32"}.items():
        columns[name] = cudf.Series(x.astype(dtype), nan_as_null=False).to_pylibcudf()[0]


def run(keys: list[Any], keep_nulls: bool, add: Callable[[Any], None]) -> tuple[Any, Any, Any]:
    from dask_gpuagg.engines.device.aggregator import Aggregator

    aggregator = Aggregator(keys, keep_nulls)
    add(aggregator)
    return aggregator.run()


def each(names: Iterable[str], column: Any) -> Callable[[Any], None]:
    """What aggregates a column in all of these ways."""

    def add(aggregator: Any) -> None:
        for name in names:
            getattr(aggregator, name)(column)

    return add


def same(
    keys: list[Any], keep_nulls: bool, add: Callable[[Any], None], broken: Callable[[], None]
) -> None:
    """The kernels and libcudf give columns of the same types and values."""
    by_kernels = run(keys, keep_nulls, add)
    broken()
    by_library = run(keys, keep_nulls, add)
    assert by_kernels[2].decision.kernel != "libcudf"
    assert by_library[2].decision.kernel == "libcudf"
    assert by_library[2].decision.why == "gpuagg.cu(1): error: nothing compiles today"
    for name in ("rows", "groups", "bytes_read"):
        assert getattr(by_kernels[2], name) == getattr(by_library[2], name)
    frames = []
    for found_keys, outputs, _ in (by_kernels, by_library):
        assert all(column.offset() == 0 for column in outputs)
        named = {f"k{i}": on_host(c) for i, c in enumerate(found_keys)}
        frame = pd.DataFrame(named | {f"o{i}": on_host(c) for i, c in enumerate(outputs)})
        frames.append(frame.sort_values(list(named), na_position="last", ignore_index=True))
    for a, b in zip(by_kernels[1], by_library[1], strict=True):
        assert a.type() == b.type()
        assert a.null_count() == b.null_count()
    pd.testing.assert_frame_equal(*frames, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_output(dtype: str, share: float, broken: Callable[[], None]) -> None:
    columns = columns_of(table(2, share))
    value = columns[dtype]

    def add(aggregator: Any) -> None:
        for name in [*STATES, "mean"]:
            getattr(aggregator, name)(*([] if name == "size" else [value]))

    same([columns["i"]], False, add, broken)


@pytest.mark.parametrize("name", ["nan", "narrow nan"])
@pytest.mark.parametrize("key", ["i", "alone"])
def test_nan_is_a_value(name: str, key: str, broken: Callable[[], None]) -> None:
    columns = columns_of(table(3, 0.1))
    with_nan(columns)
    same([columns[key]], False, each([*STATES[1:], "mean"], columns[name]), broken)


@pytest.mark.parametrize("name", ["s", "t", "d"])
def test_other_types(name: str, broken: Callable[[], None]) -> None:
    columns = columns_of(table(4, 0.3))
    names = {
        "s": ["count", "first", "last"],
        "t": ["count", "min", "max", "first", "last", "limbs", "exact_mean"],
        "d": ["count", "sum", "min", "max", "first", "last", "limbs", "exact_mean"],
    }
    same([columns["i"]], False, each(names[name], columns[name]), broken)


def test_exact_partials_merge(broken: Callable[[], None]) -> None:
    import pylibcudf as plc

    rng = np.random.default_rng(13)
    counts = rng.integers(0, 4, ROWS)
    counts[:2_000] = 0
    # as of so many values of 64 bits: more would make means that no tick count holds
    limbs = {"hi": rng.integers(-(1 << 31), 1 << 31, ROWS), "lo": rng.integers(0, 1 << 32, ROWS)}
    wide = pa.array(rng.integers(-(10**9), 10**9, ROWS), mask=counts == 0)
    narrow = wide.cast(pa.decimal128(38, 0)).cast(pa.decimal128(38, 2))
    columns = {n: plc.Column.from_arrow(pa.array(v * counts)) for n, v in limbs.items()}
    n, sums = plc.Column.from_arrow(pa.array(counts)), plc.Column.from_arrow(narrow)
    ticks = plc.DataType(plc.TypeId.TIMESTAMP_NANOSECONDS)

    def add(aggregator: Any) -> None:
        aggregator.limb_mean(columns["hi"], columns["lo"], n, ticks)
        aggregator.exact_mean(sums, n)

    key = plc.Column.from_arrow(pa.array(np.arange(ROWS) // 5))
    same([key], False, add, broken)


@pytest.mark.parametrize("digits", [18, 38])
def test_decimals(digits: int, broken: Callable[[], None]) -> None:
    import pylibcudf as plc

    rng = np.random.default_rng(6)
    dtype = {18: pa.decimal64(18, 2), 38: pa.decimal128(38, 2)}[digits]
    cents = pa.array(rng.integers(-(10**6), 10**6, ROWS), mask=rng.random(ROWS) < 0.1)
    value = plc.Column.from_arrow(cents.cast(pa.decimal128(38, 0)).cast(dtype))
    key = plc.Column.from_arrow(pa.array(rng.integers(0, 99, ROWS)))
    names = ["sum", "wide_sum", "exact_mean", "count", *(["min"] if digits < 38 else [])]
    same([key], False, each(names, value), broken)


KEYS = [["f"], ["s"], ["boolean"], ["t"], ["i", "s"], ["s", "f", "Int8", "UInt64"], ["Float32"]]


@pytest.mark.parametrize("keep_nulls", [False, True])
@pytest.mark.parametrize("keys", KEYS, ids="+".join)
def test_keys(keys: list[str], keep_nulls: bool, broken: Callable[[], None]) -> None:
    columns = columns_of(table(7, 0.1))

    def add(aggregator: Any) -> None:
        aggregator.size()
        aggregator.sum(columns["Int64"])

    same([columns[k] for k in keys], keep_nulls, add, broken)


@pytest.mark.parametrize("keep_nulls", [False, True])
def test_nan_keys(keep_nulls: bool, broken: Callable[[], None]) -> None:
    columns = columns_of(table(8, 0.1))
    with_nan(columns)
    same([columns["nan"], columns["boolean"]], keep_nulls, lambda a: a.size(), broken)


@pytest.mark.parametrize("groups", [0, 1])
def test_one_row(groups: int, broken: Callable[[], None]) -> None:
    frame = table(9, 0.0).head(1)
    if not groups:
        frame["i"] = pd.array([None], dtype="Int64")
    columns = columns_of(frame)

    def add(aggregator: Any) -> None:
        for name in ("sum", "min", "any", "first", "mean", "moments"):
            getattr(aggregator, name)(columns["Float64"])
        aggregator.spread(1, 2, columns["Int64"])

    same([columns["s"], columns["i"]], False, add, broken)


def test_sliced_columns(broken: Callable[[], None]) -> None:
    import cudf

    gpu = cudf.from_pandas(table(10, 0.2)).iloc[1_237:14_001]
    columns = {name: gpu[name].to_pylibcudf()[0] for name in gpu}

    def add(aggregator: Any) -> None:
        for name in (*STATES[1:], "mean"):
            getattr(aggregator, name)(columns["Int64"])
        aggregator.last(columns["s"])

    same([columns["s"], columns["f"]], True, add, broken)


def test_a_variance_far_from_zero_keeps_its_digits(broken: Callable[[], None]) -> None:
    import cudf

    near = np.random.default_rng(11).normal(size=ROWS)
    k = np.arange(ROWS) % 17
    rows = cudf.DataFrame({"k": k, "far": near + 1e9})
    broken()
    exact = pd.Series((near + 1e9) - 1e9).groupby(k).agg(["var", "std", "sem"])
    for npartitions in (1, 3):
        with dask_gpuagg.enabled(), dask.config.set(scheduler="synchronous"):
            ddf = on_device(rows, npartitions)
            ours = ddf.groupby("k").far.agg(["var", "std", "sem"]).compute()
        ours = ours.to_pandas().sort_index()
        np.testing.assert_allclose(ours.to_numpy(), exact.to_numpy(), rtol=1e-8)


def test_queries_go_on(broken: Callable[[], None]) -> None:
    """Every aggregation of dask-cudf collections, and the record says what ran and why."""
    from dask_gpuagg.engines.device import libcudf

    rng = np.random.default_rng(12)
    rows = {
        "k": rng.integers(0, 9, ROWS),
        "v": rng.normal(size=ROWS),
        "s": rng.choice(list("ab"), ROWS),
    }
    spec: dict[str, Any] = {"v": ["sum", "var", "median", "first"], "s": ["nunique", "count"]}
    with dask_gpuagg.enabled(), dask.config.set(scheduler="synchronous"):
        ddf = on_device(rows, 3)
        query = ddf.groupby(["k", "s"]).agg(spec)
        expected = query.compute().to_pandas().sort_index()
        broken()
        forget()
        libcudf._warn.cache_clear()
        with (
            dask.config.set({"gpuagg.fallback": "warn"}),
            warnings.catch_warnings(record=True) as seen,
        ):
            warnings.simplefilter("always")
            found = query.compute().to_pandas().sort_index()
        pd.testing.assert_frame_equal(found, expected, rtol=1e-10)
        runs = dask_gpuagg.last_runs()
        assert {run.decision.kernel for run in runs} == {"libcudf"}
        assert "nothing compiles today" in runs[-1].decision.why
        assert sum(w.category is FallbackWarning for w in seen) == 1
        with dask.config.set({"gpuagg.fallback": "raise"}), pytest.raises(KernelsUnavailable):
            query.compute()
