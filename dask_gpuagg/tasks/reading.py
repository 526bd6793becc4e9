"""Reading the partitions of a chunk inside of its task, some of them ahead of their use."""

from __future__ import annotations

import contextvars
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from dask_gpuagg.reporting.runs import activity, rows_done

Frame = tuple[Any, list[Any]]

# the worker's metric, a column of the page of workers in Dask's dashboard
ROWS_DONE = "group-by rows"
# another one, of which Dask's own pages show nothing
ACTIVITY = "group-by"


class Chunk(NamedTuple):
    """The partitions of one task, as ``planning.chunks.Chunks.parts`` has them.

    ``results`` are those of other tasks by key. So many ``readers`` read partitions at a time; 0
    where no files are read.
    """

    parts: Sequence[Any]
    results: Mapping[Any, Any]
    readers: int


def gpuagg_on_chunk(
    run: Callable[..., Any],
    parts: Sequence[Any],
    keys: Sequence[Any],
    *values: Any,
    readers: int,
    **options: Any,
) -> Any:
    """Task: call a function of a chunk; ``values`` are what the keys stand for."""
    return run(Chunk(parts, dict(zip(keys, values, strict=True)), readers), **options)


class ChunkCancelled(RuntimeError):
    """The task was cancelled, or given to another worker, while it read its partitions."""


def frame_of(part: tuple[Any, Any], results: Mapping[Any, Any]) -> Frame:
    """Run the tasks of one partition, which take ``results`` of others."""
    tasks, sources = part
    results = dict(results)
    for task in tasks:
        results[task.key] = task({key: results[key] for key in task.dependencies})
    frame, *by = (results[source] if is_result else source for is_result, source in sources)
    return frame, by


@contextmanager
def reading(parts: Sequence[Any], readers: int) -> Iterator[Iterator[Frame]]:
    """Partitions that are read by threads, in their order; by this one where one is to read.

    As many are read at a time, and as many at most wait to be used. Of the host's tasks as many run
    as there are cores: another thread would only take the time of theirs. Between two partitions
    ``ChunkCancelled`` is raised where the result is not needed any more.
    """
    if readers == 1 or len(parts) == 1:
        yield _one_by_one(parts)
        return
    pool = ThreadPoolExecutor(readers, "gpuagg-read", _take_state, (_state_of_task(),))
    try:
        yield _ahead(pool, parts, readers)
    finally:
        # reads that have not begun are cancelled
        pool.shutdown(wait=True, cancel_futures=True)


def _one_by_one(parts: Sequence[Any]) -> Iterator[Frame]:
    worker, key = this_task()
    for i, part in enumerate(parts):
        if i:
            _require_wanted(worker, key)
        yield frame_of(part, {})


def _ahead(pool: ThreadPoolExecutor, parts: Sequence[Any], readers: int) -> Iterator[Frame]:
    waiting: deque[tuple[Any, Future[Frame]]] = deque()
    left = iter(parts)
    worker, key = this_task()

    def begin() -> None:
        while len(waiting) < (1 if _is_paused(worker) else readers):
            part = next(left, None)
            if part is None:
                return
            run = contextvars.copy_context().run
            waiting.append((part, pool.submit(run, frame_of, part, {})))

    begin()
    while waiting:
        part, future = waiting.popleft()
        frames = []
        with suppress(MemoryError):
            frames.append(future.result())
        # a failed one keeps what it had read, and a yielded one is not to be kept
        del future
        if frames and not _is_paused(worker):
            # all readers work while this one is used
            begin()
        yield frames.pop() if frames else _read_again(part)
        _require_wanted(worker, key)
        begin()


def _read_again(part: Any) -> Frame:
    """A partition, read once cached memory is given back."""
    from dask_gpuagg.engines.device.memory import free_cached

    free_cached()
    return frame_of(part, {})


def show_progress() -> None:
    """Let the worker of this task report what is done, by heartbeats."""
    state = _state_of_task().get("execution_state")
    if state is not None:
        worker = state["worker"]
        if ACTIVITY not in worker.metrics:
            # in a new mapping: a heartbeat in another thread may be reading this one, and a failed
            # heartbeat closes the worker
            shown = {ROWS_DONE: lambda _: rows_done(), ACTIVITY: lambda _: activity()}
            worker.metrics = worker.metrics | shown


def this_task() -> tuple[Any, Any]:
    """The worker and the key of the task that runs in this thread; ``None`` outside of clusters."""
    state = _state_of_task()
    if "execution_state" not in state:
        return None, None
    return state["execution_state"]["worker"], state["key"]


def _state_of_task() -> dict[str, Any]:
    """The state of this thread's task, which ``get_worker`` and others read."""
    # which another thread may be importing
    state = getattr(sys.modules.get("distributed.worker"), "thread_state", None)
    return {} if state is None else dict(state.__dict__)


def _take_state(state: dict[str, Any]) -> None:
    """Give a thread the state of the task: readers may ask for the worker that they run on."""
    if state:
        sys.modules["distributed.worker"].thread_state.__dict__.update(state)


def _is_paused(worker: Any) -> bool:
    return worker is not None and worker.status.name == "paused"


def _require_wanted(worker: Any, key: Any) -> None:
    if worker is None:
        return
    task = worker.state.tasks.get(key)
    if task is None or task.state not in ("executing", "long-running"):
        raise ChunkCancelled(f"task {key!r} was cancelled while it read its partitions")
