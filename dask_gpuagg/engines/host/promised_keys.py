"""Keys of groups in the dtypes that were promised, where partitions turned out to have others."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.host.conform import categories_of
from dask_gpuagg.engines.host.grouping import is_dictionary
from dask_gpuagg.plan import Column


def of_no_group(key: pd.Series, promised: Column) -> pd.Series:
    """A key of a partition without groups: objects or NaN without a value have no dtype."""
    found, wanted = dtype_class(key.dtype), dtype_class(promised.dtype)
    nothing = isinstance(key.dtype, np.dtype) and found in ("object", "float") and key.isna().all()
    if not nothing or wanted in (found, "category"):
        return key.iloc[:0]
    # objects, of which stacking takes no dtype where others have rows or a dtype
    return pd.Series([], dtype=object)


def as_text(key: Any, promised: Column) -> Any:
    """A key of the groups that was read as a dictionary of text, which was promised as text."""
    if not (is_dictionary(key.dtype) and isinstance(promised.dtype, pd.StringDtype)):
        return key
    texts = pa.array(key)  # of no rows a chunked array, which only a cast decodes
    return pd.array(texts.cast(texts.type.value_type), dtype=promised.dtype)


def as_promised(key: Any, promised: Column, level: Any) -> Any:
    """A key of the groups, with categories only where the metadata has them.

    Outputs of one result may have met different partitions: those that hold categories, text or
    Python objects. They have to agree, or Dask cannot concatenate them. ``level`` is the dtype of
    the result's index by its metadata: that of ``unique`` has lost the categories.
    """
    wanted = dtype_class(promised.dtype)
    found = dtype_class(key.dtype)
    if len(key) == 0 and found != "category":
        return pd.Series(key).astype(promised.dtype).array
    if wanted == "category":
        kept = found == "category" or dtype_class(level) != "category"
        return key if kept else categories_of(key, promised.dtype)
    if found == "category":
        return pd.Series(key).astype(key.categories.dtype).array
    null = pd.isna(key)
    if wanted == "object" or (found != "object" and not null.all()):
        return key
    held = pd.Series(key).astype(object)
    # None is null to every dtype, and NaN to those that pandas takes from the values
    for dtype, nothing in ((promised.dtype, None), (None, np.nan)):
        objects = held.where(~null, nothing).tolist()
        with suppress(TypeError, ValueError, OverflowError):
            made = pd.Series(objects, dtype=dtype)
            # floats are not what large integers are, nor integers what fractions are, nor is
            # False what None is
            pairs = zip(null, made.isna(), objects, made.tolist(), strict=True)
            if all(m if n else a == b for n, m, a, b in pairs):
                return made.array
    return key
