"""Whether the GPU groups host partitions: where it is asked to, can, and makes the same."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from typing import Any

from dask_gpuagg.cuda.runtime.driver import unavailable
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.plan import Plan
from dask_gpuagg.reporting.events import Fallback, FellBack, emit
from dask_gpuagg.reporting.fallbacks import UnsupportedGroupBy, warn_user
from dask_gpuagg.states import STATES
from dask_gpuagg.streaming.batches import is_exact


def refusal(plan: Plan) -> str | None:
    """Why the host engine groups the partitions of a plan of pandas; None if the GPU does."""
    if plan.shape != "groups" or not plan.is_one_table:
        return "distinct values and whole groups of host partitions are the host engine's"
    if not plan.observed and any(dtype_class(key.dtype) == "category" for key in plan.keys):
        return "groups of categories that no row has are the host engine's"
    for key in plan.keys:
        if not is_exact(key.dtype, key=True):
            return f"keys of dtype {key.dtype} are the host engine's"
    for use in plan.states:
        for c in use.columns:
            column = plan.columns[c]
            accepted = dtype_class(column.dtype) in STATES[use.state].kernels
            if not accepted or not is_exact(column.dtype, key=False):
                words = STATES[use.state].words or use.state
                return f"{words} of dtype {column.dtype} is the host engine's"
        if not STATES[use.state].kernels:
            return f"{STATES[use.state].words or use.state} is the host engine's"
    return None


def is_as_promised(keys: Any, columns: Any, plan: Plan) -> bool:
    """Whether the columns of a partition have the dtypes of the plan."""
    dtypes = [column.dtype for column in (*keys, *columns)]
    promised = [column.dtype for column in (*plan.keys, *plan.columns)]
    return all(
        is_exact(own, key=i < len(keys))
        and (own == other or dtype_class(own) == dtype_class(other) == "category")
        for i, (own, other) in enumerate(zip(dtypes, promised, strict=True))
    )


def streams(plan: Plan) -> bool:
    """Whether the GPU groups the host partitions of a plan.

    Where it was asked to and does not, the reason is counted, and warned of once in each process,
    or raised under ``gpuagg.fallback: raise``.
    """
    settings = plan.settings
    if settings is None or settings.engine != "device":
        return False
    reason = refusal(plan) or obstacle()
    if reason is None:
        return True
    if settings.fallback == "raise":
        raise UnsupportedGroupBy(f"gpuagg.engine is 'device', but {reason}")
    emit(FellBack(Fallback("a group-by of host partitions", "runs on the host", reason)))
    if settings.fallback == "warn":
        _warn(reason)
    return False


@lru_cache(1)
def obstacle() -> str | None:
    """Why no partition can be grouped on a GPU in this process; None if it can."""
    if importlib.util.find_spec("cudf") is None:
        return "cuDF is not installed"
    return unavailable()


@lru_cache(1000)
def _warn(reason: str) -> None:
    warn_user(f"gpuagg.engine is 'device', but a group-by runs on the host: {reason}")
