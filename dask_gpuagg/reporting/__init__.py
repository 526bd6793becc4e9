"""Runs and their times, fallbacks and their reasons.

The sinks of every process are registered here; others come and go, as those of ``profile``.
"""

from dask_gpuagg.reporting import runs
from dask_gpuagg.reporting.events import (
    FellBack,
    Kernel,
    Planned,
    Progress,
    Step,
    register,
)
from dask_gpuagg.reporting.fallbacks import tally

register(tally.plan, Planned)
register(tally.fall_back, FellBack)
register(runs.add_progress, Progress)
register(runs.add_step, Step)
register(runs.add_kernel, Kernel)
