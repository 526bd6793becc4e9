"""Keys in the form of their columns, and words of them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dask_gpuagg.cuda.call import Call, Columns, Made
from dask_gpuagg.cuda.query.forms import BY_ROW, CODED, HASHED, RANGED, WIDE_RANGED
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import Codes, ColumnStruct, Counters, Factors


@dataclass
class Keys:
    """Keys in the form of their columns, or by row; classes of other forms derive from it."""

    query: Query

    @property
    def extra(self) -> Sequence[ColumnStruct]:
        """Columns behind all others that the kernels need for the form."""
        return ()

    @property
    def codes(self) -> Codes | None:
        """The numbers of coded keys."""
        return None

    def call(self, columns: Columns) -> Call:
        """A call of the kernels with the keys in this form."""
        return columns.call(self.query, self.extra, self.codes)

    def make(self, call: Call) -> None:
        """Fill the columns behind the inputs that the form has: witnesses, words."""
        if self.query.form.made_words:
            make_words(call, "make_words", factors())

    def is_ambiguous(self, counters: Counters) -> bool:
        """Whether some word stands for several keys, or for none, after all rows were grouped."""
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


@cache
def factors() -> Factors:
    """Factors of this process's hashes, which nobody else knows."""
    numbers = Factors()
    for hashed in (numbers.first, numbers.second):
        hashed[:] = [secrets.randbits(32) | 1 for _ in hashed]
    return numbers


def make_words(call: Call, kernel: str, *operands: Any) -> None:
    """Fill the columns of made words by a kernel."""
    words = call.query.form.made_words
    end = len(call.columns) - (call.query.extra_columns - words)
    for i in range(1, words + 1):
        call.columns[end - i].data = call.allocate(8 * call.rows).ptr
    call.launch_over(kernel, call.rows, call.args, call.columns, *operands)
