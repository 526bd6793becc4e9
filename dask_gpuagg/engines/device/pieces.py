"""Columns of several partitions: concatenated, or as they lie, for kernels that take pieces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pylibcudf as plc
import rmm
from pylibcudf.utils import _get_stream

from dask_gpuagg.cuda.runtime.driver import copy
from dask_gpuagg.engines.device.layout import CTYPES, masked

# Mean bytes of a piece from which on the time of a copy is above that of starting it.
_BYTES_OF_A_COPY = 1 << 20
# Mean rows of a piece from which on the kernels are launched for each: every block has several
# tiles then.
_ROWS_OF_A_PIECE = 6 << 20


class Pieces:
    """A column in several pieces, of one type; an ``Aggregator`` takes it as one column.

    Parameters
    ----------
    columns : sequence of pylibcudf.Column
        Of fixed width.
    dtype : dtype
        Of the Series that they belong to.
    """

    def __init__(self, columns: Sequence[plc.Column], dtype: Any) -> None:
        self.columns = tuple(columns)
        self.dtype = dtype
        self._rows = int(sum(column.size() for column in columns))

    def __len__(self) -> int:
        return self._rows

    def size(self) -> int:
        """Rows."""
        return self._rows

    def type(self) -> plc.DataType:
        """Libcudf's type."""
        return self.columns[0].type()

    def null_mask(self) -> Any:
        """A piece's mask, if any has one."""
        return next((c.null_mask() for c in self.columns if c.null_mask() is not None), None)

    def null_count(self) -> int:
        """Rows without a value."""
        return int(sum(column.null_count() for column in self.columns))

    @cached_property
    def whole(self) -> plc.Column:
        """The pieces concatenated."""
        return concatenated([self.columns])[0]

    def forget(self) -> None:
        """Release the concatenated column."""
        self.__dict__.pop("whole", None)


def whole(column: Any) -> plc.Column:
    """A column that lies together."""
    return column.whole if isinstance(column, Pieces) else column


def suit(columns: Sequence[Sequence[plc.Column]]) -> bool:
    """Whether the pieces of some columns are large enough, and of types that kernels read."""
    first = columns[0]
    rows = sum(piece.size() for piece in first)
    return rows >= _ROWS_OF_A_PIECE * len(first) and all(
        pieces[0].type().id() in CTYPES and all(p.type() == pieces[0].type() for p in pieces)
        for pieces in columns
    )


def concatenated(columns: Sequence[Sequence[plc.Column]]) -> list[plc.Column]:
    """Columns whose pieces have equal types.

    Parameters
    ----------
    columns : sequence of sequence of pylibcudf.Column
        The pieces of each.
    """
    made = {i: _copied(pieces) for i, pieces in enumerate(columns) if _are_plain(pieces)}
    rest = [i for i in range(len(columns)) if i not in made]
    if rest:
        tables = [plc.Table(list(row)) for row in zip(*(columns[i] for i in rest), strict=True)]
        made |= zip(rest, plc.concatenate.concatenate(tables).columns(), strict=True)
    return [made[i] for i in range(len(columns))]


def _are_plain(pieces: Sequence[plc.Column]) -> bool:
    """Whether pieces of a column are concatenated by copies: large, of fixed width, no nulls.

    libcudf looks up the piece of each row, and reaches less than half of the bandwidth of a copy.
    """
    kind = pieces[0].type()
    if kind.id() not in CTYPES or any(p.type() != kind or masked(p) for p in pieces):
        return False
    rows = sum(piece.size() for piece in pieces)
    return bool(rows * plc.types.size_of(kind) >= _BYTES_OF_A_COPY * len(pieces))


def _copied(pieces: Sequence[plc.Column]) -> plc.Column:
    kind, stream = pieces[0].type(), _get_stream()
    width, rows = plc.types.size_of(kind), sum(piece.size() for piece in pieces)
    buffer = rmm.DeviceBuffer(size=rows * width, stream=stream)
    target, handle = buffer.ptr, stream.__cuda_stream__()[1]
    for piece in pieces:
        size = piece.size() * width
        if size:
            copy(target, piece.data().ptr + piece.offset() * width, size, handle)
        target += size
    return plc.Column(kind, rows, buffer, None, 0, 0, [])
