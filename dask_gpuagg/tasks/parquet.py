"""Reading Parquet for the host engine: columns stay where pyarrow has decoded them.

pandas keeps the columns of one dtype next to each other, for which pyarrow copies all that it has
decoded. The engine reads columns one at a time. Of text keys that a file holds as a dictionary, it
reads the numbers.
"""

from __future__ import annotations

import copy
import importlib
import operator
from collections.abc import Collection
from typing import Any

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

# an argument of pyarrow's to_pandas: columns that need no conversion are views of what was read
AS_READ = {"split_blocks": True}
# Text that is written out takes four bytes for its length: below, it is in a dictionary.
_LENGTH_BYTES = 4
# Encodings of text that pyarrow reads into a dictionary; of those that take the difference from the
# text before it does not.
_READABLE = frozenset(("PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"))

_TEXT_KEYS = "gpuagg_text_keys"

# all tasks of a collection have the same metadata
_labels: OfObjects[pd.DataFrame] = OfObjects(8)


class ColumnsAsRead(ArrowDatasetEngine):
    """Dask's reader of Parquet, whose columns may be views of what pyarrow has decoded.

    Its argument ``gpuagg_text_keys`` names columns of text that may be read as dictionaries.
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
        keys = kwargs.get(_TEXT_KEYS, ())
        is_local = isinstance(path_or_frag, str) and _is_local_fs(fs)
        has_options = (
            filters
            or partitions
            or any(v is not None and v != {} for v in kwargs.get("read", {}).values())
        )
        if keys and is_local and not has_options:
            with fs.open(path_or_frag, mode="rb") as file:
                return _table_of(file, row_groups, columns, keys)
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


def _table_of(file: Any, row_groups: Any, columns: Any, keys: Collection[str]) -> pa.Table:
    """The columns of a file, those of the keys as dictionaries where the file has them so."""
    options: dict[str, Any] = {"pre_buffer": True}
    opened = pq.ParquetFile(file, **options)
    numbered = _in_dictionaries(opened.metadata, keys)
    if numbered:
        options |= {"read_dictionary": numbered, "metadata": opened.metadata}
        opened = pq.ParquetFile(file, **options)
    how = {"columns": columns, "use_threads": False, "use_pandas_metadata": True}
    if row_groups == [None]:
        return opened.read(**how)
    return opened.read_row_groups(row_groups, **how)


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
    if reader.engine is ArrowDatasetEngine and "arrow_to_pandas" not in reader.common_kwargs:
        reader.engine = ColumnsAsRead
        # text of one piece beside the dictionary of another would be joined to objects
        several = bool(task.args) and isinstance(task.args[0], list) and len(task.args[0]) > 1
        if text_keys and not several:
            reader.common_kwargs = reader.common_kwargs | {_TEXT_KEYS: tuple(text_keys)}
        return _of(task, reader, task.args, task.kwargs)
    return task


def _of(task: Task, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task:
    return Task(task.key, run, *args, _data_producer=task.data_producer, **kwargs)
