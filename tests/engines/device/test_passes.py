"""How many queries the passes of a plan are, whatever has nulls: without a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import dask.dataframe as dd
import pandas as pd
import pytest

from dask_gpuagg.plan import Plan
from dask_gpuagg.states import STATES
from dask_gpuagg.worker.warmup import examples_of
from tests.engines.device import stand_ins
from tests.engines.device.stand_ins import without_rapids

SPEC = {"a": ["sum", "min", "std"], "b": ["mean", "count"], "c": ["max", "sum"]}
REVERSED = {column: SPEC[column][::-1] for column in "cba"}
TYPES = {"a": "f64", "b": "f64", "c": "i64"}


class Column:
    """In place of libcudf's."""

    dtype = None

    def __init__(self, name: str, kind: str, nulls: bool = False) -> None:
        self.name, self.kind, self.nulls = name, kind, nulls

    def type(self) -> Any:
        return SimpleNamespace(id=lambda: self.kind)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, with stand-ins for RAPIDS and for all that follows a pass."""
    with without_rapids():
        columns, aggregator, groups, made = map(
            stand_ins.module, ("columns", "aggregator", "groups", "passes")
        )
        for module in (columns, aggregator, groups):
            monkeypatch.setattr(module, "masked", lambda column: column.nulls)
        for module in (columns, aggregator):
            monkeypatch.setattr(module, "ctype_of", lambda column: column.kind)
        monkeypatch.setattr(aggregator, "identity", lambda column: column.name)
        monkeypatch.setattr(aggregator, "CTYPES", dict.fromkeys(TYPES.values()))
        monkeypatch.setattr(aggregator, "wide", lambda ctype, dtype: ("i64", dtype))
        monkeypatch.setattr(made, "view_at", lambda table, name: table[name])
        for module in (groups, made):
            monkeypatch.setattr(module, "view", lambda column: column)
        monkeypatch.setattr(made, "keys_of", lambda table: [table["k0"]])
        monkeypatch.setattr(made, "column_at", lambda table, name: table[name])
        monkeypatch.setattr(made, "_with_library_states", lambda table, *_: table)
        # nothing is lost
        monkeypatch.setattr(made.digits, "losses_of", lambda table: [])
        for name in ("repaired_rows", "repaired_partials", "without_losses", "with_sums"):
            monkeypatch.setattr(made.digits, name, lambda table, *_: table)
        monkeypatch.setattr(made.digits, "settled_rows", lambda table, _: (table, frozenset()))
        monkeypatch.setattr(made.digits, "settled_partials", lambda table, _: table)
        # what is compiled, in place of the groups
        monkeypatch.setattr(groups.Grouping, "table", lambda self, *_: self.aggregator.query)
        yield made


def plan_of(spec: dict[str, list[str]]) -> Plan:
    frame = pd.DataFrame({"k": [1], "a": [1.0], "b": [1.0], "c": [1]})
    (example,) = examples_of(dd.from_pandas(frame, npartitions=1).groupby("k").agg(spec))
    return example.plan


def partials_of(plan: Plan, nulls: dict[str, bool]) -> dict[str, Column]:
    """Fields; of a column with nulls some group has no value, so its sums and extremes are null."""
    made = {"k0": Column("k0", "i64")}
    for i, use in enumerate(plan.states):
        (label,) = (plan.columns[c].label for c in use.columns)
        for field in STATES[use.state].fields:
            own = use.state in ("isum", "min", "max") and TYPES[label] == "i64"
            kind = "i64" if own or field == "n" else "f64"
            empty = nulls[label] and field in ("sum", "min", "max")
            made[f"s{i}.{field}"] = Column(f"s{i}.{field}", kind, empty)
    return made


def test_orders_and_patterns_of_nulls_make_two_queries_of_each_pass(passes: ModuleType) -> None:
    found: dict[tuple[str, bool], set[Any]] = {}
    for spec in (SPEC, REVERSED):
        plan = plan_of(spec)
        for chosen in itertools.product((False, True), repeat=3):
            nulls = dict(zip("abc", chosen, strict=True))
            labels = [column.label for column in plan.columns]
            columns = {i: Column(c, TYPES[c], nulls[c]) for i, c in enumerate(labels)}
            stacked, keys = partials_of(plan, nulls), [Column("k", "i64")]
            queries = {
                "rows": passes.states_of_rows(keys, columns, None, plan, False),
                "merged": passes.merged(stacked, plan),
                "finished": passes.finished(stacked, plan),
            }
            for name, query in queries.items():
                found.setdefault((name, any(chosen)), set()).add(query)
    assert {of: len(queries) for of, queries in found.items()} == {
        (name, nulls): 1 for name in ("rows", "merged", "finished") for nulls in (False, True)
    }
    for (_, nulls), (query,) in found.items():
        assert {part.masked for part in query.inputs} == {nulls}
