"""Partials to one: part by part where memory lacks, and of other dtypes than promised."""

import weakref
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_gpuagg.decomposition import retyped
from dask_gpuagg.engines.device import memory
from dask_gpuagg.engines.device.memory import OutOfDeviceMemory
from dask_gpuagg.engines.host import engine as host
from dask_gpuagg.engines.host.dtypes import common_dtype
from dask_gpuagg.plan import Plan, Requested
from dask_gpuagg.tasks import partials
from dask_gpuagg.tasks.partials import (
    DTYPES,
    inputs_of,
    partial_of,
    partials_of,
    reconciled_dtype,
    rescaled,
    sources,
    unify,
)
from tests.data import plan_of

ASKED = ("sum", "first", "last", "nunique", "median")


def frame(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 20, rows).astype("float64")
    keys[rng.random(rows) < 0.1] = np.nan
    return pd.DataFrame({"k": keys, "x": rng.integers(0, 5, rows)})


def plan_by_k(names: Any, **flags: bool) -> Plan:
    return plan_of(frame(0, 0), ["k"], *(Requested(name, name, "x") for name in names), **flags)


class Case(NamedTuple):
    """Partitions of a frame, their partials, and pandas' answer."""

    plan: Plan
    pieces: list[pd.DataFrame]
    tables: list[Any]
    expected: pd.DataFrame


def case_of(names: tuple[str, ...], *lengths: int, dtype: str = "int64") -> Case:
    """A case with partitions of so many rows; the second one has values of the dtype."""
    plan, pieces = plan_by_k(names), [frame(rows, seed) for seed, rows in enumerate(lengths)]
    pieces[1] = pieces[1].astype({"x": dtype})
    tables = [partial_of(inputs_of(piece, ["k"], plan), plan, host) for piece in pieces]
    return Case(plan, pieces, tables, pd.concat(pieces).groupby("k").x.agg(list(names)))


@settings(max_examples=settings.default.max_examples // 3)
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
    plan = plan_by_k(asked, sort=sort, dropna=dropna)
    pieces = [frame(rows, seed) for seed, rows in enumerate(lengths)]
    tables = [partial_of(inputs_of(piece, ["k"], plan), plan, host) for piece in pieces]
    meta = pd.concat(pieces).groupby("k").x.agg(asked).iloc[:0]
    at_once = host.finalize(tables, plan, meta).sort_index()
    device = Device()
    ours = memory.finalized_in_parts(device, tables, plan, meta, parts)
    if sort:
        assert ours.index.is_monotonic_increasing or ours.index.hasnans
    pd.testing.assert_frame_equal(ours.sort_index(), at_once)
    owned = [dict(table) for table in tables]
    again = memory.finalized_in_parts(device, owned, plan, meta, parts, owned=True)
    pd.testing.assert_frame_equal(again.sort_index(), at_once)
    assert owned == [{} for _ in tables]
    twice = host.finalize([memory.combined_in_parts(device, tables, plan, parts)], plan, meta)
    pd.testing.assert_frame_equal(twice.sort_index(), at_once)


class Device:
    """The host engine, which looks for memory as that of a device does."""

    restored = staticmethod(memory.restored)
    within_memory = staticmethod(memory.within_memory)

    def __getattr__(self, name: str) -> Any:
        return getattr(host, name)

    def combine(self, partials: Any, plan: Any, owned: bool = False) -> Any:
        return memory.combine(self, partials, plan, owned)

    def finalize(
        self, partials: Any, plan: Any, meta: Any, bucket: Any = None, owned: bool = False
    ) -> Any:
        return memory.finalize(self, partials, plan, meta, owned)

    def combine_tables(self, tables: Any, plan: Any, least: int | None = None) -> Any:
        return host.combine(tables, plan)

    def finalize_tables(self, tables: Any, plan: Any, meta: Any, least: int | None = None) -> Any:
        return host.finalize(tables, plan, meta)

    def bytes_of_partials(self, partials: Any) -> int:
        return 0


class Short(Device):
    """A device that has memory for so many rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.tried: list[int] = []

    def partial(self, keys: Any, *rest: Any) -> Any:
        self.tried.append(len(keys[0]))
        if len(keys[0]) > self.rows:
            raise MemoryError(f"Requested bytes {8 * len(keys[0])}")
        return host.partial(keys, *rest)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Short:
    engine = Short(300)
    monkeypatch.setattr(partials, "engine_of", lambda _: engine)
    monkeypatch.setattr(partials, "_ROWS_TO_HALVE", 200)
    return engine


def test_partitions_and_then_rows_are_halved(short: Short) -> None:
    plan, pieces, _, expected = case_of(("sum", "first", "last"), 100, 1_000, 150)
    result = partials_of([inputs_of(piece, ["k"], plan) for piece in pieces], plan)
    # all twice, the first, the others twice and without its partial, the second twice, its half
    assert short.tried[:9] == [1_250, 1_250, 100, 1_150, 1_150, 1_150, 1_000, 1_000, 500]
    pd.testing.assert_frame_equal(host.finalize(result, plan, expected.iloc[:0]), expected)


def test_finished_partials_leave_before_partitions_are_halved(
    short: Short, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition for which there is room once the partials of others are in host memory."""
    there: list[weakref.ref[pd.DataFrame]] = []

    def ours(keys: Any, *rest: Any) -> Any:
        short.tried.append(len(keys[0]))
        if any(of() is not None for of in there):
            raise MemoryError("Requested bytes 8")
        tables = host.partial(keys, *rest)
        there.append(weakref.ref(tables["groups"]))
        return tables

    monkeypatch.setattr(short, "partial", ours, raising=False)
    plan, pieces, _, expected = case_of(("sum", "first", "last"), 1_000, 1_000, 1_000)
    monkeypatch.setattr(host, "divided", lambda run: [[part] for part in run])
    result = partials_of([inputs_of(piece, ["k"], plan) for piece in pieces], plan)
    assert short.tried == [1_000] * (1 + 3 + 3)
    pd.testing.assert_frame_equal(host.finalize(result, plan, expected.iloc[:0]), expected)


def test_the_error_says_what_was_asked_when_nothing_is_left(short: Short) -> None:
    short.rows = 10
    plan = plan_by_k(("sum",))
    text = r"does not suffice for 125 rows: 1,000 B requested, .*0 B held by finished tables"
    with pytest.raises(OutOfDeviceMemory, match=text):
        partials_of([inputs_of(frame(1_000, 0), ["k"], plan)], plan)


def test_merging_takes_the_parts_where_memory_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _, tables, expected = case_of(("sum", "median"), 400, 400, 400)
    tried: list[int] = []

    class Merging(Short):
        def finalize_tables(self, tables: Any, *rest: Any) -> Any:
            tried.append(sum(len(table["rows"]) for table in tables))
            if tried[-1] > 300:
                raise MemoryError("Requested bytes 1")
            return super().finalize_tables(tables, *rest)

    monkeypatch.setattr(partials, "engine_of", lambda _: Merging(0))
    result = partials.finalized(tables, plan, expected.iloc[:0])
    pd.testing.assert_frame_equal(result, expected)
    assert tried[0] == tried[1] > 300
    assert len(tried) == 2 + memory.PARTS


class Watching(Short):
    """The host engine as a device: merging sees which of some tables are still there."""

    def __init__(self, tables: list[Any], short: bool = False) -> None:
        super().__init__(0)
        self.there = [weakref.ref(table["groups"]) for table in tables]
        self.short = short
        self.seen: list[int] = []
        self.least: list[int | None] = []

    def stack(self, tables: Any) -> Any:
        if self.short:
            raise MemoryError("Requested bytes 1")
        return host.stack(tables)

    def combine_tables(self, tables: Any, plan: Any, least: int | None = None) -> Any:
        return host.combine(self._several(tables, least), plan)

    def finalize_tables(self, tables: Any, plan: Any, meta: Any, least: int | None = None) -> Any:
        return host.finalize(self._several(tables, least), plan, meta)

    def _several(self, tables: Any, least: int | None) -> Any:
        """The host takes the groups of a single partial for distinct, the device merges them."""
        self.seen.append(sum(of() is not None for of in self.there))
        self.least.append(least)
        if len(tables) > 1 or set(tables[0]) != {"groups"}:
            return tables
        groups = tables[0]["groups"]
        return [{"groups": groups.iloc[:1]}, {"groups": groups.iloc[1:]}]


@pytest.mark.parametrize("found", ["int64", "float64"], ids=["as promised", "another dtype"])
@pytest.mark.parametrize(("short", "owned", "there"), [(0, 1, 0), (1, 1, 3), (0, 0, 3)])
def test_partials_are_gone_before_they_are_merged(
    short: int, owned: int, there: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for way in ("combined", "finalized"):
        names = ("sum", "first", "count")
        plan, _, tables, expected = case_of(names, 400, 400, 400, dtype=found)
        engine, largest = Watching(tables, bool(short)), max(len(t["groups"]) for t in tables)
        monkeypatch.setattr(partials, "engine_of", lambda _, engine=engine: engine)
        if way == "combined":
            partial = partials.combined(tables, plan, owned=bool(owned))
            result = partials.finalized([partial], plan, expected.iloc[:0])
        else:
            result = partials.finalized(tables, plan, expected.iloc[:0], owned=bool(owned))
        pd.testing.assert_frame_equal(result, expected)
        # the rows of the copy are more than there are groups
        assert engine.least[0] == (largest if owned and not short else None)
        # what is brought to another dtype is a table of its own
        assert engine.seen[0] == there or found == "float64"
        # those that others replace are not kept where they are owned
        emptied = bool(owned) and (not short or found == "float64")
        assert ([table == {} for table in tables] == [True] * 3) == emptied


@pytest.mark.parametrize("way", ["combine", "finalize"])
def test_a_copy_of_partials_is_merged_in_parts_where_memory_lacks(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _, tables, expected = case_of(("sum", "first", "count"), 400, 400, 400)

    class Small(Watching):
        def _several(self, tables: Any, least: int | None) -> Any:
            several = super()._several(tables, least)
            if sum(len(table["groups"]) for table in tables) > 30:
                raise MemoryError("Requested bytes 1")
            return several

    engine = Small(tables)
    monkeypatch.setattr(partials, "engine_of", lambda _: engine)
    if way == "combine":
        partial = partials.combined(tables, plan, owned=True)
        result = host.finalize([partial], plan, expected.iloc[:0])
    else:
        result = partials.finalized(tables, plan, expected.iloc[:0], owned=True)
    pd.testing.assert_frame_equal(result.sort_index(), expected)
    # at once, twice; then parts of which no more is known
    assert engine.least == [20, 20, *[0] * memory.PARTS]


def distinct_groups(rows: int, keys: list[str]) -> tuple[Plan, Any]:
    """A plan and the partial of rows that all are groups of their own."""
    pdf = pd.DataFrame({"k": np.arange(rows), "t": np.arange(rows) % 9, "x": 1})
    plan = plan_of(pdf, keys, Requested("x", "sum", "x"), sort=False)
    return plan, partial_of(inputs_of(pdf, keys, plan), plan, host)


@pytest.mark.parametrize("tables", [1, 5, 40])
def test_a_large_table_is_divided_by_slices_of_its_rows(
    tables: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To divide a table takes more than twice its memory, of which there is none."""
    plan, partial = distinct_groups(4_000, ["k"])
    real, divided = host.split, []

    def split(rows: Any, *given: Any) -> Any:
        divided.append(len(rows["groups"]))
        return real(rows, *given)

    monkeypatch.setattr(host, "split", split)
    pieces = memory.parts_on_host(host, [dict(partial) for _ in range(tables)], plan, 16)
    assert max(divided) * min(-(-16 // tables), 16) <= 4_000 + 16
    got = [piece["groups"] for bring in pieces for piece in bring()]
    assert sum(map(len, got)) == tables * 4_000
    for bring in pieces:
        for piece in bring():  # in the order of the rows
            assert piece["groups"]["k0"].is_monotonic_increasing


@pytest.mark.parametrize("tables", [1, 2])
def test_an_owned_table_leaves_once(tables: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, where it is the only one: all of it would come back at once."""
    plan, partial = distinct_groups(4_000, ["k"])
    real, left = memory.Spilled.of, []

    def spilled(table: Any) -> Any:
        left.append(len(table["groups"]))
        return real(table)

    monkeypatch.setattr(memory.Spilled, "of", spilled)
    owned = [dict(partial) for _ in range(tables)]
    pieces = memory.parts_on_host(host, owned, plan, 16, owned=True)
    assert owned == [{}] * tables
    assert sum(left) == 4_000 * (1 if tables == 1 else 2 * tables)
    assert sum(len(piece["groups"]) for bring in pieces for piece in bring()) == tables * 4_000


@pytest.mark.parametrize("outputs", [3, 16, 100])
@pytest.mark.parametrize("keys", [["k"], ["k", "t"]])
def test_groups_of_one_output_are_divided_into_even_parts(outputs: int, keys: list[str]) -> None:
    """The outputs of an exchange are by the same hash."""
    groups = 200 * outputs * memory.PARTS
    plan, partial = distinct_groups(groups, keys)
    piece = host.split(partial, plan, outputs)[1]
    pieces = memory.parts_on_host(host, [piece], plan, memory.PARTS)
    rows = [sum(len(table["groups"]) for table in bring()) for bring in pieces]
    assert sum(rows) == len(piece["groups"])
    assert min(rows) > 100
    assert max(rows) < 400


DECIMAL = {p: pd.ArrowDtype(pa.decimal128(*p)) for p in ((12, 2), (14, 3), (15, 3))}


def dtype_of(name: Any) -> Any:
    return pd.Series([], dtype=name).dtype


def plan_by(dtype: Any, *names: str) -> Plan:
    rows = pd.DataFrame({"k": pd.Series([], dtype="int64"), "v": pd.Series([], dtype=dtype)})
    return plan_of(rows, ["k"], *(Requested(name, name, "v") for name in names))


def of_objects(*values: Any) -> pd.Series:
    return pd.Series(values, dtype=object)


# what a partition has, what was promised, the dtype that is kept, and that which is reported
AS_FOUND: dict[str, tuple[pd.Series, Any, Any, Any]] = {
    **{
        f"{found}, another dtype": (pd.Series([1, 2]).astype(found), "int64", found, found)
        for found in ("float64", "int32", "Int64", "string", "datetime64[s]")
    },
    "no rows": (of_objects(), "datetime64[ns]", "datetime64[ns]", "datetime64[ns]"),
    **{
        f"no values, {promised} promised": (of_objects(None, None), promised, held, promised)
        for promised, held in (
            *(("int16", "Int16"), ("bool", "boolean"), ("float32", "float32")),
            ("category", "category"),
        )
    },
    "complex numbers beside text": (of_objects(1j, "1"), "float64", object, object),
    "times without a value": (
        *(pd.Series([None], dtype="datetime64[s]"), "datetime64[us]"),
        *("datetime64[s]", "datetime64[s]"),
    ),
    "NaN": (pd.Series([np.nan]), "int64", "float64", "float64"),
    "flags": (of_objects(True, None), "bool", "boolean", "bool"),
    "integers": (of_objects(1, None), "int64", "Int64", "int64"),
    "floats": (of_objects(1.5, None), "float64", "float64", "float64"),
    "unsigned": (of_objects(2**64 - 1, None), "uint64", "UInt64", "uint64"),
    "too wide for int8": (of_objects(300, None), "int8", "Int64", "Int64"),
    "too exact for float32": (of_objects(0.1, None), "float32", "Float64", "Float64"),
    "too wide for any": (of_objects(2**70, None), "int64", object, object),
    "several kinds": (of_objects(1, "a"), "int64", object, object),
    "categories": (pd.Series(["a", "b"], dtype="category"), "str", "str", "str"),
}


class TestAsFound:
    @pytest.mark.parametrize("case", AS_FOUND)
    def test_a_column_has_a_dtype_of_its_own(self, case: str):
        values, promised, dtype, reported = AS_FOUND[case]
        values.index = values.index + 3
        got, result = reconciled_dtype(values, dtype_of(promised), host)
        assert got.dtype == dtype_of(dtype)
        assert result == dtype_of(reported)
        pd.testing.assert_index_equal(got.index, values.index)

    def test_as_promised(self):
        values = pd.Series([1, 2])
        assert reconciled_dtype(values, np.dtype("int64"), host)[0] is values

    @pytest.mark.parametrize("make", [pd.Timestamp, pd.Timedelta])
    def test_times_among_objects_keep_their_own_unit(self, make: Any):
        promised = "datetime64[s]" if make is pd.Timestamp else "timedelta64[s]"
        values = of_objects(make(1, unit="s"), None, make(5, unit="ms"))
        got, result = reconciled_dtype(values, dtype_of(promised), host)
        assert got.dtype == result != dtype_of(promised)  # milliseconds do not fit the promise
        assert result.kind == dtype_of(promised).kind


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["int64"], "int64"),
        (["int32", "int64"], "int64"),
        (["int64", "float64"], "float64"),
        (["bool", "float64"], "float64"),
        (["bool", "int8"], "int64"),
        (["int64", "Int64"], "Int64"),
        (["datetime64[s]", "datetime64[ns]", "datetime64[us]"], "datetime64[ns]"),
        (["str", object], object),
        (["category", "str"], "str"),
        ([DECIMAL[12, 2], DECIMAL[14, 3]], DECIMAL[14, 3]),
        ([DECIMAL[14, 3], DECIMAL[15, 3]], DECIMAL[15, 3]),
    ],
    ids=str,
)
def test_common_dtype(dtypes: list[Any], expected: Any):
    dtypes = [
        pd.CategoricalDtype(pd.Index(["a"], dtype="str")) if d == "category" else dtype_of(d)
        for d in dtypes
    ]
    assert common_dtype(dtypes) == dtype_of(expected)


@pytest.mark.parametrize("other", ["int64", "m8[s]"])
def test_states_of_other_fields_or_units_do_not_merge(other: str):
    with pytest.raises(TypeError, match=r"column 'v'.*cannot be aggregated"):
        sources(plan_by(other, "mean"), plan_by("M8[s]", "mean"))


@given(
    ticks=st.integers(-(2**62), 2**62),
    ratio=st.sampled_from([1, 10**3, 10**6, 10**9]),
    more=st.integers(0, 2**20),
)
def test_sums_in_halves_take_another_unit(ticks: int, ratio: int, more: int):
    total = ticks // ratio
    # the lower half of several partials together has more than 32 bits
    high = pd.Series([(total >> 32) - more])
    low = pd.Series([(total & (2**32 - 1)) + (more << 32)])
    result = rescaled(high, low, ratio)
    assert (int(result["hi"][0]) << 32) + int(result["lo"][0]) == total * ratio


def found_partial(plan: Plan, keys: list[int], values: pd.Series) -> dict[str, Any]:
    own = retyped(plan, [values.dtype])
    frame = pd.DataFrame({"k": keys, "v": values})
    tables = host.partial([frame.k], [frame.v], frame.index, own)
    return tables if own == plan else tables | {DTYPES: (values.dtype,)}


class TestUnify:
    def test_sums_of_ticks_get_one_unit(self):
        plan = plan_by("datetime64[s]", "mean")
        far = pd.Series(pd.to_datetime(["2200-01-01"] * 3)).astype("datetime64[s]")
        near = pd.Series(pd.to_datetime(["2200-01-01T00:00:00.000000004"])).astype("datetime64[ns]")
        partials = [found_partial(plan, [1] * 3, far), found_partial(plan, [1], near)]
        tables, together, _ = unify(partials, plan, host)
        meta = pd.DataFrame({"mean": far[:0]})
        got = host.finalize(tables, together, meta)
        assert got["mean"].dtype == "datetime64[ns]"
        # a mean in nanoseconds is rounded to a float64 of as many
        assert abs(got["mean"].iloc[0] - far.iloc[0]) < pd.Timedelta(2048, "ns")

    def test_sums_of_signed_and_unsigned_integers_are_exact(self):
        plan = plan_by("int64", "sum")
        unsigned = pd.Series([2**32 - 1], dtype="uint32")
        partials = [found_partial(plan, [1], some) for some in (pd.Series([2**60]), unsigned)]
        tables, together, _ = unify(partials, plan, host)
        got = host.finalize(tables, together, pd.DataFrame({"sum": [0]})[:0])
        assert got["sum"].tolist() == [2**60 + 2**32 - 1]

    def test_dtypes_without_a_common_state_raise(self):
        plan = plan_by("datetime64[ns]", "mean")
        partials = [
            found_partial(plan, [1], pd.Series(pd.to_datetime(["2020"])).astype("datetime64[ns]")),
            found_partial(plan, [1], pd.Series([Decimal(1)], dtype=DECIMAL[12, 2])),
        ]
        with pytest.raises(TypeError, match=r"column 'v'.*datetime64\[ns\].*object"):
            unify(partials, plan, host)
