"""The translation unit of a query: its types as text."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

from dask_gpuagg.cuda.query.forms import BY_ROW, HASHED, PACKED, WIDE, Form
from dask_gpuagg.cuda.query.instantiations import FOLDS, PARTITIONED, UNITS, TranslationUnit
from dask_gpuagg.cuda.query.tuning import CODED_COLUMNS, TOLD_COLUMNS
from dask_gpuagg.cuda.query.types import (
    HEAVY,
    OF_NUMBERS,
    PRESENT,
    STATES_AS_BITS,
    TYPE_BYTES,
    KernelOutput,
    KernelState,
    KeyPart,
    ValuePart,
)


@dataclass(frozen=True)
class Query:
    """Everything that the machine code of a query depends on."""

    keys: tuple[KeyPart, ...]
    # whether null keys form groups
    keep_nulls: bool
    inputs: tuple[ValuePart, ...]
    states: tuple[KernelState, ...]
    outputs: tuple[KernelOutput, ...]
    # the form of the keys where it is not that of the columns
    chosen: Form | None = None
    # whether partitions hold the numbers of their rows, by which values are gathered, and no values
    untransformed: bool = False

    # a call looks its kernels up several times; the hash differs in other processes
    @cached_property
    def _hash(self) -> int:
        return hash((self.keys, self.inputs, self.states, self.outputs))

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def form(self) -> Form:
        """Form in which tables hold the keys."""
        if self.chosen is not None:
            return self.chosen
        if any(key.string for key in self.keys):
            return HASHED
        # the null of a single key of 64 bits has an extra slot
        if self.word_bits <= 64 or (len(self.keys) == 1 and TYPE_BYTES[self.keys[0].ctype] == 8):
            return PACKED
        return WIDE if self.word_bits <= 128 else HASHED

    @cached_property
    def word_bits(self) -> int:
        """Bits of keys of fixed width, with a flag for each column whose nulls are kept."""
        flags = sum(key.nullable for key in self.keys) if self.keep_nulls else 0
        return flags + sum(8 * TYPE_BYTES[key.ctype] for key in self.keys)

    @cached_property
    def may_be_coded(self) -> bool:
        """Whether the keys are strings, and perhaps integers, that may have few values."""
        strings = [key.string for key in self.keys]
        fixed = [key for key in self.keys if not key.string]
        few = any(strings) and len(self.keys) <= CODED_COLUMNS
        return self.form == HASHED and few and all(key.is_integral for key in fixed)

    @cached_property
    def may_fill(self) -> bool:
        """Whether keys that fit a word may be numbered by the combinations of their values."""
        several = 1 < len(self.keys) <= TOLD_COLUMNS
        return self.form == PACKED and several and self.is_integral

    @cached_property
    def may_be_stepped(self) -> bool:
        """Whether the values of the only key, 64-bit integers, may lie a step apart."""
        return len(self.keys) == 1 and self.form == PACKED and self.keys[0].ctype == "i64"

    @cached_property
    def key_outputs(self) -> int:
        """Columns in which the keys come out: themselves, codes, or rows to gather them from."""
        return len(self.keys) if self.form.key_ctype is None else 1

    @cached_property
    def columns_out(self) -> tuple[tuple[str, bool], ...]:
        """C types of the columns that come out, keys first, and whether each may have nulls."""
        if self.form.key_ctype is not None:
            keys: tuple[tuple[str, bool], ...] = ((self.form.key_ctype, False),)
        else:
            keys = tuple((k.ctype, k.nullable and self.keep_nulls) for k in self.keys)
        return (*keys, *((o.ctype, o.nullable) for o in self.outputs))

    @cached_property
    def extra_columns(self) -> int:
        """Columns behind keys and inputs: made words, or the ranges of the key columns."""
        return self.form.made_words + self.form.ranges * len(self.keys)

    @cached_property
    def is_integral(self) -> bool:
        """Whether the values of all key columns are integers of up to 64 bits."""
        return all(key.is_integral for key in self.keys)

    @cached_property
    def first_input(self) -> int:
        """Place of the first input in the columns: a string key takes two."""
        return sum(2 if key.string else 1 for key in self.keys)

    @cached_property
    def all_inputs(self) -> tuple[ValuePart, ...]:
        """The inputs of the states, the second half of words included."""
        return (*self.inputs, ValuePart("u64", False)) if self.form.has_witness else self.inputs

    @cached_property
    def copied(self) -> tuple[tuple[int, ValuePart], ...]:
        """The inputs of ``read``, with their places in it, that partitions hold copies of."""
        if self.untransformed:
            return ()
        return tuple((i, v) for i, v in enumerate(self.all_inputs) if v.ctype != PRESENT)

    @cached_property
    def values(self) -> int:
        """Values that the states read of a row, unless they are null."""
        return sum(value.ctype != PRESENT for value in self.all_inputs)

    @cached_property
    def by_number(self) -> Query:
        """The query whose partitions hold the numbers of their rows."""
        return replace(self, untransformed=True)

    @cached_property
    def all_states(self) -> tuple[KernelState, ...]:
        """The states of a slot: those asked for, then what made words need."""
        if not self.form.verifier:
            return self.states
        witness = (len(self.inputs),) if self.form.has_witness else ()
        return (*self.states, KernelState(self.form.verifier, witness))

    @cached_property
    def slot_bytes(self) -> tuple[int, int]:
        """Bytes that a slot has once, its key's word included, and bytes of each replica."""
        sizes = [s.slot_bytes() for s in self.all_states]
        return 8 + sum(s[0] for s in sizes), sum(s[1] for s in sizes)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of keys and inputs that a row has, those of strings and null masks left out."""
        columns: list[KeyPart | ValuePart] = [*self.keys, *self.inputs]
        return sum(TYPE_BYTES.get(c.ctype, 0) for c in columns)

    @cached_property
    def threads(self) -> int:
        """Threads of a block."""
        # registers decide, of which a thread has 65,536 / threads; states of moments take three
        heavy = sum(3 if s.policy in HEAVY else 1 for s in self.all_states)
        return 1024 if heavy <= 8 and self.form != BY_ROW else 512

    @cached_property
    def unroll(self) -> int:
        """Rows that a thread has in flight, by the columns that it reads of each."""
        keys = 1 if self.form.made_words else len(self.keys)
        return 4 if len(self.all_inputs) <= 4 and keys <= 2 else 2

    @cached_property
    def replicated_slots(self) -> int:
        """Slots of a partition's table that get copies where many rows want them at once."""
        # a block has several such keys, but the copies take room from its table
        slots = 512 // max(1, sum(self.slot_bytes) - 8)
        return 1 << (min(16, max(1, slots)).bit_length() - 1)

    @cached_property
    def scatter(self) -> tuple[int, int, int]:
        """Threads of a scatter block, and rows of a thread in ordinary and in large tiles."""
        # of many partitions tiles as large as shared memory allows make the longest runs
        return (1024, 16, 24) if self.widest <= 8 else (512, 16, 24)

    @cached_property
    def widest(self) -> int:
        """Bytes of the widest column that a scatter moves, words included."""
        return max([8, *(TYPE_BYTES[v.ctype] for _, v in self.copied)])

    @cached_property
    def can_fold(self) -> bool:
        """Whether each state reads at most one column, so that columns may be folded in turn."""
        return all(len(state.inputs) <= 1 for state in self.all_states)

    @cached_property
    def can_fold_outputs(self) -> bool:
        """Whether each output is made of one column, and complete once this has been folded."""
        if not self.can_fold or len(self.all_states) > STATES_AS_BITS:
            return False
        for output in self.outputs:
            states = [self.all_states[i] for i in output.states]
            columns = {(*s.inputs, s.policy in OF_NUMBERS) for s in states if s.policy != "Size"}
            if len(columns) > 1:
                return False
        return True

    @cached_property
    def has_row_numbers(self) -> bool:
        """Whether partitions hold the numbers of their rows."""
        return self.untransformed or any(state.policy in OF_NUMBERS for state in self.all_states)

    @cached_property
    def units(self) -> tuple[str, ...]:
        """The units that this query has."""
        missing = set(self.form.lacks)
        if self.untransformed:  # a call has its other kernels from the query that moves copies
            return tuple(unit for unit in PARTITIONED if unit not in missing)
        if not self.may_be_coded:
            missing.add("bytes")
        if not self.is_integral or self.form not in (WIDE, HASHED):
            missing.add("ranges")
        if not self.can_fold:
            missing.update(FOLDS)
        return tuple(unit for unit in UNITS if unit not in missing)

    def source(self, *units: str) -> TranslationUnit:
        """The translation unit of some of ``units``, or of all."""
        units = units or self.units
        headers = ["core/query.cuh", "output/output.cuh"]
        kernels: dict[str, str] = {}
        scatter_threads, items, wide_items = self.scatter
        numbers = {
            "keys": self.key_outputs,
            "threads": self.threads,
            "unroll": self.unroll,
            "crowds": self.replicated_slots,
            "scatter_threads": scatter_threads,
            "items": items,
            "wide_items": wide_items,
        }
        for unit in units:
            headers += [h for h in UNITS[unit].headers if h not in headers]
            for name, expression in UNITS[unit].kernels.items():
                kernels[name] = expression.format(**numbers)
        keys, column = [], 0
        for key in self.keys:
            kind = "StringColumn" if key.string else "KeyColumn"
            keys.append(f"{kind}<{key.ctype}, {column}, {_literal(key.masked)}>")
            column += 2 if key.string else 1
        inputs = []
        for value in self.all_inputs:
            if value.ctype == PRESENT:
                inputs.append(f"Presence<{column}, {_literal(value.masked)}>")
            else:
                inputs.append(f"Input<{value.ctype}, {column}, {_literal(value.masked)}>")
            column += 1
        arguments = map(str, self.form.arguments(column, len(self.states)))
        key_type = ", ".join((_literal(self.keep_nulls), *arguments, *keys))
        columns = self.first_input + len(self.inputs) + self.extra_columns
        includes = "".join(f'#include "{header}"\n' for header in headers)
        fixed, replica = self.slot_bytes
        twice = all(unit.startswith("scatter") for unit in units)
        flags = "#define GPUAGG_READS_TWICE\n" if twice else ""
        source = f"""{flags}{includes}
namespace gpuagg {{
using Key = {self.form.name}<{key_type}>;
using Kept = States<{", ".join(s.code for s in self.all_states)}>;
using Read = Row<{", ".join(inputs)}>;
struct Asked : Query<Key, Kept, Read, {max(columns, 1)}, {_literal(self.untransformed)}> {{}};
using Made = Outputs<{", ".join(o.code for o in self.outputs)}>;
static_assert(8 + Kept::bytes(0) == {fixed} && Kept::bytes(1) - Kept::bytes(0) == {replica},
              "the host assumes other sizes");
}}
using namespace gpuagg;
"""
        return TranslationUnit(source, kernels)


def _literal(value: bool) -> str:
    return str(value).lower()
