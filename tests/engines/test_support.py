"""What the device engine takes, and what it says where there is no device."""

from __future__ import annotations

import numpy as np
import pytest

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.engines import support
from dask_gpuagg.plan import Column, Requested, make_plan

KEY = [Column("k", np.dtype("int64"))]


def refusal(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch, by: object = "k") -> str | None:
    monkeypatch.setattr(support, "unavailable", lambda: None)
    columns = [*KEY, Column("v", np.dtype(dtype))]
    flags = {"dropna": True, "observed": True, "sort": False}
    plan = make_plan(KEY, columns, [Requested("v", name, "v")], **flags)
    refused = support.device_refusal(plan, [by])
    return None if refused is None else refused.reason


@pytest.mark.parametrize("name", ["sum", "mean", "var", "first", "nunique", "median", "any"])
def test_numbers_are_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(name, "float64", monkeypatch) is None


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("mean", "datetime64[ns]"), ("idxmin", "float64"), ("sum", "object"), ("unique", "int64")],
)
def test_others_are_refused_by_name(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = refusal(name, dtype, monkeypatch)
    assert reason is not None
    assert name in reason


def test_a_function_as_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "function" in str(refusal("sum", "int64", monkeypatch, by=abs))


def test_without_a_device_the_reason_is_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "unavailable", lambda: "no CUDA driver")
    plan = make_plan(
        KEY, KEY, [Requested("k", "count", "k")], dropna=True, observed=True, sort=False
    )
    assert "no CUDA driver" in str(support.device_refusal(plan, ["k"]))


def test_the_table_names_registered_aggregations_only() -> None:
    rows = support.device_table().splitlines()[2:]
    names = [row.split("`")[1] for row in rows]
    assert set(names) < set(REGISTRY)
    assert {"sum", "mean", "var", "nunique", "median", "first"} <= set(names)
    assert not {"cov", "value_counts", "idxmin"} & set(names)
