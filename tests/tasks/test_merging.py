"""Partials merged part by part give the groups that merging them at once gives."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.decomposition import make_plan
from dask_gpuagg.engines.device.memory import OutOfDeviceMemory
from dask_gpuagg.engines.host import engine as host
from dask_gpuagg.plan import Column, Requested
from dask_gpuagg.tasks import merging, partials
from dask_gpuagg.tasks.merging import combined_in_parts, finalized_in_parts
from dask_gpuagg.tasks.partials import inputs_of, partial_of, partials_of

ASKED = ("sum", "first", "last", "nunique", "median")


def frame(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 20, rows).astype("float64")
    keys[rng.random(rows) < 0.1] = np.nan
    return pd.DataFrame({"k": keys, "x": rng.integers(0, 5, rows)})


def plan_of(asked: Any, sort: bool, dropna: bool) -> Any:
    columns = [Column("k", np.dtype("float64")), Column("x", np.dtype("int64"))]
    requested = [Requested(name, name, "x") for name in asked]
    return make_plan(columns[:1], columns, requested, dropna=dropna, observed=True, sort=sort)


@given(
    lengths=st.lists(st.integers(0, 40), min_size=2, max_size=4),
    parts=st.integers(1, 7),
    asked=st.lists(st.sampled_from(ASKED), min_size=1, max_size=5, unique=True),
    sort=st.booleans(),
    dropna=st.booleans(),
)
def test_in_parts_as_at_once(
    lengths: list[int], parts: int, asked: list[str], sort: bool, dropna: bool
) -> None:
    plan = plan_of(asked, sort, dropna)
    pieces = [frame(rows, seed) for seed, rows in enumerate(lengths)]
    tables = [partial_of(inputs_of(piece, ["k"], plan), plan, host) for piece in pieces]
    meta = pd.concat(pieces).groupby("k").x.agg(asked).iloc[:0]
    at_once = host.finalize(tables, plan, meta).sort_index()
    ours = finalized_in_parts(tables, plan, meta, host, parts)
    if sort:
        assert ours.index.is_monotonic_increasing or ours.index.hasnans
    pd.testing.assert_frame_equal(ours.sort_index(), at_once)
    owned = [dict(each) for each in tables]
    again = finalized_in_parts(owned, plan, meta, host, parts, owned=True)
    pd.testing.assert_frame_equal(again.sort_index(), at_once)
    assert owned == [{} for _ in tables]
    twice = host.finalize([combined_in_parts(tables, plan, host, parts)], plan, meta)
    pd.testing.assert_frame_equal(twice.sort_index(), at_once)


class Short:
    """The host engine as a device that has memory for so many rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.tried: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(host, name)

    def partial(self, keys: Any, *rest: Any) -> Any:
        self.tried.append(len(keys[0]))
        if len(keys[0]) > self.rows:
            raise MemoryError(f"Requested bytes {8 * len(keys[0])}")
        return host.partial(keys, *rest)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Short:
    engine = Short(300)
    monkeypatch.setattr(partials, "engine_of", lambda _: engine)
    monkeypatch.setattr(partials, "engine_name", lambda _: "device")
    monkeypatch.setattr(merging, "engine_of", lambda _: engine)
    monkeypatch.setattr(partials, "_ROWS_TO_HALVE", 200)
    return engine


def test_partitions_and_then_rows_are_halved(short: Short) -> None:
    plan = plan_of(("sum", "first", "last"), True, True)
    pieces = [frame(rows, seed) for seed, rows in enumerate((100, 1_000, 150))]
    made = partials_of([inputs_of(piece, ["k"], plan) for piece in pieces], plan)
    # all twice, the first, the others twice and without its partial, the second twice, its half
    assert short.tried[:9] == [1_250, 1_250, 100, 1_150, 1_150, 1_150, 1_000, 1_000, 500]
    whole = pd.concat(pieces).groupby("k").x.agg(["sum", "first", "last"])
    pd.testing.assert_frame_equal(host.finalize(made, plan, whole.iloc[:0]), whole)


def test_finished_partials_leave_before_partitions_are_halved(
    short: Short, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition for which there is room once the partials of others are in host memory."""
    there: list[weakref.ref[pd.DataFrame]] = []

    def made(keys: Any, *rest: Any) -> Any:
        short.tried.append(len(keys[0]))
        if any(of() is not None for of in there):
            raise MemoryError("Requested bytes 8")
        tables = host.partial(keys, *rest)
        there.append(weakref.ref(tables["groups"]))
        return tables

    monkeypatch.setattr(short, "partial", made, raising=False)
    plan = plan_of(("sum", "first", "last"), True, True)
    pieces = [frame(1_000, seed) for seed in range(3)]
    monkeypatch.setattr(host, "divided", lambda run: [[part] for part in run])
    found = partials_of([inputs_of(piece, ["k"], plan) for piece in pieces], plan)
    assert short.tried == [1_000] * (1 + 3 + 3)
    whole = pd.concat(pieces).groupby("k").x.agg(["sum", "first", "last"])
    pd.testing.assert_frame_equal(host.finalize(found, plan, whole.iloc[:0]), whole)


def test_the_error_says_what_was_asked_when_nothing_is_left(short: Short) -> None:
    short.rows = 10
    plan = plan_of(("sum",), False, True)
    with pytest.raises(OutOfDeviceMemory, match="does not suffice for 125 rows") as caught:
        partials_of([inputs_of(frame(1_000, 0), ["k"], plan)], plan)
    assert caught.value.asked == 8 * 125
    assert caught.value.held == 0


def test_merging_takes_the_parts_where_memory_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(("sum", "median"), True, True)
    pieces = [frame(400, seed) for seed in range(3)]
    tables = [partial_of(inputs_of(piece, ["k"], plan), plan, host) for piece in pieces]
    tried: list[int] = []

    class Merging(Short):
        def finalize(self, tables: Any, *rest: Any) -> Any:
            tried.append(sum(len(table["rows"]) for table in tables))
            if tried[-1] > 300:
                raise MemoryError("Requested bytes 1")
            return host.finalize(tables, *rest)

    monkeypatch.setattr(merging, "engine_of", lambda _: Merging(0))
    monkeypatch.setattr(merging, "engine_name", lambda _: "device")
    whole = pd.concat(pieces).groupby("k").x.agg(["sum", "median"])
    made = merging.finalized(tables, plan, whole.iloc[:0])
    pd.testing.assert_frame_equal(made, whole)
    assert tried[0] == tried[1] > 300
    assert len(tried) == 2 + merging._PARTS


class Watching(Short):
    """The host engine as a device: merging sees which of some tables are still there."""

    def __init__(self, tables: list[Any], short: bool = False) -> None:
        super().__init__(0)
        self.there = [weakref.ref(each["groups"]) for each in tables]
        self.short = short
        self.seen: list[int] = []
        self.least: list[int | None] = []

    def stack(self, tables: Any) -> Any:
        if self.short:
            raise MemoryError("Requested bytes 1")
        return host.stack(tables)

    def combine(self, tables: Any, plan: Any, least: int | None = None) -> Any:
        self.seen.append(sum(of() is not None for of in self.there))
        self.least.append(least)
        return host.combine(self._several(tables), plan)

    def finalize(self, tables: Any, *rest: Any, least: int | None = None) -> Any:
        self.seen.append(sum(of() is not None for of in self.there))
        self.least.append(least)
        return host.finalize(self._several(tables), *rest)

    def _several(self, tables: Any) -> Any:
        """The host takes the groups of a single partial for distinct, the device merges them."""
        if len(tables) > 1 or set(tables[0]) != {"groups"}:
            return tables
        groups = tables[0]["groups"]
        return [{"groups": groups.iloc[:1]}, {"groups": groups.iloc[1:]}]


@pytest.mark.parametrize("found", ["int64", "float64"], ids=["as promised", "another dtype"])
@pytest.mark.parametrize(("short", "owned", "there"), [(0, 1, 0), (1, 1, 3), (0, 0, 3)])
def test_partials_are_gone_before_they_are_merged(
    short: int, owned: int, there: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(("sum", "first", "count"), True, True)
    pieces = [frame(400, seed) for seed in range(3)]
    pieces[1] = pieces[1].astype({"x": found})
    for way in ("combined", "finalized"):
        inputs = [inputs_of(piece, ["k"], plan) for piece in pieces]
        tables = [partial_of(part, plan, host) for part in inputs]
        engine, largest = Watching(tables, bool(short)), max(len(t["groups"]) for t in tables)
        whole = pd.concat(pieces).groupby("k").x.agg(["sum", "first", "count"])
        monkeypatch.setattr(merging, "engine_of", lambda _, engine=engine: engine)
        monkeypatch.setattr(merging, "engine_name", lambda _: "device")
        if way == "combined":
            made = merging.combined(tables, plan, owned=bool(owned))
            result = merging.finalized([made], plan, whole.iloc[:0])
        else:
            result = merging.finalized(tables, plan, whole.iloc[:0], owned=bool(owned))
        pd.testing.assert_frame_equal(result, whole)
        # the rows of the copy are more than there are groups
        assert engine.least[0] == (largest if owned and not short else None)
        # what is brought to another dtype is a table of its own
        assert engine.seen[0] == there or found == "float64"
        assert ([each == {} for each in tables] == [True] * 3) == (bool(owned) and not short)


@pytest.mark.parametrize("way", ["combine", "finalize"])
def test_a_copy_of_partials_is_merged_in_parts_where_memory_lacks(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(("sum", "first", "count"), True, True)
    pieces = [frame(400, seed) for seed in range(3)]
    tables = [partial_of(inputs_of(piece, ["k"], plan), plan, host) for piece in pieces]

    class Small(Watching):
        def _several(self, tables: Any) -> Any:
            if sum(len(each["groups"]) for each in tables) > 30:
                raise MemoryError("Requested bytes 1")
            return super()._several(tables)

    engine = Small(tables)
    monkeypatch.setattr(merging, "engine_of", lambda _: engine)
    monkeypatch.setattr(merging, "engine_name", lambda _: "device")
    whole = pd.concat(pieces).groupby("k").x.agg(["sum", "first", "count"])
    if way == "combine":
        made = host.finalize([merging.combined(tables, plan, owned=True)], plan, whole.iloc[:0])
    else:
        made = merging.finalized(tables, plan, whole.iloc[:0], owned=True)
    pd.testing.assert_frame_equal(made.sort_index(), whole)
    # at once, twice; then parts of which no more is known
    assert engine.least == [20, 20, *[0] * merging._PARTS]


def test_partials_of_rows_are_merged_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(("sum", "nunique"), True, True)
    pieces = [frame(400, seed) for seed in range(3)]
    tables = [partial_of(inputs_of(piece, ["k"], plan), plan, host) for piece in pieces]
    monkeypatch.setattr(merging, "engine_of", lambda _: Watching(tables))
    monkeypatch.setattr(merging, "engine_name", lambda _: "device")
    whole = pd.concat(pieces).groupby("k").x.agg(["sum", "nunique"])
    made = merging.finalized(tables, plan, whole.iloc[:0], owned=True)
    pd.testing.assert_frame_equal(made, whole)


@pytest.mark.parametrize("tables", [1, 5, 40])
def test_a_large_table_is_divided_by_slices_of_its_rows(
    tables: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To divide a table takes more than twice its memory, of which there is none."""
    pdf = pd.DataFrame({"k": np.arange(4_000), "x": np.arange(4_000)})
    columns = [Column(label, dtype) for label, dtype in pdf.dtypes.items()]
    asked = [Requested("x", "sum", "x")]
    plan = make_plan(columns[:1], columns, asked, dropna=True, observed=True, sort=False)
    whole = partial_of(inputs_of(pdf, ["k"], plan), plan, host)
    real, divided = host.split, []

    def split(rows: Any, *given: Any) -> Any:
        divided.append(len(rows["groups"]))
        return real(rows, *given)

    monkeypatch.setattr(host, "split", split)
    pieces = merging._parts_on_host([dict(whole) for _ in range(tables)], plan, host, 16)
    assert max(divided) * min(-(-16 // tables), 16) <= 4_000 + 16
    found = [piece["groups"] for bring in pieces for piece in bring()]
    assert sum(map(len, found)) == tables * 4_000
    for bring in pieces:
        for piece in bring():  # in the order of the rows
            assert piece["groups"]["k0"].is_monotonic_increasing


@pytest.mark.parametrize("outputs", [2, 3, 8, 16, 17, 32, 100])
@pytest.mark.parametrize("keys", [["k"], ["k", "t"]])
def test_groups_of_one_output_are_divided_into_even_parts(outputs: int, keys: list[str]) -> None:
    """The outputs of an exchange are by the same hash."""
    groups = 200 * outputs * merging._PARTS
    pdf = pd.DataFrame({"k": np.arange(groups), "t": np.arange(groups) % 9, "x": 1})
    columns = [Column(label, dtype) for label, dtype in pdf.dtypes.items()]
    asked = [Requested("x", "sum", "x")]
    by = columns[: len(keys)]
    plan = make_plan(by, columns, asked, dropna=True, observed=True, sort=False)
    whole = partial_of(inputs_of(pdf, keys, plan), plan, host)
    piece = host.split(whole, plan, outputs)[1]
    pieces = merging._parts_on_host([piece], plan, host, merging._PARTS)
    rows = [sum(len(each["groups"]) for each in bring()) for bring in pieces]
    assert sum(rows) == len(piece["groups"])
    assert min(rows) > 100
    assert max(rows) < 400
