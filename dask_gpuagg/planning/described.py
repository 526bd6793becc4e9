"""What physical nodes do, in numbers: the route that runs, tasks, and bytes that travel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dask._expr import Expr
from dask.dataframe.dask_expr._repartition import Repartition

from dask_gpuagg.plan import Plan, StateUse
from dask_gpuagg.planning.chunk_nodes import GroupByChunkDirect, GroupByChunkExchange, GroupByChunks
from dask_gpuagg.planning.merge_size import size_of
from dask_gpuagg.planning.narrowing import GroupByNarrowed
from dask_gpuagg.planning.nodes import (
    GroupByDirect,
    GroupByDivide,
    GroupByExchange,
    GroupByGather,
    GroupByMerge,
    GroupByPartial,
    GroupByPieces,
    GroupByTree,
    cuts_first,
)
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
    kinds = {type(node): node for node in nodes}
    chunks = next((node.chunks for node in nodes if "chunks" in node._parameters), None)
    partitions = partials = int(query.frame.npartitions)
    if chunks is not None:
        # of files, which Dask would read several of as one partition, the tasks read each
        partitions, partials = sum(map(len, chunks.buckets)), len(chunks)
    exchange = next((n for n in nodes if isinstance(n, _EXCHANGES)), None)
    route, pieces, reason = Route.ALIGNED, 0, ""
    if kinds.keys() & {GroupByDirect, GroupByChunkDirect}:
        route, partials = Route.DIRECT, 0
    elif exchange is not None:
        route = Route.EXCHANGE
        pieces = exchange.buckets if isinstance(exchange, GroupByPieces) else exchange.outputs
    elif GroupByNarrowed in kinds:
        # neither rows nor partials of the usual tables travel
        route, partials = Route.NARROWED, 0
        reason = kinds[GroupByNarrowed].decision.reason
    elif GroupByTree in kinds:
        route = Route.TREE
    tasks: dict[str, int] = {}
    for node in reversed(nodes):
        for step, number in _tasks(node):
            tasks[step] = tasks.get(step, 0) + number
    rows = rows_of(query.frame)
    return Physical(
        route,
        partitions,
        partials,
        pieces,
        int(planned.npartitions),
        tuple((step, number) for step, number in tasks.items() if number),
        "" if chunks is None else str(chunks),
        0 if chunks is None else chunks.workers,
        rows,
        _bytes(query.plan, partials, decision.groups, rows) if partials else None,
        reason,
    )


# Bins of an exact sum, of values that differ by a factor of a million.
_BINS = 3
_EXCHANGES = (GroupByExchange, GroupByChunkExchange, GroupByPieces)


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


def _tasks(node: Any) -> list[tuple[str, int]]:
    """The steps of a node, and the number of their tasks."""
    match node:
        case GroupByPartial():
            return [("partial", node.npartitions)]
        case GroupByChunks():
            return [("chunk", len(node.chunks))]
        case GroupByDirect():
            return [("direct", 1)]
        case GroupByChunkDirect():
            return [("direct", 1), ("divide", node.outputs if node.outputs > 1 else 0)]
        case GroupByTree():
            return [("combine", len(node._layer()) - 1), ("finalize", 1)]
        case GroupByExchange():
            parts = node.frame.npartitions
            moved = parts * node.outputs + parts * cuts_first(node._meta)
            return [("exchange", parts + moved), ("finalize", node.outputs)]
        case GroupByChunkExchange():
            parts = len(node.chunks)
            return [
                ("chunk", parts),
                ("exchange", parts * node.outputs + parts * cuts_first(node.promised.sent)),
                ("finalize", node.outputs),
            ]
        case GroupByNarrowed():
            parts = len(node.chunks)
            each = [(step, parts) for step in ("sample", "count", "recount")]
            return [*each, ("aim", 1), ("widen", 1), ("finalize", 1)]
        case GroupByPieces():
            return [("exchange", node.npartitions)]
        case GroupByMerge():
            return [("finalize", node.npartitions)]
        case GroupByGather():
            return [("gather", node.outputs)]
        case GroupByDivide():
            return [("divide", 1 + node.outputs)]
        case Repartition():
            return [("gather", node.npartitions)]
        case _:  # a shuffle of Dask's: it sends and receives
            return [("exchange", 2 * node.npartitions)]


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
