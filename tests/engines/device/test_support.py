"""What the device engine takes, and what it says where there is no device."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.decomposition import make_plan
from dask_gpuagg.dtypes import DEVICE_CLASSES
from dask_gpuagg.engines.device import support
from dask_gpuagg.plan import Column, Plan, Requested

KEY = [Column("k", np.dtype("int64"))]


def plan(
    names: list[str],
    dtype: object,
    keys: list[Column] = KEY,
    observed: bool = True,
    **parameters: object,
) -> Plan:
    columns = [*keys, Column("v", dtype)]
    requested = [Requested(name, name, "v", tuple(parameters.items())) for name in names]
    return make_plan(keys, columns, requested, dropna=True, observed=observed, sort=False)


@pytest.fixture(autouse=True)
def _available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "unavailable", lambda: None)


def refusal(name: str, dtype: object, labels: int = 1, **parameters: object) -> str | None:
    typed = np.dtype(dtype) if isinstance(dtype, str) else dtype
    refused = support.device_refusal(plan([name], typed, **parameters), labels)
    return None if refused is None else refused.reason


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "float64") for name in ("sum", "mean", "var", "first", "nunique", "any")),
        ("mean", "datetime64[ns]"),
        ("median", "timedelta64[ns]"),
        ("idxmin", "float64"),
        ("sum", "object"),
        ("min", "object"),
        ("unique", "int64"),
        ("value_counts", "int64"),
    ],
)
def test_aggregations_are_taken(name: str, dtype: str) -> None:
    assert refusal(name, dtype) is None


@pytest.mark.parametrize("name", ["var", "std", "sem"])
@pytest.mark.parametrize("ddof", [0, 1, -1, np.int64(2), np.uint8(2), 2**31 - 1, -(2**31)])
def test_whole_numbers_of_32_bits_are_taken_for_ddof(name: str, ddof: object) -> None:
    assert refusal(name, "float64", ddof=ddof) is None


@pytest.mark.parametrize(
    "ddof", [True, np.bool_(True), 1.5, 1.0, float("nan"), 2**31, -(2**31) - 1, 2**40, 10**400, "1"]
)
def test_nothing_else_gets_into_the_source(ddof: object) -> None:
    spread = plan(["var"], np.dtype("f8"))
    # as a plan of another process may have it, unchecked
    output = replace(spread.outputs[0], parameters=(("ddof", ddof),))
    refused = support.device_refusal(replace(spread, outputs=(output,)))
    assert refused is not None
    assert refused.reason == "ddof must be a 32-bit integer"


def test_the_device_takes_what_the_registry_takes() -> None:
    for record in REGISTRY.values():
        # cuDF has no index of decimals
        missing = {"decimal"} if record.name == "value_counts" else set()
        if record.name in ("std", "sem"):  # of durations the host makes them
            missing.add("timedelta")
        # an exact aggregation runs in the place of an approximate one
        classes = set() if record.exact else set(DEVICE_CLASSES)
        taken = record.accepts & classes
        assert set(support.device_classes(record.name)) == taken - missing, record.name


@pytest.mark.parametrize("ordered", [True, False])
def test_only_ordered_categories_have_extremes(ordered: bool) -> None:
    reason = refusal("max", pd.CategoricalDtype(["b", "a"], ordered=ordered))
    assert (reason is None) == ordered
    assert ordered or "no order" in str(reason)


def test_labels_of_several_levels_are_refused() -> None:
    assert refusal("idxmin", "int64", labels=1) is None
    assert "several levels" in str(refusal("idxmin", "int64", labels=2))
    assert refusal("min", "int64", labels=2) is None


class DecimalDtype:
    """Stands for a decimal of cuDF, which cannot be imported here."""

    def __init__(self, precision: int) -> None:
        self.precision = precision


DecimalDtype.__module__ = "cudf.core.dtypes"


def test_what_the_kernels_make() -> None:
    wide, narrow = plan(["min", "sum"], DecimalDtype(38)), plan(["min", "sum"], DecimalDtype(18))
    assert [support.in_kernels(use, wide) for use in wide.states] == [False, True]
    assert [support.in_kernels(use, narrow) for use in narrow.states] == [True, True]
    text = plan(["min", "first", "any"], np.dtype(object))
    assert [support.in_kernels(use, text) for use in text.states] == [False, True, True]


@pytest.mark.parametrize(
    ("names", "dtype", "once"),
    [
        (["sum", "mean", "var"], np.dtype("float64"), True),
        (["mean", "first"], np.dtype("datetime64[ns]"), True),
        (["sum", "median"], np.dtype("float64"), False),
        (["idxmin"], np.dtype("float64"), False),
        (["min"], np.dtype(object), False),
        (["nunique"], np.dtype("int64"), False),
        (["value_counts"], np.dtype("int64"), False),
    ],
)
def test_one_pass_suffices(names: list[str], dtype: object, once: bool) -> None:
    assert support.one_pass(plan(names, dtype)) == once


@pytest.mark.parametrize(
    ("names", "dtype", "alone"),
    [
        (["median", "nunique"], np.dtype("float64"), True),
        (["median"], np.dtype("timedelta64[ns]"), True),
        (["nunique"], np.dtype(bool), True),
        (["sum", "median"], np.dtype("float64"), False),
        (["sum"], np.dtype("float64"), False),
        (["nunique"], np.dtype(object), False),
        (["nunique"], DecimalDtype(18), False),
        (["median", "list"], np.dtype("int64"), False),
        (["unique"], np.dtype("int64"), False),
        (["value_counts"], np.dtype("int64"), False),
    ],
)
def test_rows_suffice(names: list[str], dtype: object, alone: bool) -> None:
    assert support.of_rows(plan(names, dtype)) == alone


def test_unobserved_categories_need_all_groups() -> None:
    key = [Column("k", pd.CategoricalDtype(["a", "b"]))]
    assert support.one_pass(plan(["sum"], np.dtype("int64"), key))
    assert not support.one_pass(plan(["sum"], np.dtype("int64"), key, observed=False))
    assert support.one_pass(plan(["sum"], np.dtype("int64"), observed=False))
    assert support.of_rows(plan(["median"], np.dtype("int64"), key))
    assert not support.of_rows(plan(["median"], np.dtype("int64"), key, observed=False))


def test_decimals_are_no_keys() -> None:
    by_decimals = plan(["sum"], np.dtype("int64"), [Column("k", DecimalDtype(18))])
    assert "no index of decimals" in str(support.device_refusal(by_decimals))
    assert "value_counts" in str(support.device_refusal(plan(["value_counts"], DecimalDtype(18))))


def test_without_a_device_the_reason_is_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "unavailable", lambda: "no CUDA driver")
    assert "no CUDA driver" in str(support.device_refusal(plan(["count"], np.dtype("int64"))))
