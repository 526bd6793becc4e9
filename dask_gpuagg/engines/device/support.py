"""Plans that the device engine can run, decided without importing cuDF."""

from __future__ import annotations

from numbers import Integral

from dask_gpuagg.aggregations import REGISTRY, Kind
from dask_gpuagg.cache import OfObjects
from dask_gpuagg.cuda.runtime.driver import unavailable
from dask_gpuagg.dtypes import DEVICE_CLASSES, dtype_class
from dask_gpuagg.plan import Output, Plan, StateUse, Unsupported
from dask_gpuagg.states import STATES

# The most digits of a decimal of 64 bits.
_DIGITS_OF_64_BITS = 18


def in_kernels(use: StateUse, plan: Plan) -> bool:
    """Whether our kernels make a state; else libcudf does."""
    classes, library = STATES[use.state].kernels, STATES[use.state].libcudf
    dtypes = [plan.columns[c].dtype for c in use.columns]
    if "decimal" in library and any(
        getattr(dtype, "precision", 0) > _DIGITS_OF_64_BITS for dtype in dtypes
    ):
        return False
    return bool(classes) and all(dtype_class(dtype) in classes for dtype in dtypes)


# For the plans used last: each task asks.
_of_one_pass: OfObjects[bool] = OfObjects(8)


def one_pass(plan: Plan) -> bool:
    """Whether one pass of the kernels over the only partition gives the finished groups."""
    return _of_one_pass.of(plan, lambda: _in_one_table(plan) and not _has_unobserved(plan))


def reads_once(plan: Plan) -> bool:
    """Whether the kernels read rows once and one after another, and nothing else reads them."""
    return _in_one_table(plan) and not any(STATES[u.state].order_sensitive for u in plan.states)


def _in_one_table(plan: Plan) -> bool:
    """Whether a partial is one table of states that the kernels make."""
    return (
        plan.shape == "groups"
        and plan.is_one_table
        and all(in_kernels(use, plan) for use in plan.states)
    )


def of_rows(plan: Plan) -> bool:
    """Whether the rows of the only partition are all that its outputs are made of.

    Then they are grouped once for all outputs, and not made distinct pairs first, which would only
    make less of what other partitions are to get.
    """
    return (
        plan.shape == "groups"
        and not plan.states
        and not _has_unobserved(plan)
        and all(
            output.column is not None
            and output.custom is None
            and dtype_class(plan.columns[output.column].dtype)
            in REGISTRY[output.aggregation].kernels
            for output in plan.outputs
        )
        and not plan.grouped
    )


def _has_unobserved(plan: Plan) -> bool:
    """Whether groups that no row has belong to the result."""
    return not plan.observed and any(dtype_class(k.dtype) == "category" for k in plan.keys)


def device_classes(name: str) -> tuple[str, ...]:
    """The dtype classes of which the device engine makes an aggregation."""
    record = REGISTRY[name]
    if record.exact:  # an exact aggregation runs in the place of an approximate one
        return ()
    if record.kind is not Kind.MERGEABLE:
        return tuple(c for c in DEVICE_CLASSES if c in record.accepts)
    classes = tuple(
        cls
        for cls, states in record.states.items()
        if all(cls in (*STATES[s].kernels, *STATES[s].libcudf) for s in states)
    )
    # cuDF has no index of decimals
    return tuple(c for c in classes if record.result != "key" or c != "decimal")


def device_refusal(plan: Plan, labels: int = 1) -> Unsupported | None:
    """Why the device engine cannot run a plan; None if it can.

    ``labels`` is the number of levels of the frame's index.
    """
    obstacle = unavailable()
    if obstacle is not None:
        return Unsupported(f"the device engine cannot run here: {obstacle}")
    for key in plan.keys:
        if dtype_class(key.dtype) == "other":
            return Unsupported(f"keys of dtype {key.dtype} are not supported on the device")
        if dtype_class(key.dtype) == "decimal":
            text = f"keys of dtype {key.dtype} are not supported"
            return Unsupported(f"{text}: cuDF has no index of decimals")
    refusals = (_output_refusal(plan, output, labels) for output in plan.outputs)
    return next((refusal for refusal in refusals if refusal is not None), None)


def _output_refusal(plan: Plan, output: Output, labels: int) -> Unsupported | None:
    if output.column is None or output.custom is not None:
        return None
    name, column = output.aggregation, plan.columns[output.column]
    cls = dtype_class(column.dtype)
    if cls not in device_classes(name):
        return Unsupported(
            f"{name} of dtype {column.dtype} is not supported on the device", name, column.label
        )
    ddof = dict(output.parameters).get("ddof", 1)
    # it is a part of the kernels' source
    is_integer = isinstance(ddof, Integral) and not isinstance(ddof, bool)
    if not is_integer or not -(2**31) <= int(ddof) < 2**31:
        return Unsupported("ddof must be a 32-bit integer", name, column.label)
    if name in ("min", "max") and cls == "category" and not column.dtype.ordered:
        text = f"{name} of categories that have no order"
        return Unsupported(f"{text} is not supported", name, column.label)
    if name in ("idxmin", "idxmax") and labels > 1:
        text = f"{name} of rows whose index has several levels"
        return Unsupported(f"{text} is not supported", name, column.label)
    return None
