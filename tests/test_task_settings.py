"""Settings travel from where a query is planned to where its tasks run."""

import pickle
from dataclasses import replace
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
import pytest

from dask_gpuagg.plan import Plan, Requested
from dask_gpuagg.reporting.runs import task
from dask_gpuagg.settings import Settings, settings, task_settings, using
from tests.data import plan_of

CLIENT = replace(settings(), kernel="lphga", fallback="silent")
OF_CLIENT = {"gpuagg.kernel": "lphga", "gpuagg.fallback": "silent"}
OF_WORKER = {"gpuagg.kernel": "hgb", "gpuagg.fallback": "raise"}


def plan_of_sum() -> Plan:
    return plan_of(pd.DataFrame({"k": [1], "v": [1.0]}), ["k"], Requested("v", "sum", "v"))


def test_outside_of_a_task_the_configuration_holds() -> None:
    with dask.config.set(OF_CLIENT):
        assert task_settings() == settings() == CLIENT
    assert (task_settings().kernel, task_settings().fallback) == ("auto", "warn")


def test_inside_a_task_its_own_settings_hold() -> None:
    plan = replace(plan_of_sum(), settings=CLIENT)
    with dask.config.set(OF_WORKER), task(pickle.loads(pickle.dumps(plan)), "partial"):
        assert task_settings() == CLIENT
        with using(None):
            assert task_settings() == CLIENT
    assert task_settings() == settings()


def test_plans_that_differ_in_settings_are_equal() -> None:
    plan = plan_of_sum()
    assert replace(plan, settings=CLIENT) == plan
    assert hash(replace(plan, settings=CLIENT)) == hash(plan)


@pytest.fixture
def seen() -> list[Settings]:
    return []


@pytest.mark.parametrize("split_out", [1, 2])
def test_every_step_of_a_query_sees_them(split_out: int, seen: list[Settings], plugin: Any) -> None:
    def chunk(grouped: Any) -> Any:
        seen.append(task_settings())
        return grouped.sum()

    def agg(grouped: Any) -> Any:
        seen.append(task_settings())
        return grouped.sum()

    frame = dd.from_pandas(pd.DataFrame({"k": [1, 2] * 20, "v": range(40)}), npartitions=4)
    query = frame.groupby("k").agg({"v": dd.Aggregation("s", chunk, agg)}, split_out=split_out)
    with dask.config.set(OF_CLIENT):
        planned = query.optimize()
    seen.clear()
    with dask.config.set(OF_WORKER | {"scheduler": "synchronous"}):
        result = planned.compute()
    assert result["v"].sort_index().tolist() == [380, 400]
    assert len(seen) >= 5
    assert set(seen) == {CLIENT}
