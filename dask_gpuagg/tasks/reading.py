"""Reading the partitions of a chunk inside of its task, some of them ahead of their use."""

import contextvars
import copy
import importlib
import operator
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from dask._task_spec import Task
from dask.dataframe.dask_expr.io.parquet import ReadParquetPyarrowFS
from dask.dataframe.io.parquet.arrow import ArrowDatasetEngine
from dask.dataframe.io.parquet.core import ParquetFunctionWrapper
from dask.dataframe.io.utils import _is_local_fs

from dask_gpuagg.cache import OfObjects
from dask_gpuagg.engines.host.grouping import is_dictionary
from dask_gpuagg.reporting.runs import activity, rows_done

# a partition, its computed keys and labels of the others, and which rows stay, if not all
Frame = tuple[Any, list[Any], Any]

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
    frame, mask, *by = (results[source] if is_result else source for is_result, source in sources)
    return frame, by, mask


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


# an argument of pyarrow's to_pandas: columns that need no conversion are views of what was read
AS_READ = {"split_blocks": True}
# Text that is written out takes four bytes for its length: below, it is in a dictionary.
_LENGTH_BYTES = 4
# Encodings of text that pyarrow reads into a dictionary; of those that take the difference from the
# text before it does not.
_READABLE = frozenset(("PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"))

_TEXT_KEYS = "gpuagg_text_keys"
BOUNDS = "gpuagg_bounds"

# the smallest and the largest value, either may be ``None``, and whether these are outside
Range = tuple[Any, Any, bool]
# of all rows to be read: columns, their types in the file, and ranges of which a value is in one
Bounds = tuple[tuple[str, pa.DataType, tuple[Range, ...]], ...]

# all tasks of a collection have the same metadata
_labels: OfObjects[pd.DataFrame] = OfObjects(8)


class ColumnsAsRead(ArrowDatasetEngine):
    """Dask's reader of Parquet, whose columns may be views of what pyarrow has decoded.

    pandas keeps the columns of one dtype next to each other, for which pyarrow copies all that it
    has decoded; the host engine reads columns one at a time.
    Its argument ``gpuagg_text_keys`` names columns of text that may be read as dictionaries, and
    ``gpuagg_bounds`` has the ``Bounds`` of the rows that are needed.
    """

    @classmethod
    def multi_support(cls) -> bool:
        """Whether several pieces are read into one table, whose rows are numbered together."""
        return bool(ArrowDatasetEngine.multi_support())

    @classmethod
    def _read_table(
        cls,
        path_or_frag: Any,
        fs: Any,
        row_groups: Any,
        columns: Any,
        schema: Any,
        filters: Any,
        partitions: Any,
        *args: Any,
        **kwargs: Any,
    ) -> pa.Table:
        keys, bounds = kwargs.get(_TEXT_KEYS, ()), kwargs.get(BOUNDS, ())
        is_local = isinstance(path_or_frag, str) and _is_local_fs(fs)
        has_options = (
            filters
            or partitions
            or any(v is not None and v != {} for v in kwargs.get("read", {}).values())
        )
        if (keys or bounds) and is_local and not has_options:
            with fs.open(path_or_frag, mode="rb") as file:
                return _table_of(file, row_groups, columns, keys, bounds)
        read: Any = super()._read_table
        return read(
            path_or_frag, fs, row_groups, columns, schema, filters, partitions, *args, **kwargs
        )

    @classmethod
    def _arrow_table_to_pandas(
        cls, arrow_table: pa.Table, categories: Any, *args: Any, **kwargs: Any
    ) -> pd.DataFrame:
        numbered = [
            name
            for name in kwargs.pop(_TEXT_KEYS, ())
            if is_dictionary(pd.ArrowDtype(arrow_table.schema.field(name).type))
        ]
        # Dask adds to the dictionary of these arguments
        kwargs["arrow_to_pandas"] = dict(AS_READ)
        rest = arrow_table.drop_columns(numbered)
        frame = super()._arrow_table_to_pandas(rest, categories, *args, **kwargs)
        for name in numbered:
            column = arrow_table[name]
            frame[name] = pd.array(column, dtype=pd.ArrowDtype(column.type))
        return frame


def _table_of(
    file: Any, row_groups: Any, columns: Any, keys: Collection[str], bounds: Bounds
) -> pa.Table:
    """The columns of a file, those of the keys as dictionaries where the file has them so."""
    options: dict[str, Any] = {"pre_buffer": True}
    opened = pq.ParquetFile(file, **options)
    if bounds:
        groups = range(opened.num_row_groups) if row_groups == [None] else row_groups
        row_groups = _within(bounds, groups, opened.metadata, columns)
    numbered = _in_dictionaries(opened.metadata, keys) if keys else []
    if numbered:
        options |= {"read_dictionary": numbered, "metadata": opened.metadata}
        opened = pq.ParquetFile(file, **options)
    how = {"columns": columns, "use_threads": False, "use_pandas_metadata": True}
    if row_groups == [None]:
        return opened.read(**how)
    return opened.read_row_groups(row_groups, **how)


def _within(
    bounds: Bounds, groups: Iterable[int], metadata: pq.FileMetaData, columns: Collection[str]
) -> list[int]:
    """Those of a file's row groups that may have rows within bounds, by their statistics.

    And those with nulls of integers or bools, which decide on the dtype of the file's column.
    """
    place = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    types = {f.name: f.type for f in metadata.schema.to_arrow_schema() if f.name in place}
    ranges = [(place[name], some) for name, dtype, some in bounds if types.get(name) == dtype]
    exact = (pa.types.is_integer, pa.types.is_boolean)
    changed = [place[c] for c in columns if c in types and any(is_of(types[c]) for is_of in exact)]

    def is_read(group: pq.RowGroupMetaData) -> bool:
        nulls = (group.column(i).statistics for i in changed)
        if any(s is None or not s.has_null_count or s.null_count for s in nulls):
            return True
        return all(_meets(group.column(i).statistics, some) for i, some in ranges)

    return [group for group in groups if is_read(metadata.row_group(group))]


def _meets(statistics: pq.Statistics | None, ranges: Sequence[Range]) -> bool:
    """Whether a column of a row group may have a value inside of one of some ranges."""
    if statistics is None or not statistics.has_min_max:
        return True
    try:
        smallest, largest = statistics.min, statistics.max
    except (ValueError, OverflowError):  # times and texts that Python has no objects of
        return True
    # as NaN compares, nothing is outside
    return not all(
        (low is not None and (largest < low or (is_open and largest == low)))
        or (high is not None and (smallest > high or (is_open and smallest == high)))
        for low, high, is_open in ranges
    )


def _in_dictionaries(metadata: pq.FileMetaData, keys: Collection[str]) -> list[str]:
    """The columns of which every row group has its text in a dictionary.

    Numbers of a column that is part text and part dictionary cost more than its text.
    """
    is_dictionary_only = dict.fromkeys(keys, True)
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        for column in map(group.column, range(group.num_columns)):
            name = column.path_in_schema
            if name in is_dictionary_only:
                text = column.total_uncompressed_size >= _LENGTH_BYTES * column.num_values
                is_dictionary_only[name] &= not text and _READABLE.issuperset(column.encodings)
    return [name for name, is_only in is_dictionary_only.items() if is_only]


def as_read(task: Task, text_keys: Collection[str] = ()) -> Task:
    """The task of a reader with columns as they were read, or the task as it is.

    Text keys may be Arrow's dictionaries in the result. Otherwise it has the values, dtypes and
    labels of Dask's; of cuDF, whose files are read on streams of their own, not the labels.
    """
    if task.func is operator.getitem and task.args and type(task.args[0]) is Task:
        inner = as_read(task.args[0])
        return _of(task, task.func, (inner, *task.args[1:]), task.kwargs)
    if task.func is ReadParquetPyarrowFS._table_to_pandas and not task.kwargs["arrow_to_pandas"]:
        return _of(task, task.func, task.args, task.kwargs | {"arrow_to_pandas": AS_READ})
    if type(task.func) is not ParquetFunctionWrapper:
        return task
    reader = copy.copy(task.func)
    if reader.engine.__name__ == "CudfEngine" and reader.engine.__module__.startswith("dask_cudf."):
        meta = reader.meta
        # imports cuDF, which only users of cuDF have
        reader.engine = importlib.import_module("dask_gpuagg.engines.device.files").ReadOnStreams
        # A reader asks how the labels are named, no more. cuDF would copy its metadata from the
        # device and back on the way to the scheduler, and again to a worker.
        reader.meta = _labels.of(
            meta, lambda: pd.DataFrame(columns=pd.Index([], name=meta.columns.name))
        )
        return _of(task, reader, task.args, task.kwargs)
    if (
        reader.engine in (ArrowDatasetEngine, ColumnsAsRead)
        and "arrow_to_pandas" not in reader.common_kwargs
    ):
        reader.engine = ColumnsAsRead
        # text of one piece beside the dictionary of another would be joined to objects
        several = bool(task.args) and isinstance(task.args[0], list) and len(task.args[0]) > 1
        if text_keys and not several:
            reader.common_kwargs = reader.common_kwargs | {_TEXT_KEYS: tuple(text_keys)}
        return _of(task, reader, task.args, task.kwargs)
    return task


def _of(task: Task, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task:
    return Task(task.key, run, *args, _data_producer=task.data_producer, **kwargs)
