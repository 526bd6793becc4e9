"""Forms of the keys as the kernels know them: a record for each type of ``kernels/key/``.

The host's side of a form, from the sample to the decoded keys, is a class of ``cuda/keys/``.
"""

from dataclasses import dataclass, replace
from typing import Any

from dask_gpuagg.cuda.query.instantiations import (
    FOLDS,
    OF_NUMBERED_KEYS,
    OF_PACKED_KEYS,
    PARTITIONED,
)


@dataclass(frozen=True, eq=False)
class Form:
    """Form in which tables hold the keys; each form is a single object."""

    # the C++ type
    name: str
    # columns of 64 bits that a pass makes of the keys before they are grouped
    made_words: int = 0
    # columns behind these for each key column: its range, and its step
    ranges: int = 0
    # the state of a group that verifies its word
    verifier: str = ""
    # type of the one column that comes out in the place of the keys; None where they come out
    key_ctype: str | None = None
    # whether this column has the rows to gather the keys from
    is_gathered: bool = False
    # whether words are numbers: keys of a narrow range may then have slots of their own
    has_numbers: bool = False
    # whether no row is looked at again for its key, so that columns may lie in pieces
    is_read_once: bool = False
    # whether a word may turn out to stand for several keys, or for none
    may_be_ambiguous: bool = True
    # whether that is known before rows are grouped, because words were made for other values
    is_checked_early: bool = False
    # units that no query has with its keys in this form
    lacks: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return form_named, (self.name,)

    @property
    def has_witness(self) -> bool:
        """Whether words have a second half, which is the last input."""
        return bool(self.verifier)

    @property
    def has_steps(self) -> bool:
        """Whether the values of a key column are divided by a step."""
        return self.ranges == 2

    def arguments(self, place: int, states: int) -> list[int]:
        """Template arguments: places of words and witnesses, the verifying state, the ranges.

        ``place`` is that of the last made word, or of the column behind the inputs; ``states`` are
        those of the query, before that of the form.
        """
        words = [place - i for i in range(self.made_words)]
        state = [states] if self.verifier else []
        return words + state + ([place + (self.made_words > 0)] if self.ranges else [])


_NO_WORDS = ("words", "codes")
_MADE_WORDS = ("codes", *OF_PACKED_KEYS, *OF_NUMBERED_KEYS)

# the columns' own bits in one 64-bit word
PACKED = Form(
    "Packed", has_numbers=True, is_read_once=True, may_be_ambiguous=False, lacks=_NO_WORDS
)
# one word: the number of the combination of the columns' values, by their ranges
RANGED = Form(
    "Ranged",
    ranges=1,
    has_numbers=True,
    is_read_once=True,
    lacks=(*_NO_WORDS, *OF_PACKED_KEYS),
)
# by the multiples of a step that the values of the only column, 64-bit integers, lie apart
STEPPED = replace(RANGED, name="Stepped", ranges=2)
# one word: the number of the bytes that strings have in each place
CODED = Form(
    "Coded",
    made_words=1,
    key_ctype="u64",
    has_numbers=True,
    is_checked_early=True,
    lacks=("words", *OF_PACKED_KEYS),
)
# a word and a witness, 128 bits together
WIDE = Form("Wide", made_words=2, verifier="Witness", lacks=_MADE_WORDS)
# of the distances of the columns' values from their least ones
WIDE_RANGED = replace(WIDE, name="WideRanged", ranges=1, is_checked_early=True)
# a hash, and a second one with the number of the row
HASHED = Form(
    "Hashed",
    made_words=2,
    verifier="CheckedRow",
    key_ctype="i32",
    is_gathered=True,
    lacks=_MADE_WORDS,
)
# the number of a row, whose key is compared with those of other rows
BY_ROW = Form(
    "ByRow",
    key_ctype="i32",
    is_gathered=True,
    may_be_ambiguous=False,
    lacks=(
        *(*_NO_WORDS, *OF_PACKED_KEYS, *OF_NUMBERED_KEYS),
        *(*PARTITIONED, *FOLDS, "absorb", "room"),
    ),
)
FORMS: dict[str, Form] = {
    form.name: form for form in (PACKED, RANGED, STEPPED, CODED, WIDE, WIDE_RANGED, HASHED, BY_ROW)
}


def form_named(name: str) -> Form:
    """The form of a name."""
    return FORMS[name]
