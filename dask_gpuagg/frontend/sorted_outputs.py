"""Sorted results with several outputs: ``groupby(..., sort=True).agg(..., split_out=4)``.

Dask promises one partition of any sorted result. Where the user asks for more, the group-by is
wrapped in a node that promises these, when the expression is made: every operation on the result
sees the same number, whoever runs the group-by in the end. Outputs are sorted one after the other,
and the keys at which they are divided depend on the data, so divisions are unknown.

Dask takes equal numbers of unknown divisions for the same divisions. Two such results have other
bounds, so what is combined by row labels is gathered, combined, and divided again (``combined``).
That holds for results that are persisted as well, which are recognized by their names. Results
outlive the plugin: once one was made, Dask's nodes ask for it as long as the process lives.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from numbers import Integral
from typing import Any

from dask.dataframe.dask_expr import _groupby as G
from dask.dataframe.dask_expr._collection import new_collection
from dask.dataframe.dask_expr._concat import Concat, StackPartition
from dask.dataframe.dask_expr._expr import (
    AlignAlignPartitions,
    AlignGetitem,
    Blockwise,
    BlockwiseHead,
    ClearDivisions,
    Expr,
    MapAlign,
    MapOverlapAlign,
    MapPartitions,
    MaybeAlignPartitions,
    OpAlignPartitions,
    Projection,
    UFuncAlign,
    are_co_aligned,
    determine_column_projection,
)
from dask.dataframe.dask_expr._repartition import RepartitionToFewer, RepartitionToMore
from dask.dataframe.dask_expr._shuffle import SortIndexBlockwise
from dask.dataframe.dask_expr.io import FromGraph

from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.trees import inputs, reached, with_inputs
from dask_gpuagg.planning.nodes import Quiet, unknown
from dask_gpuagg.planning.ranges import GroupByDivided, GroupByRanges

# nodes that combine their inputs by row labels; those that cannot where some divisions are unknown
_BY_LABELS = (MaybeAlignPartitions, MapOverlapAlign)
_BY_DIVISIONS = (OpAlignPartitions, UFuncAlign, MapOverlapAlign, Concat)
_COMPARISONS = frozenset(("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"))
# what the names of persisted results begin with
PERSISTED = "gpuagg_sorted_"


class SortedOutputs(Expr):
    """A sorted result of one partition as several, each with a range of the keys."""

    _parameters = ["frame", "outputs"]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Made by a call, or read from a pickle."""
        from dask_gpuagg.frontend.staying import stay_right

        stay_right()
        return super().__new__(cls, *args, **kwargs)  # type: ignore[no-untyped-call]

    @functools.cached_property
    def _meta(self) -> Any:
        return self.frame._meta

    def _divisions(self) -> tuple[None, ...]:
        return unknown(self.outputs)

    def _simplify_up(self, parent: Any, dependents: Any) -> Any:
        below = self.frame
        if not isinstance(parent, Projection) or not _takes_columns(below):
            return None
        wanted = determine_column_projection(self, parent, dependents)
        wanted = wanted if isinstance(wanted, list) else [wanted]
        read = [c for c in below.frame.columns if c in wanted or c in below._by_columns]
        if read == list(below.frame.columns):
            return None
        fewer = type(below)(below.frame[read], *below.operands[1:])
        return type(parent)(type(self)(fewer, self.outputs), *parent.operands[1:])

    def __dask_graph__(self) -> dict[Any, Any]:
        # older releases of Dask ask for it to see that this is one of its expressions
        return {}

    def _lower(self) -> Any:
        return RepartitionToMore(gathered(self.frame), self.outputs)


def _takes_columns(node: Any) -> bool:
    """Whether a group-by gives a column for each that it reads, by the same label."""
    if not isinstance(node, G.SingleAggregation | G.GroupByReduction) or node.frame.ndim == 1:
        return False
    return not isinstance(node, G.Cov) and getattr(node, "_slice", None) is None


def with_outputs(call: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper of ``aggregate`` or of a method that promises the outputs that are asked for.

    Parameters
    ----------
    call : callable
        Of Dask's function, the group-by and the arguments.
    """

    def wrapper(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        made = call(original, self, *args, **kwargs)
        outputs = _asked(original, self, *args, **kwargs)
        # a median of stock Dask has its outputs, in no order
        if outputs < 2 or made.npartitions > 1:
            return made
        return new_collection(_promised(made.expr, outputs))

    return wrapper


def _asked(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> int:
    """How many outputs of a sorted result were asked for; 0 where none were."""
    if not self.sort:
        return 0
    given = kwargs
    if "split_out" not in kwargs:
        given = inspect.signature(original).bind(self, *args, **kwargs).arguments
    split_out = given.get("split_out")
    if callable(split_out):
        split_out = split_out(self.obj.npartitions)
    if split_out is True:
        return int(self.obj.npartitions)
    return int(split_out) if isinstance(split_out, Integral) else 0


def _promised(expr: Any, outputs: int) -> Expr:
    """A result with its group-by wrapped; itself wrapped where it is of several."""
    node = expr
    while not logical.is_aggregation(node):
        below = inputs(node)
        if not isinstance(node, Blockwise) or len(below) != 1:
            whole: Expr = SortedOutputs(expr, outputs)
            return whole
        (node,) = below
    one = node.substitute_parameters({"split_out": 1}) if "split_out" in node._parameters else node
    promised: Expr = expr.substitute(node, SortedOutputs(one, outputs))
    return promised


def in_first(frame: Any, outputs: int) -> Expr:
    """All rows in the first of several partitions, by nodes of Dask's alone.

    Partitions of the same number of two such results belong together.

    Parameters
    ----------
    frame : Expr
    outputs : int
    """
    whole = gathered(frame)
    nothing = BlockwiseHead(whole, 0, 1, False)
    given: tuple[Any, ...] = ("outer", False, 0, False, False, {})
    return StackPartition(*given, whole, *[nothing] * (outputs - 1))


def _is_in_first(node: Any) -> bool:
    if not isinstance(node, StackPartition):
        return False
    return all(isinstance(f, BlockwiseHead) and f.n == 0 for f in node._frames[1:])


def gathered(frame: Any) -> Any:
    """A frame as one partition."""
    if isinstance(frame, SortedOutputs):
        return gathered(frame.frame)
    # Repartition optimizes all that is below it whenever its divisions are read
    whole = frame if frame.npartitions == 1 else RepartitionToFewer(frame, 1)
    # some divisions that are known and some that are not would not be the same
    return ClearDivisions(whole) if frame.known_divisions else whole


def as_compared(node: Any, frame: Any) -> Any:
    """The partitions of a frame as a node needs them: pandas compares rows in one order only."""
    return SortIndexBlockwise(frame) if getattr(node, "op", None) in _COMPARISONS else frame


def has_ranges(expr: Any) -> bool:
    """Whether partitions of an expression may be divided where the data of a result says.

    Parameters
    ----------
    expr : Expr
    """
    return any(map(_is_divided, reached(expr, _leaves_rows)))


def _leaves_rows(node: Any) -> bool:
    """Whether a node has rows in the partitions of its inputs; others place them elsewhere."""
    return not (logical.is_aggregation(node) or isinstance(node, Quiet) or _is_in_first(node))


def _is_divided(node: Any) -> bool:
    if isinstance(node, FromGraph):
        return str(node.operand("name_prefix")).startswith(PERSISTED)
    if isinstance(node, RepartitionToMore):
        return bool(node.frame.npartitions == 1)
    return isinstance(node, SortedOutputs | GroupByRanges | GroupByDivided)


def combined(node: Any) -> Expr | None:
    """What a node that combines results with several outputs is lowered to.

    Parameters
    ----------
    node : Expr

    Returns
    -------
    Expr or None
        With as many partitions as the node; ``None`` where Dask combines its inputs rightly.
    """
    if isinstance(node, MapPartitions):
        return _by_partitions(node)
    whole: Expr | None
    if isinstance(node, AlignGetitem) and isinstance(node.frame, AlignAlignPartitions):
        aligned = _whole(node.frame)
        whole = None if aligned is None else AlignGetitem(aligned, node.position)
    elif isinstance(node, AlignAlignPartitions) or gathers_other(node):
        return None  # an alignment has two results
    else:
        whole = _whole(node)
    if whole is not None and node.npartitions > 1:
        whole = SortedOutputs(whole, node.npartitions)
    return whole


def gathers_other(node: Any) -> bool:
    """Whether Dask gathers the other Series of a map; older releases align it by its labels."""
    return isinstance(node, MapAlign) and type(node)._lower is not MaybeAlignPartitions._lower


def _whole(node: Any) -> Expr | None:
    """A node on inputs of one partition, where it combines results with several outputs."""
    concat = type(node) is Concat and node.axis == 1
    if not (concat or isinstance(node, _BY_LABELS)):
        return None
    frames = _frames(node)
    if len(frames) < 2 or not any(map(has_ranges, frames)):
        return None
    if concat and are_co_aligned(*frames):
        return None
    several = [each for each in frames if each.npartitions > 1]
    if not any(has_ranges(each) and not each.known_divisions for each in several):
        return None
    if not isinstance(node, _BY_DIVISIONS) and any(each.known_divisions for each in several):
        return None  # Dask shuffles all
    return with_inputs(node, frames, lambda frame: as_compared(node, gathered(frame)))


def _by_partitions(node: Any) -> Expr | None:
    """Partitions of several results, for a function that gets those of the same number."""
    frames = _frames(node)
    if len(frames) < 2 or not any(map(has_ranges, frames)):
        return None
    several = [each for each in frames if each.npartitions > 1]
    if len(several) < 2 or are_co_aligned(*several):
        return None
    if any(each.known_divisions for each in several):
        return None
    return with_inputs(node, several, lambda frame: in_first(frame, frame.npartitions))


def _frames(node: Any) -> list[Any]:
    return [each for each in inputs(node) if each.ndim > 0]
