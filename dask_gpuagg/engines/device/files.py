"""Parquet for the device: several reads at a time, each on a stream of its own.

cuDF reads on one stream, whichever thread asks. There the pages of one file are decoded after those
of another, and they are too few to keep a GPU busy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any

import cudf
import pylibcudf as plc
from dask.dataframe.io.utils import _is_local_fs
from dask_cudf.io.parquet import CudfEngine
from pylibcudf.utils import _get_stream
from rmm.pylibrmm.stream import DEFAULT_STREAM, Stream

from dask_gpuagg.cuda.runtime.driver import current_device
from dask_gpuagg.engines.device.memory import copy_files_by_all_cores

# reads that are decoded side by side
_STREAMS = 4
_OF_EVERY_DATASET = {"partitioning", "format"}
# options of dask-cudf's reader: without effect on plain files, and those that leave rows out or
# make columns
_IGNORED = {"partitioning", "open_file_options", "dataset_kwargs"}
_CHOOSING = {"filters", "partitions", "partition_keys"}

_lock = Lock()
# by the number of the device
_streams: dict[int, Iterator[Stream]] = {}


class ReadOnStreams(CudfEngine):  # type: ignore[misc]
    """dask-cudf's reader of Parquet, for columns whose row labels nobody reads."""

    @classmethod
    def multi_support(cls) -> bool:
        """Whether several files are read into one table."""
        return bool(CudfEngine.multi_support())

    @classmethod
    def _read_paths(
        cls,
        paths: Sequence[str],
        fs: Any,
        columns: Sequence[str] | None = None,
        row_groups: Any = None,
        **options: Any,
    ) -> Any:
        # where no folder is named after a value, of which ``partitions`` has the columns, Dask's
        # dataset says no more than that files are Parquet
        is_usual = options.keys() <= _IGNORED | _CHOOSING
        is_usual &= set(options.get("dataset_kwargs") or ()) <= _OF_EVERY_DATASET
        chooses = columns == [] or any(options.get(name) for name in _CHOOSING)
        # The default stream waits for ours and they for it, so that memory is used again in the
        # right order. A stream for each thread would not.
        is_ordered = _get_stream() == DEFAULT_STREAM
        if not is_usual or chooses or not is_ordered or not _is_local_fs(fs):
            return super()._read_paths(paths, fs, columns=columns, row_groups=row_groups, **options)
        builder = plc.io.parquet.ParquetReaderOptions.builder(plc.io.SourceInfo(list(paths)))
        options_of_read = builder.use_pandas_metadata(False).build()
        if columns is not None:
            options_of_read.set_column_names(list(columns))
        if row_groups and row_groups != [None] * len(paths):
            options_of_read.set_row_groups(row_groups)
        return cudf.DataFrame.from_pylibcudf(
            plc.io.parquet.read_parquet(options_of_read, _next_stream())
        )


def _next_stream() -> Stream:
    """One of some streams of the calling thread's device, in turn."""
    number = current_device().ordinal
    with _lock:
        if number not in _streams:
            # where no GpuWorker has, and before libcudf reads a file for us
            copy_files_by_all_cores()
            _streams[number] = itertools.cycle([Stream() for _ in range(_STREAMS)])
        return next(_streams[number])
