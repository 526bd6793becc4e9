"""Structs that the host passes to kernels and reads back, in one table for both sides.

``header()`` is their C++ text: NVRTC gets it as ``structs.cuh`` beside the files of ``kernels/``.
"""

import ctypes
from typing import Any, NamedTuple

from dask_gpuagg.cuda.query import tuning

_NUMBERS: dict[str, Any] = {
    "i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64,
}  # fmt: skip


class _Field(NamedTuple):
    ctype: str
    length: int


def _field(ctype: str, length: int = 0) -> Any:
    """A field of a C++ type, or an array of so many of it."""
    return _Field(ctype, length)


I32, U32, I64, U64 = map(_field, _NUMBERS)


class Struct(ctypes.Structure):
    """A struct of host and device, with the fields that its class names."""


def header() -> str:
    """The text of ``structs.cuh``, which ``core/types.cuh`` includes behind the number types."""
    return f"#pragma once\nnamespace gpuagg {{\n{''.join(_texts)}}}\n"


# ---- columns, tables, arguments --------------------------------------------------------------


class ColumnStruct(Struct):
    """A column as libcudf lays it out: the mask holds one bit a row, 1 for a value."""

    data = _field("const void*")
    mask = _field("const u32*")  # null where all rows have values
    offset = I64


class Target(Struct):
    """A column that kernels write; the mask is null for one that cannot have nulls."""

    data = _field("void*")
    mask = _field("u32*")


class Table(Struct):
    """A table in global memory: ``slots`` words, then ``EXTRA_SLOTS`` more."""

    words = _field("u64*")
    cells = _field("char*")
    slots = U32
    limit = U32  # claimed slots after which no more are claimed; probes then end at an empty slot


class Counters(Struct):
    """Counts that kernels make for the host."""

    claimed = U32  # slots of the global table
    unplaced = U32  # rows or partial groups that found no place in the global table
    spilled = U32  # rows listed for the next stage
    mismatch = U32  # not 0: the rows are unlike what was expected, so nothing is to be done
    groups = U32
    nulls = _field("u32", tuning.OUTPUTS_AT_MOST)  # of each output
    extras = U32  # of a dense area: which of the two slots behind it hold a group, as bits
    ambiguous = U32  # not 0: some word may stand for several keys; no kernel clears it

    @property
    def total(self) -> int:
        """Groups, those in the slots behind a dense area included."""
        return int(self.groups) + int(self.extras).bit_count()


class Args(Struct):
    """Arguments that serve all kernels of a call; each reads what it needs."""

    counters = _field("Counters*")
    table = _field("Table")
    target = _field("Table")  # of transfer
    first = U32  # row of a launch: columns may lie in pieces, each of which is launched for
    rows = U32  # where the rows end: number of the last one and one; of a list its length
    end = U32  # of a list: where the piece's rows end
    shared_slots = U32  # of a block's own table
    shared_limit = U32
    replicas = U32  # of a block's accumulators: a power of two
    slices = U32  # of a partition: the parts that are expected to fit the table
    spill_limit = U32  # a warp that has seen more rows spilled than these stops
    probes = U32  # in the global table; none finds a place beyond them
    spill = _field("u32*")  # numbers of rows that found no place in a block's table
    resume = _field("u32*")  # of each warp: the first row it left alone
    list = _field("const u32*")  # of lphga: the rows, instead of all
    order = _field("u32*")  # of collect and write: the slots of the groups, null: the first ones
    taken = _field("u32*")  # of append_others: groups of the target that the dense area has
    groups = U32  # of write and whatever else follows them: how many; of write also COUNTED
    extras = U32  # Counters::extras, once the host knows them
    beside = U32  # of lphga: not 0 if its rows are what a few partitions did not take


# ---- the sample ------------------------------------------------------------------------------


class Summary(Struct):
    """Counts of a sample (kernels/estimate/sample.cuh)."""

    pairs = U64  # of segments that share a key, both ways round and for every key
    least = U64  # of unmixed words, from the least signed number on
    greatest = U64  # likewise, counted down from the greatest
    rows = U32  # sampled rows that belong to a group
    distinct = U32
    once = U32  # keys seen in one segment, and in two
    twice = U32
    most = I32  # rows of the most frequent key, -1 for none
    repeats = U32  # rows whose key is that of the row before
    segment_keys = U32  # keys of each segment, all together
    hot_keys = U32  # hot keys, those beyond HOT_TOLD included
    descents = U32  # rows whose key is less than that of the row before
    # least and greatest value of each column (range_of.cuh), of keys that may fill their ranges
    ranges = _field("u64", 2 * tuning.TOLD_COLUMNS)


class HotSeen(Struct):
    """Hot keys of a sample."""

    words = _field("u64", tuning.HOT_TOLD)
    counts = _field("u32", tuning.HOT_TOLD)


class Expected(Struct):
    """Bounds of the numbers of a sample, and of key columns (kernels/estimate/check.cuh)."""

    least = _field("u64", tuning.TOLD_NUMBERS)
    most = _field("u64", tuning.TOLD_NUMBERS)
    # of ranges that keys are numbered by: none of the sample is less
    ends = _field("u64", 2 * tuning.TOLD_COLUMNS)


class ExpectedHot(Struct):
    """Keys that a decision keeps out of partitions, and sampled rows that they must have again."""

    words = _field("u64", tuning.HOT_AT_MOST)
    count = U32
    rows = U32


# ---- forms of the keys -----------------------------------------------------------------------


class Seen(Struct):
    """Bytes and values that a sample has of a key column (kernels/estimate/bytes.cuh)."""

    least = U64  # of integers
    greatest = U64
    low = _field(
        "u32", 8 * tuning.PIECES + 1
    )  # of each place of a string; the last place is the length's
    # of the greatest: how far it is below the greatest possible
    below = _field("u32", 8 * tuning.PIECES + 1)


class Quad(Struct):
    """Four bytes of all strings of a column; bytes past a string's end are 0."""

    least = U32  # of each byte
    greatest = U32
    values = _field("u32", 3)  # of the second, third and fourth byte
    unused = U32
    all = U64  # values of the four together; 1 if they are always the same


class ColumnCode(Struct):
    """Numbers of a column's values (kernels/key/coded.cuh)."""

    quad = _field("Quad", 2 * tuning.PIECES)
    base = U64  # integers: the least; strings: the least length
    range = U64  # the greatest above it
    all = U64  # codes are below it; where nulls are kept 0 stands for null
    scale = U64  # of the word: what the columns behind this one have together
    tail = U64  # bits of the last piece, of strings of one length
    pieces = U32  # that the longest string has
    constant = U32  # a bit for each piece that is always the same
    nullable = U32  # of the codes
    unused = U32


class Codes(Struct):
    """Numbers of the values of all key columns; one is equal to itself alone."""

    column = _field("ColumnCode", tuning.CODED_COLUMNS)

    # keys that have a number; whether hardly any has one that the sample has no value of
    count = 0
    near = False

    def __hash__(self) -> int:
        return id(self)


class Factors(Struct):
    """Odd factors of the two hashes of a key (kernels/key/by_row.cuh): of words and a length."""

    first = _field("u32", 2 * tuning.HASHED_WORDS + 2)
    second = _field("u32", 2 * tuning.HASHED_WORDS + 2)


class Texts(Struct):
    """A column of strings that is written from codes (kernels/output/coded.cuh)."""

    offsets = _field("void*")  # one more than groups
    characters = _field("u8*")  # at 8 bytes' alignment
    mask = _field("u32*")  # null for a column without nulls
    starts = _field("const u64*")  # of the tiles; null if all strings have one length
    large = U32  # not 0 if offsets have 64 bits


# ---- algorithms ------------------------------------------------------------------------------


class Window(Struct):
    """Keys that have slots of their own (kernels/direct/direct.cuh)."""

    base = U64  # the least unmixed word
    keys = U32  # an even number
    shift = U32  # of a key's distance to its slot
    present = _field("u32*")  # a bit for each key, where the states are in global memory


class Words(Struct):
    """Addresses and layout of the keys of all partitions (kernels/pgb_tr/words.cuh)."""

    data = _field("void*")
    base = U64  # of narrow words and of slots: what they are counted from
    inverse = U64  # of slots: 2**64 over the number of partitions, rounded up
    keys = U32  # of slots: how many keys there are from `base` on


class Partitions(Struct):
    """Partitioned rows (kernels/pgb_tr/partitions.cuh)."""

    words = _field("Words")
    numbers = _field("u32*")  # of the rows in the input, where a state asks for them
    validity = _field("void*")  # of each row: one bit for each masked input
    rows = _field("u32*")  # of each partition, those included that found it full
    ticket = _field("u32*")  # the next partition to aggregate
    # where each partition begins, and where the last one ends (room.cuh); null: each has room for
    # `capacity` rows
    begins = _field("const u32*")
    count = U32
    capacity = U32
    most = U32  # rows that any partition has room for


class HotKeys(Struct):
    """Keys that are kept out of partitions (kernels/pgb_tr/hot.cuh)."""

    words = _field("u64", tuning.HOT_AT_MOST)  # the hottest first
    count = U32
    buckets = U32
    replicas = U32  # of the states of the hottest: a power of two, a warp's lanes at most
    extras = U32  # whether the extra keys go with them


class Round(Struct):
    """A round of places for rows (kernels/sp_ega/sp_ega.cuh)."""

    rows = _field("u32*")  # a bit for each row: it has no place yet
    free = _field("u32*")  # a bit for each slot: no key held it when the round began
    found = _field("u32*")  # how many free slots there are, zero before
    lost = _field("u32*")  # rows that the round leaves without a place, zero before
    waiting = _field("const u32*")  # rows that the round before left
    number = U32  # each round has a hash of its own


class Pass(Struct):
    """A pass of the radix sort (kernels/sgb/radix.cuh)."""

    words = _field("const void*")
    words_to = _field("void*")
    moved = _field("const void*")
    moved_to = _field("void*")
    starts = _field("const u32*")  # of each digit's rows in the output
    told = _field("u32*")  # by each tile of each digit, zero before
    ticket = _field("u32*")  # the next tile, zero before
    rows = U32
    shift = U32


class Runs(Struct):
    """Runs of equal keys (kernels/sgb/runs.cuh)."""

    heads = _field("u32*")  # of each warp: groups that begin in its rows, then those before
    falls = _field("u32*")  # rows that may belong to a group that has ended


# of the keys as words that order as they do; low is above high without any
class Range(Struct):
    """Least and greatest key (kernels/sgb/range.cuh)."""

    low = U64
    high = U64


class Chunk(Struct):
    """Rows whose groups are numbered; a selection may take several chunks in turn."""

    values = _field("Column")
    codes = _field("const i32*")  # the number of each row's group, -1 for none
    rows = U32
    groups = U32
    skips_nan = U32  # whether NaN is no value


class Inside(Struct):
    """Room for the rows inside of brackets; rows beyond that are counted, but not kept."""

    words = _field("void*")  # null to count only
    of_row = _field("u32*")
    rows = _field("u32*")
    room = U32


# ---- both sides ----------------------------------------------------------------------------------

# The structs by their names in C++, and the text of each.
STRUCTS: dict[str, type[Struct]] = {}
_texts: list[str] = []


def _share(struct: type[Struct]) -> None:
    """Lay a struct out on both sides."""
    name, fields, lines = struct.__name__.removesuffix("Struct"), [], []
    for field, value in vars(struct).items():
        if isinstance(value, _Field):
            ctype, length = value
            kind = ctypes.c_void_p if ctype.endswith("*") else (_NUMBERS | STRUCTS)[ctype]
            fields.append((field, kind * length if length else kind))
            lines.append(f"    {ctype} {field}{f'[{length}]' if length else ''};\n")
    struct._fields_ = fields
    STRUCTS[name] = struct
    _texts.append(f"struct {name} {{\n{''.join(lines)}}};\n")


for _struct in Struct.__subclasses__():
    _share(_struct)
