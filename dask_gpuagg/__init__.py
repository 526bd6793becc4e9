"""Group-by for Dask DataFrame and dask-cuDF: right answers, nothing to tune.

After ``dask_gpuagg.enable()`` an unchanged ``ddf.groupby(...).agg(...)`` runs our partial,
combine and finalize instead of Dask's. ``explain(query)`` says what would run and why.
"""

from typing import Any

import dask

from dask_gpuagg._version import __version__
from dask_gpuagg.settings import DEFAULTS, BadSetting, switch

dask.config.update_defaults(DEFAULTS)

from dask_gpuagg.cluster import check_cluster  # noqa: E402
from dask_gpuagg.explain import Explanation, explain, why_not  # noqa: E402
from dask_gpuagg.frontend.activation import disable, enable, enabled, is_enabled  # noqa: E402
from dask_gpuagg.profiling import Fallbacks, fallbacks, last_runs, profile  # noqa: E402
from dask_gpuagg.reporting.fallbacks import FallbackWarning, Reason, UnsupportedGroupBy  # noqa: E402

__all__ = [
    "BadSetting",
    "Explanation",
    "FallbackWarning",
    "Fallbacks",
    "GpuWorker",
    "Reason",
    "UnsupportedGroupBy",
    "__version__",
    "check_cluster",
    "disable",
    "enable",
    "enabled",
    "explain",
    "fallbacks",
    "group_by_page",
    "is_enabled",
    "last_runs",
    "load_ipython_extension",
    "profile",
    "unload_ipython_extension",
    "why_not",
]


def load_ipython_extension(ipython: Any) -> None:
    """Enable the plugin: ``%load_ext dask_gpuagg``."""
    enable()


def unload_ipython_extension(ipython: Any) -> None:
    """Restore stock Dask: ``%unload_ext dask_gpuagg``."""
    disable()


if switch():
    enable()


def __getattr__(name: str) -> Any:
    # importing distributed takes longer than the rest of the package, and not all need it
    if name == "GpuWorker":
        from dask_gpuagg.worker.plugin import GpuWorker

        return GpuWorker
    if name == "group_by_page":
        from dask_gpuagg.dashboard import group_by_page

        return group_by_page
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
