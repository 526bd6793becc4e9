"""The wrappers: Dask's expression optimizer calls our planner.

Every node passes ``Expr.lower_once`` on its way to a task graph: a logical group-by aggregation is
offered to the planner there. Metadata, divisions, column projection and the number of output
partitions stay Dask's own. Calls that Dask refuses, or reads otherwise than pandas, are wrapped too
(``calls.py``).

Other parts of a query depend on where groups lie:

* Dask combines results with unknown divisions partition by partition. Stock Dask may have a group
  in another partition than we, so either all results in several partitions are planned or none;
  none either where one meets rows that Dask shuffled by keys that we hash otherwise.
* cuDF combines some results row by row, but kernels write groups in no order: these results are
  sorted by their keys.
* A merge does not shuffle rows that are divided by its keys. Dask loses these names where they are
  in the index, or keeps one whose values have become others, and a merge loses rows.
"""

import functools
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
from dask._expr import Expr, _ExprSequence
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr import _groupby as G
from dask.dataframe.dask_expr._concat import Concat
from dask.dataframe.dask_expr._expr import Blockwise, Fused
from dask.dataframe.dask_expr._repartition import Repartition
from dask.dataframe.dask_expr._rolling import RollingReduction
from dask.dataframe.dask_expr.io import IO
from dask.dataframe.utils import is_index_like
from pandas.api.types import is_dict_like

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.cluster import cluster_problem
from dask_gpuagg.engines import HOST, engine_name
from dask_gpuagg.engines.host.exchange import hashed_by_dask
from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.bins import with_all_bins
from dask_gpuagg.frontend.calls import aggregate, initialize, method
from dask_gpuagg.frontend.casts import lower_astype
from dask_gpuagg.frontend.contract import MAPPING, OTHER_INDEX, RELABELLING
from dask_gpuagg.frontend.extended import ExtendedAggregation, joined
from dask_gpuagg.frontend.merges import sides_below, with_partials, with_steps
from dask_gpuagg.frontend.metadata import cached_meta, is_cudf
from dask_gpuagg.frontend.methods import ADDED, Added
from dask_gpuagg.frontend.ordered import lower_apply, lower_rolling, transform
from dask_gpuagg.frontend.patches import Hook
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.planning.bucketing import dtypes_in
from dask_gpuagg.planning.chunks import GroupByQuery, Route
from dask_gpuagg.planning.lower import physical
from dask_gpuagg.planning.nodes import GroupByNode
from dask_gpuagg.planning.route import in_one_output, route
from dask_gpuagg.reporting.events import Planned, Refused, emit, is_dry_run
from dask_gpuagg.reporting.fallbacks import Reason, UnsupportedGroupBy, note_fallback
from dask_gpuagg.settings import settings

# keys in Dask's cache of one lowering, where no node has such a name: the first node that was
# lowered, the root of the query, and what its group-bys need to know of each other
_ROOT = "dask_gpuagg: root"
_PLACEMENT = "dask_gpuagg: placement"

# nodes whose metadata Dask makes by running them on made-up rows
_WITH_METADATA = (G.GroupByApplyConcatApply, G.GroupbyAggregation, G.GroupByReduction)
# nodes for which cuDF goes by position
_BY_POSITION = (E.Filter, E.FilterAlign, E.Mask, E.MaskAlign, E.Where)

# nodes that combine collections with unknown divisions partition by partition, if it is by columns
_BY_PARTITION = (E.OpAlignPartitions, E.UFuncAlign, E.MapPartitions, Concat)

# the values of an index level that is no more
_LOST = object()


def hooks() -> list[Hook]:
    """The functions of Dask that are wrapped, each with its wrapper."""
    wrapped: list[Hook] = [
        (Expr, "lower_once", _lower_once),
        (G.GroupByApplyConcatApply, MAPPING, mapping),
        (G.GroupByReduction, MAPPING, mapping),
        *((kind, MAPPING, renamed_mapping) for kind in RELABELLING),
        *((kind, "_meta", cached_meta) for kind in _WITH_METADATA),
        (G.GroupBy, "aggregate", functools.partial(with_all_bins, "aggregate", aggregate)),
        (G.GroupBy, "transform", transform),
        (G.GroupByApply, "_lower", lower_apply),
        (E.AsType, "_lower", lower_astype),
        (RollingReduction, "_lower", lower_rolling),
        (G.GroupBy, "__init__", initialize),
        (G.SeriesGroupBy, "__init__", initialize),
    ]
    for owner in (G.GroupBy, G.SeriesGroupBy):
        for name in sorted(REGISTRY.keys() & vars(owner).keys()):
            call = functools.partial(method, name)
            wrapped.append((owner, name, functools.partial(with_all_bins, name, call)))
    wrapped += [
        (kind, name, Added(function))
        for kind, methods in ADDED.items()
        for name, function in methods.items()
        if not hasattr(kind, name)
    ]
    return wrapped


def _lower_once(original: Callable[..., Any], self: Any, lowered: dict[str, Any]) -> Any:
    if self._name in lowered:
        return original(self, lowered)
    root = lowered.setdefault(_ROOT, self)
    if root is self:
        lowered[_PLACEMENT] = placement_of(root)
    if type(self) is Repartition and logical.is_aggregation(self.frame):
        # Dask's own lowering would first lower the input of the group-by, merges among it
        frame = self.frame.lower_once(lowered)
        if self.operand("new_partitions") is not None and self.new_partitions == frame.npartitions:
            return lowered.setdefault(self._name, frame)
    planned = _planned(self, lowered) if logical.is_aggregation(self) else None
    if planned is not None:
        return lowered.setdefault(self._name, planned.lower_once(lowered))
    return original(self, lowered)


def _planned(expr: Any, lowered: dict[str, Any]) -> Expr | None:
    """The physical nodes of a logical group-by, or ``None`` for stock Dask."""
    settings()  # an invalid setting is an error for the user, not a reason to fall back
    placement: Placement = lowered[_PLACEMENT]
    try:
        # a query that is only explained is not sent to a cluster
        problem = None if is_dry_run() else cluster_problem()
        if problem is not None:
            raise Unsupported(problem)
        if expr._name in placement.stock_only:
            raise placement.stock_only[expr._name]
        query, left = logical.read_some(expr)
        query = _without_repartitions(_with_objects(query))
        if query.frame.npartitions == 0:
            raise Unsupported("the input has no partitions")
        decision = route(query, expr)
        if expr._name in placement.computed and not left:
            decision = in_one_output(decision)
        if expr._name in placement.in_order:
            # after the decision: each output is sorted by itself
            query = replace(query, plan=replace(query.plan, sort=True))
        shared = bool(left) or _is_shared(expr, lowered[_ROOT])
        # stock Dask computes the merge, for outputs of its own and where its partitions stay
        stays = left or decision.route is Route.ALIGNED or not settings().eager_merge
        below = None if stays else sides_below(query)
        if below is None:
            announced = query.frame.npartitions
            query = _on_lowered(query, lowered, shared)
            if decision.outputs == announced and logical.has_an_output_per_partition(expr):
                decision = replace(decision, outputs=int(query.frame.npartitions))
            query = with_steps(query)
        else:
            lower = functools.partial(_on_lowered, lowered=lowered, shared=shared)
            query = with_partials(query, *below, lower)
        if query.frame.npartitions == 0:
            raise Unsupported("no partitions are left of the input")
        planned = physical(query, decision)
        if planned.npartitions != decision.outputs:
            raise AssertionError(f"{planned.npartitions} outputs, {decision.outputs} announced")
        whole = joined(expr, planned, left) if left else planned
    except Unsupported as refusal:
        _fall_back(expr, refusal.reason)
        return None
    except UnsupportedGroupBy:
        raise
    except Exception as error:
        # a bug of ours must not break the user's query; tests run under fallback: raise
        _fall_back(expr, f"the planner failed: {error!r}", cause=error)
        return None
    emit(Planned(expr, query, decision, planned))
    if left:
        for reason in map(Reason.of, logical.refusals(expr)):
            call = f"{logical.call_text(expr)}, {reason.what},"
            note_fallback(expr._name, call, reason.reason)
    return expr.completed(whole) if isinstance(expr, ExtendedAggregation) else whole


def _without_repartitions(query: GroupByQuery) -> GroupByQuery:
    """The query without the nodes that Dask's fusing of files leaves, which change nothing.

    They would hide from the decision that files are read.
    """
    roots = [query.frame, *query.by]
    for i, root in enumerate(roots):
        for node in root.find_operations(Repartition) if isinstance(root, Expr) else ():
            # those by size, divisions or time are of classes of their own
            same = type(node) is Repartition and node.new_partitions == node.frame.npartitions
            roots[i] = roots[i].substitute(node, node.frame) if same else roots[i]
    return replace(query, frame=roots[0], by=roots[1:])


def _on_lowered(query: GroupByQuery, lowered: dict[str, Any], shared: bool) -> GroupByQuery:
    """The query on physical inputs, with their number of partitions.

    A logical node may have more: ``repartition`` drops repeated divisions, and narrow Parquet files
    are read several at a time.
    """
    if shared:
        query = replace(query, shared=True)
    frame = _lower_completely(query.frame, lowered)
    by = [_lower_completely(b, lowered) if isinstance(b, Expr) else b for b in query.by]
    if frame is query.frame and all(new is old for new, old in zip(by, query.by, strict=True)):
        return query  # with the chunks that it knows
    return replace(query, frame=frame, by=by)


def _is_shared(expr: Expr, root: Expr) -> bool:
    """Whether other nodes read the inputs of a group-by too."""
    group_bys = _group_bys(root)
    if len(group_bys) == 1:  # Dask may have lowered some of its inputs, which changes its name
        (expr,) = group_bys
    below = {node._name for input_ in expr.dependencies() for node in input_.walk()}
    others = (node for node in root.walk() if node._name not in below and node._name != expr._name)
    return any(input_._name in below for node in others for input_ in node.dependencies())


def _lower_completely(expr: Any, lowered: dict[str, Any]) -> Any:
    """As Dask does, with the cache of the lowering in progress."""
    while (node := expr.lower_once(lowered))._name != expr._name:
        expr = node
    return expr


def _fall_back(expr: Any, reason: str, cause: Exception | None = None) -> None:
    """Record that stock Dask runs a group-by; raise where stock Dask cannot either."""
    emit(Refused(expr, reason))
    call = logical.call_text(expr)
    if isinstance(expr, ExtendedAggregation) and expr.stock is None:
        raise UnsupportedGroupBy(f"group-by {call} cannot run: {reason}") from cause
    note_fallback(expr._name, call, reason, cause=cause)


def _with_objects(query: GroupByQuery) -> GroupByQuery:
    """The query with dtype object for results of object columns.

    Older releases of Dask use strings as sample values of object columns, so pandas infers strings
    for their sum, minimum or first.
    """
    plan, meta = query.plan, query.meta
    if query.on_device or plan.shape != "groups":
        return query
    inferred = [
        i
        for i, (dtype, output) in enumerate(zip(dtypes_in(meta), plan.outputs, strict=True))
        if isinstance(dtype, pd.StringDtype)
        and output.custom is None
        and output.column is not None
        and plan.columns[output.column].dtype == object
    ]
    if not inferred:
        return query
    if meta.ndim == 1:
        return replace(query, meta=meta.astype(object))
    meta = meta.copy()
    for i in inferred:
        meta.isetitem(i, meta.iloc[:, i].astype(object))
    return replace(query, meta=meta)


@dataclass
class Placement:
    """Names of group-bys that stock Dask has to run, with the reason, and of those to be sorted.

    ``computed`` are those that ``compute()`` wants in one partition, if each is all of its query.
    """

    stock_only: dict[str, Exception] = field(default_factory=dict)
    in_order: set[str] = field(default_factory=set)
    computed: set[str] = field(default_factory=set)


def placement_of(root: Any) -> Placement:
    """Find which group-bys of a query, which is not lowered yet, depend on each other.

    A group-by may be lowered before all that combine it.
    """
    placement = Placement()
    # collections that are computed together are not combined
    results = root.operands if isinstance(root, _ExprSequence) else [root]
    asked, alone = Counter[str](), Counter[str]()
    for result in results:
        group_bys = _group_bys(result)
        asked.update(g._name for g in group_bys)
        if type(result) is Repartition and result.operand("new_partitions") == 1:
            alone[result.frame._name] += 1
        try:
            if len(group_bys) > 1:
                _place(placement, result, group_bys)
            placement.stock_only.update(_beside_shuffled(result, group_bys))
        except Exception as error:
            # which of them are combined is unknown
            placement.stock_only.update({g._name: error for g in group_bys})
    # what another result reads keeps the partitions that it has been announced with
    placement.computed = {name for name, times in alone.items() if times == asked[name]}
    return placement


def _place(placement: Placement, result: Any, group_bys: list[Any]) -> None:
    placement.stock_only.update(_beside_stock([g for g in group_bys if g.npartitions > 1]))
    for node in result.walk():
        if isinstance(node, _BY_POSITION) and is_cudf(node._meta):
            combined = _group_bys(node)
            refused = _beside_stock(combined)
            placement.stock_only.update(refused)
            if len(combined) > 1 and not refused:
                placement.in_order.update(g._name for g in combined)


def _beside_stock(group_bys: list[Any]) -> dict[str, Exception]:
    """Names of group-bys that stock Dask runs because it has to run one of them."""
    if len(group_bys) < 2:
        return {}
    planned = [g._name for g in group_bys if not logical.refusals(g)]
    if len(planned) == len(group_bys):
        return {}
    reason = "it is combined with a group-by that stock Dask runs"
    return {name: Unsupported(reason) for name in planned}


def _beside_shuffled(result: Any, group_bys: list[Any]) -> dict[str, Exception]:
    """Names of group-bys that stock Dask runs because one is combined with rows that Dask places.

    Dask has these in other partitions: it hashes the representation of some keys, not the value.
    """
    for node in result.find_operations(_BY_PARTITION) if group_bys else ():
        if isinstance(node, Concat) and node.axis == 0:
            continue
        placing = _placing(node)
        ours = [g for g in group_bys if g._name in placing and g.need_to_shuffle]
        if len(ours) < len(placing) and not all(map(_is_hashed_by_dask, ours)):
            reason = "it is combined with rows that Dask shuffles by another hash of its keys"
            return {g._name: Unsupported(reason) for g in group_bys if g.npartitions > 1}
    return {}


def _placing(root: Any) -> set[str]:
    """Names of the nodes that decide in which partitions the rows of an expression are.

    Not sources and physical nodes of ours: a persisted or optimized result may be one.
    """
    stack: list[Any] = [root]
    seen, names = set(), set()
    while stack:
        node = stack.pop()
        parts = node.exprs if isinstance(node, Fused) else [node]
        if node._name in seen or node.npartitions == 1:
            continue
        seen.add(node._name)
        if any(isinstance(part, IO | GroupByNode) for part in parts):
            continue
        if isinstance(node, (Blockwise, *_BY_PARTITION)):
            stack.extend(node.dependencies())  # type: ignore[no-untyped-call]
        else:
            names.add(node._name)
    return names


def _group_bys(root: Any) -> list[Any]:
    """The group-by aggregations of an expression, each once."""
    return list({node._name: node for node in root.walk() if logical.is_aggregation(node)}.values())


def mapping(original: Callable[[Any], Any], self: Any) -> Any:
    """Columns by which the output is partitioned as by Dask, so that merges need no shuffle.

    For some dtypes Dask hashes the representation in a partition, and our plan hashes the value.
    """
    claimed = original(self)
    if not claimed or not logical.is_aggregation(self) or not self.need_to_shuffle:
        return claimed
    return claimed if _is_hashed_by_dask(self) else set()


def _is_hashed_by_dask(group_by: Any) -> bool:
    """Whether the groups of an aggregation, if they are shuffled, lie where Dask has them."""
    meta = group_by.frame._meta
    if engine_name(meta) != HOST:
        return True
    try:
        keys = [logical.key_column(by, meta) for by in group_by.by]
    except Unsupported:  # stock Dask runs it
        return True
    return all(hashed_by_dask(key.dtype) for key in keys)


def renamed_mapping(original: Callable[[Any], Any], self: Any) -> Any:
    """The columns that partitions are divided by, as one of ``RELABELLING`` names them.

    A name is left out where an index level and a column, or two columns, have it.
    """
    frame = self.frame
    if is_index_like(frame._meta):
        return original(self)
    divided_by = frame.unique_partition_mapping_columns_from_shuffle
    if not divided_by:
        return set()
    levels, columns = list(frame._meta.index.names), _columns(frame._meta)
    before = levels + columns
    if isinstance(self, E.ResetIndex) and not self.drop:
        after = _columns(self._meta)
    elif _has_other_index(self):
        after = [_LOST] * len(levels) + _columns(self._meta)
    else:
        after = list(self._meta.index.names) + _columns(self._meta)
    names = {
        old: new
        for old, new in zip(before, after, strict=True)
        if new is not _LOST and before.count(old) == after.count(new) == 1
    }
    renamed: set[Hashable] = set()
    for name in divided_by:
        if not isinstance(name, tuple):
            renamed.update({names[name]} if name in names else ())
        elif all(part in names for part in name):
            renamed.add(tuple(names[part] for part in name))
    return renamed


def _columns(meta: Any) -> list[Hashable]:
    return list(meta.columns) if meta.ndim == 2 else [meta.name]


def _has_other_index(node: Any) -> bool:
    """Whether a node that renames gives rows other labels too."""
    if isinstance(node, E.RenameSeries):
        index = node.operand("index")
        return callable(index) or is_dict_like(index)
    return isinstance(node, (E.ResetIndex, *OTHER_INDEX))
