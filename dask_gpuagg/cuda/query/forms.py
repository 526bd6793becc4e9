"""Forms of the keys as the kernels know them, each a type of ``kernels/key/``.

What the host does for a form is a class of ``cuda/keys/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dask_gpuagg.cuda.query.instantiations import (
    FOLDS,
    OF_NUMBERED_KEYS,
    OF_PACKED_KEYS,
    PARTITIONED,
)
from dask_gpuagg.cuda.query.types import TYPE_BYTES, KernelState, KeyPart


class Form:
    """How tables hold the keys; there is one object of each class."""

    # the C++ type
    name: ClassVar[str]
    # columns of 64 bits that a pass makes of the keys before they are grouped
    made_words: ClassVar[int] = 0
    # type of the one column that comes out in the place of the keys; None where they come out
    key_ctype: ClassVar[str | None] = None
    # whether this column has the rows to gather the keys from
    is_gathered: ClassVar[bool] = False
    # whether words are numbers: keys of a narrow range may then have slots of their own
    has_numbers: ClassVar[bool] = False
    # whether a state keeps a second word, with which the first one is verified
    has_witness: ClassVar[bool] = False
    # whether no row is looked at again for its key, so that columns may lie in pieces
    is_read_once: ClassVar[bool] = False
    # whether a word may turn out to stand for several keys, or for none
    may_be_ambiguous: ClassVar[bool] = True
    # whether that is known before rows are grouped, because words were made for other values
    is_checked_early: ClassVar[bool] = False
    # units that no query has with its keys in this form
    lacks: ClassVar[tuple[str, ...]] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return form_named, (self.name,)

    def __repr__(self) -> str:
        return self.name

    def extra_columns(self, keys: int) -> int:
        """Columns behind keys and inputs, for so many key columns: words, then ranges."""
        return self.made_words

    def arguments(self, place: int, states: int) -> list[int]:
        """Template arguments between the flag for nulls and the key columns.

        ``place`` is that of the last made word, or of the column behind the inputs; ``states`` are
        those of the query, before those of the form.
        """
        return []

    def states(self, inputs: int) -> tuple[KernelState, ...]:
        """States that the form adds to a query of so many inputs."""
        return ()


class Packed(Form):
    """The columns' own bits in one 64-bit word."""

    name = "Packed"
    has_numbers = True
    is_read_once = True
    may_be_ambiguous = False
    lacks = ("words", "codes", "verify")


class Ranged(Form):
    """One word: the number of the combination of the columns' values, by their ranges."""

    name = "Ranged"
    has_numbers = True
    is_read_once = True
    lacks = (*Packed.lacks, *OF_PACKED_KEYS)

    def extra_columns(self, keys: int) -> int:
        """A range for each column."""
        return keys

    def arguments(self, place: int, states: int) -> list[int]:
        """Where the ranges begin."""
        return [place]


class Stepped(Ranged):
    """One word, by the numbers of the steps in which the columns' values lie apart."""

    name = "Stepped"

    def extra_columns(self, keys: int) -> int:
        """A step and a range for each column."""
        return 2 * keys


class Quotients(Stepped):
    """One word, of a float that is the quotient of an integer and a power of ten."""

    name = "Quotients"


class Coded(Form):
    """One word: the number of the bytes that strings have in each place."""

    name = "Coded"
    made_words = 1
    key_ctype = "u64"
    has_numbers = True
    is_checked_early = True
    lacks = ("words", "verify", *OF_PACKED_KEYS)

    def arguments(self, place: int, states: int) -> list[int]:
        """Where the words are."""
        return [place]


class Wide(Form):
    """A word and a witness, 128 bits together."""

    name = "Wide"
    made_words = 2
    has_witness = True
    lacks = ("codes", "verify", *OF_PACKED_KEYS, *OF_NUMBERED_KEYS)

    def arguments(self, place: int, states: int) -> list[int]:
        """Where words and witnesses are, and the state that keeps the group's."""
        return [place, place - 1, states]

    def states(self, inputs: int) -> tuple[KernelState, ...]:
        """The group's witness: witnesses are the last input."""
        return (KernelState("Witness", (inputs,)),)


class WideRanged(Wide):
    """A word and a witness, of the distances of the columns' values from their least ones."""

    name = "WideRanged"
    is_checked_early = True

    def extra_columns(self, keys: int) -> int:
        """A range for each column, behind the words."""
        return self.made_words + keys

    def arguments(self, place: int, states: int) -> list[int]:
        """The places and the state of ``Wide``, and where the ranges begin."""
        return [*super().arguments(place, states), place + 1]


class Hashed(Form):
    """A hash that is verified after rows were grouped."""

    name = "Hashed"
    made_words = 1
    key_ctype = "i32"
    is_gathered = True
    lacks = tuple(unit for unit in Wide.lacks if unit != "verify")

    def arguments(self, place: int, states: int) -> list[int]:
        """Where the words are, and the state that keeps a row of the group."""
        return [place, states]

    def states(self, inputs: int) -> tuple[KernelState, ...]:
        """A row of the group."""
        return (KernelState("AnyRow"),)


class ByRow(Form):
    """The number of a row, whose key is compared with those of other rows."""

    name = "ByRow"
    key_ctype = "i32"
    is_gathered = True
    may_be_ambiguous = False
    lacks = (
        *(*Packed.lacks, *OF_PACKED_KEYS, *OF_NUMBERED_KEYS),
        *(*PARTITIONED, *FOLDS, "absorb", "room"),
    )


PACKED, RANGED, STEPPED, QUOTIENTS = Packed(), Ranged(), Stepped(), Quotients()
CODED, WIDE, WIDE_RANGED, HASHED, BY_ROW = Coded(), Wide(), WideRanged(), Hashed(), ByRow()
FORMS: dict[str, Form] = {
    form.name: form
    for form in (PACKED, RANGED, STEPPED, QUOTIENTS, CODED, WIDE, WIDE_RANGED, HASHED, BY_ROW)
}


def form_named(name: str) -> Form:
    """The form of a name."""
    return FORMS[name]


def key_bits(keys: Sequence[KeyPart], keep_nulls: bool) -> int:
    """Bits of keys of fixed width, with a flag for each column whose nulls are kept."""
    flags = sum(key.nullable for key in keys) if keep_nulls else 0
    return flags + sum(8 * TYPE_BYTES[key.ctype] for key in keys)


def form_of_columns(keys: Sequence[KeyPart], keep_nulls: bool) -> Form:
    """The form of keys of any values."""
    if any(key.string for key in keys):
        return HASHED
    bits = key_bits(keys, keep_nulls)
    # the null of a single key of 64 bits has an extra slot
    if bits <= 64 or (len(keys) == 1 and TYPE_BYTES[keys[0].ctype] == 8):
        return PACKED
    return WIDE if bits <= 128 else HASHED
