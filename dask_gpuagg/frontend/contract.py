"""Expectations of Dask's internals, checked before they are wrapped."""

import functools
import inspect
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
from dask._expr import Expr
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr import _groupby as G

from dask_gpuagg.planning.nodes import GroupByMerge, GroupByTree

# functions that are wrapped, and their parameters
_SIGNATURES: dict[tuple[Any, str], str] = {
    (Expr, "lower_once"): "self lowered",
    (G.GroupBy, "__init__"): "self obj by group_keys sort observed dropna slice",
    (G.GroupBy, "aggregate"): "self arg split_every split_out shuffle_method kwargs",
    (G.GroupBy, "transform"): "self func meta shuffle_method args kwargs",
}

# the property that is wrapped, of group-bys and of the nodes that give labels other names or values
MAPPING = "unique_partition_mapping_columns_from_shuffle"
# other values in the index; RenameSeries with a function or a mapping too
OTHER_INDEX = (E.AssignIndex, E.AddPrefixSeries, E.ToTimestamp)
RELABELLING = (
    *(E.RenameFrame, E.RenameSeries, E.RenameAxis, E.AddPrefix, E.AddSuffix),
    *(E.ToFrame, E.ResetIndex),
    *OTHER_INDEX,
)

# operands of nodes: one more might change what a query means
_FLAGS = "split_every split_out sort shuffle_method"
_OPERANDS: dict[Any, str] = {
    G.GroupbyAggregationBase: f"frame arg observed dropna {_FLAGS} _slice",
    G.SingleAggregation: f"frame observed dropna chunk_kwargs aggregate_kwargs _slice {_FLAGS}",
    E.ToFrame: "frame name",
    E.ResetIndex: "frame drop name",
    E.RenameSeries: "frame index sorted_index",
}


def check() -> None:
    """Compare Dask's internals with what this package expects; raise ``RuntimeError`` if needed."""
    different = []
    for (owner, name), expected in _SIGNATURES.items():
        function = getattr(owner, name, None)
        if function is None or list(inspect.signature(function).parameters) != expected.split():
            different.append(f"{owner.__name__}.{name}")
    for owner in (G.GroupByReduction, *RELABELLING):
        mapping = inspect.getattr_static(owner, MAPPING, None)
        if not isinstance(mapping, functools.cached_property):
            different.append(f"{owner.__name__}.{MAPPING}")
    for node, operands in _OPERANDS.items():
        if node._parameters != operands.split():
            different.append(node.__name__)
    if different:
        raise RuntimeError(
            f"the internals of Dask {dask.__version__} differ from those dask_gpuagg was "
            f"tested on: {', '.join(different)}. Nothing was changed."
        )


def try_queries() -> None:
    """Plan and compute two tiny queries, and raise an error if an answer is not pandas'."""
    frame = pd.DataFrame({"k": [1, 2, 1, 3, 2, 1], "x": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]})
    rows = dd.from_pandas(frame, npartitions=3)
    expected = frame.groupby("k").agg({"x": ["sum", "mean", "count"]})
    # a shuffle by tasks does not use a cluster
    for outputs, kind in ((1, GroupByTree), (2, GroupByMerge)):
        grouped = rows.groupby("k")
        query = grouped.agg(
            {"x": ["sum", "mean", "count"]}, split_out=outputs, shuffle_method="tasks"
        )
        lowered = query.optimize(fuse=False)
        if not any(isinstance(node, kind) for node in lowered.expr.walk()):
            raise AssertionError(f"no {kind.__name__} in {lowered.expr}")
        answer = lowered.compute(scheduler="synchronous").sort_index()
        pd.testing.assert_frame_equal(answer, expected)
