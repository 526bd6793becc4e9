"""The choice between a tree and an exchange."""

from __future__ import annotations

import pickle

import pytest

from dask_gpuagg.planning.estimates import FEW_PARTITIONS, GroupEstimate
from dask_gpuagg.planning.query import Route, Routing
from dask_gpuagg.planning.route import MergeSize, decide

# of a thousand groups of 16 bytes
SIZE = MergeSize(row_bytes=16, most=16_000, merged=16_000)
UNKNOWN = GroupEstimate(None, False, "nothing is known")


def about(groups: int, bound: bool = False) -> GroupEstimate:
    return GroupEstimate(groups, bound, "a test says so")


def test_one_partition_is_never_exchanged():
    decision = decide(about(10**12), 1, SIZE, 3)
    assert (decision.route, decision.outputs, decision.pieces) == (Route.TREE, 3, 1)


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


def test_nothing_known_and_few_partitions_is_a_tree():
    assert decide(UNKNOWN, FEW_PARTITIONS, SIZE, 3).route is Route.TREE


def test_nothing_known_and_many_partitions_is_an_exchange():
    decision = decide(UNKNOWN, FEW_PARTITIONS + 1, SIZE, 3)
    assert (decision.route, decision.outputs) == (Route.EXCHANGE, 3)


def test_no_groups_at_all_is_a_tree():
    assert decide(about(0), 40, SIZE, 3) == decide(about(0), 41, SIZE, 3)
    assert decide(about(0), 40, SIZE, 3).route is Route.TREE


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
    assert decision.reason in str(decision)


def test_text():
    assert str(Routing(Route.TREE, 1, "why")) == "tree into 1 output: why"
    assert str(Routing(Route.EXCHANGE, 3, "why")) == "exchange into 3 outputs: why"


def test_decisions_are_values():
    decision = decide(about(5000), 40, SIZE, 3)
    assert pickle.loads(pickle.dumps(decision)) == decision
    assert hash(pickle.loads(pickle.dumps(decision))) == hash(decision)
    assert decision != decide(about(5001), 40, SIZE, 3)
