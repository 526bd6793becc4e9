"""The translation unit of a query: its types as text."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

from dask_gpuagg.cuda.query import tuning
from dask_gpuagg.cuda.query.instantiations import (
    DICTIONARY,
    FOLDS,
    NARROW_WORDS,
    PARTITIONED,
    SLOTS,
    UNITS,
    WHOLE_WORDS,
    TranslationUnit,
)
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
    integral,
)


@dataclass(frozen=True)
class Query:
    """Everything that the machine code of a query depends on.

    Attributes
    ----------
    keys : tuple of KeyPart
    keep_nulls : bool
        Whether null keys form groups.
    inputs : tuple of ValuePart
    states : tuple of KernelState
    outputs : tuple of KernelOutput
    ranged : bool
        Whether the keys are numbered by the ranges of their columns' values, known from a sample.
    two_words : bool
        Whether these numbers take two words.
    coded : bool
        Whether they are numbered by the bytes that strings have in each place, known from a
        sample.
    by_row : bool
        Whether keys wider than a word are compared row by row, because words made of them were in
        doubt.
    counting : bool
        Whether the kernels count the slots that rows look at, which slows them down.
    untransformed : bool
        Whether partitions hold the numbers of their rows, by which the values are gathered, instead
        of copies of the values.
    stepped : bool
        Whether these ranges are of steps, known from a sample.
    """

    keys: tuple[KeyPart, ...]
    keep_nulls: bool
    inputs: tuple[ValuePart, ...]
    states: tuple[KernelState, ...]
    outputs: tuple[KernelOutput, ...]
    ranged: bool = False
    two_words: bool = False
    coded: bool = False
    by_row: bool = False
    counting: bool = False
    untransformed: bool = False
    stepped: bool = False

    # A call looks its kernels up by the query several times, so the hash is kept; it differs in
    # other processes.
    @cached_property
    def _hash(self) -> int:
        return hash((self.keys, self.inputs, self.states, self.outputs))

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def family(self) -> str:
        """How tables hold the keys: the type in ``kernels/key``.

        ``Packed`` in one 64-bit word, ``Ranged`` likewise by what their values have above a base,
        ``Coded`` likewise by the bytes that strings have in each place,
        ``Wide`` in a word and a witness, 128 bits together (``WideRanged`` by the ranges),
        ``Hashed`` as a hash that is verified, ``ByRow`` as a row's number.
        """
        if self.ranged:
            return "Wide" if self.two_words else "Ranged"
        strings = any(k.string for k in self.keys)
        bits = sum(8 * TYPE_BYTES[k.ctype] for k in self.keys)
        flags = sum(k.nullable for k in self.keys) if self.keep_nulls else 0
        # the null of a single key of 64 bits has an extra slot
        if not strings and (bits + flags <= 64 or (len(self.keys) == 1 and bits == 64)):
            return "Packed"
        if self.by_row:
            return "ByRow"
        if self.coded:
            return "Coded"
        return "Wide" if not strings and bits + flags <= 128 else "Hashed"

    @cached_property
    def word_bits(self) -> int:
        """Bits of a packed key's word."""
        flags = sum(k.nullable for k in self.keys) if self.keep_nulls else 0
        return flags + sum(8 * TYPE_BYTES[k.ctype] for k in self.keys)

    @cached_property
    def is_by_text(self) -> bool:
        """Whether the key is one column of strings, by the hashes of these."""
        return self.family == "Hashed" and len(self.keys) == 1 and self.keys[0].string

    @cached_property
    def texts(self) -> Query:
        """The query of the keys alone, by whose kernels strings become numbers.

        It is the same for all aggregations.
        """
        return Query(self.keys, self.keep_nulls, (), (), (), by_row=True)

    @cached_property
    def is_of_texts(self) -> bool:
        """Whether it is ``texts`` of some query."""
        one = len(self.keys) == 1 and self.keys[0].string
        return one and self.by_row and not (self.states or self.outputs)

    @cached_property
    def may_be_coded(self) -> bool:
        """Whether the keys are strings, and perhaps integers, that may have few values."""
        strings = [key.string for key in self.keys]
        fixed = [key for key in self.keys if not key.string]
        few = any(strings) and len(self.keys) <= tuning.CODED_COLUMNS
        return self.family == "Hashed" and few and all(map(integral, fixed))

    @cached_property
    def may_fill(self) -> bool:
        """Whether keys that fit a word may be numbered by the combinations of their values."""
        several = 1 < len(self.keys) <= tuning.TOLD_COLUMNS
        return self.family == "Packed" and several and self.integral

    @cached_property
    def may_be_stepped(self) -> bool:
        """Whether the values of the only key, 64-bit integers or floats, may lie steps apart."""
        if len(self.keys) > 1 or self.family != "Packed":
            return False
        # a null of 32 bits has a bit of the word
        return self.keys[0].ctype in ("i64", "f64", *(() if self.keep_nulls else ("f32",)))

    @cached_property
    def gathered(self) -> bool:
        """Whether key columns come out as the rows to gather them from."""
        return self.family in ("Hashed", "ByRow")

    @cached_property
    def key_outputs(self) -> int:
        """Columns in which the keys come out: themselves, codes, or rows to gather them from."""
        return 1 if self.gathered or self.family == "Coded" else len(self.keys)

    @cached_property
    def columns_out(self) -> tuple[tuple[str, bool], ...]:
        """C types of the columns that come out, keys first, and whether each may have nulls."""
        keys = tuple((k.ctype, k.nullable and self.keep_nulls) for k in self.keys)
        if self.gathered:
            keys = (("i32", False),)
        elif self.family == "Coded":
            keys = (("u64", False),)
        return (*keys, *((o.ctype, o.nullable) for o in self.outputs))

    @cached_property
    def made_words(self) -> int:
        """Columns of 64 bits that a pass makes of the keys before they are grouped."""
        return {"Wide": 2, "Hashed": 1, "Coded": 1}.get(self.family, 0)

    @cached_property
    def extra_columns(self) -> int:
        """Columns behind keys and inputs: made words, or the ranges of the key columns."""
        ranges = len(self.keys) * (1 + self.stepped) if self.ranged else 0
        return self.made_words + ranges

    @cached_property
    def integral(self) -> bool:
        """Whether the values of all key columns are integers of up to 64 bits."""
        return all(map(integral, self.keys))

    @cached_property
    def first_input(self) -> int:
        """Place of the first input in the columns: a string key takes two."""
        return sum(2 if key.string else 1 for key in self.keys)

    @cached_property
    def read(self) -> tuple[ValuePart, ...]:
        """The inputs of the states, the witness of wide keys included."""
        return (*self.inputs, ValuePart("u64", False)) if self.family == "Wide" else self.inputs

    @cached_property
    def copied(self) -> tuple[tuple[int, ValuePart], ...]:
        """The inputs of ``read``, with their places in it, that partitions hold copies of."""
        if self.untransformed:
            return ()
        return tuple((i, v) for i, v in enumerate(self.read) if v.ctype != PRESENT)

    @cached_property
    def values(self) -> int:
        """Values that the states read of a row, unless they are null."""
        return sum(value.ctype != PRESENT for value in self.read)

    @cached_property
    def by_number(self) -> Query:
        """The query whose partitions hold the numbers of their rows."""
        return replace(self, untransformed=True)

    @cached_property
    def kept(self) -> tuple[KernelState, ...]:
        """The states of a slot: those asked for, then what made words need."""
        if self.family == "Wide":
            return (*self.states, KernelState("Witness", (len(self.inputs),)))
        return (*self.states, KernelState("AnyRow")) if self.family == "Hashed" else self.states

    @cached_property
    def slot_bytes(self) -> tuple[int, int]:
        """Bytes that a slot has once, its key's word included, and bytes of each replica."""
        sizes = [s.slot_bytes() for s in self.kept]
        return 8 + sum(s[0] for s in sizes), sum(s[1] for s in sizes)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of keys and inputs that a row has, those of strings and null masks left out."""
        columns: list[KeyPart | ValuePart] = [*self.keys, *self.inputs]
        return sum(TYPE_BYTES.get(c.ctype, 0) for c in columns)

    @cached_property
    def threads(self) -> int:
        """Threads of a block."""
        heavy = sum(3 if s.policy in HEAVY else 1 for s in self.kept)
        return tuning.block_threads(heavy, self.family == "ByRow")

    @cached_property
    def unroll(self) -> int:
        """Rows that a thread has in flight."""
        return tuning.unroll(1 if self.made_words else len(self.keys), len(self.read))

    @cached_property
    def crowds(self) -> int:
        """Slots of a partition's table that get copies where many rows want them at once."""
        return tuning.crowds(sum(self.slot_bytes) - 8)

    @cached_property
    def scatter(self) -> tuple[int, int, int]:
        """Of the scatter: threads of a block, rows of a thread in ordinary and in large tiles."""
        return tuning.scatter(self.widest)

    @cached_property
    def widest(self) -> int:
        """Bytes of the widest column that a scatter moves, words included."""
        return max([8, *(TYPE_BYTES[v.ctype] for _, v in self.copied)])

    @cached_property
    def folds(self) -> bool:
        """Whether each state reads at most one column, so that columns may be folded in turn."""
        return all(len(state.inputs) <= 1 for state in self.kept)

    @cached_property
    def folds_outputs(self) -> bool:
        """Whether each output is made of one column, beside the sizes of groups.

        Then it is known once this column has been folded.
        """

        def pass_of(state: KernelState) -> tuple[object, ...]:
            return (*state.inputs, state.policy in OF_NUMBERS)

        passes = [
            {pass_of(self.kept[i]) for i in output.states if self.kept[i].policy != "Size"}
            for output in self.outputs
        ]
        few = len(self.kept) <= STATES_AS_BITS
        return self.folds and few and all(len(made) <= 1 for made in passes)

    @cached_property
    def numbered(self) -> bool:
        """Whether partitions hold the numbers of their rows."""
        return self.untransformed or any(state.policy in OF_NUMBERS for state in self.kept)

    @cached_property
    def units(self) -> tuple[str, ...]:
        """The units that this query has."""
        if self.untransformed:  # a call has its other kernels from the query that moves copies
            if self.family in ("Wide", "Hashed"):
                return WHOLE_WORDS
            return PARTITIONED
        missing = {"words"} if self.family not in ("Wide", "Hashed") else set()
        if self.family != "Coded":
            missing.add("codes")
        if not self.may_be_coded:
            missing.add("bytes")
        if self.family not in ("Wide", "Hashed") or not self.integral or self.ranged:
            missing.add("ranges")
        if self.family != "Hashed":
            missing.add("verify")
        if not self.is_of_texts:
            missing.update(DICTIONARY)
        if self.family == "ByRow":
            missing.update(PARTITIONED, ["absorb", "room"])
        if self.family == "ByRow" or not self.folds:
            missing.update(FOLDS)
        if self.family in ("Wide", "Hashed"):
            missing.update((*NARROW_WORDS, "fold_narrow"))
        if self.family != "Packed":
            missing.update(("scan", "range", "runs"))
        if self.family not in ("Packed", "Coded", "Ranged"):
            missing.update(("direct_shared", "direct_global", *SLOTS, "fold_striped"))
        return tuple(u for u in UNITS if u not in missing)

    def source(self, *units: str) -> TranslationUnit:
        """The translation unit of some of ``units``, or of all."""
        units = units or self.units
        headers = ["core/query.cuh", "output/output.cuh"]
        kernels: dict[str, str] = {}
        for unit in units:
            headers += [h for h in UNITS[unit].headers if h not in headers]
            for name, expression in UNITS[unit].kernels.items():
                kernels[name] = expression.format(**self._numbers)
        key, row, columns = self._columns
        includes = "".join(f'#include "{header}"\n' for header in headers)
        fixed, replica = self.slot_bytes
        flags = "#define GPUAGG_COUNT_PROBES\n" if self.counting else ""
        if all(unit.startswith("scatter") for unit in units):
            flags += "#define GPUAGG_READS_TWICE\n"
        source = f"""{flags}{includes}
namespace gpuagg {{
using Key = {key};
using Kept = States<{", ".join(s.code for s in self.kept)}>;
using Read = Row<{row}>;
struct Asked : Query<Key, Kept, Read, {columns}, {_literal(self.untransformed)}> {{}};
using Made = Outputs<{", ".join(o.code for o in self.outputs)}>;
static_assert(8 + Kept::bytes(0) == {fixed} && Kept::bytes(1) - Kept::bytes(0) == {replica},
              "the host assumes other sizes");
}}
using namespace gpuagg;
"""
        return TranslationUnit(source, kernels)

    @property
    def _numbers(self) -> dict[str, int]:
        """The numbers of the kernels' name expressions."""
        threads, items, wide_items = self.scatter
        return {
            "keys": self.key_outputs,
            "threads": self.threads,
            "unroll": self.unroll,
            "crowds": self.crowds,
            "scatter_threads": threads,
            "items": items,
            "wide_items": wide_items,
        }

    @property
    def _columns(self) -> tuple[str, str, int]:
        """C++ types of the keys and of the inputs of a row, and how many columns there are."""
        keys, column = [], 0
        for key in self.keys:
            kind = "StringColumn" if key.string else "KeyColumn"
            keys.append(f"{kind}<{key.ctype}, {column}, {_literal(key.masked)}>")
            column += 2 if key.string else 1
        inputs = []
        for value in self.read:
            if value.ctype == PRESENT:
                inputs.append(f"Presence<{column}, {_literal(value.masked)}>")
            else:
                inputs.append(f"Input<{value.ctype}, {column}, {_literal(value.masked)}>")
            column += 1
        arguments = [_literal(self.keep_nulls)]
        if self.made_words:
            # the words come last of all columns, the witness is the last input
            arguments += [str(column), *([str(column - 1)] if self.family == "Wide" else [])]
            arguments += [str(len(self.states))] if self.family != "Coded" else []
            column += 1
        if self.ranged:
            arguments.append(str(column))
            column += len(self.keys) * (1 + self.stepped)
        family = "WideRanged" if self.two_words else self.family
        if self.stepped:
            family = "Quotients" if self.keys[0].ctype[0] == "f" else "Stepped"
        key_type = f"{family}<{', '.join(arguments + keys)}>"
        return key_type, ", ".join(inputs), max(column, 1)


def _literal(value: bool) -> str:
    return str(value).lower()
