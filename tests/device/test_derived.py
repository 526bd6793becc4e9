"""Columns that a kernel computes below a group-by, beside cuDF's own operations."""

import random
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg import expressions
from dask_gpuagg.expressions import OPERATIONS, Derived, Read, Step, evaluate
from dask_gpuagg.planning import derived as planning
from tests.comparison import same
from tests.planning.test_derived import READ, frame

ROWS = 100_003
# from this share of rows on those that leave stay where they are
FEW_STAY = 1 / 8
NUMBERS = (1, 2, -3, 7, 0.5, 0.95, -2.25, 100)


@pytest.fixture(scope="module")
def columns() -> Any:
    """A column of each dtype, with NaN and values at the ends of comparisons, without nulls."""
    import cudf

    rng = np.random.default_rng(7)
    data: dict[str, Any] = {}
    for dtype in ("int8", "int16", "int32", "int64"):
        data[dtype] = rng.integers(-100, 100, ROWS).astype(dtype)
    for dtype in ("uint8", "uint32"):
        data[dtype] = rng.integers(0, 100, ROWS).astype(dtype)
    for dtype in ("float32", "float64"):
        values = rng.normal(size=ROWS).astype(dtype)
        values[::7] = np.nan
        values[1::9] = 0.95
        data[dtype] = values
    data["bool"] = rng.random(ROWS) < 0.5
    times = np.datetime64("1969-06-01", "ms") + rng.integers(0, 10**11, ROWS)
    data["datetime64[ms]"] = times.astype("datetime64[ms]")
    return cudf.DataFrame({k: cudf.Series(v, nan_as_null=False) for k, v in data.items()})


def tree(draw: random.Random, columns: Any, depth: int) -> Any:
    """A random step that the planner accepts, or a column."""
    reads = [Read(label, label) for label in columns.columns]
    for _ in range(30 if depth else 0):
        name = draw.choice(list(OPERATIONS))
        first = tree(draw, columns, depth - 1)
        number, other = draw.choice(NUMBERS), tree(draw, columns, depth - 1)
        operands = {
            **dict.fromkeys(("neg", "abs", "invert", "isna", "notnull"), (first,)),
            **dict.fromkeys(("mod", "floordiv"), (first, 7)),
            **dict.fromkeys(("where", "mask"), (first, other, number)),
            "floor": (first, draw.choice(["D", "h", "s"])),
            "fillna": (first, number),
        }.get(name, draw.choice([(first, other), (first, number), (number, first)]))
        try:
            dtype = str(evaluate(Step(name, "", operands), columns.iloc[:0]).dtype)
            return planning._checked(name, dtype, *operands)
        except Exception:  # no such operation of cuDF, or one that the kernel leaves to it
            continue
    return draw.choice(reads)


@pytest.mark.parametrize("seed", range(6))
def test_columns_are_those_of_cudf(columns: Any, seed: int) -> None:
    from dask_gpuagg.engines.device.tables import derived

    draw = random.Random(seed)
    trees = [tree(draw, columns, draw.choice([1, 2, 3])) for _ in range(30)]
    steps = [step for step in trees if isinstance(step, Step)]
    assert len(steps) > 15
    labels = {f"c{i}": step for i, step in enumerate(steps)}
    got = derived(columns, Derived(tuple(labels.items()), None, None))
    for label, step in labels.items():
        expected = evaluate(step, columns)
        assert got[label].dtype == expected.dtype, step
        np.testing.assert_array_equal(got[label].values.get(), expected.values.get(), str(step))


K, V, W = Read("k", "int64"), Read("v", "float64"), Read("w", "float64")


@pytest.mark.parametrize("nullable", ["k", None])
@pytest.mark.parametrize("bound", [-1.0, 0.3, 1 - FEW_STAY / 2, 2.0])
@pytest.mark.parametrize("begin", [0, 5])
def test_rows_that_stay(bound: float, nullable: str | None, begin: int) -> None:
    import cudf

    from dask_gpuagg.engines.device.tables import derived

    rng = np.random.default_rng(3)
    pdf = pd.DataFrame(
        {"k": rng.integers(0, 9, ROWS), "v": rng.random(ROWS), "w": rng.random(ROWS)}
    )
    # some rows of a longer column, whose validity begins elsewhere
    part = cudf.from_pandas(pdf).iloc[begin:]
    of = Derived((("k", K), ("v", V)), Step("gt", "bool", (W, bound)), nullable)
    got = derived(part, of).to_pandas()
    expected = pdf.iloc[begin:]
    expected = expected[expected.w > bound][["k", "v"]].reset_index(drop=True)
    staying = got.dropna().astype({"k": "int64"}).reset_index(drop=True)
    pd.testing.assert_frame_equal(staying, expected)
    copied = nullable is None or len(expected) < len(pdf) * FEW_STAY
    assert len(got) == (len(expected) if copied else len(part))


def test_columns_with_nulls_and_of_other_dtypes() -> None:
    import cudf

    from dask_gpuagg.engines.device.tables import derived

    data = {"k": [1, 2, 3, 4], "v": [1.0, None, 2.0, 3.0], "w": [0.1, 0.9, None, 0.8]}
    part = cudf.DataFrame(data)
    z = Step("mul", "float64", (V, W))
    of = Derived((("k", K), ("z", z)), Step("gt", "bool", (W, 0.5)), "k")
    for frame_ in (part, part.astype({"v": "float32"})):
        pd.testing.assert_frame_equal(
            derived(frame_, of).to_pandas(), expressions.derived(frame_, of).to_pandas()
        )
    assert derived(part, of)["k"].to_arrow().to_pylist() == [2, 4]


@pytest.mark.parametrize("npartitions", [1, 3])
@pytest.mark.parametrize("name", READ)
def test_answers_are_pandas(name: str, npartitions: int) -> None:
    import cudf
    import dask_cudf

    # sums of cuDF are NaN where one of the values is
    rows = frame().fillna({"v": 0.25})
    local = cudf.from_pandas(rows, nan_as_null=False)
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "raise"}):
        got = READ[name](dask_cudf.from_cudf(local, npartitions=npartitions)).compute().to_pandas()
    same(got, READ[name](rows), check_dtype=False, check_index_type=False, rtol=1e-6)
