"""Setup of a GPU worker: pooled memory, an initialized driver, compiled kernels."""

import gc
import importlib
import importlib.util
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from dask._expr import optimize_until
from dask.dataframe import from_pandas
from dask.sizeof import sizeof
from dask.utils import parse_bytes
from distributed import WorkerPlugin

from dask_gpuagg._version import __version__
from dask_gpuagg.cuda.aggregate import prepare
from dask_gpuagg.cuda.query.instantiations import UNITS, first_units
from dask_gpuagg.cuda.runtime import driver, kernels
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.device.memory import copy_files_by_all_cores, resources, spill_manager
from dask_gpuagg.frontend import logical
from dask_gpuagg.plan import Plan, Unsupported
from dask_gpuagg.reporting.events import dry_run
from dask_gpuagg.settings import task_settings, using


class GpuWorker(WorkerPlugin):
    """Sets up each worker, also those that join later: ``client.register_plugin(GpuWorker())``.

    Parameters
    ----------
    pool : str or int, optional
        Device memory that RMM takes at once and hands out from then on: bytes, or text such as
        ``"20GB"``. By default memory stays as it is. A resource that dask-cuda or the user has set
        is left alone.
    examples : sequence of dask.dataframe collections, optional
        Group-bys whose kernels each worker compiles, or loads from the cache on disk, in the
        background: queries of the same types and aggregations then find them ready. By default
        sum, count, mean, min and max of a float64 column, by an int64 and by a string key. None
        if empty.

    Notes
    -----
    Unless ``KVIKIO_NTHREADS`` is set, libcudf copies files to the device by a thread for each core
    of the worker, up to 16, instead of four.

    ``dask_cudf`` is imported as the worker starts, where it is installed: by it Dask knows how
    large the partitions are that arrive.

    The worker's metrics hold versions, device, memory resource, or why kernels cannot run there;
    whether kernels are ready; and bytes of device memory: the most that were in use, where it is
    counted, as of the pool, and those that are spilled.

    Python's garbage collector leaves out what the process has loaded by then (``gc.freeze``): with
    cuDF each full collection, in the middle of some query, would take a tenth of a second or two.
    """

    name = "dask_gpuagg"
    idempotent = True

    # none where there was no setup, or it failed
    _closing: threading.Event | None = None
    _warming: threading.Thread | None = None

    def __init__(
        self, pool: str | int | None = None, examples: Sequence[Any] | None = None
    ) -> None:
        self.pool = None if pool is None else parse_bytes(pool)
        self.examples = usual_examples() if examples is None else []
        for query in examples or ():
            self.examples += examples_of(query)

    def setup(self, worker: Any) -> None:
        """Called by the worker."""
        closing = self._closing = threading.Event()
        report = setup_device(self.pool)
        measured = (lambda _: report) if "device" not in report else lambda w: report | usage(w)
        # in a new mapping: a heartbeat may be reading this one
        worker.metrics = {**worker.metrics, "dask_gpuagg": measured}
        if "device" not in report:
            return
        if worker.nanny is not None:
            # the process is the worker's own: no object of a user's is there yet
            gc.collect()
            gc.freeze()
        if self.examples:
            report["kernels"] = "being made ready"

            def make_ready() -> None:
                report["kernels"] = warm(self.examples, lambda: not closing.is_set())

            # in the background: queries that arrive earlier compile what they need themselves
            self._warming = threading.Thread(target=make_ready, daemon=True)
            self._warming.start()

    def teardown(self, worker: Any) -> None:
        """Called by the worker as it closes; waits for the group-by that is being compiled."""
        if self._closing is not None:
            self._closing.set()
        if self._warming is not None:
            self._warming.join(timeout=30)


def know_sizes() -> None:
    """Let Dask know how large cuDF's frames are, which it learns from dask_cudf.

    Tasks import that late or never; until then frames count as a few bytes, and none is spilled.
    """
    if importlib.util.find_spec("dask_cudf") is not None:
        importlib.import_module("dask_cudf")


def setup_device(pool: str | int | None) -> dict[str, Any]:
    """Make this process ready for the device engine, with the pool of a ``GpuWorker``.

    Returns a dict of ``version`` and either ``unavailable`` (why) or ``device`` and ``memory``.
    """
    report: dict[str, Any] = {"version": __version__}
    obstacle = driver.unavailable()
    if obstacle is not None:
        return report | {"unavailable": obstacle}
    copy_files_by_all_cores()
    know_sizes()
    import rmm

    resource = rmm.mr.get_current_device_resource()
    if pool is not None and type(resource) is rmm.mr.CudaMemoryResource:
        resource = rmm.mr.PoolMemoryResource(resource, initial_pool_size=parse_bytes(pool))
        # counted outside of the pool: what it takes from the device says nothing about its use
        rmm.mr.set_current_device_resource(rmm.mr.StatisticsResourceAdaptor(resource))
    names = (type(resource).__name__ for resource in resources())
    # adaptors count, limit or log what another one hands out
    memory = next((n for n in names if not n.endswith("Adaptor")), type(resource).__name__)
    return report | {"device": driver.current_device().name, "memory": memory}


def usage(worker: Any) -> dict[str, int]:
    """Bytes of device memory that a worker reports with its heartbeats.

    ``peak_bytes`` is the most that was allocated at a time, where an RMM resource counts it, as
    that of ``GpuWorker``'s pool does. ``spilled_bytes`` are data of the device that dask-cuda and
    cuDF have moved to host memory.
    """
    data = getattr(worker, "data", None)
    # of dask-cuda's ``DeviceHostFile``; tasks change both meanwhile
    keys, host = tuple(getattr(data, "device_keys", ())), getattr(data, "host", {})
    values = [host.get(key) for key in keys]
    spilled = sum(sizeof(value) for value in values if value is not None) + spilled_by_cudf()
    counts = (getattr(resource, "allocation_counts", None) for resource in resources())
    peaks = [int(count.peak_bytes) for count in counts if count is not None]
    report = {"peak_bytes": peaks[0]} if peaks else {}
    return report | {"spilled_bytes": spilled}


def spilled_by_cudf() -> int:
    """Bytes of buffers that cuDF has moved; 0 where its option ``spill`` is off."""
    manager = spill_manager()
    if manager is None:
        return 0
    return sum(buffer.size for buffer in manager.buffers() if buffer.is_spilled)


# ---- kernels compiled or loaded before the first query needs them --------------------------------

USUAL = ("sum", "count", "mean", "min", "max")
# kernels for few groups; others are compiled when a query has more
_USUAL_UNITS = first_units(tuple(UNITS), sampled=True)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Example:
    """A group-by whose kernels are made ready."""

    plan: Plan
    # of the result, empty
    meta: Any
    # parts of the translation unit (see ``dask_gpuagg.cuda.query.query``); all if empty
    units: tuple[str, ...] = ()


def usual_examples() -> list[Example]:
    """Each of ``USUAL`` of a float64 column, by an int64 and by a string key, without nulls."""
    frame = pd.DataFrame({"i": np.arange(2), "s": ["a", "b"], "v": np.zeros(2)})
    rows = from_pandas(frame, npartitions=1)
    queries = [getattr(rows.groupby(key).v, name)() for key in ("i", "s") for name in USUAL]
    return [
        replace(example, units=_USUAL_UNITS) for query in queries for example in examples_of(query)
    ]


def examples_of(collection: Any) -> list[Example]:
    """The group-bys of a collection; Unsupported if there are none, or none for the device.

    Aggregations that stock Dask refuses need the plugin on when the collection is made.
    """
    tuned = optimize_until(collection.expr, "tuned-logical")
    nodes = {node._name: node for node in tuned.walk() if logical.is_aggregation(node)}
    if not nodes:
        raise Unsupported("an example query without a group-by")
    examples: list[Example] = []
    for query in map(logical.read, nodes.values()):
        if query.plan not in [example.plan for example in examples]:
            examples.append(Example(query.plan, query.meta))
    return examples


def warm(examples: Sequence[Example], go_on: Callable[[], bool] = lambda: True) -> str:
    """Run group-bys on two rows, and compile or load the kernels that they need for more.

    It stops where ``go_on`` returns false, and returns a text: no error leaves this function, which
    has no query to answer.
    """
    started, done = time.perf_counter(), 0
    try:
        for example in examples:
            if not go_on():
                break
            _rehearse(example)
            done += 1
    except Exception as error:
        message = f"failed after {done} of {len(examples)} group-bys: {error!r}"
        _logger.warning("warming the kernel cache %s", message)
        return message
    return f"ready for {done} group-bys after {time.perf_counter() - started:.1f} s"


def _rehearse(example: Example) -> None:
    from dask_gpuagg.engines.device import engine

    plan = example.plan
    keys = [_two_rows(key.dtype) for key in plan.keys]
    columns = [_two_rows(column.dtype) for column in plan.columns]
    before = set(kernels.known_queries())
    waits = replace(task_settings(), compile="wait")
    with dry_run(), using(waits):
        partial = engine.partial(keys, columns, None, plan)
        if plan.is_one_table:
            engine.direct_of_columns(keys, columns, plan, engine.shape_of(example.meta))
        # partials are small: the kernels that the rehearsal itself used suffice for them
        prepare(set(kernels.known_queries()) - before, *example.units)
        merged = engine.combine([partial, partial], plan)
        engine.finalize([merged], plan, example.meta)


def _two_rows(dtype: Any) -> Any:
    import cudf

    if dtype_class(dtype) in ("string", "category"):
        texts = cudf.Series(["a", "b"])
        return texts if dtype_class(dtype) == "string" else texts.astype("category")
    return cudf.Series([0, 1]).astype(dtype)
