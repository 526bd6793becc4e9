"""Distinct values on a cluster: one task merges few distinct pairs, several merge many."""

from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.planning import lower, route
from dask_gpuagg.planning.chunks import Route
from dask_gpuagg.planning.nodes import GroupByMerge
from dask_gpuagg.planning.route import FEW_PARTITIONS
from tests.merging import decision_of

MANY = 40
ROWS = 2_000


@pytest.fixture(autouse=True)
def _between_processes(raising: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan as where partials travel between processes; samples are taken in this one."""
    route._recent.clear()
    shuffled_by(monkeypatch, "p2p")


def shuffled_by(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    for module in (lower, route):
        monkeypatch.setattr(module, "get_default_shuffle_method", lambda: method)


def part(i: int) -> pd.DataFrame:
    rng = np.random.default_rng(i)
    k, few, many = rng.integers(0, 7, ROWS), rng.integers(0, 5, ROWS), rng.random(ROWS)
    names = np.array([f"n{j}" for j in range(11)])
    return pd.DataFrame(
        {"k": k, "few": few, "many": many, "s": names[rng.integers(0, 11, ROWS)], "b": k > 3}
    )


def rows() -> Any:
    return dd.from_map(part, range(MANY))


@pytest.mark.parametrize(
    ("value", "expected"), [("few", 7 * 5 * 16), ("s", 7 * 11 * 24), ("many", MANY * ROWS * 16)]
)
def test_pairs_are_estimated_beside_the_groups(value: str, expected: int) -> None:
    decision = decision_of(rows().groupby("k")[value].nunique(split_out=None))
    assert (decision.groups, decision.outputs) == (7, 3)
    assert decision.pair_bytes == pytest.approx(expected, rel=0.2)
    assert "of distinct pairs" in decision.reason


def test_of_several_columns_the_one_with_most_pairs_counts() -> None:
    decision = decision_of(rows().groupby("k").agg({"few": "nunique", "many": "nunique"}))
    assert decision.pair_bytes == pytest.approx(MANY * ROWS * 16, rel=0.2)


@pytest.mark.parametrize(("value", "spread"), [("few", False), ("many", True)])
def test_many_pairs_are_exchanged_and_few_are_not(
    value: str, spread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower, "BYTES_ON_HOST", 100_000)
    query = rows().groupby("k")[value].nunique(split_out=None)
    (found,) = dask_gpuagg.explain(query).groupbys
    text = str(dask_gpuagg.explain(query))
    assert ("exchange" in text, "tree into 3 outputs" in text) == (spread, not spread)
    assert found.decision is not None
    assert found.decision.route is Route.TREE


@pytest.mark.parametrize(("most", "pieces"), [(400_000, [9]), (100_000, [12, 15]), (1_000, [42])])
def test_each_piece_fits_an_output(
    most: int, pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower, "BYTES_ON_HOST", most)
    planned = rows().groupby("k").many.nunique(split_out=None).optimize(fuse=False).expr
    (merge,) = planned.find_operations(GroupByMerge)
    # a multiple of the three outputs
    assert merge.npartitions in pieces


@pytest.mark.parametrize(
    "make",
    [
        lambda d: d.groupby("k").many.nunique(split_out=4),
        lambda d: d.groupby("k").many.nunique(split_out=None, shuffle_method="tasks"),
        lambda d: d.partitions[:FEW_PARTITIONS].groupby("k").many.nunique(split_out=None),
        lambda d: d.groupby("k").many.sum(),
    ],
    ids=["split_out", "shuffle_method", "few partitions", "no pairs"],
)
def test_nothing_is_sampled_for_pairs_elsewhere(make: Any) -> None:
    assert decision_of(make(rows())).pair_bytes is None


def test_threads_exchange_pairs_whatever_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    shuffled_by(monkeypatch, "disk")
    query = rows().groupby("k").few.nunique(split_out=None)
    assert decision_of(query).pair_bytes is None
    assert "exchange" in str(dask_gpuagg.explain(query))


def test_a_column_that_is_its_own_key() -> None:
    assert decision_of(rows().groupby("k").agg({"k": "nunique"})).pair_bytes == 7 * 16
    assert (
        decision_of(rows().groupby(rows().few % 3).s.nunique(split_out=None)).pair_bytes
        == 3 * 11 * 24
    )


def test_as_many_outputs_as_are_asked_for() -> None:
    query = rows().groupby("k").few.nunique
    assert query(split_out=True).optimize().npartitions == MANY
    assert query(split_out=3).optimize().npartitions == 3
    assert query().optimize().npartitions == MANY
    assert query(split_out=None).optimize().npartitions == 3
