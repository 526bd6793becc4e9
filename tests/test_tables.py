"""Tables of the documentation have what the registry has."""

import importlib
from typing import Any

import pytest

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.dtypes import DTYPE_CLASSES
from dask_gpuagg.planning.filters import METHODS_OF_TIMES, STEPS
from tests.running import ROOT


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    return importlib.import_module("package_tables")


def rows_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_every_aggregation_has_a_row(tables: Any) -> None:
    for table in (tables.support_table(), tables.meaning_table()):
        _, rule, *body = rows_of(table)
        assert set(rule) == {"---"}
        assert {len(row) for row in body} == {len(rule)}
        assert [row[0].strip("`") for row in body] == list(REGISTRY)
    on_device = [row[0].strip("`") for row in rows_of(tables.device_table())[2:]]
    assert on_device == [name for name, record in REGISTRY.items() if not record.exact]


def test_tables_say_what_the_records_say(tables: Any) -> None:
    head, _, *support = rows_of(tables.support_table())
    meaning = rows_of(tables.meaning_table())[2:]
    assert head == ["aggregation", *DTYPE_CLASSES]
    for record, marks, words in zip(REGISTRY.values(), support, meaning, strict=True):
        marked = {cls for cls, mark in zip(head, marks, strict=True) if mark == "✓"}
        assert marked == record.accepts
        assert words[1:4] == [record.summary, record.null_rule, record.kind.value]
        assert words[4].startswith("yes") is record.in_agg


def test_steps_above_a_filter_are_listed(tables: Any) -> None:
    table = tables.steps_table().replace("\\|", "or")
    listed = [name for row in rows_of(table)[2:] for name in row[0].split(", ")]
    assert {"`+`", "`or`", "`fillna`", "`notnull`", "`.dt.year`"} <= set(listed)
    assert len(listed) == len(STEPS) - 2 + len(METHODS_OF_TIMES)
