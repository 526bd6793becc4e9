"""The plan of one group-by: which states to keep, and which outputs are made from them.

Plans are values: frozen, hashable but for users' functions, picklable, and printed as
``explain()`` shows them. Nothing here knows Dask, an engine or a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.tokenize import normalize_token

from dask_gpuagg.aggregations import REGISTRY, Kind
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.states import STATES

if TYPE_CHECKING:
    from dask_gpuagg.settings import Settings

# Tables by name, DataFrames of the engine's library whose columns are the keys ``k0``, ``k1``, ...,
# the fields of states ``s<i>.<field>`` and the values ``v`` or ``v<c>``. A dict, which Dask sends
# table by table, those of a GPU without a copy on the host.
Partial = dict[str, Any]


class Unsupported(Exception):
    """A group-by, or one aggregation of it and its column, that our plan cannot run.

    The reason is a sentence for the user.
    """

    def __init__(
        self, reason: str, aggregation: str | None = None, column: Hashable = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.aggregation = aggregation
        self.column = column


@dataclass(frozen=True, slots=True)
class CustomFunctions:
    """The three functions of a ``dd.Aggregation``."""

    name: str
    chunk: Callable[..., Any]
    agg: Callable[..., Any]
    finalize: Callable[..., Any] | None


@dataclass(frozen=True, slots=True)
class Requested:
    """An output as the user asked for it: its label, and the label of the column it is made of.

    The aggregation is a name of the registry, or ``custom``; parameters are keyword arguments.
    """

    label: Hashable
    aggregation: str
    column: Hashable
    parameters: tuple[tuple[str, Any], ...] = ()
    custom: CustomFunctions | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is read: its label and the dtype that the metadata promises."""

    label: Hashable
    dtype: Any


@dataclass(frozen=True, slots=True)
class StateUse:
    """A state of the registry kept for some columns (positions in ``Plan.columns``)."""

    state: str
    columns: tuple[int, ...]
    custom: CustomFunctions | None = None


@dataclass(frozen=True, slots=True)
class Sketched:
    """Entries kept of a column (a position in ``Plan.columns``) for an aggregation.

    ``parameters`` are those by which they are kept; outputs that differ in others share them.
    """

    aggregation: str
    column: int
    parameters: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a partial, by the kind of the aggregations that it serves.

    ``groups`` (mergeable) has a row per group with the fields of all states, ``pairs<c>``
    (distinct) a row per pair of key and value of column ``c``, ``sketch<i>`` the entries of a
    sketch, ``rows`` (whole) the rows. ``columns`` are positions of its values in ``Plan.columns``.
    """

    name: str
    kind: Kind
    columns: tuple[int, ...] = ()
    sketch: Sketched | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """An output: the aggregation, its input, and the states it is finalized from.

    ``states`` are positions in ``Plan.states``; empty for the distinct and the whole kinds,
    which read ``column`` (a position in ``Plan.columns``) from their own table.
    """

    label: Hashable
    aggregation: str
    column: int | None
    states: tuple[int, ...] = ()
    parameters: tuple[tuple[str, Any], ...] = ()
    custom: CustomFunctions | None = None

    @property
    def kind(self) -> Kind:
        """The kind of its aggregation, by which its partials merge."""
        return Kind.MERGEABLE if self.custom else REGISTRY[self.aggregation].kind


@dataclass(frozen=True, slots=True)
class Plan:
    """The keys, columns, states and outputs of a group-by."""

    # a label of None is that of an unnamed key
    keys: tuple[Column, ...]
    # distinct value columns that are read
    columns: tuple[Column, ...]
    # distinct mergeable states, shared between outputs
    states: tuple[StateUse, ...]
    outputs: tuple[Output, ...]
    dropna: bool = True
    observed: bool = True
    sort: bool = False
    # one row per group ("groups"), per group and distinct value ("values": ``value_counts``), or
    # per group and column ("matrix": ``cov``, ``corr``)
    shape: str = "groups"
    # positions of the columns whose dtype in partitions is not the one of the metadata
    deviating: frozenset[int] = frozenset()
    # several outputs are gathered into the sorted one: promised categories that no partition holds
    # are added once all outputs are there, so that they share their order
    gathered: bool = False
    # quantiles are computed where the rows lie (``narrowing.py``): the table of rows has one row
    # for each group, with its outputs
    narrowed: bool = False
    # results do not depend on the order in which rows are added up
    deterministic: bool = False
    # those of the client; plans that differ in them are equal
    settings: Settings | None = field(default=None, compare=False, repr=False)

    def __dask_tokenize__(self) -> Any:
        # as one text, of which Dask makes a hash much faster than of hundreds of small objects
        dtypes = [column.dtype for column in (*self.keys, *self.columns)]
        described = [str(d) if isinstance(d, np.dtype) else d for d in dtypes]
        custom = [use.custom for use in self.states if use.custom]
        text = repr((
            [column.label for column in (*self.keys, *self.columns)],
            [d for d in described if isinstance(d, str)],
            len(self.keys),
            [(use.state, use.columns) for use in self.states],
            [(o.label, o.aggregation, o.column, o.states, o.parameters) for o in self.outputs],
            (self.dropna, self.observed, self.sort, self.shape, self.gathered, self.narrowed),
            (sorted(self.deviating), self.deterministic, self.settings),
        ))  # fmt: skip
        others = [d for d in described if not isinstance(d, str)]
        # Dask hashes what it is given as a text, in which functions that differ may look alike
        return ("dask_gpuagg.Plan", text, others, normalize_token(custom))

    @property
    def pairs(self) -> tuple[int, ...]:
        """Columns whose distinct (key, value) pairs are kept."""
        return _columns_of(self.outputs, Kind.DISTINCT)

    @property
    def rows(self) -> tuple[int, ...]:
        """Columns of which all rows are exchanged."""
        return _columns_of(self.outputs, Kind.WHOLE)

    @property
    def sketches(self) -> tuple[Sketched, ...]:
        """The distinct sketches that are kept."""
        sketches = (_sketched(output) for output in self.outputs if output.kind is Kind.SKETCH)
        return tuple(dict.fromkeys(sketches))

    @property
    def grouped(self) -> bool:
        """Whether there is a table with one row per group: for states, or for bare keys."""
        return bool(self.states and not self.states_from_rows) or not (
            self.pairs or self.rows or self.sketches
        )

    @property
    def states_from_rows(self) -> bool:
        """Whether the states are made at the end, from rows that are exchanged anyway.

        A second table with the states would only add to what travels. States of row labels or of
        users' functions need the partitions.
        """
        rows = set(self.rows)
        return (
            bool(rows)
            and not self.narrowed
            and all(
                rows.issuperset(use.columns) and not STATES[use.state].by_partition
                for use in self.states
            )
        )

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables that a partial consists of."""
        tables = [Table("groups", Kind.MERGEABLE)] if self.grouped else []
        tables += [Table(f"pairs{c}", Kind.DISTINCT, (c,)) for c in self.pairs]
        for i, sketch in enumerate(self.sketches):
            tables.append(Table(f"sketch{i}", Kind.SKETCH, (sketch.column,), sketch))
        return (*tables, Table("rows", Kind.WHOLE, self.rows)) if self.rows else tuple(tables)

    @property
    def is_one_table(self) -> bool:
        """Whether a partial is one table, with a row per group."""
        return not (self.pairs or self.sketches or self.rows)

    def table_of(self, output: Output) -> str:
        """Name of the table that an output which is not mergeable is made from."""
        if output.kind is Kind.WHOLE:
            return "rows"
        if output.kind is Kind.DISTINCT:
            return f"pairs{output.column}"
        return f"sketch{self.sketches.index(_sketched(output))}"

    @property
    def drops_late(self) -> bool:
        """Whether rows with a null key stay until the outputs are made.

        With ``observed=False`` pandas combines categories with every level of the other keys,
        those of dropped rows included.
        """
        categorical = {dtype_class(k.dtype) == "category" for k in self.keys}
        return self.dropna and not self.observed and categorical == {True, False}

    @property
    def drops_at_once(self) -> bool:
        """Whether rows with a null key are in no group and in no table of a partial."""
        one_table = self.shape == "groups" and self.is_one_table
        return self.dropna and one_table and not self.drops_late

    @property
    def order_sensitive(self) -> bool:
        """Whether partials must be combined in the order of their partitions."""
        return any(STATES[s.state].order_sensitive for s in self.states) or any(
            not o.custom and REGISTRY[o.aggregation].order_sensitive for o in self.outputs
        )

    @property
    def reads_labels(self) -> bool:
        """Whether states read the labels of rows, as Dask's tasks make them."""
        return any(use.state in ("idxmin", "idxmax", "custom") for use in self.states)

    def state_label(self, position: int) -> str:
        """``sum of x``: a state in pandas' words."""
        use = self.states[position]
        name = use.custom.name if use.custom else STATES[use.state].words or use.state
        columns = " and ".join(short(self.columns[c].label) for c in use.columns)
        return f"{name} of {columns}" if columns else name

    def output_label(self, position: int) -> str:
        """``mean of x``: an output."""
        output = self.outputs[position]
        text = output.custom.name if output.custom else output.aggregation
        if output.column is not None:
            text += f" of {short(self.columns[output.column].label)}"
        parameters = ", ".join(f"{k}={v}" for k, v in output.parameters)
        return f"{text} ({parameters})" if parameters else text

    def __str__(self) -> str:
        labels = [short(column.label) for column in self.columns]
        parts = {
            "keys": [short(key.label) for key in self.keys],
            "states": list(dict.fromkeys(self.state_label(i) for i in range(len(self.states)))),
            "pairs": [labels[c] for c in self.pairs],
            "rows": [labels[c] for c in self.rows],
            "sketches": [f"{s.aggregation} of {labels[s.column]}" for s in self.sketches],
            "outputs": [self.output_label(i) for i in range(len(self.outputs))],
        }
        return "\n".join(
            f"{name:<8} {listed(texts, _SHOWN)}" for name, texts in parts.items() if texts
        )


# texts of a list and letters of a label that are shown
_SHOWN, _LETTERS = 20, 120


def listed(texts: Sequence[str], shown: int) -> str:
    """The first of some texts, and how many more there are."""
    more = len(texts) - shown
    return ", ".join(texts[:shown]) + (f" and {more:,} more" if more > 0 else "")


def short(label: Hashable) -> str:
    """A label as text, without the end of a very long one."""
    text = str(label)
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def _sketched(output: Output) -> Sketched:
    assert output.column is not None
    shapes = REGISTRY[output.aggregation].shapes
    parameters = tuple(p for p in output.parameters if p[0] in shapes)
    return Sketched(output.aggregation, output.column, parameters)


def _columns_of(outputs: Iterable[Output], kind: Kind) -> tuple[int, ...]:
    columns = dict.fromkeys(o.column for o in outputs if o.kind is kind)
    return tuple(c for c in columns if c is not None)
