"""Runs and their times, fallbacks and their reasons: sinks of the events of this process."""

from dask_gpuagg.reporting import runs
from dask_gpuagg.reporting.events import FellBack, Kernel, Planned, Progress, Step, register

register(runs.session, Planned, FellBack, Step, Kernel)
register(runs.remember, Step, Kernel)
register(runs.add_progress, Progress)
