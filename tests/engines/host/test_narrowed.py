"""Quantiles by brackets: what pandas gives, to the last bit, whatever the sample was."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_gpuagg.engines.host import engine, narrowed
from dask_gpuagg.narrowing import is_narrowed, targets
from dask_gpuagg.plan import Column, Output, Plan, StateUse

DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES += ("float32", "float64")
QUERIES: dict[str, dict[str, Any]] = {
    "median": {},
    "first decile": {"q": 0.1},
    "smallest": {"q": 0.0},
    "largest": {"q": 1},
    "midpoint": {"q": 0.3, "interpolation": "midpoint"},
}


def plan_of(dtype: Any, queries: dict[str, dict[str, Any]] = QUERIES, **flags: Any) -> Plan:
    outputs = tuple(
        Output(name, "quantile" if of else "median", 0, parameters=tuple(of.items()))
        for name, of in queries.items()
    )
    keys = (Column("k", np.dtype("int64")),)
    return Plan(keys, (Column("v", np.dtype(dtype)),), (), outputs, **flags)


class Part(NamedTuple):
    keys: list[pd.Series]
    columns: list[pd.Series]


def by_brackets(
    parts: list[pd.DataFrame], plan: Plan, stride: int, spoil: Any = None
) -> tuple[pd.DataFrame, Any]:
    """The result of all steps, and the brackets of the second count."""
    columns = [Part([part["k"]], [part["v"]]) for part in parts]
    brackets = narrowed.aim([narrowed.sample([part], plan, stride) for part in columns], plan)
    if spoil is not None:
        brackets = spoil(brackets)
    counted = [narrowed.count(k, c, brackets, plan) for k, c in columns]
    wider = narrowed.widened(brackets, counted, plan)
    again = [] if wider is None else [narrowed.count(k, c, wider, plan) for k, c in columns]
    rows = narrowed.picked(brackets, counted, wider, again, plan)
    index = pd.Index([], dtype="int64", name="k")
    dtypes = {o.label: _dtype(plan, o) for o in plan.outputs}
    meta = pd.DataFrame({n: pd.Series([], index=index, dtype=d) for n, d in dtypes.items()})
    result = engine.finalize([{"rows": rows}], replace(plan, narrowed=True, sort=True), meta)
    return result, wider


def _dtype(plan: Plan, output: Output) -> Any:
    one = pd.Series([0], dtype=plan.columns[0].dtype).groupby([0])
    return getattr(one, output.aggregation)(**dict(output.parameters)).dtype


def by_pandas(parts: list[pd.DataFrame], queries: dict[str, Any] = QUERIES, **by: Any) -> Any:
    grouped = pd.concat(parts).groupby("k", **by)["v"]
    columns = {n: grouped.quantile(**p) if p else grouped.median() for n, p in queries.items()}
    return pd.DataFrame(columns)


@st.composite
def frames(draw: st.DrawFn) -> tuple[str, list[pd.DataFrame]]:
    dtype = draw(st.sampled_from(DTYPES))
    if dtype.startswith("float"):
        special = st.sampled_from(
            [0.0, np.nan, np.inf, -np.inf, 1e300 if dtype == "float64" else 1]
        )
        values = special | st.floats(-1e6, 1e6, width=32) | st.integers(-2, 2).map(float)
    else:
        limits = np.iinfo(dtype)
        # sums and gaps of these overflow
        ends = st.sampled_from([limits.min, limits.min + 1, limits.max - 1, limits.max])
        values = st.integers(0, 3) | st.integers(limits.min, limits.max) | ends
    rows = st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 7, 9]), values), max_size=60)
    parts = draw(st.lists(rows, min_size=1, max_size=5).filter(any))
    result = []
    for part in parts:
        keys, got = zip(*part, strict=True) if part else ((), ())
        series = {"k": pd.Series(keys, dtype="int64"), "v": pd.Series(got, dtype=dtype)}
        result.append(pd.DataFrame(series))
    return dtype, result


@settings(max_examples=2 * settings.default.max_examples)
@given(case=frames(), stride=st.sampled_from([1, 2, 16, 1024]))
def test_as_pandas(case: tuple[str, list[pd.DataFrame]], stride: int):
    dtype, parts = case
    with np.errstate(all="ignore"):
        expected = by_pandas(parts)
        got, _ = by_brackets(parts, plan_of(dtype), stride)
    pd.testing.assert_frame_equal(got, expected, check_exact=True)


def shuffled(rows: int, groups: int, dtype: str, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=rows) * 1e6
    return pd.DataFrame({"k": rng.integers(0, groups, rows), "v": values.astype(dtype)})


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint64", "float32", "float64"])
def test_many_rows(dtype: str):
    """Brackets hold few rows, and the ranks of all groups."""
    data = shuffled(60_000, 7, "float64" if dtype.startswith("u") else dtype)
    data["v"] = data["v"].abs().astype(dtype)
    parts = [data.iloc[:100], data.iloc[100:100], data.iloc[100:30_000], data.iloc[30_000:]]
    plan = plan_of(dtype)
    got, wider = by_brackets(parts, plan, 8)
    assert wider is None
    pd.testing.assert_frame_equal(got, by_pandas(parts), check_exact=True)
    keys, columns = [data["k"]], [data["v"]]
    brackets = narrowed.aim([narrowed.sample([Part(keys, columns)], plan, 8)], plan)
    inside = narrowed.count(keys, columns, brackets, plan)["inside"]
    assert all(len(values) < len(data) / 4 for _, values in inside)


def test_many_equal_values_are_counted_and_not_kept():
    data = shuffled(50_000, 3, "float64")
    data["v"] = np.floor(data["v"] / 1e6)  # a handful of values
    plan = plan_of("float64")
    keys, columns = [data["k"]], [data["v"]]
    brackets = narrowed.aim([narrowed.sample([Part(keys, columns)], plan, 16)], plan)
    counted = narrowed.count(keys, columns, brackets, plan)
    assert len(counted["inside"][0][1]) == 0
    got, _ = by_brackets([data], plan, 16)
    pd.testing.assert_frame_equal(got, by_pandas([data]), check_exact=True)


SPOILED = {
    "below": lambda low, high: (np.full_like(low, -3e9), np.full_like(high, -2e9)),
    "above": lambda low, high: (np.full_like(low, 2e9), np.full_like(high, 3e9)),
    "one value": lambda low, high: (low, low),
    "between two ranks": lambda low, high: (np.full_like(low, 0.0), np.full_like(high, 0.0)),
}


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_brackets_that_miss_are_counted_again(how: str, dtype: str):
    parts = [shuffled(3_000, 5, dtype, seed) for seed in range(3)]

    def spoil(brackets: narrowed.Brackets) -> narrowed.Brackets:
        ends = [SPOILED[how](*pair) for pair in brackets.ends]
        # every other group has no bracket at all
        return narrowed.Brackets(
            brackets.keys.iloc[::2].reset_index(drop=True),
            [(low[::2], high[::2]) for low, high in ends],
            others=True,
        )

    got, wider = by_brackets(parts, plan_of(dtype), 4, spoil)
    assert wider is not None
    assert len(wider.keys) == 3
    pd.testing.assert_frame_equal(got, by_pandas(parts), check_exact=True)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("how", ["linear", "midpoint"])
@pytest.mark.parametrize("q", [0.3, 0.5])
def test_the_least_and_the_largest_integers(dtype: str, how: str, q: float):
    limits = np.iinfo(dtype)
    values = [limits.max, limits.max - 1, limits.max - 3000, limits.min, limits.max]
    values = [*values, limits.max, limits.max - 1, limits.min, limits.max]
    part = pd.DataFrame({"k": [0] * 5 + [1] * 2 + [2] * 2, "v": np.array(values, dtype)})
    queries = {"median": {}, "quantile": {"q": q, "interpolation": how}}
    for parts in ([part], [part, part]):
        got, _ = by_brackets(parts, plan_of(dtype, queries), 2)
        pd.testing.assert_frame_equal(got, by_pandas(parts, queries), check_exact=True)


def test_sorted_rows_and_rows_with_a_period():
    ordered = pd.DataFrame({"k": np.repeat(np.arange(4), 4_000), "v": np.arange(16_000.0)})
    periodic = pd.DataFrame({"k": np.arange(16_000) % 4, "v": np.arange(16_000) % 16 * 1.0})
    for data in (ordered, periodic):
        parts = [data.iloc[:9_000], data.iloc[9_000:]]
        got, wider = by_brackets(parts, plan_of("float64"), 16)
        assert wider is None
        pd.testing.assert_frame_equal(got, by_pandas(parts), check_exact=True)


@pytest.mark.parametrize("dropna", [True, False])
def test_null_keys(dropna: bool):
    part = pd.DataFrame({"k": [1.0, np.nan, 2, np.nan, 1], "v": [1.0, 2, 3, 5, np.nan]})
    plan = replace(plan_of("float64", dropna=dropna), keys=(Column("k", np.dtype("float64")),))
    got, _ = by_brackets([part, part], plan, 1)
    expected = by_pandas([part, part], dropna=dropna)
    assert len(got) == (2 if dropna else 3)
    pd.testing.assert_frame_equal(got, expected, check_exact=True, check_index_type=False)


def test_which_plans():
    plan = plan_of("float64")
    assert is_narrowed(plan)
    assert len(targets(plan)) == 5
    assert not is_narrowed(plan_of("float16"))
    assert not is_narrowed(plan_of("datetime64[ns]"))
    assert not is_narrowed(plan_of("float64", {"lower": {"q": 0.5, "interpolation": "lower"}}))
    assert not is_narrowed(plan_of("float64", {"beyond": {"q": 1.5}}))
    assert not is_narrowed(replace(plan, outputs=()))
    assert not is_narrowed(replace(plan, outputs=(Output("all", "list", 0),)))
    assert is_narrowed(replace(plan, states=(StateUse("isum", (0,)),)))
    assert not is_narrowed(replace(plan, states=(StateUse("idxmin", (0,)),)))


def test_groups_that_no_sample_has():
    """As many as there are rows: all rows are kept."""
    rows = 20_000
    parts = [
        pd.DataFrame({"k": np.zeros(rows, int) if i == 1 else np.arange(rows) + i, "v": i + 0.5})
        for i in range(3)
    ]
    got, _ = by_brackets(parts, plan_of("float64"), 1 << 12)
    pd.testing.assert_frame_equal(got, by_pandas(parts), check_exact=True)
