"""Runs and their times, fallbacks and their reasons: sinks of the events of this process."""

from dask_gpuagg.reporting import runs
from dask_gpuagg.reporting.events import FellBack, Kernel, Planned, Step, register

register(runs.session, Planned, FellBack, Step, Kernel)
register(runs.remember, Step, Kernel)
