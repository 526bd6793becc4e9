"""The choice between a tree and an exchange."""

from __future__ import annotations

import pickle

import pytest

from dask_gpuagg.planning.groups import GroupEstimate
from dask_gpuagg.planning.output_size import OutputSize
from dask_gpuagg.planning.route import FEW_PARTITIONS, Route, Routing, decide

# of a thousand groups of 16 bytes
SIZE = OutputSize(row_bytes=16, most=16_000, merged=16_000)
UNKNOWN = GroupEstimate(None, False, "nothing is known")


def about(groups: int, bound: bool = False) -> GroupEstimate:
    return GroupEstimate(groups, bound, "a test says so")


def test_one_partition_is_never_exchanged():
    decision = decide(about(10**12), 1, SIZE)
    assert (decision.route, decision.outputs) == (Route.TREE, 1)


@pytest.mark.parametrize("npartitions", [2, 40, 5000])
def test_few_groups_make_a_tree_however_many_partitions(npartitions):
    decision = decide(about(1000), npartitions, SIZE)
    assert (decision.route, decision.outputs) == (Route.TREE, 1)


@pytest.mark.parametrize(
    ("groups", "npartitions", "outputs"),
    [(1001, 40, 2), (5000, 40, 5), (5001, 40, 6), (10**9, 40, 40), (10**9, 2, 2)],
)
def test_many_groups_are_exchanged_into_as_many_outputs_as_needed(groups, npartitions, outputs):
    decision = decide(about(groups), npartitions, SIZE)
    assert (decision.route, decision.outputs) == (Route.EXCHANGE, outputs)
    assert decision.groups == groups


def test_nothing_known_and_few_partitions_is_a_tree():
    assert decide(UNKNOWN, FEW_PARTITIONS, SIZE).route is Route.TREE


def test_nothing_known_and_many_partitions_is_an_exchange():
    decision = decide(UNKNOWN, FEW_PARTITIONS + 1, SIZE)
    assert (decision.route, decision.outputs) == (Route.EXCHANGE, 2)
    assert decide(UNKNOWN, 64, SIZE).outputs == 5


def test_no_groups_at_all_is_a_tree_into_one_output():
    assert decide(about(0), 40, SIZE) == decide(about(0), 41, SIZE)
    assert decide(about(0), 40, SIZE).outputs == 1


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (
            about(1234567),
            ("about 1,234,567 groups, 18.84 MiB", "a test says so", "at most 15.62 kiB"),
        ),
        (about(5, bound=True), ("at most 5 groups", "a test says so")),
        (UNKNOWN, ("many partitions", "nothing is known")),
    ],
)
def test_the_reason_names_the_estimate_and_its_source(estimate, words):
    decision = decide(estimate, 64, SIZE)
    assert all(word in decision.reason for word in words)
    assert decision.reason in str(decision)


def test_text():
    assert str(Routing(Route.TREE, 1, "why")) == "tree into 1 output: why"
    assert str(Routing(Route.EXCHANGE, 3, "why")) == "exchange into 3 outputs: why"


def test_decisions_are_values():
    decision = decide(about(5000), 40, SIZE)
    assert pickle.loads(pickle.dumps(decision)) == decision
    assert hash(pickle.loads(pickle.dumps(decision))) == hash(decision)
    assert decision != decide(about(5001), 40, SIZE)


def test_a_decision_stands_for_split_out():
    # Dask calls a callable split_out with the number of input partitions
    assert Routing(Route.EXCHANGE, 3, "why")(40) == 3
