"""Tables of the documentation have what the registry has."""

from __future__ import annotations

import pytest

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.dtypes import DTYPE_CLASSES
from dask_gpuagg.tables import meaning_table, support_table


def rows_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


@pytest.mark.parametrize("table", [support_table, meaning_table])
class TestTables:
    def test_has_a_row_for_every_aggregation(self, table):
        assert [row[0].strip("`") for row in rows_of(table())[2:]] == list(REGISTRY)

    def test_is_rectangular_markdown(self, table):
        rows = rows_of(table())
        assert len({len(row) for row in rows}) == 1
        assert set(rows[1]) == {"---"}


def test_the_support_table_has_a_column_for_every_dtype_class():
    assert rows_of(support_table())[0] == ["aggregation", *DTYPE_CLASSES]


@pytest.mark.parametrize("record", REGISTRY.values(), ids=lambda r: r.name)
def test_tables_say_what_the_record_says(record):
    head, _, *body = rows_of(support_table())
    row = next(row for row in body if row[0] == f"`{record.name}`")
    marked = {cls for cls in DTYPE_CLASSES if row[head.index(cls)] == "✓"}
    assert marked == record.accepts
    _, _, *body = rows_of(meaning_table())
    row = next(row for row in body if row[0] == f"`{record.name}`")
    assert row[1:4] == [record.summary, record.null_rule, record.kind.value]
    assert row[4].startswith("yes") is record.in_agg
