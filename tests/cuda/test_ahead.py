"""Which kernels are compiled ahead of the calls that are likely to launch them, without a GPU."""

from dataclasses import replace

import pytest

from dask_gpuagg.cuda.ahead import likely
from dask_gpuagg.cuda.query.forms import CODED
from dask_gpuagg.cuda.query.query import Query
from tests.cuda.choice.test_choose import H200
from tests.cuda.specialisations import TABLE

ONE, FIVE = (TABLE[f"{n} by int64"] for n in ("1 aggregation", "5 aggregations"))
TEXTS = TABLE["1 aggregation by strings"]
SHARED = {"hgb", "direct_shared"}


def units_of(query: Query, rows: int, groups: int | None, of: Query | None = None) -> set[str]:
    return {unit for each, unit in likely(query, rows, groups, H200) if each == (of or query)}


def test_few_rows_need_few_kernels() -> None:
    assert units_of(FIVE, 1_000, None) == units_of(FIVE, 1_000, 10) == {"core", "lphga"}


def test_before_groups_are_known_only_what_shows_the_keys_is_begun() -> None:
    assert likely(FIVE, 10**8, None, H200) == [(FIVE, "core"), (FIVE, "sample")]
    assert {"core", "sample", "bytes"} == units_of(TEXTS, 10**8, None)


def test_keys_side_by_side_and_far_apart() -> None:
    """Kernels of both, as the decision is for so many groups, and of no other number of groups."""
    few = units_of(FIVE, 5 * 10**7, 1_000)
    assert few >= SHARED
    assert not any(unit.startswith(("scatter", "aggregate", "fold")) for unit in few)
    many = units_of(FIVE, 5 * 10**7, 10**6)
    assert {"scatter", "aggregate", "scatter_striped", "aggregate_striped"} <= many
    assert not many & SHARED
    most = units_of(FIVE, 5 * 10**7, 5 * 10**7)
    assert {"scatter_wide", "fold", "scatter_wide_striped", "fold_striped"} <= most
    assert not most & {"scatter", "aggregate", *SHARED}
    assert "direct_global" in units_of(ONE, 5 * 10**7, 10**6)


def test_strings_are_coded_or_hashed() -> None:
    rows = 10**8
    coded = replace(TEXTS, chosen=CODED)
    found = likely(TEXTS, rows, 1_000, H200)
    assert {query for query, _ in found} == {TEXTS, coded}
    assert (TEXTS, "hgb") in found
    assert "direct_shared" in units_of(TEXTS, rows, 1_000, of=coded)
    found = likely(TEXTS, rows, rows, H200)
    assert {query for query, _ in found} == {TEXTS, coded}
    assert {(TEXTS, "scatter_wide"), (TEXTS, "fold")} <= set(found)


@pytest.mark.parametrize("groups", [None, 0, 1, 3_000, 10**5, 10**7, 10**8])
def test_each_unit_once_and_of_its_query(groups: int | None) -> None:
    asked = [query for query in TABLE.values() if "core" in query.units]
    for query in asked:
        for rows in (10**3, 10**5, 10**8):
            if (groups or 0) <= rows:
                found = likely(query, rows, groups, H200)
                assert len(found) == len(set(found))
                assert all(unit in each.units for each, unit in found)
                before = [one for one in likely(query, rows, None, H200) if one[0] == query]
                assert before
                assert set(before) <= set(found)
