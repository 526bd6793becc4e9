"""Tables on the device, undivided and by part."""

from __future__ import annotations

from typing import Any

import pytest

from dask_gpuagg.streaming.tables import Tables


def merged(tables: list[Any]) -> Any:
    return sorted(set().union(*tables))


def test_tables_of_parts_merge_part_by_part() -> None:
    tables = Tables()
    assert not tables
    tables.add([[1, 2, 3]])
    assert not tables.can_merge
    tables.add([[2, 4]])
    tables.merge(merged, len)
    assert list(tables) == [[1, 2, 3, 4]]
    assert tables.merged_rows == 4
    tables.divide(lambda table: [[k for k in table if k % 2 == p] for p in (0, 1)])
    assert tables.number == 2
    assert not tables.can_merge
    tables.add([[2, 6], [7]])
    tables.merge(merged, len)
    assert tables.parts == [[[2, 4, 6]], [[1, 3, 7]]]
    assert tables.merged_rows == 6
    assert tables.take() == [[2, 4, 6], [1, 3, 7]]
    assert tables.number == 1
    assert not tables


def test_parts_that_have_merged_stay_so_where_memory_lacks() -> None:
    tables = Tables()
    tables.add([[1], [2]])
    tables.add([[3], [4]])

    def refused(part: list[Any]) -> Any:
        if [2] in part:
            raise MemoryError
        return merged(part)

    with pytest.raises(MemoryError):
        tables.merge(refused, len)
    assert tables.parts == [[[1, 3]], [[2], [4]]]
    assert tables.can_merge


def test_tables_of_other_parts_follow_only_where_none_is_held() -> None:
    tables = Tables()
    tables.add([[1], [2]])
    with pytest.raises(ValueError, match="zip"):
        tables.add([[3]])
    tables.take()
    tables.add([[3]])
    assert list(tables) == [[3]]
