"""Strings as numbers of a dictionary, by which rows are then grouped as by integers.

The dictionary is a table of the distinct strings. One pass finds the slot of each row's string
(kernels/key/dictionary.cuh), whose number is the row's key from then on.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.call import Call, Columns, DeviceColumn, Made, mask_bytes
from dask_gpuagg.cuda.choice.decision import margin, shared_bytes
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.keys.words import Keys
from dask_gpuagg.cuda.query.instantiations import DICTIONARY, first_units
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import Counters, DictionaryStruct
from dask_gpuagg.cuda.query.tuning import NEAR_THREADS, SMALL_BLOCK, TEXT_WORDS
from dask_gpuagg.cuda.query.types import KeyPart
from dask_gpuagg.cuda.runtime.driver import fill
from dask_gpuagg.cuda.sampling.sample import Sample

# Rows from which a pass over them may pay.
DICTIONARY_FROM = 1 << 20
# Rows of each group, at least: of strings that hardly repeat a dictionary is as large as they are.
_ROWS_OF_GROUP = 16
# Slots for each expected group. With more than two of them groups would not count as dense, and
# numbers would be hashed.
_ROOMY, _MORE = 1.5, 16
# Slots that lie side by side and are looked at together (kernels/key/dictionary.cuh).
_BUCKET = 4
# A table with room for so many times the groups has too many slots for them.
_LOOSEST = 2
# Mean bytes of strings, at most: threads have so many and a few more in registers.
_MEAN_BYTES = 40
# Words of a copy: the length of a string and its bytes.
_COPIED = 8
# Rows of each group, and rows at least, before the first copies are made; and the part of all rows
# before the last ones are.
_ROWS_BEFORE, _FEWEST_BEFORE, _LAST_PART = 4, 1 << 17, 8

# Of strings that were seen: the groups that a dictionary had room for, 0 where none is made.
_known: Cache[tuple[Query, tuple[str, ...]], int] = Cache(256)


@dataclass
class Dictionary(Keys):
    """Strings as numbers of a dictionary: ``columns`` have the numbers in their place."""

    columns: Columns
    _call: Call
    _struct: DictionaryStruct
    _key: tuple[Query, tuple[str, ...]]

    why = "strings as numbers of a dictionary"
    is_gathered = True

    def call(self, columns: Columns) -> Call:
        """A call by the numbers, which keeps the dictionary's memory."""
        call = self.columns.call(self.query)
        call.held += self._call.held
        self._call.held = []
        return call

    def is_ambiguous(self, call: Call, counters: Counters) -> bool:
        """Whether some row found no slot, so that numbers mean nothing."""
        return self.is_full()

    def is_full(self) -> bool:
        """Wait for the pass: whether some row found no slot."""
        full = self._call.read_number(self._struct.full) != 0
        if full:
            _known.drop(self._key)
        return full

    def wider(self, columns: Columns) -> None:
        """The form that is next without a dictionary follows."""

    def decoded(self, call: Call, columns: list[Made], groups: int) -> list[Made]:
        """The representatives' rows in the place of the groups' numbers."""
        self.judge(groups)
        (codes,) = columns
        if groups:
            addresses = ctypes.c_void_p(self._struct.words), ctypes.c_void_p(codes.data.ptr)
            self._call.launch_over("rows_of_codes", groups, *addresses, ctypes.c_uint32(groups))
        return [Made(codes.data, None, 0)]

    def judge(self, groups: int) -> None:
        """Give the next table the room that these groups need, if this one has another."""
        room = _known.get(self._key) or 0
        # beyond their room groups have slots, but no copies in shared memory
        if groups > room or groups * _LOOSEST < room:
            _known.put(self._key, margin(groups))


def forget_dictionaries() -> None:
    """Sample all strings again."""
    _known.clear()


def may_have_dictionary(columns: Columns, requested: Query) -> bool:
    """Whether the keys are one column of strings, in one piece, many enough and not too long."""
    if not requested.is_by_text or columns.rows < DICTIONARY_FROM:
        return False
    parts = [part for part in columns.parts if part.rows]
    return len(parts) == 1 and parts[0].keys[0].size <= _MEAN_BYTES * columns.rows


def by_numbers(requested: Query) -> Query:
    """The query by numbers instead of strings."""
    masked = requested.keys[0].masked and not requested.keep_nulls
    return replace(requested, keys=(KeyPart("u32", masked),))


def may_serve(requested: Query, rows: int, groups: int | None) -> bool:
    """Whether rows are so many, and strings, where their number is known, so few."""
    many = requested.is_by_text and rows >= DICTIONARY_FROM
    return many and (groups is None or groups * _ROWS_OF_GROUP <= rows)


def units_of_dictionary(requested: Query, many_keys: bool) -> list[tuple[Query, tuple[str, ...]]]:
    """The queries whose kernels a call by a dictionary launches, each with its likely units."""
    if not requested.is_by_text:
        return []
    query = by_numbers(requested)
    units = first_units(query.units, sampled=True, many_keys=many_keys)
    return [(requested.texts, ("sample", *DICTIONARY)), (query, units)]


def is_known(columns: Columns, requested: Query) -> bool:
    """Whether earlier rows have shown that a dictionary serves."""
    return bool(_known.get((requested.texts, columns.key_labels)))


def dictionary_of(columns: Columns, requested: Query) -> Dictionary | None:
    """The strings as numbers where ``may_have_dictionary``; None where they repeat too little."""
    key = requested.texts, columns.key_labels
    parts = [part._replace(inputs=()) for part in columns.parts]
    call = replace(columns, parts=parts).call(requested.texts)
    groups = known = _known.get(key)
    if groups is None:
        groups = _groups(Sample(call).estimate(), call.rows)
        _known.put(key, groups)
    if not groups:
        return None
    dictionary = _encoded(columns, call, requested, groups, key)
    if known is None and dictionary.is_full():
        # another sample would show no more of them
        _known.put(key, 0)
        return None
    return dictionary


def _groups(estimate: KeySummary, rows: int) -> int:
    """Groups that there is to be room for; 0 if they are too many."""
    groups, most = max(1, margin(estimate.groups)), rows // _ROWS_OF_GROUP
    if groups > most:
        return 0
    # skewed keys may be many more than the likely number
    return min(most, margin(estimate.most)) if estimate.skewed else groups


def _encoded(
    columns: Columns, call: Call, requested: Query, groups: int, key: tuple[Query, tuple[str, ...]]
) -> Dictionary:
    rows = call.rows
    groups += groups % 2
    slots = math.ceil((_ROOMY * groups + _MORE) / _BUCKET) * _BUCKET
    table = 8 * slots * (1 + _COPIED)
    # copies lie at even words
    words = call.allocate(table).ptr
    fill(words, 0xFF, table, call.handle)
    query = by_numbers(requested)
    codes = call.allocate(4 * rows).ptr
    mask = call.allocate(mask_bytes(rows)).ptr if query.keys[0].masked else 0
    full = call.allocate(4).ptr
    fill(full, 0, 4, call.handle)
    struct = DictionaryStruct(words, words + 8 * slots, codes, mask, full, slots, _COPIED, groups)
    # in shared memory: copies of the strings, a tag and a place a slot
    kernel, threads, shared = "encode_near", NEAR_THREADS, 8 * (1 + TEXT_WORDS) * groups + 6 * slots
    if shared > shared_bytes(call.device):
        kernel, threads, shared = "encode_far", SMALL_BLOCK, 0
    for first, end in launches(rows, groups):
        if first:
            call.launch_over("copy_texts", slots, call.columns, struct)
        blocks = call.spread(end - first, threads, waves=1024 // threads)
        piece = ctypes.c_uint32(first), ctypes.c_uint32(end)
        call.launch(kernel, blocks, threads, call.columns, struct, *piece, shared=shared)
    (part,) = (part for part in columns.parts if part.rows)
    numbers = replace(columns, parts=[part._replace(keys=[DeviceColumn(codes, mask)])])
    return Dictionary(query, numbers, call, struct, key)


def launches(rows: int, groups: int) -> Iterator[tuple[int, int]]:
    """First row and end of each launch; all but the last end at whole words of a mask."""
    first = 0
    for end in (max(_ROWS_BEFORE * groups, _FEWEST_BEFORE), rows // _LAST_PART):
        end = math.ceil(end / 32) * 32
        if first < end < rows:
            yield first, end
            first = end
    yield first, rows
