"""Chunks of partitions that this process holds: small ones share a task."""

from collections.abc import Iterator
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.planning import bucketing, route
from dask_gpuagg.planning.nodes import GroupByChunkDirect, GroupByChunks, GroupByPartial
from tests.comparison import same
from tests.planning.test_chunks import QUERIES, frame, nodes

PARTITIONS = 8


@pytest.fixture(autouse=True)
def _planned() -> Iterator[None]:
    settings = {"gpuagg.fallback": "raise", "scheduler": "threads", "num_workers": 2}
    with dask_gpuagg.enabled(), dask.config.set(settings):
        yield


def held(pdf: pd.DataFrame) -> Any:
    return dd.from_pandas(pdf, npartitions=PARTITIONS, sort=False).persist()


@pytest.mark.parametrize("name", QUERIES)
def test_answers_are_those_of_a_task_for_each_partition(name: str) -> None:
    ddf = held(frame())
    got = QUERIES[name](ddf).compute()
    with dask.config.set({"gpuagg.chunk": 1}):
        expected = QUERIES[name](ddf).compute()
    same(got, expected)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_each_thread_gets_a_chunk(threads: int) -> None:
    query = held(frame()).groupby("k").v.sum()
    with dask.config.set(num_workers=threads):
        (node,) = nodes(query, GroupByChunkDirect if threads == 1 else GroupByChunks)
    assert [len(bucket) for bucket in node.chunks.buckets] == [PARTITIONS // threads] * threads
    noun = "task" if threads == 1 else "tasks"
    assert str(node.chunks) == f"{PARTITIONS} partitions in {threads} {noun} on 1 worker"


def test_only_the_bytes_of_columns_that_are_read_count(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 800
    pdf = pd.DataFrame({f"c{i}": np.arange(rows) for i in range(20)})
    monkeypatch.setattr(bucketing, "_HERE_BYTES", 2 * 8 * rows)
    ddf = held(pdf)
    assert nodes(ddf.groupby("c0").c1.sum(), GroupByChunks)
    # of all columns a partition is as large as a chunk may be
    assert nodes(ddf.groupby("c0").sum(), GroupByPartial)


def test_collections_that_are_not_data_have_no_chunks() -> None:
    lazy = dd.from_pandas(frame(), npartitions=PARTITIONS, sort=False)
    assert nodes(lazy.groupby("k").v.sum(), GroupByPartial)
    assert nodes(held(frame()).map_partitions(lambda f: f).groupby("k").v.sum(), GroupByPartial)


@pytest.mark.parametrize("groups", [20, 5_000])
def test_partitions_with_few_rows_of_each_group_share_a_task(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    pdf = pd.DataFrame({"k": rng.integers(0, groups, 40_000), "v": rng.random(40_000)})
    # rows are too many for one task, groups are not
    monkeypatch.setattr(route, "MERGED_ON_HOST", 16 * 10_000)
    query = dd.from_pandas(pdf, npartitions=PARTITIONS, sort=False).groupby("k", sort=False).v.sum()
    buckets = [bucket for node in nodes(query, GroupByChunks) for bucket in node.chunks.buckets]
    assert list(map(len, buckets)) == ([] if groups == 20 else [4, 4])
    pd.testing.assert_series_equal(query.compute().sort_index(), pdf.groupby("k").v.sum())
    with dask.config.set({"gpuagg.chunk": 1}):
        assert not nodes(query, GroupByChunks)
