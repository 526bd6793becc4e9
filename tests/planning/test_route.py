"""Tree or exchange, by the number of partitions, groups and bytes."""

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_gpuagg
from dask_gpuagg.frontend import logical
from dask_gpuagg.planning import route as module
from dask_gpuagg.planning.chunks import GroupByQuery, Route
from dask_gpuagg.planning.route import (
    BYTES_ON_HOST,
    MOVED_DIRECTLY,
    MOVED_TO_ONE_GPU,
    PIECES_ON_HOST,
    GroupEstimate,
    MergeSize,
    decide,
    merge_size,
)
from tests.merging import pieces_of

# of a thousand groups of 16 bytes
SIZE = MergeSize(row_bytes=16, piece_bytes=16_000, merged=16_000)
UNKNOWN = GroupEstimate(None, False, "nothing is known")


def about(groups: int, bound: bool = False) -> GroupEstimate:
    return GroupEstimate(groups, bound, "a test says so")


@pytest.mark.parametrize("npartitions", [2, 40, 5000])
def test_few_groups_make_a_tree_however_many_partitions(npartitions):
    decision = decide(about(1000), npartitions, SIZE, 3)
    assert (decision.route, decision.outputs, decision.pieces) == (Route.TREE, 3, 1)


@pytest.mark.parametrize(
    ("groups", "npartitions", "pieces"),
    [(1001, 40, 2), (5000, 40, 5), (5001, 40, 6), (10**9, 40, 40), (10**9, 2, 2)],
)
def test_many_groups_are_merged_in_as_many_pieces_as_needed(groups, npartitions, pieces):
    decision = decide(about(groups), npartitions, SIZE, 3)
    assert (decision.route, decision.outputs) == (Route.EXCHANGE, 3)
    assert (decision.groups, decision.pieces) == (groups, pieces)


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (
            about(1234567),
            ("about 1,234,567 groups, 18.84 MiB", "a test says so", "up to 15.62 kiB"),
        ),
        (about(5, bound=True), ("at most 5 groups", "a test says so")),
        (UNKNOWN, ("many partitions", "nothing is known")),
    ],
)
def test_the_reason_names_the_estimate_and_its_source(estimate, words):
    decision = decide(estimate, 64, SIZE, 3)
    assert all(word in decision.reason for word in words)


H200 = 150_000_000_000
MILLION = 10**6


def query(spec: object = "sum") -> GroupByQuery:
    pdf = pd.DataFrame({"k": np.arange(4), "s": "x", "v": 1.0, "w": np.float32(1)})
    grouped = dd.from_pandas(pdf, npartitions=2).groupby("k")
    return logical.read((grouped.v.sum() if spec == "sum" else grouped.agg(spec)).expr)


def on_gpus(monkeypatch: pytest.MonkeyPatch, number: int, memory: int = H200) -> None:
    monkeypatch.setattr(GroupByQuery, "on_device", True)
    monkeypatch.setattr(module, "gpus", lambda: (number, memory))


@pytest.mark.parametrize(
    ("spec", "nbytes"),
    [("sum", 8 + 8), ({"v": ["sum", "count", "min", "max"], "w": ["mean"]}, 8 + 5 * 8)],
)
def test_a_group_has_the_bytes_of_its_keys_and_outputs(spec: object, nbytes: int) -> None:
    assert merge_size(query(spec)).row_bytes == nbytes


def test_a_larger_result_of_the_host_is_divided_for_speed_and_then_by_the_bound() -> None:
    size = merge_size(query())
    assert size.pieces_of(8 * MILLION) == 8
    assert size.pieces_of(100 * MILLION) == PIECES_ON_HOST[1]
    assert size.pieces_of(1000 * MILLION) == 1000 * MILLION * 16 // BYTES_ON_HOST


def test_one_gpu_divides_by_the_bound_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpus(monkeypatch, 1)
    size = merge_size(query())
    assert size.piece_bytes == H200 // 32
    assert size.pieces_of(200 * MILLION) == 1
    assert size.pieces_of(500 * MILLION) == 2


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_several_gpus_send_one_what_is_little(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    on_gpus(monkeypatch, 8)
    size = merge_size(query(), workers)
    few = MOVED_TO_ONE_GPU // (workers - 1) // 16
    assert size.pieces_of(few) == 1
    assert size.pieces_of(few + 1) == workers
    assert size.pieces_of(50 * MILLION) == workers
    monkeypatch.setattr(module, "protocol", lambda: "ucx")
    directly = merge_size(query(), workers)
    more = MOVED_DIRECTLY // (workers - 1) // 16
    assert directly.pieces_of(more) == 1
    assert directly.pieces_of(more + 1) == workers
    assert size.pieces_of(10_000 * MILLION) == 35


@given(
    st.integers(0, 10**12),
    st.builds(
        MergeSize,
        row_bytes=st.integers(1, 10**4),
        piece_bytes=st.integers(1, 10**10),
        merged=st.integers(1, 10**10),
        max_pieces=st.integers(1, 64),
        min_pieces=st.integers(1, 64),
    ),
)
def test_no_piece_is_expected_to_be_larger(groups: int, size: MergeSize) -> None:
    pieces = size.pieces_of(groups)
    assert pieces >= 1
    assert groups * size.row_bytes <= pieces * max(size.piece_bytes, size.row_bytes)
    assert size.pieces_of(groups + 1) >= pieces


def test_explain_shows_the_bound_where_it_makes_several_pieces() -> None:
    pdf = pd.DataFrame({"k": np.arange(4000), "v": 1.0})
    ddf = dd.from_pandas(pdf, npartitions=20)
    with dask_gpuagg.enabled(), pieces_of(16_000):
        (found,) = dask_gpuagg.explain(ddf.groupby("k").v.sum()).groupbys
        assert found.decision is not None
        assert (found.decision.route, found.decision.pieces) == (Route.EXCHANGE, 4)
        assert "62.50 kiB" in str(found)
        assert "one task merges up to 15.62 kiB" in str(found)
        assert len(ddf.groupby("k").v.sum().compute()) == 4000
