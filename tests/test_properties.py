"""Random group-bys: pandas on the whole frame is right, and every plan gives the same."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from tests.comparison import assert_same, pandas_answers
from tests.strategies import CLASSES, Case, cases

# one partition, a deep tree, and every exchange
PLANS: dict[str, dict[str, Any]] = {
    "default": {},
    "tree": {"split_out": 1, "split_every": 2},
    "exchange": {"split_out": 3},
    "tasks": {"split_out": 3, "shuffle_method": "tasks"},
    "disk": {"split_out": 2, "shuffle_method": "disk"},
}
# unit roundoff, with room for the number of operations
ROUNDOFF = {"float32": 1e-6}
SPREADS = {"var", "std", "sem"}
NUMBERS = [n for n, cls in CLASSES.items() if cls in ("bool", "int", "uint", "float", "decimal")]


def tolerances(case: Case, frame: pd.DataFrame) -> pd.DataFrame:
    """Bounds on the rounding error of each output of each group.

    A sum of n terms may be off by n roundoffs of the sum of their magnitudes, a variance by n
    roundoffs of var + |mean| * std (Chan, Golub, LeVeque 1983).
    """
    columns: dict[int, Any] = {}
    for column, names in case.spec.items():
        kind = case.kinds[column]
        numeric = CLASSES[kind] in ("bool", "int", "uint", "float", "decimal")
        values = frame[column].astype("float64") if numeric else frame[column].isna() * 0.0
        finite = values.where(np.isfinite(values.to_numpy(dtype=float, na_value=np.nan)))
        grouped = case.groupby(frame.assign(**{column: finite.abs()}))[column]
        n, total, largest = grouped.size(), grouped.sum(), grouped.max().fillna(0.0)
        u = n * ROUNDOFF.get(kind, 1e-15)
        std = case.groupby(frame.assign(**{column: finite}))[column].std().fillna(0.0)
        bounds = {
            "sum": u * total,
            "mean": u * largest,
            "var": u * (std**2 + largest * std) + (u * largest) ** 2,
            "std": u * (std + largest),
            "sem": u * (std + largest),
            "median": u * largest,
            "quantile": u * largest,
        }
        for name in names:
            columns[len(columns)] = bounds.get(name, n * 0.0)
    return pd.DataFrame(columns)


def expected(case: Case, frame: pd.DataFrame) -> Any:
    """Pandas' answer, or the error that it raises."""
    try:
        return case.groupby(frame).agg(case.functions())
    except (ValueError, TypeError) as error:
        return error


def check(case: Case, plans: dict[str, dict[str, Any]], cut: bool = True) -> None:
    frame = case.collection().compute(scheduler="synchronous")
    answer = expected(case, frame)
    for plan, options in plans.items():
        note(f"plan {plan}")
        grouped = case.groupby(case.collection(cut and plan != "default"))
        if isinstance(answer, Exception):
            with pytest.raises(type(answer)):
                grouped.agg(case.functions(), **options).compute()
            continue
        lazy = grouped.agg(case.functions(), **options)
        if case.sort:
            # whatever number of outputs the plan asks for
            assert lazy.npartitions == lazy.optimize().npartitions == 1
        assert_same(
            lazy.compute(),
            answer,
            meta=lazy._meta,
            ordered=case.sort,
            rtol=relative(case),
            atol=tolerances(case, frame),
        )


def relative(case: Case) -> float:
    """Pandas itself works in float32 where a column is."""
    return 1e-5 if "float32" in case.kinds.values() else 1e-12


def comparable(kind: str, name: str) -> bool:
    """Leaves out what pandas itself answers by the path that it takes inside."""
    # these are refused only where there are values, or groups
    if kind == "category" and name in ("min", "max"):
        return False
    if kind == "string[pyarrow]" and name in ("any", "all"):
        return False
    return not (kind == "bool" and name == "quantile") and pandas_answers(CLASSES[kind], name)


@pytest.mark.usefixtures("plugin", "synchronous")
@settings(max_examples=settings.default.max_examples // 3)
@given(cases(comparable))
def test_plans_agree_with_pandas(case: Case):
    check(case, PLANS)


@pytest.mark.usefixtures("plugin", "synchronous")
@settings(max_examples=settings.default.max_examples // 2)
@given(cases(lambda k, name: name in SPREADS | {"mean", "sum"} and comparable(k, name), 2, NUMBERS))
def test_moments_agree_with_pandas(case: Case):
    check(case, {name: PLANS[name] for name in ("default", "tree", "tasks")})


METHODS = ["unique", "nunique", "value_counts", "size", "count", "first", "last", "min", "sum"]


@pytest.mark.usefixtures("plugin", "synchronous")
@given(cases(value_columns=1), st.sampled_from(METHODS), st.sampled_from(sorted(PLANS)))
def test_methods_agree_with_pandas(case: Case, name: str, plan: str):
    column = next(iter(case.spec))
    if name == "value_counts":
        # Dask's own metadata fails on null keys, and observed=False is left to stock Dask
        case = replace(case, dropna=True, observed=True)
    case.spec[column] = [name]
    frame = case.collection().compute()
    try:
        want = getattr(case.groupby(frame)[column], name)()
    except TypeError:
        return  # min of a category, sum of datetimes: Dask asks pandas when the query is made
    lazy = getattr(case.groupby(case.collection())[column], name)(**PLANS[plan])
    atol = tolerances(case, frame) if name == "sum" else 0.0
    assert_same(lazy.compute(), want, meta=lazy._meta, rtol=relative(case), atol=atol)


@pytest.mark.usefixtures("plugin", "synchronous")
@settings(max_examples=settings.default.max_examples // 3)
@given(cases(value_columns=1), st.sampled_from(["cov", "corr"]), st.data())
def test_matrices_agree_with_pandas(case: Case, name: str, data: Any):
    n = len(case.frame)
    numbers = st.lists(st.integers(-9, 9), min_size=n, max_size=n)
    x, y = (pd.Series(data.draw(numbers), index=case.frame.index, dtype=float) for _ in "xy")
    frame = case.frame[case.keys].assign(x=x.where(x < 8), y=y, z=np.arange(n) % 4 / 2)
    # pandas cannot put a matrix under a null key, nor make one of nothing
    assume(len(frame.dropna(subset=case.keys)))
    case = replace(case, frame=frame, dropna=True)
    want = getattr(case.groupby(case.collection().compute()), name)()
    for options in ({}, {"split_out": 3}):
        lazy = getattr(case.groupby(case.collection()), name)(**options)
        assert_same(lazy.compute(), want, rtol=1e-9, atol=1e-9)
