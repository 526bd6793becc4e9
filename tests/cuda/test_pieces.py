"""Columns in pieces: which rows each launch takes, and what refuses them, without a GPU."""

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.cuda import aggregate as attempts
from dask_gpuagg.cuda.aggregate import Attempt, aggregate
from dask_gpuagg.cuda.algorithms.tables import room_for_spilled
from dask_gpuagg.cuda.call import Call, Columns, DeviceColumn, NeedsWholeColumns, Part
from dask_gpuagg.cuda.choice.decision import Sgb, SpEga
from dask_gpuagg.cuda.choice.summary import SEGMENTS
from dask_gpuagg.cuda.keys.ranges import RangedKeys
from dask_gpuagg.cuda.keys.words import Keys
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import Args
from dask_gpuagg.cuda.query.types import KernelOutput, KernelState, KeyPart, ValuePart
from dask_gpuagg.cuda.sampling.sample import segments_of
from tests.cuda.choice.test_choose import H200
from tests.cuda.specialisations import TABLE

SUM = Query(
    (KeyPart("i64", False),),
    False,
    (ValuePart("f64", True),),
    (KernelState("FloatSum", (0,)),),
    (KernelOutput("Field", (0,), "f64"),),
)
STREAM = SimpleNamespace(__cuda_stream__=lambda: (0, 7))


def columns_of(rows: Sequence[int], keys: int = 1) -> Columns:
    """Parts of so many rows; data of part i lies at 1000 * (i + 1), its rows begin at 3."""
    parts = [
        Part(
            [DeviceColumn(1000 * (i + 1), 0, 3)] * keys,
            [DeviceColumn(1000 * (i + 1) + 500, 9 if i else 0, 3, nulls=2 * i)],
            n,
        )
        for i, n in enumerate(rows)
    ]
    return Columns(parts, H200, STREAM, None)


def launches(call: Call, args: Args) -> list[tuple[int, int, int, int]]:
    """First row, end, end of a list's piece, and rows of each launch."""
    return [(own.first, own.rows, own.end, rows) for own, _, rows in call.over(args)]


def test_one_piece_has_the_arguments_themselves() -> None:
    call = columns_of([10]).call(SUM)
    ((own, columns, rows),) = call.over(call.args)
    assert own is call.args
    assert (rows, columns[0].offset, columns[1].offset) == (10, 3, 3)


def test_rows_keep_their_numbers_in_every_piece() -> None:
    call = columns_of([10, 20, 5]).call(SUM)
    assert call.rows == 35
    assert launches(call, call.args) == [(0, 10, 10, 10), (10, 30, 30, 20), (30, 35, 35, 5)]
    for (_, columns, _), offset in zip(call.over(call.args), (3, -7, -27), strict=True):
        assert [c.offset for c in columns] == [offset, offset]
    # nulls of all pieces: 0, 2 and 4
    assert call.values == pytest.approx(1 - 6 / 35)


def test_empty_pieces_are_not_launched_for() -> None:
    call = columns_of([0, 10, 0, 20]).call(SUM)
    assert launches(call, call.args) == [(0, 10, 10, 10), (10, 30, 30, 20)]
    assert [rows for _, _, rows in columns_of([0, 0]).call(SUM).over(Args())] == [0]


def test_a_list_is_looked_through_for_each_piece() -> None:
    call = columns_of([10, 20]).call(SUM)
    rest = Args.from_buffer_copy(call.args)
    rest.list, rest.rows = 4096, 7
    assert launches(call, rest) == [(0, 7, 10, 10), (10, 7, 30, 20)]


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=40))
def test_the_segments_of_the_sample_are_spread_over_all_rows(sizes: list[int]) -> None:
    rows, first, found = sum(sizes), 0, []
    for size in sizes:
        found.append(segments_of(first, first + size, rows))
        first += size
    assert sum(found) == SEGMENTS
    for size, segments in zip(sizes, found, strict=True):
        assert abs(segments - size * SEGMENTS / rows) < 1


def test_keys_that_are_looked_at_again_need_whole_columns() -> None:
    wide = Query((KeyPart("i64", False),) * 2, False, SUM.inputs, SUM.states, SUM.outputs)
    with pytest.raises(NeedsWholeColumns, match="Wide"):
        columns_of([10, 10], keys=2).call(wide)
    assert columns_of([10], keys=2).call(wide).rows == 10


def test_the_number_of_every_row_needs_whole_columns() -> None:
    parts = columns_of([10, 10]).parts
    with pytest.raises(NeedsWholeColumns, match="number of every row"):
        aggregate(SUM, parts, STREAM, encoded=True)


@pytest.mark.parametrize("decision", [Sgb, SpEga])
def test_kernels_that_read_rows_by_number_need_whole_columns(
    decision: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = decision(why="", **({"global_slots": 8} if decision is SpEga else {}))
    ran: list[Any] = []
    monkeypatch.setitem(attempts._ALGORITHMS, decision, lambda call, _: ran.append(call))
    with pytest.raises(NeedsWholeColumns):
        Attempt(Keys(SUM), columns_of([10, 10]).call(SUM), made).run()
    assert not ran
    assert Attempt(Keys(SUM), columns_of([10]).call(SUM), made).run() is None
    assert ran


def columns_in_source(query: Query) -> int:
    """Columns of the kernels' parameter."""
    found = re.search(r"struct Asked : Query<Key, Kept, Read, (\d+),", query.source().source)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("name", TABLE)
def test_calls_have_the_columns_that_kernels_read(name: str) -> None:
    query = TABLE[name]
    keys = [DeviceColumn(1, 0, 0)] * len(query.keys)
    part = Part(keys, [DeviceColumn(2, 0, 0)] * len(query.inputs), 10)
    ranged = RangedKeys(query, [(5, 7)] * len(keys), 5 << 3 if query.form.has_steps else 0)
    ranges = ranged.extra if query.extra_columns > query.form.made_words else []
    call = Columns([part], H200, STREAM, None).call(query, ranges)
    assert len(call.columns) == columns_in_source(query)
    # the ranges come last, behind the columns of made words
    last = call.columns[len(call.columns) - len(keys) :] if ranges else []
    assert [column.data for column in last] == [5] * len(keys if ranges else [])


def test_lists_have_room_for_a_tile_of_every_warp_of_every_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each piece is a launch, of which each warp lists one more tile after the limit."""
    asked: list[int] = []
    memory = SimpleNamespace(ptr=4096)
    monkeypatch.setattr(Call, "allocate", lambda self, size: asked.append(size) or memory)
    rows = 40_000_000
    one, two = (columns_of(sizes).call(SUM) for sizes in ([rows], [rows // 2] * 2))
    rooms = [room_for_spilled(call, 132) for call in (one, two)]
    tiles = 132 * SUM.threads * SUM.unroll
    assert rooms == [rows // 8 + tiles, rows // 8 + 2 * tiles]
    assert asked == [4 * room for room in rooms]
