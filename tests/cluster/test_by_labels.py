"""Results with unlike partitions on clusters, where those that are kept are futures."""

from __future__ import annotations

from collections.abc import Iterator

import dask
import pandas as pd
import pytest
from distributed import Client

import dask_gpuagg
from tests.frontend.test_by_labels import (
    COMBINED,
    FRAME,
    RESULTS,
    SOME,
    after_assign,
    collection,
    grouped,
    same,
)


@pytest.fixture(autouse=True)
def _enabled(client: Client) -> Iterator[None]:
    config = {"gpuagg.fallback": "raise", "dataframe.convert-string": False}
    with dask.config.set(config), dask_gpuagg.enabled():
        yield


@pytest.mark.parametrize("name", ["divide", "fill", "columns", "merge", "nested"])
@pytest.mark.parametrize("left", ["kept, one", "kept, several", "sorted"])
def test_two_results_are_combined(left: str, name: str) -> None:
    d = collection()
    a, b = RESULTS[left](grouped(d)), RESULTS["given"](grouped(d[d.x > 90]))
    same(COMBINED[name](a, b).compute(), COMBINED[name](grouped(FRAME)().sum(), _fewer()))


def _fewer() -> pd.DataFrame:
    return grouped(SOME)().sum()


@pytest.mark.parametrize("by", ["k", "day"])
def test_groups_that_dask_has_placed_meet_those_that_we_have(by: str) -> None:
    d = collection()
    got = after_assign(d, d[d.x > 90], by, split_out=3).compute()
    same(got, after_assign(FRAME, SOME, by))


def test_kept_results_have_all_partitions(client: Client) -> None:
    with dask.config.set({"gpuagg.output-bytes": 400}):
        for kept in (
            dask.persist(collection().groupby("k").x.sum())[0],
            client.persist(collection().groupby("k").x.sum()),
        ):
            assert kept.optimize().npartitions > 1
            same(kept.compute(), FRAME.groupby("k").x.sum())
