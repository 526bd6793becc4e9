"""The benchmark of rows beyond the device, without one: its data, its checks, its table."""

from __future__ import annotations

import pytest

from benchmarks import larger


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> larger.Rows:
    monkeypatch.setattr(larger, "PARTITION_ROWS", 1 << 12)
    return larger.Rows(30_000, 500)


@pytest.mark.parametrize("passes", [1, 3])
def test_rows_are_as_many_as_passes_say(rows: larger.Rows, passes: int) -> None:
    collection = rows.collection(passes)
    assert collection.npartitions == 8 * passes
    made = larger.grouped(collection, "auto")
    assert len(made) == 500
    rows.check(made, passes)
    with pytest.raises(AssertionError):
        rows.check(made, passes + 1)


@pytest.mark.parametrize("column", ["sum", "count"])
def test_a_wrong_group_is_found(rows: larger.Rows, column: str) -> None:
    made = larger.grouped(rows.collection(), "auto").sort_index()
    made.loc[2, column] += 1
    made.loc[400, column] -= 1
    with pytest.raises(AssertionError):
        rows.check(made)
