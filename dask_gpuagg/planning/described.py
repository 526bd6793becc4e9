"""What physical nodes do, in numbers: the route that runs, tasks, and bytes that travel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dask._expr import Expr
from dask.dataframe.dask_expr._repartition import Repartition

from dask_gpuagg.plan import Plan, StateUse
from dask_gpuagg.planning.merge_size import size_of
from dask_gpuagg.planning.nodes import GroupByNode
from dask_gpuagg.planning.query import GroupByQuery
from dask_gpuagg.planning.route import Route, Routing
from dask_gpuagg.planning.samples import rows_of
from dask_gpuagg.states import STATES


@dataclass(frozen=True, slots=True)
class Physical:
    """What a planned group-by does.

    Attributes
    ----------
    route : Route
        That of the nodes, which may be another than that of the decision.
    partitions : int
        Of the input.
    partials : int
        0 where one task makes the outputs.
    pieces : int
        Into how many outputs partials are exchanged; 0 without an exchange.
    outputs : int
    tasks : tuple of (str, int)
        The number of tasks by step. A partial's task also does what was to be done to its
        partitions before.
    chunks : str
        How many partitions a task takes; empty where each has a task of its own.
    workers : int
        On how many workers chunks are.
    rows : int or None
        At most, where that is known.
    nbytes : int or None
        Of all partials, roughly, where groups or rows are known.
    reason : str
        Why this route, where it is another than that of the decision.
    """

    route: Route
    partitions: int
    partials: int
    pieces: int
    outputs: int
    tasks: tuple[tuple[str, int], ...]
    chunks: str = ""
    workers: int = 0
    rows: int | None = None
    nbytes: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        outputs = _counted(self.outputs, "output")
        if self.route is Route.DIRECT:
            return f"none: one task makes {outputs}"
        if self.route is Route.NARROWED:
            return f"quantiles narrowed in two passes into {outputs}"
        if self.route is Route.EXCHANGE:
            text = f"exchange of {_counted(self.partials, 'partial')} into {self.pieces:,}"
            if self.pieces != self.outputs:
                return f"{text}, brought to {outputs}"
            return f"{text} {'output' if self.pieces == 1 else 'outputs'}"
        return f"{self.route.value} into {outputs}"


def described(query: GroupByQuery, decision: Routing, planned: Expr) -> Physical:
    """What the physical nodes of a query do.

    Parameters
    ----------
    query : GroupByQuery
        On lowered inputs.
    decision : Routing
    planned : Expr
        As ``lower.physical`` made it.

    Returns
    -------
    Physical
    """
    nodes = list(_nodes(planned, query))
    ours = [node for node in nodes if isinstance(node, GroupByNode)]
    ((merge, route),) = ((node, node.route) for node in ours if node.route is not None)
    chunks = next((node.chunks for node in ours if "chunks" in node._parameters), None)
    partitions = partials = int(query.frame.npartitions)
    if chunks is not None:
        # of files, which Dask would read several of as one partition, the tasks read each
        partitions, partials = sum(map(len, chunks.buckets)), len(chunks)
    if route in (Route.DIRECT, Route.NARROWED):
        partials = 0  # neither rows nor partials of the usual tables travel
    tasks: dict[str, int] = {}
    for node in reversed(nodes):
        for step, number in _steps_of(node).items():
            tasks[step] = tasks.get(step, 0) + number
    rows = rows_of(query.frame)
    return Physical(
        route,
        partitions,
        partials,
        merge.npartitions if route is Route.EXCHANGE else 0,
        int(planned.npartitions),
        tuple(tasks.items()),
        "" if chunks is None else str(chunks),
        0 if chunks is None else chunks.workers,
        rows,
        _bytes(query.plan, partials, decision.groups, rows) if partials else None,
        merge.decision.reason,
    )


# Bins of an exact sum, of values that differ by a factor of a million.
_BINS = 3


def _nodes(planned: Expr, query: GroupByQuery) -> Iterator[Any]:
    """The nodes above the inputs of the query, each once."""
    inputs = {query.frame._name, *(by._name for by in query.by if isinstance(by, Expr))}
    stack, seen = [planned], set(inputs)
    while stack:
        node = stack.pop()
        if node._name not in seen:
            seen.add(node._name)
            yield node
            stack += node.dependencies()


def _steps_of(node: Any) -> dict[str, int]:
    if isinstance(node, GroupByNode):
        return node.steps()
    if isinstance(node, Repartition):
        return {"gather": node.npartitions}
    return {"exchange": 2 * node.npartitions}  # a shuffle sends and receives


def _bytes(plan: Plan, partials: int, groups: int | None, rows: int | None) -> int | None:
    """Bytes of all partials: of each table those of its rows, at most as many as there are."""
    keys = sum(size_of(key.dtype) for key in plan.keys)
    found = 0
    for name in plan.tables:
        if name == "groups":
            at_most = [
                n for n in (rows, None if groups is None else groups * partials) if n is not None
            ]
            if not at_most:
                return None
            states = () if plan.states_from_rows else plan.states
            fields = sum(map(_fields_of, states))
            found += min(at_most) * (keys + 8 * fields)
        elif rows is None:
            return None
        else:
            found += rows * (keys + _bytes_of_row(plan, name))
    return found


def _fields_of(use: StateUse) -> int:
    """Columns of a state in a partial, about."""
    record = STATES[use.state]
    return max(len(record.fields), 1) + _BINS * record.binned


def _bytes_of_row(plan: Plan, table: str) -> int:
    """Bytes of a row of a table of pairs, entries or rows, without the keys."""
    if table.startswith("sketch"):
        return 9  # at most: a float64 and a level
    columns = plan.rows if table == "rows" else (int(table.removeprefix("pairs")),)
    return sum(size_of(plan.columns[c].dtype) for c in columns)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
