"""Columns of which some have nulls: one query whichever these are, and the answers of each."""

import itertools
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.cuda.runtime import kernels
from dask_gpuagg.worker.plugin import examples_of
from tests.device.test_kernels import KERNELS, assert_equal, by_pandas, check

SPEC = {"a": ["sum", "min"], "b": ["mean", "count"], "c": ["max", "sum"]}
LABELS = [(column, name) for column, names in SPEC.items() for name in names]
PATTERNS = list(itertools.product((False, True), repeat=3))
ROWS = 200_000


def rows(
    nulls: tuple[bool, ...], groups: int, key_nulls: tuple[bool, bool] = (False, False)
) -> pd.DataFrame:
    """Columns with nulls as said; of those that have some group 0 has no value at all."""
    rng = np.random.default_rng(groups)
    made = pd.DataFrame({
        "k": pd.array(rng.integers(0, groups, ROWS), "Int32"),
        "l": pd.array(rng.integers(0, 3, ROWS), "Int16"),
        "a": pd.array(rng.integers(-1000, 1000, ROWS).astype("float64"), "Float64"),
        "b": pd.array(rng.integers(-1000, 1000, ROWS).astype("float64"), "Float64"),
        "c": pd.array(rng.integers(-1000, 1000, ROWS), "Int64"),
    })  # fmt: skip
    nothing = made["k"] == 0
    for name, some in zip("abc", nulls, strict=True):
        if some:
            made[name] = made[name].mask(nothing | (rng.random(ROWS) < 0.1))
    for name, some in zip("kl", key_nulls, strict=True):
        if some:
            made[name] = made[name].mask(rng.random(ROWS) < 0.1)
    return made


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("groups", [50, 30_000])
def test_each_kernel_finds_no_nulls_where_there_are_none(kernel: str, groups: int) -> None:
    frame = rows((False, True, False), groups)
    wanted = {"a": ["sum", "min", "mean", "count"], "b": ["sum", "max", "count"], "c": ["sum"]}
    check(frame, ["k"], wanted, kernel, nulls=True)


@pytest.mark.parametrize("keep_nulls", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("key_nulls", [(True, False), (False, True)])
@pytest.mark.parametrize("groups", [50, 30_000])
def test_keys_of_which_one_has_nulls(
    key_nulls: tuple[bool, bool], groups: int, kernel: str, keep_nulls: bool
) -> None:
    frame, wanted = rows((False, False, False), groups, key_nulls), {"a": ["sum"], "c": ["max"]}
    check(frame, ["k", "l"], wanted, kernel, keep_nulls)


def test_outputs_and_keys_without_nulls_have_no_mask() -> None:
    import cudf

    from dask_gpuagg.engines.device.aggregator import Aggregator

    frame = cudf.from_pandas(rows((False, True, False), 50, (True, False)))
    *by, a, b = (frame[name].to_pylibcudf()[0] for name in "klab")
    aggregator = Aggregator(by, True)
    aggregator.nulls = True
    aggregator.sum(a)
    aggregator.sum(b)
    keys, outputs, _ = aggregator.run()
    found = [made.null_mask() is not None for made in (*keys, *outputs)]
    assert found[:3] == [True, False, False]


def answers(frame: pd.DataFrame, spec: dict[str, list[str]]) -> list[Any]:
    """In one pass, and by partials of two halves."""
    import cudf

    from dask_gpuagg.engines.device import engine

    (example,) = examples_of(dd.from_pandas(frame, npartitions=1).groupby("k").agg(spec))
    plan = example.plan

    def of(rows: pd.DataFrame) -> tuple[list[Any], list[Any]]:
        on_device = cudf.from_pandas(rows)
        return [on_device["k"]], [on_device[column.label] for column in plan.columns]

    partials = [engine.partial(*of(half), None, plan) for half in (frame[::2], frame[1::2])]
    merged = engine.combine(partials, plan)
    return [
        engine.direct_of_columns(*of(frame), plan, engine.shape_of(example.meta)),
        engine.finalize([merged], plan, example.meta),
    ]


def test_patterns_of_nulls_and_orders_make_no_further_queries() -> None:
    known: list[set[Any]] = []
    for nulls in PATTERNS:
        frame = rows(nulls, 20)[["k", "a", "b", "c"]]
        for spec in (SPEC, {column: SPEC[column][::-1] for column in "cab"}):
            wanted = by_pandas(frame, ["k"], SPEC)
            for made in answers(frame, spec):
                found = made.to_pandas().sort_index()
                found.columns = [f"{column}.{name}" for column, name in found.columns]
                assert_equal(found[[f"{c}.{n}" for c, n in LABELS]].astype("float64"), wanted)
        known.append(set(kernels.known_queries()))
    # without nulls, with some, and then no more
    assert known[0] < known[1]
    assert all(later == known[1] for later in known[2:])
