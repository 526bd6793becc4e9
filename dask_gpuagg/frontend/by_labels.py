"""Results that meet with unlike partitions: shuffled by their row labels.

Dask adds, divides and concatenates frames partition by partition. Of unknown divisions it takes
equal numbers for the same, and has an error for others. Its own rule gives group-bys of inputs with
as many partitions as many outputs; ours depends on the data, so results that are persisted, or of
which the user gave the outputs, may differ. They are brought together as Dask does it for
``assign`` and filters.

So are results of as many partitions whose groups are in others. Keys that Dask hashes by how they
are held, dates of Arrow for example, are hashed otherwise by us, and after ``assign`` Dask's hash
has placed them: these results are combined in one partition and divided again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from dask.dataframe.dask_expr._concat import Concat, ConcatIndexed
from dask.dataframe.dask_expr._expr import (
    Blockwise,
    Elemwise,
    Expr,
    Filter,
    MaybeAlignPartitions,
    MethodOperatorAlign,
    OpAlignPartitions,
    RenameSeries,
    ToFrame,
    UFuncAlign,
    are_co_aligned,
)
from dask.dataframe.dask_expr._repartition import Repartition
from dask.dataframe.dask_expr._shuffle import RearrangeByColumn
from dask.dataframe.dask_expr.io import FromGraph
from dask.dataframe.dask_expr.io._delayed import FromDelayed
from pandas.api.types import is_numeric_dtype

from dask_gpuagg.cluster.preflight import cluster_problem
from dask_gpuagg.engines import HOST, engine_name
from dask_gpuagg.engines.host.buckets import hashed_by_dask
from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.alignment import is_result
from dask_gpuagg.frontend.partitioned_by import has_other_index
from dask_gpuagg.frontend.patches import acting
from dask_gpuagg.frontend.persisted_outputs import KEPT, OWN_HASH, PersistedOutputs
from dask_gpuagg.frontend.sorted_outputs import SortedOutputs, as_compared, gathered, has_ranges
from dask_gpuagg.frontend.trees import inputs, reached, with_inputs
from dask_gpuagg.plan import Column, Unsupported
from dask_gpuagg.planning.nodes import Reduction
from dask_gpuagg.reporting.events import is_dry_run

# nodes that combine partition by partition, and cannot where divisions are unknown and unlike
COMBINING = (OpAlignPartitions, UFuncAlign, Concat)


def by_labels(node: Any, stock_only: Container[str] = ()) -> Expr | None:
    """A node that combines results, on inputs with the same labels in the same partitions.

    Parameters
    ----------
    node : Expr
    stock_only : container of str
        Names of group-bys that stock Dask runs.

    Returns
    -------
    Expr or None
        With as many partitions as the node; ``None`` where Dask combines its inputs as they are,
        where none of them is a result of a group-by, and where pandas would not combine by rows.
    """
    frames = _frames(node) if isinstance(node, COMBINING) else []
    hashes = Hashes(stock_only)
    if isinstance(node, Concat) and len(frames) > 1 and _have_same_groups(frames, hashes):
        return _concatenated(node, frames)
    if len(frames) < 2 or not (_differ(frames) or _placed_apart(frames, hashes)):
        return None
    if any(map(has_ranges, frames)) or not any(map(_is_result, frames)):
        return None
    if not _by_rows(node, frames):
        return None
    most = max(frame.npartitions for frame in frames)
    alike = _hashed_alike([frame._meta.index.dtype for frame in frames])
    if not alike or not hashes.are_dasks(frames):
        one = with_inputs(node, frames, lambda frame: as_compared(node, gathered(frame)))
        whole: Expr = SortedOutputs(one, most)
        return whole

    def shuffled(frame: Any) -> Expr:
        ordered: Expr = as_compared(node, _shuffled(frame, most))
        return ordered

    if isinstance(node, Concat):
        return _concatenated(node, map(shuffled, frames))
    return with_inputs(node, frames, shuffled)


def _concatenated(node: Any, frames: Iterable[Expr]) -> Expr:
    """As Dask does where equal labels are known to be in partitions of the same number."""
    made: Expr = ConcatIndexed(node.ignore_order, node._kwargs, node.axis, node.join, *frames)
    return made


def _have_same_groups(frames: list[Any], hashes: Hashes) -> bool:
    """Whether frames are results of as many partitions, with equal keys in the same of them.

    Dask does not know that, and refuses partitions with other numbers of groups.
    """
    numbers = {frame.npartitions for frame in frames}
    if numbers == {1} or len(numbers) > 1 or _placed_apart(frames, hashes):
        return False
    keys = [frame._meta.index.dtype for frame in frames]
    return _hashed_alike(keys) and all(map(_is_placed, frames))


def _is_placed(expr: Any) -> bool:
    """Whether each group, with its keys as row labels, is where an exchange has put it."""
    nodes = list(reached(expr, _keeps_labels))
    sources = [node for node in nodes if node.ndim > 0 and not _keeps_labels(node)]
    return not any(map(has_other_index, nodes)) and all(
        source.npartitions == expr.npartitions
        and (logical.is_aggregation(source) or _is_kept(source))
        for source in sources
    )


def _keeps_labels(node: Any) -> bool:
    """Whether rows have the labels, and are in the partitions, of the inputs."""
    return isinstance(node, Elemwise | Filter | OpAlignPartitions)


def _is_kept(node: Any) -> bool:
    return isinstance(node, FromGraph) and str(node.operand("name_prefix")).startswith(KEPT)


def _frames(node: Any) -> list[Any]:
    """What a node combines by rows."""
    if not isinstance(node, Concat):
        return [each for each in node.args if isinstance(each, Expr) and each.ndim > 0]
    return [] if node.axis != 1 or are_co_aligned(*node._frames) else list(node._frames)


def _differ(frames: list[Any]) -> bool:
    """Whether Dask cannot combine the partitions of frames."""
    if all(frame.known_divisions for frame in frames):
        return False
    numbers = {frame.npartitions for frame in frames}
    return numbers != {1} and (len(numbers) > 1 or any(f.known_divisions for f in frames))


def _is_shuffled_by_dask(frame: Any) -> bool:
    """Whether Dask brings equal labels of rows together, however they are held."""
    index = frame._meta.index
    if frame.ndim == 2 and frame._meta.columns.nlevels > 1:
        return False  # its column of partitions stays
    levels = index.levels if index.nlevels > 1 else [index]
    return engine_name(frame._meta) != HOST or all(hashed_by_dask(e.dtype) for e in levels)


def _placed_apart(frames: list[Any], hashes: Hashes) -> bool:
    """Whether groups of frames with as many partitions are in unlike ones."""
    several = [each for each in frames if each.npartitions > 1]
    return len(set().union(*map(hashes.of, several))) > 1


def has_own_hash(expr: Any) -> bool:
    """Whether partitions of an expression have groups where only our hash puts them."""
    # one that is promised one partition may have several
    return True in Hashes(()).of(expr)


class Hashes:
    """By which hash rows are in partitions of expressions: our own (True), Dask's or none (False).

    A name instead where an expression has partitions of its own.

    Parameters
    ----------
    stock_only : container of str
        Names of group-bys that stock Dask runs.
    """

    def __init__(self, stock_only: Container[str]) -> None:
        self.stock_only = stock_only
        self._known: dict[str, set[bool | str]] = {}

    def of(self, node: Any) -> set[bool | str]:
        """The hashes of a node's inputs, which it leaves where they are."""
        if node._name not in self._known:
            self._known[node._name] = self._found(node)
        return self._known[node._name]

    def _found(self, node: Any) -> set[bool | str]:
        if isinstance(node, FromGraph):
            return {str(node.operand("name_prefix")).startswith(OWN_HASH)}
        if isinstance(node, Reduction):
            return {node.npartitions > 1 and own_hash(node.plan.keys)}
        if logical.is_aggregation(node):
            return {self._is_planned(node)}
        if not isinstance(node, (Blockwise, Repartition, PersistedOutputs, *COMBINING)):
            return {False}
        frames = [each for each in inputs(node) if each.npartitions > 1] or inputs(node)
        found: set[bool | str] = set().union(*map(self.of, frames)) or {False}
        apart = isinstance(node, COMBINING) and (_differ(_frames(node)) or len(found) > 1)
        if apart:  # shuffled, or divided again
            return {False if self.are_dasks(frames) else node._name}
        return found

    def are_dasks(self, frames: list[Any]) -> bool:
        """Whether Dask brings equal labels of all frames together."""
        # metadata of objects may promise text
        found = set().union(*map(self.of, frames))
        return True not in found and all(map(_is_shuffled_by_dask, frames))

    def _is_planned(self, node: Any) -> bool:
        """Whether our plan runs a group-by, with keys that Dask hashes otherwise."""
        if engine_name(node.frame._meta) != HOST or node._name in self.stock_only or not acting():
            return False
        try:
            keys = [logical.key_column(by, node.frame._meta) for by in node.by]
        except Unsupported:
            return False
        if not own_hash(keys) or logical.refusals(node):
            return False
        return is_dry_run() or cluster_problem() is None


def own_hash(keys: Iterable[Column]) -> bool:
    """Whether Dask hashes some of the keys otherwise than we do."""
    return not all(hashed_by_dask(key.dtype) for key in keys)


def _by_rows(node: Any, frames: list[Any]) -> bool:
    """Whether labels of rows are combined: those of a Series may be a frame's columns."""
    if isinstance(node, Concat) or len({frame.ndim for frame in frames}) == 1:
        return True
    return isinstance(node, MethodOperatorAlign) and node.axis in (0, "index")


def _hashed_alike(dtypes: list[Any]) -> bool:
    """Whether Dask's hash of equal labels is the same: of one dtype, and of any numbers."""
    return all(dtype == dtypes[0] for dtype in dtypes) or all(map(is_numeric_dtype, dtypes))


def _is_result(expr: Any) -> bool:
    """Whether partitions of an expression are outputs of a group-by, or may be.

    May be those that are persisted, and those that were made of delayed objects.
    """
    keep_partitions = Blockwise | MaybeAlignPartitions | Repartition | Concat

    def is_output(node: Any) -> bool:
        # a reduction is of a result that was optimized
        if is_result(node) or isinstance(node, SortedOutputs | Reduction):
            return True
        return isinstance(node, FromGraph | FromDelayed) and not node.known_divisions

    return any(map(is_output, reached(expr, lambda node: isinstance(node, keep_partitions))))


def _shuffled(frame: Any, npartitions: int) -> Expr:
    """The rows of a frame by the hash of their labels, as Dask's exchanges place groups."""
    wide = ToFrame(frame, "values") if frame.ndim == 1 else frame
    # not through the disk, nor p2p, which take fewer dtypes
    placed: Any = RearrangeByColumn(wide, None, npartitions, method="tasks", index_shuffle=True)
    return RenameSeries(placed["values"], frame._meta.name) if frame.ndim == 1 else placed
