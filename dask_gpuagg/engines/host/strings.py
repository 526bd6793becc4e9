"""Strings of one length as integers: identifiers, codes, dates written out.

Keys such as ``id042`` differ in a few bits of a few bytes. Their bytes are read as overlapping
64-bit words; the bits that differ anywhere in the column are packed next to each other into
one integer, which is a lossless code of the string. That reads the text once, and the codes
are then addressed directly or hashed as integers, which is cheaper than a dictionary of strings.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from dask_gpuagg.engines.host import compiled

Array = npt.NDArray[Any]

# rows per step: the codes of a step stay in the second-level cache
_BLOCK = 1 << 15
_LONGEST = 32
_MOST_BITS = 62


@dataclass(frozen=True, slots=True)
class Packing:
    """How the bits that differ are packed.

    Attributes
    ----------
    length : int
        Bytes of every string.
    starts : tuple of int
        First byte of each word.
    constant : tuple of int
        Each word of some string; gives the bits that never differ.
    runs : tuple of tuple of (int, int, int)
        For each word, runs of differing bits: position in the word, number of bits, position
        in the code.
    bits : int
        Bits of the code.
    """

    length: int
    starts: tuple[int, ...]
    constant: tuple[int, ...]
    runs: tuple[tuple[tuple[int, int, int], ...], ...]
    bits: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A column of ``rows`` strings of one length, which begin in ``text`` at ``first``."""

    text: npt.NDArray[np.uint8]
    first: int
    rows: int
    packing: Packing

    def codes(self) -> npt.NDArray[np.int64]:
        """Codes of all rows, below ``2 ** packing.bits``."""
        codes = np.empty(self.rows, np.uint64)
        self._pack(0, codes)
        return codes.view(np.int64)

    def numbers(self) -> compiled.Numbered:
        """Dense numbers of the rows, by direct addressing, and the code of each number."""
        return compiled.number_blocks(self._blocks(), self.rows, 0, 1 << self.packing.bits)

    def _blocks(self) -> Iterator[tuple[int, Array]]:
        codes = np.empty(min(_BLOCK, self.rows), np.uint64)
        for start in range(0, self.rows, _BLOCK):
            block = codes[: self.rows - start]
            self._pack(start, block)
            yield start, compiled.read_only(block, np.uint64)

    def _pack(self, start: int, codes: Array) -> None:
        packing = self.packing
        runs = [
            (word, at, (1 << bits) - 1, to)
            for word, of_word in zip(packing.starts, packing.runs, strict=True)
            for at, bits, to in of_word
        ]
        array = np.array(runs, np.int64).reshape(-1, 4)
        first = self.first + start * packing.length
        compiled.import_loops().pack_strings(self.text, first, packing.length, array, codes)


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
    text, offsets = text_of(array)
    first = int(offsets[0])
    length = int(offsets[1]) - first
    if not 0 < length <= _LONGEST or int(offsets[-1]) - first != length * n:
        return None
    loops = compiled.import_loops()
    if not loops.same_lengths(compiled.read_only(offsets, offsets.dtype), length):
        return None
    # one word per eight bytes; the last one may overlap the one before
    starts = [min(8 * w, max(length - 8, 0)) for w in range(-(-length // 8))]
    if first + (n - 1) * length + starts[-1] + 8 > len(text):
        # a word may not reach beyond the buffer: strings shorter than eight bytes at its end
        text = np.concatenate([text[first : first + n * length], np.zeros(8, np.uint8)])
        first = 0
    text = compiled.read_only(text, np.uint8)
    differing = [int(loops.differing_bits(text, first + start, length, n)) for start in starts]
    constant = [int.from_bytes(text[first + s : first + s + 8].tobytes(), "little") for s in starts]
    packing = _packing(length, starts, constant, differing)
    return Packed(text, first, n, packing) if packing.bits <= _MOST_BITS else None


def _packing(length: int, starts: list[int], constant: list[int], differing: list[int]) -> Packing:
    runs, total, covered = [], 0, 0
    for start, bits in zip(starts, differing, strict=True):
        of_word, at = [], 0
        end = min(start + 8, length)
        bits &= ((1 << 8 * (end - covered)) - 1) << 8 * (covered - start)  # that no earlier one has
        covered = end
        while bits >> at:
            if bits >> at & 1:
                size = ((~(bits >> at)) & -(~(bits >> at))).bit_length() - 1
                of_word.append((at, size, total))
                total += size
                at += size
            else:
                at += 1
        runs.append(tuple(of_word))
    return Packing(length, tuple(starts), tuple(constant), tuple(runs), total)


def contiguous(column: pd.Series) -> pa.Array:
    """The strings as one array of Arrow's."""
    array = pa.array(column)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def text_of(array: pa.Array) -> tuple[npt.NDArray[np.uint8], Array]:
    """The bytes of all strings, and the place in them at which each begins, and the last ends."""
    _, offsets, data = array.buffers()
    wide = pa.types.is_large_string(array.type)
    places = np.frombuffer(offsets, np.int64 if wide else np.int32)
    # without a byte there may be no buffer
    text = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return text, places[array.offset : array.offset + len(array) + 1]


def unpack(codes: Array, packing: Packing, dtype: Any) -> Any:
    """Strings of a dtype from their codes."""
    n, length = len(codes), packing.length
    text = np.empty(n * length + 8, np.uint8)
    wide = codes.astype(np.uint64)
    parts = zip(packing.starts, packing.constant, packing.runs, strict=True)
    # backwards: where words overlap, the earlier one has the bytes
    for start, constant, runs in reversed(list(parts)):
        words = np.full(n, constant, np.uint64)
        for at, bits, to in runs:
            mask = np.uint64((1 << bits) - 1)
            words &= ~(mask << np.uint64(at))
            words |= ((wide >> np.uint64(to)) & mask) << np.uint64(at)
        if length >= 8:
            np.ndarray((n,), np.uint64, buffer=text, offset=start, strides=(length,))[:] = words
        else:
            rows = text[: n * length].reshape(n, length)
            rows[:] = words.view(np.uint8).reshape(n, 8)[:, :length]
    offsets = np.arange(n + 1, dtype=np.int64) * length
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pd.array(pa.Array.from_buffers(pa.large_string(), n, buffers), dtype=dtype)
