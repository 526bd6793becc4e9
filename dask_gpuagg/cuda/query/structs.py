"""Structs that the host passes to kernels and reads back, in one table for both sides.

``header()`` is their C++ text: NVRTC gets it as ``structs.cuh`` beside the files of ``kernels/``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

from dask_gpuagg.cuda.query.tuning import (
    CODED_COLUMNS,
    HOT_AT_MOST,
    HOT_TOLD,
    OUTPUTS_AT_MOST,
    PIECES,
    TOLD_COLUMNS,
    TOLD_NUMBERS,
)

S = TypeVar("S", bound=type[ctypes.Structure])

_NUMBERS: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
}
# The structs by their names in C++, and the text of each.
STRUCTS: dict[str, type[ctypes.Structure]] = {}
_texts: dict[str, str] = {}


def _shared(name: str, /, **types: str | tuple[str, int]) -> Callable[[S], S]:
    """Give a class the fields of the struct ``name``: C++ types, arrays with their lengths."""

    def with_fields(of: S) -> S:
        fields, lines = [], []
        for field, told in types.items():
            ctype, length = (told, 0) if isinstance(told, str) else told
            kind = ctypes.c_void_p if ctype.endswith("*") else (_NUMBERS | STRUCTS)[ctype]
            fields.append((field, kind * length if length else kind))
            lines.append(f"    {ctype} {field}{f'[{length}]' if length else ''};\n")
        of._fields_ = fields
        STRUCTS[name] = of
        _texts[name] = f"struct {name} {{\n{''.join(lines)}}};\n"
        return of

    return with_fields


def header() -> str:
    """The text of ``structs.cuh``, which ``core/types.cuh`` includes behind the number types."""
    return f"#pragma once\nnamespace gpuagg {{\n{''.join(_texts.values())}}}\n"


# ---- columns, tables, arguments --------------------------------------------------------------


@_shared(
    "Column",
    data="const void*",
    mask="const u32*",  # null where all rows have values
    offset="i64",
)
class ColumnStruct(ctypes.Structure):
    """A column as libcudf lays it out: the mask holds one bit a row, 1 for a value."""


# the mask is null for a column that cannot have nulls
@_shared("Target", data="void*", mask="u32*")
class Target(ctypes.Structure):
    """A column that kernels write."""


@_shared(
    "Table",
    words="u64*",
    cells="char*",
    slots="u32",
    limit="u32",  # claimed slots after which no more are claimed; probes then end at an empty slot
)
class Table(ctypes.Structure):
    """A table in global memory: ``slots`` words, then ``EXTRA_SLOTS`` more."""


@_shared(
    "Counters",
    claimed="u32",  # slots of the global table
    unplaced="u32",  # rows or partial groups that found no place in the global table
    spilled="u32",  # rows listed for the next stage
    mismatch="u32",  # not 0: the rows are unlike what was expected, so nothing is to be done
    groups="u32",
    nulls=("u32", OUTPUTS_AT_MOST),  # of each output
    extras="u32",  # of a dense area: which of the two slots behind it hold a group, as bits
    ambiguous="u32",  # not 0: some word may stand for several keys; no kernel clears it
)
class Counters(ctypes.Structure):
    """Counts that kernels make for the host."""

    @property
    def total(self) -> int:
        """Groups, those in the slots behind a dense area included."""
        return int(self.groups) + int(self.extras).bit_count()


@_shared(
    "Args",
    counters="Counters*",
    table="Table",
    target="Table",  # of transfer
    first="u32",  # row of a launch: columns may lie in pieces, each of which is launched for
    rows="u32",  # where the rows end: number of the last one and one; of a list its length
    end="u32",  # of a list: where the piece's rows end
    shared_slots="u32",  # of a block's own table
    shared_limit="u32",
    replicas="u32",  # of a block's accumulators: a power of two
    slices="u32",  # of a partition: the parts that are expected to fit the table
    spill_limit="u32",  # a warp that has seen more rows spilled than these stops
    probes="u32",  # in the global table; none finds a place beyond them
    spill="u32*",  # numbers of rows that found no place in a block's table
    resume="u32*",  # of each warp: the first row it left alone
    list="const u32*",  # of lphga: the rows, instead of all
    order="u32*",  # of collect and write: the slots of the groups, null: the first ones
    taken="u32*",  # of append_others: the groups of the target that the dense area has, or null
    groups="u32",  # of write and whatever else follows them: how many; of write also COUNTED
    extras="u32",  # Counters::extras, once the host knows them
    beside="u32",  # of lphga: not 0 if its rows are what a few partitions did not take
)
class Args(ctypes.Structure):
    """Arguments that serve all kernels of a call; each reads what it needs."""


# ---- the sample ------------------------------------------------------------------------------


@_shared(
    "Summary",
    pairs="u64",  # of segments that share a key, both ways round and for every key
    least="u64",  # of unmixed words, from the least signed number on
    greatest="u64",  # likewise, counted down from the greatest
    rows="u32",  # sampled rows that belong to a group
    distinct="u32",
    once="u32",  # keys seen in one segment, and in two
    twice="u32",
    most="i32",  # rows of the most frequent key, -1 for none
    repeats="u32",  # rows whose key is that of the row before
    met="u32",  # keys of each segment, all together
    hots="u32",  # hot keys, those beyond HOT_TOLD included
    falls="u32",  # rows whose key is less than that of the row before
    # least and greatest value of each column (range_of.cuh), of keys that may fill their ranges
    ranges=("u64", 2 * TOLD_COLUMNS),
)
class Summary(ctypes.Structure):
    """Counts of a sample (kernels/estimate/sample.cuh)."""


@_shared("HotSeen", words=("u64", HOT_TOLD), counts=("u32", HOT_TOLD))
class HotSeen(ctypes.Structure):
    """Hot keys of a sample."""


@_shared(
    "Expected",
    least=("u64", TOLD_NUMBERS),
    most=("u64", TOLD_NUMBERS),
    # of ranges that keys are numbered by: none of the sample is less
    ends=("u64", 2 * TOLD_COLUMNS),
)
class Expected(ctypes.Structure):
    """Bounds of the numbers of a sample, and of key columns (kernels/estimate/check.cuh)."""


@_shared("ExpectedHot", words=("u64", HOT_AT_MOST), count="u32", rows="u32")
class ExpectedHot(ctypes.Structure):
    """Keys that a decision keeps out of partitions, and sampled rows that they must have again."""


# ---- forms of the keys -----------------------------------------------------------------------


@_shared(
    "Seen",
    least="u64",  # of integers
    greatest="u64",
    low=("u32", 8 * PIECES + 1),  # of each place of a string; the last place is the length's
    below=("u32", 8 * PIECES + 1),  # how far the greatest is below the greatest byte, or length
)
class Seen(ctypes.Structure):
    """Bytes and values that a sample has of a key column (kernels/estimate/bytes.cuh)."""


@_shared(
    "Quad",
    least="u32",  # of each byte
    greatest="u32",
    values=("u32", 3),  # of the second, third and fourth byte
    unused="u32",
    all="u64",  # values of the four together; 1 if they are always the same
)
class Quad(ctypes.Structure):
    """Four bytes of all strings of a column; bytes past a string's end are 0."""


@_shared(
    "ColumnCode",
    quad=("Quad", 2 * PIECES),
    base="u64",  # integers: the least; strings: the least length
    range="u64",  # the greatest above it
    all="u64",  # codes are below it; where nulls are kept 0 stands for null
    scale="u64",  # of the word: what the columns behind this one have together
    tail="u64",  # bits of the last piece, of strings of one length
    pieces="u32",  # that the longest string has
    constant="u32",  # a bit for each piece that is always the same
    nullable="u32",  # of the codes
    unused="u32",
)
class ColumnCode(ctypes.Structure):
    """Numbers of a column's values (kernels/key/coded.cuh)."""


@_shared("Codes", column=("ColumnCode", CODED_COLUMNS))
class Codes(ctypes.Structure):
    """Numbers of the values of all key columns; one is equal to itself alone.

    Attributes
    ----------
    count : int
        How many keys have a number.
    near : bool
        Whether hardly any key has one that the sample has no value of.
    """

    count = 0
    near = False

    def __hash__(self) -> int:
        return id(self)


@_shared(
    "Texts",
    offsets="void*",  # one more than groups
    characters="u8*",  # at 8 bytes' alignment
    mask="u32*",  # null for a column without nulls
    starts="const u64*",  # of the tiles; null if all strings have one length
    large="u32",  # not 0 if offsets have 64 bits
)
class Texts(ctypes.Structure):
    """A column of strings that is written from codes (kernels/output/coded.cuh)."""


@_shared(
    "Index",
    at="u64*",
    slots="u32",
    stride="u32",  # words of a slot, an even number
)
class Index(ctypes.Structure):
    """Keys of the groups, with which rows are compared (kernels/key/verify.cuh)."""


@_shared(
    "Dictionary",
    # of each slot: the representative's row, 32 bits of the hash; EMPTY if it is free
    words="u64*",
    copies="u64*",  # of each slot `stride` words: the string's length, its bytes
    codes="u32*",  # of each row: its slot
    mask="u32*",  # of rows: whether they belong to a group; null if all do
    full="u32*",  # not 0: some row found no slot
    slots="u32",  # whole buckets
    stride="u32",  # an even number
    near_room="u32",  # strings whose copies fit a block's own memory, an even number
)
class DictionaryStruct(ctypes.Structure):
    """Distinct strings (kernels/key/dictionary.cuh)."""


# ---- algorithms ------------------------------------------------------------------------------


@_shared(
    "Window",
    base="u64",  # the least unmixed word
    keys="u32",  # an even number
    shift="u32",  # of a key's distance to its slot
    present="u32*",  # a bit for each key, where the states are in global memory
)
class Window(ctypes.Structure):
    """Keys that have slots of their own (kernels/direct/direct.cuh)."""


@_shared(
    "Words",
    data="void*",
    base="u64",  # of narrow words and of slots: what they are counted from
    inverse="u64",  # of slots: 2**64 over the number of partitions, rounded up
    keys="u32",  # of slots: how many keys there are from `base` on
)
class Words(ctypes.Structure):
    """Where the keys of all partitions lie, and how they are read (kernels/pgb_tr/words.cuh)."""


@_shared(
    "Partitions",
    words="Words",
    numbers="u32*",  # of the rows in the input, where a state asks for them
    validity="void*",  # of each row: one bit for each masked input
    rows="u32*",  # of each partition, those included that found it full
    ticket="u32*",  # the next partition to aggregate
    # where each partition begins, and where the last one ends (room.cuh); null: each has room for
    # `capacity` rows
    begins="const u32*",
    count="u32",
    capacity="u32",
    most="u32",  # rows that any partition has room for
)
class Partitions(ctypes.Structure):
    """Partitioned rows (kernels/pgb_tr/partitions.cuh)."""


@_shared(
    "HotKeys",
    words=("u64", HOT_AT_MOST),  # the hottest first
    count="u32",
    buckets="u32",
    replicas="u32",  # of the states of the hottest: a power of two, a warp's lanes at most
    extras="u32",  # whether the extra keys go with them
)
class HotKeys(ctypes.Structure):
    """Keys that are kept out of partitions (kernels/pgb_tr/hot.cuh)."""


@_shared(
    "Round",
    rows="u32*",  # without a place: `capacity` of them for each warp of the grid
    left="u32*",  # of each warp: how many rows it has
    free="u32*",  # slots that no key held when the round began
    found="u32*",  # free slots; those beyond `room` are not listed
    lost="u32*",  # rows that the round leaves without a place
    waiting="const u32*",  # rows that the round before left
    capacity="u32",
    room="u32",
    number="u32",  # each round has a hash of its own
    places="u32",  # that a row may look at
)
class Round(ctypes.Structure):
    """A round of places for rows (kernels/sp_ega/sp_ega.cuh)."""


@_shared(
    "Pass",
    words="const void*",
    words_to="void*",
    moved="const void*",
    moved_to="void*",
    starts="const u32*",  # of each digit's rows in the output
    told="u32*",  # by each tile of each digit, zero before
    ticket="u32*",  # the next tile, zero before
    rows="u32",
    shift="u32",
)
class Pass(ctypes.Structure):
    """A pass of the radix sort (kernels/sgb/radix.cuh)."""


@_shared(
    "Runs",
    heads="u32*",  # of each warp's rows: groups that begin there, then those that began before
    falls="u32*",  # rows that may belong to a group that has ended
)
class Runs(ctypes.Structure):
    """Runs of equal keys (kernels/sgb/runs.cuh)."""


# of the keys as words that order as they do; low is above high without any
@_shared("Range", low="u64", high="u64")
class Range(ctypes.Structure):
    """Least and greatest key (kernels/sgb/range.cuh)."""


@_shared(
    "Chunk",
    values="Column",
    codes="const i32*",  # the number of each row's group, -1 for none
    rows="u32",
    groups="u32",
    skips_nan="u32",  # whether NaN is no value
)
class Chunk(ctypes.Structure):
    """Rows whose groups are numbered; a selection may take several chunks in turn."""


@_shared(
    "Inside",
    words="void*",  # null to count only
    of_row="u32*",
    rows="u32*",
    room="u32",
)
class Inside(ctypes.Structure):
    """Room for the rows inside of brackets; rows beyond that are counted, but not kept."""
