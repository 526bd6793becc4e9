"""Reading Dask's logical group-by nodes: from an expression to a plan.

The other modules of this room wrap Dask's functions; ``planning`` builds physical nodes.
"""

from collections.abc import Callable, Collection, Hashable
from dataclasses import replace
from typing import Any

from dask.dataframe.dask_expr import _groupby as G
from dask.dataframe.dask_expr._expr import Expr
from dask.dataframe.dask_expr._merge import Merge
from dask.dataframe.dask_expr._rolling import RollingReduction

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.decomposition import make_matrix_plan, make_plan, reasons
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines import dtypes_of, engine_name
from dask_gpuagg.engines.device.support import device_refusal
from dask_gpuagg.frontend.extended import ExtendedAggregation
from dask_gpuagg.frontend.metadata import is_cudf
from dask_gpuagg.frontend.specification import Parameters, read_function, refuse_several
from dask_gpuagg.plan import Column, Requested, Unsupported
from dask_gpuagg.planning.bucketing import dtypes_in
from dask_gpuagg.planning.chunks import GroupByQuery
from dask_gpuagg.settings import settings

# the logical classes that reduce groups, and the aggregation of each
_CLASSES: tuple[type, ...] = (
    *(G.Sum, G.Prod, G.Min, G.Max, G.First, G.Last, G.Count, G.Size, G.IdxMin, G.IdxMax),
    *(G.Mean, G.Var, G.Std, G.NUnique, G.Median, G.Unique, G.Cov, G.Corr),
)
_SINGLE: dict[type, str] = {
    **{kind: kind.__name__.lower() for kind in _CLASSES},
    G.ValueCounts: "value_counts",
}

# other calls of group-bys, by their nodes
_LEFT: dict[type, str] = {
    kind: kind.__name__.removeprefix("GroupBy").lower()
    for kind in (
        *(G.GroupByApply, G.GroupByTransform, G.GroupByShift, G.GroupByFFill, G.GroupByBFill),
        *(G.GroupByCumsum, G.GroupByCumprod, G.GroupByCumcount, G.Head, G.Tail),
    )
}


def left_to_dask(expr: Any) -> Unsupported | None:
    """The reason why Dask runs a call of a group-by that is not an aggregation."""
    name = _LEFT.get(type(expr))
    if isinstance(expr, RollingReduction) and expr.groupby_kwargs is not None:
        name = "rolling"
    if name is None:
        return None
    return Unsupported("not an aggregation: Dask runs it", name)


def is_aggregation(expr: Any) -> bool:
    """Whether a node is a logical group-by aggregation (rather than apply, transform, ...)."""
    return isinstance(expr, G.GroupbyAggregation | ExtendedAggregation) or type(expr) in _SINGLE


def has_an_output_per_partition(expr: Any) -> bool:
    """Whether Dask makes as many outputs of a node as its input turns out to have partitions.

    ``.median()`` takes their number from the logical input.
    """
    return _operand(expr, "split_out") is True and not isinstance(expr, G.Median)


def call_text(expr: Any) -> str:
    """The call that made a node, abbreviated, for messages."""
    if type(expr) in _SINGLE:
        return f".{_SINGLE[type(expr)]}()"
    left = left_to_dask(expr)
    return f".{left.aggregation}(...)" if left else ".agg(...)"


def read(expr: Any, without: Collection[int] = ()) -> GroupByQuery:
    """Read a logical group-by aggregation, or raise ``Unsupported`` with the first reason.

    Outputs at the positions ``without`` are no part of the query.
    """
    keys, columns, requested = _parts(expr)
    device, extended = is_cudf(expr.frame._meta), isinstance(expr, ExtendedAggregation)
    flags = {
        "dropna": True if expr.dropna is None else bool(expr.dropna),
        "observed": bool(expr.observed),
        # Dask sorts each output of .median(), which has no such operand
        "sort": bool(_operand(expr, "sort") or isinstance(expr, G.Median)),
        "deterministic": settings().deterministic,
    }
    meta = expr.planned_meta if extended else expr._meta
    if without:
        positions = [i for i in range(len(requested)) if i not in without]
        requested, meta = [requested[i] for i in positions], meta.iloc[:, positions]
    name = _SINGLE.get(type(expr)) or (requested[0].aggregation if requested else None)
    if not requested and not extended:
        # stock Dask's answer has no groups
        raise Unsupported("no column is left to aggregate", name)
    if name in ("cov", "corr"):
        if device and not flags["observed"]:
            raise Unsupported(f"{name} with observed=False is not supported", name)
        of_label = {c.label: c for c in columns}
        chosen = [of_label[request.column] for request in requested]
        plan = make_matrix_plan(keys, chosen, name, requested[0].parameters, **flags)
    else:
        plan = make_plan(keys, columns, requested, **flags)
        categorical = any(dtype_class(key.dtype) == "category" for key in keys)
        if plan.shape == "values" and (categorical or device) and not flags["observed"]:
            reason = "value_counts with observed=False is not supported"
            raise Unsupported(reason, "value_counts")
    if device:
        refusal = device_refusal(plan, expr.frame._meta.index.nlevels)
        if refusal is not None:
            raise refusal
    return GroupByQuery(
        replace(plan, settings=settings()),
        expr.frame,
        list(expr.by),
        meta,
        _operand(expr, "split_every"),
        _operand(expr, "shuffle_method"),
    )


def refusals(expr: Any) -> list[Unsupported]:
    """One reason per aggregation of a logical group-by that our plan cannot run."""
    try:
        read(expr)
    except Unsupported as first:
        try:
            _, columns, requested = _parts(expr)
        except Unsupported as refusal:
            return [refusal]
        return reasons(columns, requested, settings().deterministic) or [first]
    return []


def read_some(expr: Any) -> tuple[GroupByQuery, dict[int, Requested]]:
    """Read the outputs that can be planned, and those that stock Dask runs beside them.

    Raises ``Unsupported`` where it has to run all of them.
    """
    try:
        return read(expr), {}
    except Unsupported:
        left = _left_out(expr)
        if not left:
            raise
        return read(expr, left), left


def _left_out(expr: Any) -> dict[int, Requested]:
    """The outputs, by position, that stock Dask runs beside the planned ones.

    There are none where all are planned, and where all are left to stock Dask. Results in several
    partitions are not joined: stock Dask may have a group in another one.
    """
    in_agg = isinstance(expr, G.GroupbyAggregation | ExtendedAggregation)
    if not in_agg or is_cudf(expr.frame._meta) or expr._meta.ndim == 1 or expr.npartitions > 1:
        return {}
    refused = {(refusal.aggregation, refusal.column) for refusal in refusals(expr)}
    if not refused or (None, None) in refused:
        return {}
    _, _, requested = _parts(expr)
    left = {i: r for i, r in enumerate(requested) if (r.aggregation, r.column) in refused}
    # beside a median stock Dask has whole groups for everything, and makes more of them
    has_median = any(request.aggregation == "median" for request in requested)
    if has_median and not (isinstance(expr, ExtendedAggregation) and expr.stock is None):
        return {}
    keys = [by for by in expr.by if not isinstance(by, Expr)]
    can_run = all(
        request.custom is None
        and not request.parameters
        and request.column not in keys
        and request.aggregation in REGISTRY
        and REGISTRY[request.aggregation].stock_agg
        for request in left.values()
    )
    return left if can_run and len(left) < len(requested) else {}


def _parts(expr: Any) -> tuple[list[Column], list[Column], list[Requested]]:
    meta = expr.frame._meta
    if engine_name(meta) is None:
        kind = type(meta).__module__.partition(".")[0]
        raise Unsupported(f"partitions of {kind} are not supported")
    if meta.ndim == 2 and not meta.columns.is_unique:
        raise Unsupported("the frame has duplicate column names")
    if meta.ndim == 1:
        columns = [Column(meta.name, meta.dtype)]
    else:
        columns = [Column(label, dtype) for label, dtype in dtypes_of(meta)]
    return [key_column(by, meta) for by in expr.by], columns, _requested(expr, meta)


def _operand(expr: Any, name: str) -> Any:
    return expr.operand(name) if name in expr._parameters else None


def key_column(by: Any, meta: Any) -> Column:
    """Label and dtype of one key of a group-by on a frame with this metadata."""
    if isinstance(by, Expr):
        if by.ndim != 1:
            raise Unsupported("a key that is a DataFrame is not supported")
        key = by._meta
        return Column(key.name, key.dtype)
    if meta.ndim == 2 and _is_label(by, meta.columns):
        return Column(by, meta[by].dtype)
    if isinstance(by, Callable):  # type: ignore[arg-type]
        if is_cudf(meta):
            raise Unsupported("a key that is a function is not supported: it would run on the host")
        probe = meta.index[:0].map(by)
        return Column(meta.index.name, probe.dtype)
    if _is_label(by, meta.index.names):
        return Column(by, meta.index.get_level_values(by).dtype)
    raise Unsupported(f"the key {by!r} is neither a column, an index level, nor a Series")


def _is_label(by: Any, labels: Any) -> bool:
    try:
        return by in labels
    except TypeError:  # unhashable
        return False


def _requested(expr: Any, meta: Any) -> list[Requested]:
    if isinstance(expr, ExtendedAggregation):
        return list(expr.requested)
    if isinstance(expr, G.GroupbyAggregation):
        return _requested_of_spec(expr, meta)
    name = _SINGLE[type(expr)]
    result = expr._meta
    if _leaves_out_objects(expr):
        text = "numeric_only of booleans that a join may convert to objects"
        raise Unsupported(f"{text} is not supported", name)
    parameters: Parameters = ()
    if name in ("cov", "corr"):
        parameters = tuple(sorted((expr.operand("aggregate_kwargs") or {}).items()))
    elif name in ("var", "std"):
        parameters = (("ddof", expr.ddof),)
    elif name in ("idxmin", "idxmax"):
        kwargs = expr.operand("chunk_kwargs") or {}
        parameters = (("skipna", kwargs.get("skipna", True)),)
    if name == "size":
        return [Requested(result.name, "size", None)]
    if meta.ndim == 1:
        return [Requested(meta.name, name, meta.name, parameters)]
    if result.ndim == 1:
        column: Hashable = _operand(expr, "_slice")
        column = result.name if column is None or isinstance(column, list) else column
        return [Requested(column, name, column, parameters)]
    return [Requested(label, name, label, parameters) for label in result.columns]


def _leaves_out_objects(expr: Any) -> bool:
    """Whether data may have fewer columns of numbers than the metadata.

    A join makes objects of booleans where rows have no partner.
    """
    chunk = _operand(expr, "chunk_kwargs") or {}
    only = _operand(expr, "numeric_only") or chunk.get("numeric_only")
    if not only or is_cudf(expr._meta) or bool not in dtypes_in(expr._meta):
        return False
    return any(join.how != "inner" for join in expr.frame.find_operations(Merge))


def _requested_of_spec(expr: Any, meta: Any) -> list[Requested]:
    result, spec = expr._meta, expr.spec
    labels = [result.name] if result.ndim == 1 else list(result.columns)
    by_label = {entry[0]: entry for entry in spec}
    if result.ndim == 2 and by_label.keys() >= set(labels):
        # in the order of the columns that were chosen with [...], and of those only
        spec = [by_label[label] for label in labels]
    if len(spec) != len(labels):
        raise Unsupported("the result's columns do not correspond to the requested aggregations")
    requested = []
    for label, (_, function, column) in zip(labels, spec, strict=True):
        name, parameters, custom = read_function(function)
        refuse_several(name, dict(parameters))
        source = meta.name if meta.ndim == 1 else column
        requested.append(Requested(label, name, source, parameters, custom))
    return requested
