"""Where stock Dask's answers may differ from pandas' (docs/known-differences.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dask.dataframe.dask_expr import _groupby as G

from dask_gpuagg.dtypes import INTEGRAL, dtype_class
from dask_gpuagg.plan import Output, Plan

# methods to which Dask hands a ``dropna`` that is not given
_KEEP_NULLS = (G.Mean, G.Var)
_ORDERED = ("first", "last", "list")


def differences(plan: Plan, node: Any, outputs: int, by_disk: bool) -> Iterator[str]:
    """How stock Dask's answer may differ, on pandas partitions.

    Parameters
    ----------
    plan : Plan
        Ours.
    node : Expr
        Stock Dask's.
    outputs : int
        Of stock Dask's plan.
    by_disk : bool
        Whether it shuffles through the disk.

    Yields
    ------
    str
    """
    for i, output in enumerate(plan.outputs):
        text = None if output.custom else _of_output(plan, output, by_disk)
        if text:
            yield f"{plan.output_label(i)}: {text}"
    if isinstance(node, _KEEP_NULLS) and node.dropna is None:
        yield "null keys have a group"
    categorical = any(dtype_class(key.dtype) == "category" for key in plan.keys)
    if not plan.observed and categorical and outputs > 1:
        yield "each category has a row in each output"


def _of_output(plan: Plan, output: Output, by_disk: bool) -> str | None:
    name = output.aggregation
    if output.column is None:
        return None
    dtype = plan.columns[output.column].dtype
    cls, bits = dtype_class(dtype), 8 * _bytes(dtype)
    if name in ("var", "std"):
        if cls in INTEGRAL and bits < 64:
            return f"squares overflow {bits} bits"
        if cls == "float" and bits < 64:
            return f"squares are of {bits} bits"
        return "digits are lost where values are far from zero"
    if name == "mean" and cls in INTEGRAL:
        return "sums beyond 64 bits wrap"
    if name in _ORDERED and by_disk:
        return "rows lose their order on the disk"
    if name == "nunique" and not plan.dropna:
        return "null keys have no group"
    if name in ("idxmin", "idxmax"):
        return "the label is of the first partition that has the group"
    return None


def _bytes(dtype: Any) -> int:
    inner = getattr(dtype, "numpy_dtype", dtype)
    return inner.itemsize if isinstance(inner, np.dtype) and inner.kind != "O" else 8
