"""Series for Prometheus, on the pages ``/metrics`` that distributed serves.

distributed writes what is registered in the process's registry of ``prometheus_client``, where that
is installed. What is counted here is registered there beside its own.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any

import dask

from dask_gpuagg.reporting.runs import activity

_log = logging.getLogger("dask_gpuagg")

Events = Callable[[Any], Iterable[Mapping[str, str]]]

# columns of an entry of ``activity``, from calls on: name and help of its series
_OF_TASKS = {
    "tasks": "Tasks of group-bys that have ended.",
    "task_seconds": "Wall time in tasks of group-bys, summed over threads.",
    "task_rows_in": "Rows of partitions and partials that went in.",
    "task_rows_out": "Rows of partials and results that came out.",
    "task_bytes": "Bytes of keys and values that were read, or of pieces that are exchanged.",
}
_OF_KERNELS = {
    "kernel_calls": "Calls of the kernels.",
    "kernel_seconds": "Wall time of calls of the kernels.",
    "kernel_rows": "Rows that the kernels grouped.",
    "kernel_groups": "Groups that the kernels found.",
    "kernel_bytes": "Bytes of keys and values that the kernels read.",
    "kernel_groups_expected": "Groups that were expected when the kernel was chosen.",
    "kernel_rows_spilled": "Rows that found no place in a table and went on to the next stage.",
}

# what collects, by its kind; None where it was refused
_registered: dict[type, Any] = {}
_lock = Lock()


def export_activity() -> None:
    """Add what this process does to its metrics, if it serves any."""
    _register(Activity, Activity)


def export_fallbacks(scheduler: Any, events: Events) -> None:
    """Add fallbacks to the metrics of a scheduler, if it serves any.

    Parameters
    ----------
    scheduler : Scheduler
        Which is not kept alive. Of several in one process the latest counts.
    events : callable
        What clients have reported to a scheduler until now.
    """
    found = _register(Fallbacks, lambda: Fallbacks(scheduler, events))
    if found is not None:
        found.watch(scheduler, events)


def _register(kind: type, make: Callable[[], Any]) -> Any:
    # distributed has imported it where it serves metrics
    library: Any = sys.modules.get("prometheus_client")
    if library is None:
        return None
    with _lock:
        if kind not in _registered:
            _registered[kind] = None
            made = make()
            try:
                library.REGISTRY.register(made)
            except Exception as error:
                # a user's task asks for this, and does not need it; once, for the next one has none
                _log.warning("no series %s for Prometheus: %s", kind.__name__.lower(), error)
            else:
                _registered[kind] = made
        return _registered[kind]


def _counter(name: str, text: str, labels: Iterable[str] = ()) -> Any:
    from prometheus_client.core import CounterMetricFamily

    # as distributed's own series begin
    namespace = dask.config.get("distributed.dashboard.prometheus.namespace", "dask")
    full = "_".join(part for part in (namespace, "groupby", name) if part)
    return CounterMetricFamily(full, text, labels=list(labels))


class Activity:
    """Collects what the tasks and kernels of this process have done, by step."""

    def collect(self) -> Iterator[Any]:
        """Called for each reading."""
        found = activity()
        rows = _counter("rows", "Rows of partitions that were grouped, also by running tasks.")
        rows.add_metric([], found["rows"])
        yield rows
        of_tasks = [e for e in found["steps"] if not e[2]]
        of_kernels = [e for e in found["steps"] if e[2]]
        for i, (name, text) in enumerate(_OF_TASKS.items(), 3):
            made = _counter(name, text, ("step", "engine"))
            for entry in of_tasks:
                made.add_metric(entry[:2], entry[i])
            yield made
        for i, (name, text) in enumerate(_OF_KERNELS.items(), 3):
            made = _counter(name, text, ("step", "kernel"))
            for entry in of_kernels:
                made.add_metric([entry[0], entry[2]], entry[i])
            yield made


class Fallbacks:
    """Collects the group-bys that clients ran by stock Dask, by reason."""

    def __init__(self, scheduler: Any, events: Events) -> None:
        self.watch(scheduler, events)

    def watch(self, scheduler: Any, events: Events) -> None:
        """Collect those of another scheduler from now on."""
        # the registry of a process outlives its schedulers
        self._watched = weakref.ref(scheduler), events

    def collect(self) -> Iterator[Any]:
        """Called for each reading."""
        made = _counter("fallbacks", "Group-bys that ran by stock Dask.", ("reason",))
        of, events = self._watched
        scheduler = of()
        found = () if scheduler is None else events(scheduler)
        for reason, n in Counter(event["reason"] for event in found).items():
            made.add_metric([reason], n)
        yield made
