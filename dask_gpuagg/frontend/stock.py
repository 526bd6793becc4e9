"""What stock Dask would do in the place of a plan: route, tasks, refusals and other answers.

Nothing is computed: the node that Dask itself makes is lowered with the plugin off, on an input
that has the metadata and the partitions of the real one, and no data.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dask.dataframe.dask_expr import _groupby as G
from dask.dataframe.dask_expr._expr import Expr, optimize_blockwise_fusion
from dask.dataframe.dask_expr._reductions import TreeReduce
from dask.dataframe.dask_expr._shuffle import (
    DiskShuffle,
    P2PShuffle,
    SimpleShuffle,
    TaskShuffle,
)
from dask.utils import get_default_shuffle_method

from dask_gpuagg.engines import HOST, engine_name
from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.extended import ExtendedAggregation
from dask_gpuagg.frontend.fallback import Refusal
from dask_gpuagg.frontend.patches import looking_away
from dask_gpuagg.frontend.stock_answers import differences
from dask_gpuagg.plan import Plan
from dask_gpuagg.planning.query import GroupByQuery
from dask_gpuagg.planning.route import Routing
from dask_gpuagg.reporting.runs import summary

_METHODS = {DiskShuffle: "disk", P2PShuffle: "p2p", TaskShuffle: "tasks"}


@dataclass(frozen=True, slots=True)
class StockPlan:
    """What stock Dask would do for a group-by that our plan runs.

    Attributes
    ----------
    route : str
        How it would merge; empty where it refuses.
    outputs : int
    tasks : int
        As Dask fuses them.
    refusal : str
        The error that it raises; empty where it does not.
    differences : tuple of str
        How its answer may differ from pandas'.
    """

    route: str = ""
    outputs: int = 0
    tasks: int = 0
    refusal: str = ""
    differences: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.refusal:
            return f"refuses it: {self.refusal}"
        outputs, tasks = _counted(self.outputs, "output"), _counted(self.tasks, "task")
        return f"{self.route}: {outputs}, {tasks}"


@dataclass(frozen=True, slots=True)
class Input:
    """What is known of an input without its data; ``mapping`` are columns it is partitioned by."""

    meta: Any
    divisions: tuple[Any, ...]
    mapping: Any


@dataclass(frozen=True, slots=True)
class Asked:
    """A group-by as stock Dask would get it, with inputs that have no data.

    Attributes
    ----------
    plan : Plan
        Ours.
    kind : type or None
        Of Dask's node.
    operands : tuple
    refusal : str
    notes : tuple of str
        How the answer may differ, of what the call tells.
    """

    plan: Plan
    kind: Any
    operands: tuple[Any, ...]
    refusal: str = ""
    notes: tuple[str, ...] = ()

    @property
    def query(self) -> str:
        """The outputs and keys, as reports name them."""
        return summary(self.plan)


class Given(Expr):
    """An input in name only."""

    _parameters = ["meta", "divisions_of", "mapping"]

    @functools.cached_property
    def _meta(self) -> Any:
        return self.operand("meta")

    def _divisions(self) -> tuple[Any, ...]:
        return tuple(self.divisions_of)

    @property
    def unique_partition_mapping_columns_from_shuffle(self) -> Any:
        """Columns by which equal values share a partition."""
        return self.mapping


def asked(expr: Any, query: GroupByQuery) -> Asked:
    """What stock Dask would get in the place of a node; nothing is lowered.

    Parameters
    ----------
    expr : Expr
        A logical aggregation, tuned.
    query : GroupByQuery
        The same on lowered inputs.

    Returns
    -------
    Asked
    """
    node, notes = expr, []
    if isinstance(expr, ExtendedAggregation):
        if expr.stock is None:
            refusal = "" if expr.refusal is None else expr.refusal.text
            return Asked(query.plan, None, (), refusal or "unknown")
        node = next(n for n in expr.stock.kept.walk() if isinstance(n, G.GroupByBase))
        if expr.guards:
            notes.append("arguments of the functions are ignored")
        if isinstance(node, G.Median) and expr.sort:
            notes.append("groups are not sorted")
    divisions = tuple(query.frame.divisions)
    nested = [n for n in expr.frame.walk() if logical.is_aggregation(n)]
    if any(isinstance(n, ExtendedAggregation) and n.stock is None for n in nested):
        return Asked(query.plan, None, (), "a group-by of the input")
    frame = expr.frame
    if nested:
        frame = _by_rule(frame)
        divisions = tuple(frame.divisions)
    mapping = frame.unique_partition_mapping_columns_from_shuffle
    inputs = [
        Input(operand._meta, divisions, mapping) if isinstance(operand, Expr) else operand
        for operand in node.operands
    ]
    named = {name: i for i, name in enumerate(node._parameters)}
    if "split_out" in named:
        place = named["split_out"]
        if inputs[place] is None or isinstance(inputs[place], Routing):
            chosen = _outputs_of_stock(node)
            inputs[place] = chosen if chosen is True else chosen(frame.npartitions)
    if "shuffle_method" in named and inputs[named["shuffle_method"]] is None:
        # of the client of this moment
        inputs[named["shuffle_method"]] = get_default_shuffle_method()
    return Asked(query.plan, type(node), tuple(inputs), "", tuple(notes))


def _by_rule(frame: Any) -> Any:
    """An expression whose group-bys have the outputs that Dask's own rule gives them."""
    while True:
        ours = [
            n
            for n in frame.walk()
            if logical.is_aggregation(n)
            and "split_out" in n._parameters
            and isinstance(n.operand("split_out"), Routing)
        ]
        if not ours:
            return frame
        node = ours[-1]
        chosen = node.substitute_parameters({"split_out": _outputs_of_stock(node)})
        frame = frame.substitute(node, chosen)


def _outputs_of_stock(node: Any) -> Any:
    """The ``split_out`` that Dask gives a node of which it was left open."""
    if isinstance(node, G.NUnique):  # an output for each partition
        return True
    return functools.partial(G._adjust_split_out_for_group_keys, by=node.by)


def stock_plan(asked: Asked) -> StockPlan:
    """Lower what stock Dask would get, with the plugin off."""
    if asked.refusal:
        return StockPlan(refusal=asked.refusal)
    with looking_away():
        try:
            node = asked.kind(*map(_given, asked.operands))
            lowered = node.lower_completely()
            tasks = sum(len(n._layer()) for n in _nodes(optimize_blockwise_fusion(lowered)))
        except Exception as error:  # of any type: it is what a computation raises
            return StockPlan(refusal=Refusal(error).text)
    outputs = int(lowered.npartitions)
    routes = Counter(_routes(node, lowered))
    route = " and ".join(f"{n} × {text}" if n > 1 else text for text, n in routes.items())
    found = asked.notes
    if engine_name(asked.operands[0].meta) == HOST:
        by_disk = any(text.endswith("by disk") for text in routes)
        found += tuple(differences(asked.plan, node, outputs, by_disk))
    return StockPlan(route or "each partition by itself", outputs, tasks, "", found)


def _given(operand: Any) -> Any:
    if isinstance(operand, Input):
        return Given(operand.meta, list(operand.divisions), operand.mapping)
    return operand


def _nodes(expr: Expr) -> Iterator[Any]:
    """The nodes above the inputs, each once."""
    seen: set[str] = set()
    for node in expr.walk():
        if node._name not in seen and not isinstance(node, Given):
            seen.add(node._name)
            yield node


def _routes(node: Any, lowered: Expr) -> Iterator[str]:
    """How each tree and each shuffle merges."""
    whole = isinstance(node, G.Median) or not getattr(node, "_is_decomposable", True)
    # where it shuffles, partials are concatenated before, down to the number of outputs
    n = int(node.frame.npartitions)
    of = f"all rows of {_counted(n, 'partition')}" if whole else _counted(n, "partial")
    for found in _nodes(lowered):
        if isinstance(found, TreeReduce):
            every = found.split_every
            pace = "at once" if every is False or n <= every else f"{every} at a time"
            yield f"tree of {of}, {pace}"
        elif isinstance(found, SimpleShuffle):
            yield f"shuffle of {of} by {_METHODS.get(type(found), 'another method')}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
