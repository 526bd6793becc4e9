"""Rows of host partitions in batches: the unit that is copied and grouped by one call.

Their columns are plain memory that a GPU takes; columns of groups get their host dtypes again.
Nothing here needs a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from dask_gpuagg.dtypes import dtype_class

# Kinds of memory, by how values say that they are null.
PLAIN, FLOAT, TICKS, CODES, TEXT = "plain", "float", "ticks", "codes", "text"
# NaT of pandas.
NAT = np.iinfo(np.int64).min
_UNITS = ("s", "ms", "us", "ns")


@dataclass(frozen=True, slots=True)
class Image:
    """A column as it is copied, one-dimensional.

    ``kind`` is ``plain`` values without nulls; ``float``, of which NaN is null; ``ticks`` of times,
    of which ``NAT`` is null; ``codes`` of categories, of which -1 is null; or ``text``, an Arrow
    array. ``dtype`` is of the values on the device, in NumPy's terms.
    """

    kind: str
    values: Any
    dtype: Any

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, start: int, stop: int) -> Image:
        """Some of its rows, not copied."""
        values = self.values
        part = values.slice(start, stop - start) if self.kind == TEXT else values[start:stop]
        return replace(self, values=part)


def is_exact(dtype: Any, key: bool) -> bool:
    """Whether columns of a dtype are the same on a GPU and after the way back.

    Values of a ``key`` are only compared there.
    """
    if isinstance(dtype, pd.DatetimeTZDtype):
        return True
    if isinstance(dtype, pd.CategoricalDtype):
        return key
    if isinstance(dtype, pd.StringDtype):
        return key and dtype.storage == "pyarrow"
    if not isinstance(dtype, np.dtype):
        return False
    if dtype.kind in "mM":
        return np.datetime_data(dtype) in [(unit, 1) for unit in _UNITS]
    native = dtype.isnative
    return native and (dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize in (4, 8)))


def image_of(column: pd.Series) -> Image:
    """A column of an exact dtype as it is copied."""
    dtype = column.dtype
    if isinstance(dtype, pd.StringDtype):
        return Image(TEXT, pa.chunked_array([pa.array(column.array)]), dtype)
    if isinstance(dtype, pd.CategoricalDtype):
        codes = column.cat.codes.to_numpy()
        return Image(CODES, np.ascontiguousarray(codes), codes.dtype)
    if isinstance(dtype, pd.DatetimeTZDtype):
        ticks = np.asarray(column.array.view("int64"))
        return Image(TICKS, np.ascontiguousarray(ticks), np.dtype(f"M8[{dtype.unit}]"))
    values = np.ascontiguousarray(column.to_numpy())
    if dtype.kind in "mM":
        return Image(TICKS, values.view("int64"), dtype)
    return Image(FLOAT if dtype.kind == "f" else PLAIN, values, dtype)


def restored(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None, dtype: Any) -> Any:
    """Values of groups, as ``Image.values`` holds them, in a host dtype; ``valid`` are not null."""
    if isinstance(dtype, pd.CategoricalDtype):
        codes = values if valid is None else np.where(valid, values, values.dtype.type(-1))
        return pd.Categorical.from_codes(codes, dtype=dtype)
    cls = dtype_class(dtype)
    if cls in ("datetime", "timedelta"):
        ticks = values if valid is None else np.where(valid, values, NAT)
        if isinstance(dtype, pd.DatetimeTZDtype):
            utc = pd.Series(ticks.view(f"M8[{dtype.unit}]")).dt.tz_localize("UTC")
            return utc.dt.tz_convert(dtype.tz).array
        return ticks.view(dtype)
    if valid is not None and not valid.all():
        if cls != "float":
            raise AssertionError(f"a null among values of dtype {dtype}, which has none")
        values = np.where(valid, values, dtype.type(np.nan))
    return values.astype(dtype, copy=False)


def restored_text(values: pa.Array | pa.ChunkedArray, dtype: pd.StringDtype) -> Any:
    """Text of groups in a host dtype."""
    return dtype.__from_arrow__(values.cast(pa.large_string()))


# The first batches are small, so that the kernels begin soon.
LEAST_BYTES = 256 << 20
# Later ones are that large: each costs some milliseconds, which its copies take longer.
USUAL_BYTES = 2 << 30
# A batch whose groups are more than this share of its rows is merged again with most of its rows:
# later ones are larger yet.
_REPEATED = 1 / 8
# Smaller ones do not pay for their calls, however short memory is: the host takes those rows.
_FLOOR_BYTES = 1 << 20
# Groups that stay: they are held twice while those of a batch are added, and where they leave.
_SHARE_OF_GROUPS = 4
# Rows of one call.
_MOST_ROWS = 1 << 30


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows ``start`` to ``stop`` of a partition."""

    part: Any
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


Batch = Sequence[Slice]


@dataclass
class Sizes:
    """Bytes of the next batch, and of any batch at ``most``.

    Batches grow to ``usual`` bytes whatever their groups. ``of_groups`` bytes of groups stay on the
    device where they are more than those of a batch; 0: none.
    """

    nbytes: int
    most: int
    usual: int = 0
    of_groups: int = 0

    @classmethod
    def of_memory(cls, total: int, share: int) -> Sizes:
        """For a device with this much memory, of which two batches take a share each."""
        most = max(total // share, _FLOOR_BYTES)
        return cls(min(LEAST_BYTES, most), most, USUAL_BYTES, total // _SHARE_OF_GROUPS)

    def limit(self, most: int) -> None:
        """Let no batch be larger than so many bytes."""
        self.most = max(min(self.most, most), 1)
        self.nbytes = min(self.nbytes, self.most)

    def grouped(self, rows: int, groups: int, nbytes: float) -> None:
        """Say how many groups the rows of a batch had, and how large it was.

        Those that are on their way are larger already, and have more rows.
        """
        next_rows = rows * max(self.nbytes / max(nbytes, 1.0), 1.0)
        if groups > _REPEATED * next_rows or self.nbytes < self.usual:
            self.nbytes = min(2 * self.nbytes, self.most)

    def refused(self) -> None:
        """Say that device memory did not suffice for a batch."""
        self.limit(max(min(self.most, self.nbytes) // 2, _FLOOR_BYTES))


def batches(
    parts: Iterator[Any], sizes: Sizes, bytes_of: Callable[[Any], int], alike: Callable[..., bool]
) -> Iterator[list[Slice]]:
    """Divide partitions into batches, in their order; one is cut where it is larger than a batch.

    ``sizes`` is asked for each batch: it may change meanwhile. ``alike`` says whether two
    partitions may be in one batch.
    """
    batch: list[Slice] = []
    size = rows = 0
    for part in parts:
        if batch and not alike(batch[-1].part, part):
            yield batch
            batch, size, rows = [], 0, 0
        start, of_row = 0, max(bytes_of(part) / max(len(part), 1), 1.0)
        while start < len(part):
            room = min(int((sizes.nbytes - size) / of_row), _MOST_ROWS - rows)
            stop = min(start + max(room, 1), len(part))
            batch.append(Slice(part, start, stop))
            size, rows = size + int((stop - start) * of_row), rows + stop - start
            start = stop
            if size + of_row > sizes.nbytes or rows >= _MOST_ROWS:
                yield batch
                batch, size, rows = [], 0, 0
    if batch:
        yield batch


def halves(batch: Batch) -> tuple[list[Slice], list[Slice]]:
    """A batch in two, by its rows."""
    left = sum(map(len, batch)) // 2
    first: list[Slice] = []
    second: list[Slice] = []
    for each in batch:
        taken = min(left, len(each))
        if taken:
            first.append(replace(each, stop=each.start + taken))
        if taken < len(each):
            second.append(replace(each, start=each.start + taken))
        left -= taken
    return first, second
