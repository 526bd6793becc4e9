"""Runs and their times, fallbacks and their reasons: sinks of the events of this process."""

from dask_gpuagg.reporting import runs
from dask_gpuagg.reporting.events import FellBack, Kernel, Planned, TaskEnded, register

register(runs.session, Planned, FellBack, TaskEnded, Kernel)
register(runs.remember, TaskEnded, Kernel)
