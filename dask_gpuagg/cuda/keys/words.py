"""Keys in the form of their columns: words of them, and the comparison of hashed keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dask_gpuagg.cuda.call import Call, Columns, Made
from dask_gpuagg.cuda.choice.decision import safe_slots
from dask_gpuagg.cuda.query.forms import BY_ROW, CODED, HASHED, RANGED, WIDE_RANGED
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import Codes, ColumnStruct, Counters, Index
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime.driver import fill

# Words of a slot of the index before the key's own, of a sector of memory, of the longest slots.
_HEAD = 2
_SECTOR = 4
_MOST_WORDS = 16
# Bytes of the index for each row that longer slots may take.
_INDEX_BYTES = 32


@dataclass
class Keys:
    """Keys in the form of their columns, or by row; classes of other forms derive from it."""

    query: Query

    # said of the form in a decision
    why: ClassVar[str] = ""

    @property
    def extra(self) -> Sequence[ColumnStruct]:
        """Columns behind all others that the kernels need for the form."""
        return ()

    @property
    def codes(self) -> Codes | None:
        """The numbers of coded keys."""
        return None

    @property
    def is_gathered(self) -> bool:
        """Whether the column of the keys has the rows to gather them from."""
        return self.query.form.is_gathered

    def call(self, columns: Columns) -> Call:
        """A call of the kernels with the keys in this form."""
        return columns.call(self.query, self.extra, self.codes)

    def make(self, call: Call) -> None:
        """Fill the columns behind the inputs that the form has: witnesses, words."""
        if self.query.form.made_words:
            make_words(call, "make_words")

    def is_ambiguous(self, call: Call, counters: Counters) -> bool:
        """Whether some word stands for several keys, or for none, after all rows were grouped."""
        if self.query.form == HASHED:
            counters = verified(call, counters)
        return self.query.form.may_be_ambiguous and bool(counters.ambiguous)

    def wider(self, columns: Columns) -> Keys | None:
        """The keys in the next form, which takes more values; None if this one takes all.

        Two keys share a word so rarely that grouping by row is the best answer.
        """
        if not self.query.form.may_be_ambiguous:
            return None
        return Keys(replace(self.query, chosen=BY_ROW if self.query.chosen is None else None))

    def decoded(self, call: Call, columns: list[Made], groups: int) -> list[Made]:
        """The key columns of the groups, from the columns that the kernels wrote."""
        return columns


def representations_of(query: Query) -> list[Query]:
    """The query, and those that ``narrowest_keys`` or ``numbered_by_ranges`` may make of it."""
    ranged = (query.form.made_words > 0 and query.is_integral) or query.may_fill
    forms = [RANGED] if ranged else []
    forms += [WIDE_RANGED] if ranged and query.form == HASHED else []
    forms += [CODED] if query.may_be_coded else []
    return [query, *(replace(query, chosen=form) for form in forms)]


def make_words(call: Call, kernel: str, *operands: Any) -> None:
    """Fill the columns of made words by a kernel."""
    words = call.query.form.made_words
    end = len(call.columns) - (call.query.extra_columns - words)
    for i in range(1, words + 1):
        call.columns[end - i].data = call.allocate(8 * call.rows).ptr
    call.launch_over(kernel, call.rows, call.args, call.columns, *operands)


# ---- hashes --------------------------------------------------------------------------------------


def verified(call: Call, counters: Counters) -> Counters:
    """The counters after every row was compared with the key of its group."""
    groups = counters.total
    slots = safe_slots(groups)
    stride = slot_words(call.query, _mean_bytes(call))
    if 8 * stride * slots > _INDEX_BYTES * call.rows:
        stride = _HEAD
    size = 8 * stride * slots
    index = Index(call.allocate(size).ptr, slots, stride)
    fill(index.at, 0xFF, size, call.handle)
    call.args.groups = groups
    call.launch_over("index_groups", max(groups, 1), call.args, call.columns, index)
    call.launch_over("verify", call.rows, call.args, call.columns, index)
    return call.counters()


def slot_words(query: Query, mean_bytes: Sequence[float]) -> int:
    """Words of a slot of the index that most keys fit: whole sectors of memory.

    ``_HEAD`` if slots would be too long; rows are then compared with rows.
    """
    words = _HEAD
    for key in query.keys:
        # a null takes another word in columns of fixed width
        words += 1 if key.string else math.ceil(TYPE_BYTES[key.ctype] / 8) + key.nullable
    for mean in mean_bytes:
        # where lengths vary some are longer
        words += math.ceil((mean if mean.is_integer() else 1.25 * mean) / 8)
    words = math.ceil(words / _SECTOR) * _SECTOR
    return words if words <= _MOST_WORDS else _HEAD


def _mean_bytes(call: Call) -> list[float]:
    """Mean bytes of each string column, of a slice as of the column that it is cut from."""
    means, column = [], 0
    for key in call.query.keys:
        if key.string:
            means.append(call.columns[column + 1].offset / max(call.rows, 1))
        column += 2 if key.string else 1
    return means
