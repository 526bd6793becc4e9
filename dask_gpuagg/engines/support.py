"""What the device engine can run, decided without importing cuDF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask_gpuagg.aggregations import DTYPE_CLASSES, Kind
from dask_gpuagg.cuda.driver import unavailable
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.plan import Column, Plan, Unsupported

_NUMERIC = ("bool", "int", "uint", "float")
_FIXED = (*_NUMERIC, "datetime", "timedelta", "decimal")

# The states that kernels make, by the classes of the columns that they make them of.
DEVICE_STATES: dict[str, tuple[str, ...]] = {
    "size": DTYPE_CLASSES,
    "count": DTYPE_CLASSES,
    "isum": _NUMERIC,
    "fsum": _NUMERIC,
    "osum": ("timedelta", "decimal"),
    "iprod": _NUMERIC,
    "fprod": _NUMERIC,
    "min": _FIXED,
    "max": _FIXED,
    "first": tuple(c for c in DTYPE_CLASSES if c != "category"),
    "last": tuple(c for c in DTYPE_CLASSES if c != "category"),
    "any": _NUMERIC,
    "all": _NUMERIC,
    "moments": _NUMERIC,
}
# Aggregations of other kinds, by the classes they take.
DEVICE_WHOLE: dict[str, tuple[str, ...]] = {
    "nunique": DTYPE_CLASSES,
    "median": ("int", "uint", "float"),
    "quantile": ("int", "uint", "float"),
    "list": DTYPE_CLASSES,
}


def device_refusal(plan: Plan, by: Sequence[Any]) -> Unsupported | None:
    """Why the device engine cannot run a plan; None if it can.

    Parameters
    ----------
    plan : Plan
    by : sequence
        The keys as the user gave them.

    Returns
    -------
    Unsupported or None
    """
    obstacle = unavailable()
    if obstacle is not None:
        return Unsupported(f"the device engine cannot run here: {obstacle}")
    if plan.shape != "groups":
        name = plan.outputs[0].aggregation
        return Unsupported(f"{name} is not yet made on the device", name)
    if any(callable(b) and not hasattr(b, "_meta") for b in by):
        return Unsupported("a key is a function, which would run on the host")
    if not plan.observed and any(dtype_class(k.dtype) == "category" for k in plan.keys):
        return Unsupported("observed=False on the device")
    for key in plan.keys:
        if dtype_class(key.dtype) in ("other", "object"):
            return Unsupported(f"keys of dtype {key.dtype} on the device")
    for output in plan.outputs:
        refusal = _output_refusal(plan, output)
        if refusal is not None:
            return refusal
    return None


def _output_refusal(plan: Plan, output: Any) -> Unsupported | None:
    if output.custom is not None:
        return Unsupported("user-defined aggregations on the device", output.custom.name)
    name = output.aggregation
    column: Column | None = None if output.column is None else plan.columns[output.column]
    cls = "int" if column is None else dtype_class(column.dtype)
    label = None if column is None else column.label
    if output.kind is not Kind.MERGEABLE:
        allowed = DEVICE_WHOLE.get(name, ())
    else:
        states = [plan.states[i].state for i in output.states]
        allowed = tuple(
            c for c in DTYPE_CLASSES if all(c in DEVICE_STATES.get(s, ()) for s in states)
        )
        if name == "mean":  # durations and decimals need exact division
            allowed = tuple(c for c in allowed if c in _NUMERIC)
        if name in ("min", "max") and getattr(getattr(column, "dtype", None), "precision", 0) > 18:
            allowed = ()
    if cls not in allowed:
        dtype = None if column is None else column.dtype
        return Unsupported(f"{name} of dtype {dtype} is not made on the device", name, label)
    return None
