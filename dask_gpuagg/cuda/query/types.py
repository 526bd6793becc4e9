"""Key columns, inputs, states and outputs of a query, as the types of the kernels.

They are tuples, which are hashed and compared fast: each call looks its query up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Bytes of shared memory per slot: those that a slot has once, and those of each replica. The
# specialisations that the tests compile assert them.
STATE_BYTES: dict[str, tuple[int, int]] = {
    "Size": (0, 4),
    "Count": (0, 4),
    "IntegerSum": (0, 8),
    "FloatSum": (0, 8),
    "IntegerProduct": (0, 8),
    "FloatProduct": (0, 8),
    "Any": (4, 0),
    "All": (4, 0),
    "FirstRow": (4, 0),
    "LastRow": (4, 0),
    "WideSum": (0, 16),
    "ExactSum": (8, 32),
    "Moments": (8, 20),
    "MergedMoments": (8, 24),
    "Witness": (8, 0),
    "CheckedRow": (8, 0),
}

# CUDA C++ names of the value types, with their bytes.
TYPE_BYTES = {
    "i8": 1, "i16": 2, "i32": 4, "i64": 8,
    "u8": 1, "u16": 2, "u32": 4, "u64": 8,
    "f32": 4, "f64": 8, "i128": 16,
}  # fmt: skip
# Types that are sorted: a word has 8 bytes at most.
SORTED_TYPES = tuple(ctype for ctype in TYPE_BYTES if ctype != "i128")
# The type of an input of which only the validity is read.
PRESENT = "present"


class KeyPart(NamedTuple):
    """One key column; of strings ``ctype`` is the type of the offsets, ``i32`` or ``i64``."""

    ctype: str
    masked: bool
    string: bool = False

    @property
    def nullable(self) -> bool:
        """Whether rows may have no value: a NaN key is a null one."""
        return self.masked or self.ctype in ("f32", "f64")

    @property
    def is_integral(self) -> bool:
        """Whether the values are integers of up to 64 bits."""
        return self.ctype[0] in "iu" and self.ctype != "i128" and not self.string


class ValuePart(NamedTuple):
    """One input column: its type, or ``PRESENT``, and whether it has a null mask."""

    ctype: str
    masked: bool


class KernelState(NamedTuple):
    """A state policy of ``kernels/aggregate/``, of the inputs in these places.

    ``ctype`` is the type that ``Min`` and ``Max`` order.
    """

    policy: str
    inputs: tuple[int, ...] = ()
    ctype: str | None = None

    @property
    def code(self) -> str:
        """The policy as a C++ type."""
        arguments = ([self.ctype] if self.ctype else []) + [str(i) for i in self.inputs]
        return f"{self.policy}<{', '.join(arguments)}>" if arguments else self.policy

    def slot_bytes(self) -> tuple[int, int]:
        """Bytes that a slot has once, and bytes of each replica."""
        if self.ctype is not None:
            return (4 if TYPE_BYTES[self.ctype] <= 4 else 8, 0)
        return STATE_BYTES[self.policy]


class KernelOutput(NamedTuple):
    """An output policy of ``kernels/output/``.

    ``states`` are the positions of the states that it reads, a count of values last; ``ctype`` is
    the type of its values, and ``constants`` are the policy's further arguments.
    """

    policy: str
    states: tuple[int, ...]
    ctype: str
    nullable: bool = False
    constants: tuple[int | bool, ...] = ()

    @property
    def code(self) -> str:
        """The policy as a C++ type: states, type, whether there are nulls, constants."""
        arguments = [str(state) for state in self.states]
        if self.policy in _COUNTED_OR_NOT and not self.nullable:
            arguments.append("NO_STATE")
        if self.policy in _TYPED:
            arguments.append(self.ctype)
        if self.policy in _TELL_NULLS:
            arguments.append(str(self.nullable).lower())
        arguments += [str(constant).lower() for constant in self.constants]
        return f"{self.policy}<{', '.join(arguments)}>"

    def renumbered(self, places: Sequence[int]) -> KernelOutput:
        """The output of states that have other positions: ``places``, by the old ones."""
        return self._replace(states=tuple(places[state] for state in self.states))


# Bins of an ``ExactSum`` (kernels/aggregate/exact_sum.cuh).
EXACT_BINS = 4
# States that take as many registers as three others.
HEAVY = ("Moments", "MergedMoments", "ExactSum")
# States of the numbers of rows instead of values.
OF_NUMBERS = ("FirstRow", "LastRow")
# Outputs that take their type, that take whether they have nulls, and that count values only then.
_TYPED = ("Field", "FieldOf", "Extreme", "WideMean", "LimbMean")
_TELL_NULLS = ("Mean", "WideMean", "ExactMean")
_COUNTED_OR_NOT = ("Extreme", "ExactTotal")
# States of a list that the bits of one integer can stand for (kernels/output/outputs.cuh).
STATES_AS_BITS = 64
