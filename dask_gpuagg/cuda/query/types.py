"""What a query is made of: key columns, inputs, states, outputs, as the kernels' types.

They are tuples, which are hashed and compared fast: each call looks its query up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Bytes of shared memory per slot: what a slot has once, and what each replica has. The
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
    "AnyRow": (4, 0),
    "Witness": (8, 0),
}

# CUDA C++ names of the value types, with their bytes.
TYPE_BYTES = {
    "i8": 1, "i16": 2, "i32": 4, "i64": 8,
    "u8": 1, "u16": 2, "u32": 4, "u64": 8,
    "f32": 4, "f64": 8, "i128": 16,
}  # fmt: skip
# Those that are sorted: a word has 8 bytes at most.
SORTED_TYPES = tuple(ctype for ctype in TYPE_BYTES if ctype != "i128")
# The type of an input of which only the validity is read.
PRESENT = "present"


class KeyPart(NamedTuple):
    """One key column.

    Attributes
    ----------
    ctype : str
        A name of ``TYPE_BYTES``; for strings the type of the offsets, ``i32`` or ``i64``.
    masked : bool
        Whether the column has a null mask.
    string : bool
    """

    ctype: str
    masked: bool
    string: bool = False

    @property
    def nullable(self) -> bool:
        """Whether rows may have no value: a NaN key is a null one."""
        return self.masked or self.ctype in ("f32", "f64")


def integral(key: KeyPart) -> bool:
    """Whether the values are integers of up to 64 bits."""
    return key.ctype[0] in "iu" and key.ctype != "i128" and not key.string


class ValuePart(NamedTuple):
    """One input column: type and whether it has a null mask.

    A type of ``present`` stands for a column of any type of which only the validity is read.
    """

    ctype: str
    masked: bool


class KernelState(NamedTuple):
    """A state policy of ``kernels/aggregate/``.

    Attributes
    ----------
    policy : str
    inputs : tuple of int
        Positions in the query's inputs.
    ctype : str, optional
        The type that ``Min`` and ``Max`` order.
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
    """An output policy of ``kernels/output/``: code, its type, whether it has nulls."""

    code: str
    ctype: str
    nullable: bool

    @property
    def policy(self) -> str:
        """The name in the code."""
        return self.code.partition("<")[0]

    @property
    def arguments(self) -> list[str]:
        """The template arguments in the code."""
        return self.code.partition("<")[2].removesuffix(">").split(", ")

    @property
    def states(self) -> list[int]:
        """Positions of the states that it reads."""
        read = [self.arguments[i] for i in _STATE_ARGUMENTS.get(self.policy, (0,))]
        return [int(argument) for argument in read if argument != "NO_STATE"]

    def renumbered(self, places: Sequence[int]) -> KernelOutput:
        """The same output of states that have other positions: ``places``, by the old ones."""
        arguments = self.arguments
        for i in _STATE_ARGUMENTS.get(self.policy, (0,)):
            if arguments[i] != "NO_STATE":
                arguments[i] = str(places[int(arguments[i])])
        return self._replace(code=f"{self.policy}<{', '.join(arguments)}>")


# Bins of an ``ExactSum`` (kernels/aggregate/exact_sum.cuh).
EXACT_BINS = 4
# States that take as many registers as three others.
HEAVY = ("Moments", "MergedMoments", "ExactSum")
# States of the numbers of rows instead of values.
OF_NUMBERS = ("FirstRow", "LastRow", "AnyRow")
# Which of an output's arguments are states.
_STATE_ARGUMENTS = {
    "FieldOf": (0, 2), "WideFieldOf": (0, 1), "Extreme": (0, 2), "Mean": (0, 1),
    "ExactTotal": (0, 1), "ExactMean": (0, 1),
    "WideMean": (0, 1), "LimbMean": (0, 1, 2),
}  # fmt: skip
# States of a list that the bits of one integer can stand for (kernels/output/outputs.cuh).
STATES_AS_BITS = 64
