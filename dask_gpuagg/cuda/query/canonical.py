"""One query for all that differ in the order in which columns and aggregations were listed.

Machine code is compiled for the query in canonical order; its columns are put back in the order
that was asked for. Where a key column has nulls, it is compiled for key columns that all may have
some, and so are inputs: kernels find no mask where there is none.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import TYPE_BYTES

# States of an input in their order, in which most users ask for them. One that reads no input
# stands among those of the first.
STATES_IN_ORDER = (
    "IntegerSum", "FloatSum", "WideSum", "ExactSum", "Size", "Count", "Min", "Max",
    "IntegerProduct", "FloatProduct", "Any", "All", "FirstRow", "LastRow",
    "Moments", "MergedMoments",
)  # fmt: skip

# Outputs of an input that come behind all others.
_LAST = ("Mean", "WideMean", "LimbMean", "ExactMean", "Spread", "MomentLoss", "ExactLoss")
# Inputs with nulls that partitions have bits for (kernels/pgb_tr/partitions.cuh).
_MASKED_AT_MOST = 64

# How an input is used: policies, and at which place of their arguments.
_Uses = list[tuple[str, int, str]]
_Key = tuple[int, str, bool, _Uses]


class Canonical(NamedTuple):
    """A query in canonical order."""

    query: Query
    # of each input of the query its place among those that were asked for
    inputs: tuple[int, ...]
    # of each output that was asked for its place in the query
    outputs: tuple[int, ...]


@lru_cache(1024)
def canonical(query: Query) -> Canonical:
    """Order the parts of a query whose states are all read by outputs.

    Inputs are ordered by type and use, those that one output needs side by side. Inputs that are
    alike in both keep their order, which makes no difference.
    """
    query = _alike(query)
    inputs = _ordered_inputs(query)
    place = _places(inputs)
    moved = [s._replace(inputs=tuple(place[i] for i in s.inputs)) for s in query.states]

    def state_key(i: int) -> tuple[int, int, tuple[int, ...], str]:
        rank, inputs = STATES_IN_ORDER.index(moved[i].policy), moved[i].inputs
        return min(inputs, default=0), rank, inputs, moved[i].ctype or ""

    def output_key(i: int) -> tuple[int, bool, tuple[int, ...]]:
        output = unordered[i]
        inputs = ordered_states[output.states[0]].inputs
        return min(inputs, default=0), output.policy in _LAST, output.states

    states = sorted(range(len(moved)), key=state_key)
    place, ordered_states = _places(states), [moved[i] for i in states]
    unordered = [output.renumbered(place) for output in query.outputs]
    # backwards by name: fields of moments as they are asked for, and losses last
    by_name = sorted(range(len(unordered)), key=lambda i: unordered[i].code, reverse=True)
    outputs = sorted(by_name, key=output_key)
    ordered = replace(
        query,
        inputs=tuple([query.inputs[i] for i in inputs]),
        states=tuple(ordered_states),
        outputs=tuple([unordered[i] for i in outputs]),
    )
    return Canonical(_first(ordered), tuple(inputs), tuple(_places(outputs)))


def _alike(query: Query) -> Query:
    """Keys that all may have nulls where one has, and inputs likewise."""
    if any(key.masked for key in query.keys):
        keys = tuple([key._replace(masked=True) for key in query.keys])
        alike = replace(query, keys=keys)
        # of many columns the flags of nulls may not fit the words any more
        query = alike if alike.form == query.form else query
    few = len(query.inputs) <= _MASKED_AT_MOST
    if few and any(value.masked for value in query.inputs):
        query = replace(query, inputs=tuple([v._replace(masked=True) for v in query.inputs]))
    return query


@lru_cache(1024)
def _first(query: Query) -> Query:
    """The first of equal queries, which has computed much already."""
    return query


def _places(order: Iterable[int]) -> list[int]:
    """Place of each element after ordering: the inverse of the permutation."""
    places = {old: new for new, old in enumerate(order)}
    return [places[i] for i in range(len(places))]


def _ordered_inputs(query: Query) -> list[int]:
    linked = list(range(len(query.inputs)))
    uses: list[_Uses] = [[] for _ in query.inputs]
    for state in query.states:
        for position, i in enumerate(state.inputs):
            uses[i].append((state.policy, position, state.ctype or ""))
    for output in query.outputs:
        name = output.renumbered([0] * len(query.states)).code
        together = set()
        for position, s in enumerate(output.states):
            state = query.states[s]
            for i in state.inputs:
                uses[i].append((name, position, state.policy))
                together.add(linked[i])
        linked = [min(together) if i in together else i for i in linked]
    keys: list[_Key] = [
        (-TYPE_BYTES.get(part.ctype, 0), part.ctype, part.masked, sorted(uses[i]))
        for i, part in enumerate(query.inputs)
    ]
    bundles = [[i for i, of in enumerate(linked) if of == first] for first in sorted(set(linked))]
    bundles = [sorted(bundle, key=lambda i: keys[i]) for bundle in bundles]
    return [i for bundle in sorted(bundles, key=lambda b: [keys[i] for i in b]) for i in bundle]
