"""Which kernels are compiled ahead of the calls that are likely to launch them, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dask_gpuagg.cuda import aggregate
from dask_gpuagg.cuda.aggregate import compile_ahead
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KeyPart
from tests.cuda.choice.test_choose import H200
from tests.cuda.specialisations import TABLE

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
