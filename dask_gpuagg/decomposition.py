"""From requested outputs to a plan: aggregations are decomposed into shared states."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.plan import Column, Output, Plan, Requested, StateUse, Unsupported

_NUMBERS = (int, float, np.integer, np.floating, np.bool_)


def make_plan(
    keys: Sequence[Column], dtypes: Sequence[Column], requested: Sequence[Requested], **flags: Any
) -> Plan:
    """Decompose the requested outputs into shared states; ``dtypes`` are columns that may be read.

    ``flags`` are those of a plan: ``dropna``, ``observed``, ``sort``, ``deterministic``. Raises
    ``Unsupported`` for the first output that the registry does not admit.
    """
    deterministic = flags.get("deterministic", False)
    for refusal in reasons(dtypes, requested, deterministic):
        raise refusal
    builder = _Builder(_by_label(dtypes), deterministic)
    outputs = tuple(builder.output(request) for request in requested)
    of_values = any(o.custom is None and REGISTRY[o.aggregation].result == "key" for o in outputs)
    columns, states = tuple(builder.columns), tuple(builder.states)
    shape = "values" if of_values else "groups"
    return Plan(tuple(keys), columns, states, outputs, shape=shape, **flags)


def make_matrix_plan(
    keys: Sequence[Column],
    columns: Sequence[Column],
    aggregation: str,
    parameters: tuple[tuple[str, Any], ...],
    **flags: Any,
) -> Plan:
    """Plan of ``cov`` or ``corr``: one co-moment state per unordered pair of columns."""
    # Dask hands the same arguments to both
    understood = tuple(p for p in parameters if p[0] in REGISTRY[aggregation].parameters)
    requested = [Requested(None, aggregation, column.label, understood) for column in columns]
    for refusal in reasons(columns, requested, flags.get("deterministic", False)):
        raise refusal
    pairs = combinations_with_replacement(range(len(columns)), 2)
    states = tuple(StateUse("comoments", pair) for pair in pairs)
    outputs = tuple(
        Output(c.label, aggregation, i, parameters=parameters) for i, c in enumerate(columns)
    )
    return Plan(tuple(keys), tuple(columns), states, outputs, shape="matrix", **flags)


def retyped(plan: Plan, dtypes: Sequence[Any]) -> Plan:
    """A plan's outputs for columns of other dtypes, one per column, than the promised ones.

    Columns, tables and outputs stay. States may be others: a sum of integers and a sum of floats
    are. An aggregation that does not accept a dtype keeps its states.
    """
    pairs = list(zip(plan.columns, dtypes, strict=True))
    deviating = frozenset(i for i, (column, dtype) in enumerate(pairs) if column.dtype != dtype)
    columns = tuple(Column(column.label, dtype) for column, dtype in pairs)
    if not deviating or plan.shape != "groups":  # other shapes have the same states of any dtype
        return replace(plan, columns=columns, deviating=deviating)
    builder = _Builder({}, plan.deterministic)
    outputs = []
    for output in plan.outputs:
        uses = [plan.states[i] for i in output.states]
        if output.column in deviating and output.custom is None:
            cls = dtype_class(columns[output.column].dtype)
            names = REGISTRY[output.aggregation].states_of(cls, plan.deterministic)
            uses = uses if names is None else _uses(names, output.column)
        outputs.append(replace(output, states=tuple(map(builder.state, uses))))
    states = tuple(builder.states)
    return replace(
        plan, columns=columns, states=states, outputs=tuple(outputs), deviating=deviating
    )


def reasons(
    dtypes: Sequence[Column], requested: Sequence[Requested], deterministic: bool = False
) -> list[Unsupported]:
    """Every reason why one of the requested outputs cannot be planned."""
    of_label = _by_label(dtypes)
    refusals = (_refusal(request, of_label, deterministic) for request in requested)
    return [refusal for refusal in refusals if refusal is not None]


def _by_label(columns: Sequence[Column]) -> dict[Hashable, Column]:
    """The first column of each label: there may be thousands, and each is asked for."""
    return {column.label: column for column in reversed(columns)}


def _refusal(
    request: Requested, columns: Mapping[Hashable, Column], deterministic: bool
) -> Unsupported | None:
    name, column = request.aggregation, request.column
    if request.custom is not None:
        if deterministic:
            text = f"gpuagg.deterministic: nothing is known of the functions of {name!r}"
            return Unsupported(text, name, column)
        return None
    record = REGISTRY.get(name)
    if record is None:
        return Unsupported(f"the aggregation {name!r} is not in the registry", name, column)
    unknown = {k for k, _ in request.parameters} - set(record.parameters)
    if unknown:
        text = ", ".join(sorted(unknown))
        return Unsupported(f"{name} does not understand the argument {text}", name, column)
    if name == "size":
        return None
    if column not in columns:
        return Unsupported(f"column {column!r} is not in the frame", name, column)
    dtype = columns[column].dtype
    if dtype_class(dtype) not in record.accepts:
        return Unsupported(f"{name} of dtype {dtype} is not supported", name, column)
    if deterministic and dtype_class(dtype) in record.rounds:
        text = f"gpuagg.deterministic: {name} of dtype {dtype} depends on the order of the rows"
        return Unsupported(text, name, column)
    ddof = dict(request.parameters).get("ddof", 1)
    # counts, from which it is taken, have 64 bits
    if not isinstance(ddof, _NUMBERS) or (isinstance(ddof, int) and abs(ddof) >= 2**63):
        return Unsupported("ddof must be a 64-bit number", name, column)
    return None


def _uses(states: Iterable[str], column: int) -> list[StateUse]:
    # value_counts counts the rows of (key, value) groups: its state has no input
    return [StateUse(state, () if state == "size" else (column,)) for state in states]


class _Builder:
    """Collects the distinct columns and states while outputs are decomposed."""

    def __init__(self, dtypes: Mapping[Hashable, Column], deterministic: bool) -> None:
        self._dtypes = dtypes
        self._deterministic = deterministic
        self._columns: dict[Hashable, int] = {}
        self._states: dict[StateUse, int] = {}
        self.columns: list[Column] = []
        self.states: list[StateUse] = []

    def column(self, label: Hashable) -> int:
        if label not in self._columns:
            self._columns[label] = len(self.columns)
            self.columns.append(self._dtypes[label])
        return self._columns[label]

    def state(self, use: StateUse) -> int:
        try:
            place = self._states.setdefault(use, len(self.states))
        except TypeError:  # users' functions may not be hashable
            place = self.states.index(use) if use in self.states else len(self.states)
        if place == len(self.states):
            self.states.append(use)
        return place

    def output(self, request: Requested) -> Output:
        name = request.aggregation
        if name == "size":
            return Output(request.label, name, None, (self.state(StateUse("size", ())),))
        column = self.column(request.column)
        states: tuple[int, ...] = ()
        if request.custom is not None:
            states = (self.state(StateUse("custom", (column,), request.custom)),)
        else:
            cls = dtype_class(self.columns[column].dtype)
            names = REGISTRY[name].states_of(cls, self._deterministic)
            assert names is not None, "a request is refused before"
            states = tuple(self.state(use) for use in _uses(names, column))
        return Output(request.label, name, column, states, request.parameters, request.custom)
