"""Which kernels are compiled ahead of the calls that are likely to launch them, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dask_gpuagg.cuda import aggregate
from dask_gpuagg.cuda.aggregate import Run, compile_ahead
from dask_gpuagg.cuda.choice.decision import Decision
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KeyPart
from tests.cuda.choice.test_choose import H200
from tests.cuda.choice.test_correction import Times
from tests.cuda.specialisations import TABLE

DECISION = Decision(kernel="hgb", why="")
Begun = dict[Query, set[str]]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Begun:
    """The units that are begun, by query."""
    made: Begun = {}

    def prepared(query: Query, device: Any) -> Any:
        return query, SimpleNamespace(begin=lambda *units: made.update({query: set(units)}))

    monkeypatch.setattr(aggregate, "current_device", lambda: H200)
    monkeypatch.setattr(aggregate, "prepared", prepared)
    return made


def test_few_rows_need_few_kernels(begun: Begun) -> None:
    query = TABLE["5 aggregations by int64"]
    compile_ahead(query, 1_000, 10)
    assert begun == {query: {"core", "lphga"}}


def test_kernels_of_many_groups_are_for_many_groups(begun: Begun) -> None:
    query = TABLE["5 aggregations by int64"]
    compile_ahead(query, 10**8, 1_000)
    few = begun.pop(query)
    assert {"core", "sample", "hgb", "direct_shared"} <= few
    assert "scatter" not in few
    compile_ahead(query, 10**8, 10**7)
    assert {"scatter", "aggregate", "fold"} <= begun[query] - few


def test_keys_get_the_kernels_of_a_narrower_representation_too(begun: Begun) -> None:
    query = TABLE["1 aggregation by strings"]
    compile_ahead(query, 10**8, 1_000)
    coded = next(each for each in begun if each.coded)
    numbers = replace(query, keys=(KeyPart("u32", False),))
    assert begun.keys() == {query, coded, query.texts, numbers}
    assert "hgb" in begun[coded]
    # strings as numbers of a dictionary
    assert {"sample", "dictionary", "encode_near", "encode_far"} == begun[query.texts]
    assert "direct_shared" in begun[numbers]
    assert all(units <= set(each.units) for each, units in begun.items())


@pytest.mark.parametrize("fails", ["group", "write"])
def test_a_call_that_raises_gives_its_events_back(
    begun: Begun, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    watch: Any = Times({})

    def fail(*given: Any) -> Any:
        raise MemoryError(fails)

    monkeypatch.setattr(aggregate.correction, "stopwatch_of", lambda device, rows: watch)
    monkeypatch.setattr(aggregate, "Columns", lambda *given: SimpleNamespace(rows=1))
    monkeypatch.setattr(aggregate, "group", lambda *given: (None, Run(DECISION, 1, 1), None))
    monkeypatch.setattr(aggregate, fails, fail)
    with pytest.raises(MemoryError, match=fails):
        aggregate.aggregate(TABLE["5 aggregations by int64"], [], None)
    assert watch.destroyed
