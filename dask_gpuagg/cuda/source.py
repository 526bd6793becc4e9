"""The translation unit of a query: its types as text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
    "Moments": (8, 20),
    "MergedMoments": (8, 24),
}

# CUDA C++ names of the value types, with their bytes.
TYPE_BYTES = {
    "i8": 1, "i16": 2, "i32": 4, "i64": 8,
    "u8": 1, "u16": 2, "u32": 4, "u64": 8,
    "f32": 4, "f64": 8, "i128": 16,
}  # fmt: skip


# The type of an input of which only the validity is read.
PRESENT = "present"


@dataclass(frozen=True)
class KeyPart:
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


@dataclass(frozen=True)
class ValuePart:
    """One input column: type and whether it has a null mask.

    A type of ``present`` stands for a column of any type of which only the validity is read.
    """

    ctype: str
    masked: bool


@dataclass(frozen=True)
class State:
    """A state policy of ``kernels/aggregate/states.cuh``.

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


@dataclass(frozen=True)
class Output:
    """An output policy of ``kernels/output/outputs.cuh``: code, its type, whether it has nulls."""

    code: str
    ctype: str
    nullable: bool


@dataclass(frozen=True)
class Query:
    """Everything that the machine code of a query depends on.

    Attributes
    ----------
    keys : tuple of KeyPart
    keep_nulls : bool
        Whether null keys form groups.
    inputs : tuple of ValuePart
    states : tuple of State
    outputs : tuple of Output
    counting : bool
        Whether the kernels count the slots that rows look at, which slows them down.
    """

    keys: tuple[KeyPart, ...]
    keep_nulls: bool
    inputs: tuple[ValuePart, ...]
    states: tuple[State, ...]
    outputs: tuple[Output, ...]
    counting: bool = False

    @cached_property
    def packed(self) -> bool:
        """Whether the keys fit one 64-bit word."""
        if any(k.string or k.ctype == "i128" for k in self.keys):
            return False
        bits = sum(8 * TYPE_BYTES[k.ctype] for k in self.keys)
        flags = sum(k.nullable for k in self.keys) if self.keep_nulls else 0
        # a single key of 64 bits has a slot of its own for its null
        return bits + flags <= 64 or (len(self.keys) == 1 and bits == 64)

    @property
    def key_outputs(self) -> int:
        """Columns in which the keys come out: themselves, or the rows to gather them from."""
        return len(self.keys) if self.packed else 1

    @cached_property
    def slot_bytes(self) -> tuple[int, int]:
        """Bytes that a slot has once, its key's word included, and bytes of each replica."""
        sizes = [s.slot_bytes() for s in self.states]
        return 8 + sum(s[0] for s in sizes), sum(s[1] for s in sizes)

    @property
    def threads(self) -> int:
        """Threads of a block: registers decide, of which a thread has 65,536 / threads."""
        heavy = sum(3 if s.policy.endswith("Moments") else 1 for s in self.states)
        return 1024 if heavy <= 8 and self.packed else 512

    @property
    def blocks(self) -> int:
        """Blocks of an SM that the registers must suffice for."""
        return 1

    @property
    def unroll(self) -> int:
        """Rows that a thread has in flight."""
        return 4 if len(self.inputs) <= 4 and len(self.keys) <= 2 else 2

    @property
    def places(self) -> int:
        """Slots that a row looks at in the first phase of SP-EGA: one, or those of a sector."""
        return 1 if self.packed else 4

    @property
    def scatter(self) -> tuple[int, int, int]:
        """Of the scatter: threads of a block, and rows of a thread in each tile.

        The second number of rows is for many partitions: a tile's rows of one partition leave it
        together, so tiles as large as shared memory allows make the longest runs.
        """
        return (1024, 16, 24) if self.widest <= 8 else (512, 16, 24)

    @property
    def widest(self) -> int:
        """Bytes of the widest column that a scatter moves, words included."""
        return max(8, *(TYPE_BYTES.get(v.ctype, 1) for v in self.inputs)) if self.inputs else 8

    @property
    def numbered(self) -> bool:
        """Whether a state keeps the number of a row."""
        return any(s.policy in ("FirstRow", "LastRow") for s in self.states)

    def source(self) -> str:
        """The translation unit."""
        keys, column = [], 0
        for key in self.keys:
            masked = str(key.masked).lower()
            kind = "StringColumn" if key.string else "KeyColumn"
            keys.append(f"{kind}<{key.ctype}, {column}, {masked}>")
            column += 2 if key.string else 1
        inputs = []
        for value in self.inputs:
            masked = str(value.masked).lower()
            if value.ctype == PRESENT:
                inputs.append(f"Presence<{column}, {masked}>")
            else:
                inputs.append(f"Input<{value.ctype}, {column}, {masked}>")
            column += 1
        family = "Packed" if self.packed else "ByRow"
        keep = str(self.keep_nulls).lower()
        fixed, replica = self.slot_bytes
        scatter = ""
        if self.packed:
            names = ("THREADS", "ITEMS", "WIDE_ITEMS")
            for name, number in zip(names, self.scatter, strict=True):
                scatter += f"#define GPUAGG_SCATTER_{name} {number}\n"
        counting = "#define GPUAGG_COUNT_PROBES" if self.counting else ""
        return f"""{counting}
#include "core/query.cuh"
#include "output/output.cuh"
namespace gpuagg {{
using Key = {family}<{keep}, {", ".join(keys)}>;
using Kept = States<{", ".join(s.code for s in self.states)}>;
using Read = Row<{", ".join(inputs)}>;
static_assert(8 + Kept::bytes(0) == {fixed} && Kept::bytes(1) - Kept::bytes(0) == {replica},
              "the host reckons with other sizes");
}}
using GPUAGG_QUERY = gpuagg::Query<gpuagg::Key, gpuagg::Kept, gpuagg::Read, {max(column, 1)}>;
namespace gpuagg {{
using Made = Outputs<{", ".join(o.code for o in self.outputs)}>;
}}
using GPUAGG_OUTPUTS = gpuagg::Made;
#define GPUAGG_KEY_TARGETS {self.key_outputs}
#define GPUAGG_THREADS {self.threads}
#define GPUAGG_BLOCKS {self.blocks}
#define GPUAGG_UNROLL {self.unroll}
#define GPUAGG_PLACES {self.places}
{scatter}#include "entry.cuh"
"""
