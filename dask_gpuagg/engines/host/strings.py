"""Strings of one length as integers: identifiers, codes, dates written out.

Keys such as ``id042`` differ in a few bits of a few bytes. Their bytes are read as overlapping
64-bit words; the bits that differ anywhere in the column are packed next to each other into
one integer, which is a lossless code of the string. That reads the text once, and the codes
are then addressed directly or hashed as integers, which is cheaper than a dictionary of strings.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_gpuagg.engines.host import compiled

Array = npt.NDArray[Any]

# rows per step: the codes of a step stay in the second-level cache
_BLOCK = 1 << 15
_LONGEST = 32
_MOST_BITS = 62


@dataclass(frozen=True, slots=True)
class Packed:
    """A column of strings of one length, and how the bits that differ are packed into codes.

    The strings begin in ``text`` at ``first``. ``words`` have the first byte of each word, and its
    value in some string: the bits that never differ. ``runs`` are those of bits that differ, word
    by word: first byte of the word, position in the word, mask, position in the code, which has so
    many ``bits``.
    """

    text: Array
    first: int
    rows: int
    length: int
    words: list[tuple[int, int]]
    runs: Array
    bits: int

    def codes(self) -> npt.NDArray[np.int64]:
        """Codes of all rows, below ``2 ** bits``."""
        codes = np.empty(self.rows, np.uint64)
        self._pack(0, codes)
        return codes.view(np.int64)

    def numbers(self) -> compiled.Numbered:
        """Dense numbers of the rows, by direct addressing, and the code of each number."""
        return compiled.number_blocks(self._blocks(), self.rows, 0, 1 << self.bits)

    def _blocks(self) -> Iterator[tuple[int, Array]]:
        codes = np.empty(min(_BLOCK, self.rows), np.uint64)
        for start in range(0, self.rows, _BLOCK):
            block = codes[: self.rows - start]
            self._pack(start, block)
            yield start, compiled.read_only(block, np.uint64)

    def _pack(self, start: int, codes: Array) -> None:
        first = self.first + start * self.length
        compiled.import_loops().pack_strings(self.text, first, self.length, self.runs, codes)

    def unpack(self, codes: Array, dtype: Any) -> Any:
        """Strings of a dtype from their codes."""
        n, length = len(codes), self.length
        text = np.empty(n * length + 8, np.uint8)
        wide = codes.astype(np.uint64)
        # backwards: where words overlap, the earlier one has the bytes
        for start, constant in reversed(self.words):
            words = np.full(n, constant, np.uint64)
            for at, mask, to in self.runs[self.runs[:, 0] == start, 1:].astype(np.uint64):
                words &= ~(mask << at)
                words |= ((wide >> to) & mask) << at
            if length >= 8:
                np.ndarray((n,), np.uint64, buffer=text, offset=start, strides=(length,))[:] = words
            else:
                rows = text[: n * length].reshape(n, length)
                rows[:] = words.view(np.uint8).reshape(n, 8)[:, :length]
        offsets = np.arange(n + 1, dtype=np.int64) * length
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pd.array(pa.Array.from_buffers(pa.large_string(), n, buffers), dtype=dtype)


def pack(column: pd.Series) -> Packed | None:
    """Read a column of Arrow's strings, at least one, that all have one length.

    ``None`` where that does not apply: nulls, several lengths, long strings, or too many differing
    bits. Callers ask ``compiled.should_run`` first: of fewer rows a dictionary is as quick.
    """
    array = contiguous(column)
    n = len(array)
    if array.null_count or sys.byteorder != "little":
        return None
    if not (pa.types.is_large_string(array.type) or pa.types.is_string(array.type)):
        return None
    text, offsets = _text_of(array)
    first = int(offsets[0])
    length = int(offsets[1]) - first
    if not 0 < length <= _LONGEST or int(offsets[-1]) - first != length * n:
        return None
    loops = compiled.import_loops()
    if not loops.same_lengths(offsets, length):
        return None
    # one word per eight bytes; the last one may overlap the one before
    starts = [min(8 * w, max(length - 8, 0)) for w in range(-(-length // 8))]
    if first + (n - 1) * length + starts[-1] + 8 > len(text):
        # a word may not reach beyond the buffer: strings shorter than eight bytes at its end
        text = np.concatenate([text[first : first + n * length], np.zeros(8, np.uint8)])
        first = 0
    text = compiled.read_only(text, np.uint8)
    words, runs, total, covered = [], [], 0, 0
    for start in starts:
        differing = int(loops.differing_bits(text, first + start, length, n))
        end = min(start + 8, length)
        # those that no earlier word has
        differing &= ((1 << 8 * (end - covered)) - 1) << 8 * (covered - start)
        covered = end
        # runs of ones, the lowest bit first
        for run in re.finditer("1+", f"{differing:b}"[::-1]):
            size = run.end() - run.start()
            runs.append((start, run.start(), (1 << size) - 1, total))
            total += size
        some = text[first + start : first + start + 8].tobytes()
        words.append((start, int.from_bytes(some, "little")))
    if total > _MOST_BITS:
        return None
    return Packed(text, first, n, length, words, np.array(runs, np.int64).reshape(-1, 4), total)


def short_words(column: pd.Series) -> Array | None:
    """Strings as integers that hold their bytes and lengths; ``None`` of eight bytes and more.

    The integer of a null is any.
    """
    text, offsets = _text_of(contiguous(column))
    if (offsets[1:] - offsets[:-1]).max(initial=0) > 7:
        return None
    words = np.empty(len(offsets) - 1, np.int64)
    text = compiled.read_only(np.append(text[: offsets[-1]], np.zeros(8, np.uint8)), np.uint8)
    wide = compiled.read_only(offsets, np.int64)
    compiled.import_loops().short_words(text, wide, words.view(np.uint64))
    return words


def from_short_words(words: Array, null: Array, dtype: Any) -> Any:
    """Strings of a dtype from the integers of ``short_words``, with nulls."""
    lengths = words >> 56
    text = words.view(np.uint8).reshape(-1, 8)[np.arange(8) < lengths[:, np.newaxis]]
    offsets = np.append(0, np.cumsum(lengths))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    array = pa.Array.from_buffers(pa.large_string(), len(words), buffers)
    return pd.array(pc.if_else(null, None, array), dtype=dtype)


def _text_of(array: pa.Array) -> tuple[Array, Array]:
    """The bytes of all strings, and the place in them at which each begins, and the last ends."""
    _, offsets, data = array.buffers()
    wide = pa.types.is_large_string(array.type)
    places = np.frombuffer(offsets, np.int64 if wide else np.int32)
    # without a byte there may be no buffer
    text = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    places = places[array.offset : array.offset + len(array) + 1]
    return text, compiled.read_only(places, places.dtype)


def contiguous(column: pd.Series) -> pa.Array:
    """The strings as one array of Arrow's."""
    array = pa.array(column)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
