"""Whether the GPU groups host partitions: where it is asked to, can, and makes the same."""

from __future__ import annotations

import importlib.util
from functools import lru_cache

from dask_gpuagg.cuda.runtime.driver import unavailable
from dask_gpuagg.plan import Plan
from dask_gpuagg.reporting.events import Fallback, FellBack, emit
from dask_gpuagg.reporting.fallbacks import UnsupportedGroupBy, warn_user
from dask_gpuagg.streaming.support import refusal


def streams(plan: Plan) -> bool:
    """Whether the GPU groups the host partitions of a plan.

    Where it was asked to and does not, the reason is counted, and warned of once in each process.

    Raises
    ------
    UnsupportedGroupBy
        In place of the warning under ``gpuagg.fallback: raise``.
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
