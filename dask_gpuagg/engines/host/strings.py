"""Strings of one length as integers: identifiers, codes, dates written out.

Keys such as ``id042`` differ in a few bits of a few bytes. Their bytes are read as overlapping
64-bit words; the bits that differ anywhere in the column are packed next to each other into
one integer, which is a lossless code of the string. That reads the text once, and the codes
are then addressed directly or hashed as integers, which is cheaper than a dictionary of strings.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from dask_gpuagg.engines.host import fused, numbering

Words = npt.NDArray[np.uint64]

# rows per step: all temporaries of a step stay in the second-level cache
_BLOCK = 1 << 15
# below this many rows a dictionary is as quick
_FEW_ROWS = 1024
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
    """A column of strings of one length, and how they become codes.

    Attributes
    ----------
    text : ndarray of uint8
        The strings, one after the other, from ``first`` on.
    first, rows : int
    words : list of ndarray of uint64, each of shape (rows,)
        The strings as words, which are views of the text.
    packing : Packing
    """

    text: npt.NDArray[np.uint8]
    first: int
    rows: int
    words: list[Words]
    packing: Packing

    def codes(self) -> npt.NDArray[Any]:
        """Codes of int32 or int64, below ``2 ** packing.bits``."""
        return _codes(self.words, self.packing)

    def numbers(self) -> numbering.Numbered:
        """Dense numbers of the rows, by direct addressing, and the code of each number."""
        runs = [
            (start, at, (1 << bits) - 1, to)
            for start, of_word in zip(self.packing.starts, self.packing.runs, strict=True)
            for at, bits, to in of_word
        ]
        return numbering.number_strings(
            self.text,
            self.first,
            self.rows,
            self.packing.length,
            np.array(runs, np.int64).reshape(-1, 4),
            1 << self.packing.bits,
        )


def pack(column: pd.Series) -> Packed | None:
    """Read a column of strings that all have the same length.

    Parameters
    ----------
    column : Series of an Arrow-backed string dtype

    Returns
    -------
    Packed
        Or ``None`` where it does not apply: nulls, several lengths, long strings, too many
        differing bits, or too few rows to matter.
    """
    array = contiguous(column)
    if len(array) < _FEW_ROWS or array.null_count or sys.byteorder != "little":
        return None
    if not (pa.types.is_large_string(array.type) or pa.types.is_string(array.type)):
        return None
    data, offsets = text_of(array)
    length = int(offsets[1]) - int(offsets[0])
    if not 0 < length <= _LONGEST or int(offsets[-1]) - int(offsets[0]) != length * len(array):
        return None
    text, first, starts = _text(data, int(offsets[0]), len(array), length)
    words = [
        np.ndarray((len(array),), np.uint64, buffer=text, offset=first + start, strides=(length,))
        for start in starts
    ]
    if fused.usable(len(array)):
        differing = numbering.differing(text, first, starts, offsets, length)
    else:
        differing = _differing(words, offsets, length)
    if differing is None:
        return None
    packing = _packing(length, starts, words, differing)
    if packing.bits > _MOST_BITS:
        return None
    return Packed(text, first, len(array), words, packing)


def contiguous(column: pd.Series) -> pa.Array:
    """The strings as one array of Arrow's."""
    array = pa.array(column)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def text_of(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """The bytes of all strings, and the place in them at which each begins, and the last ends."""
    _, offsets, data = array.buffers()
    wide = pa.types.is_large_string(array.type)
    places = np.frombuffer(offsets, np.int64 if wide else np.int32)
    # without a byte there may be no buffer
    text = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return text, places[array.offset : array.offset + len(array) + 1]


def unpack(codes: npt.NDArray[Any], packing: Packing, dtype: Any) -> Any:
    """The strings of some codes.

    Parameters
    ----------
    codes : ndarray of int
    packing : Packing
    dtype : StringDtype

    Returns
    -------
    ExtensionArray of shape of ``codes``
    """
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
    offsets = np.arange(len(codes) + 1, dtype=np.int64) * packing.length
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    array = pa.Array.from_buffers(pa.large_string(), len(codes), buffers)
    return pd.array(array, dtype=dtype)


def _text(
    text: npt.NDArray[np.uint8], first: int, n: int, length: int
) -> tuple[npt.NDArray[np.uint8], int, list[int]]:
    """The text, where it begins, and the starts of 64-bit words, one per eight bytes.

    The last word may overlap the one before.
    """
    starts = [min(8 * w, max(length - 8, 0)) for w in range(-(-length // 8))]
    if first + (n - 1) * length + starts[-1] + 8 > len(text):
        # a word may not reach beyond the buffer: strings shorter than eight bytes at its end
        text = np.concatenate([text[first : first + n * length], np.zeros(8, np.uint8)])
        first = 0
    return text, first, starts


def _own_bits(length: int, starts: list[int]) -> list[int]:
    """For each word, the bits that no earlier word has."""
    own, covered = [], 0
    for start in starts:
        end = min(start + 8, length)
        own.append(((1 << 8 * (end - covered)) - 1) << 8 * (covered - start))
        covered = end
    return own


def _differing(words: list[Words], offsets: npt.NDArray[Any], length: int) -> list[int] | None:
    """For each word, which bits differ between rows; ``None`` if lengths differ."""
    found = [np.uint64(0)] * len(words)
    for i in range(0, len(offsets) - 1, _BLOCK):
        ends = offsets[i : i + _BLOCK + 1]
        if ((ends[1:] - ends[:-1]) != length).any():
            return None
        for w, view in enumerate(words):
            found[w] |= np.bitwise_or.reduce(view[i : i + _BLOCK] ^ view[0])
    return [int(bits) for bits in found]


def _packing(length: int, starts: list[int], words: list[Words], differing: list[int]) -> Packing:
    runs, total = [], 0
    for own, bits in zip(_own_bits(length, starts), differing, strict=True):
        of_word, at = [], 0
        bits &= own
        while bits >> at:
            if bits >> at & 1:
                size = ((~(bits >> at)) & -(~(bits >> at))).bit_length() - 1
                of_word.append((at, size, total))
                total += size
                at += size
            else:
                at += 1
        runs.append(tuple(of_word))
    constant = tuple(int(view[0]) for view in words)
    return Packing(length, tuple(starts), constant, tuple(runs), total)


def _codes(words: list[Words], packing: Packing) -> npt.NDArray[Any]:
    codes = np.zeros(len(words[0]), np.int32 if packing.bits < 31 else np.int64)
    for i in range(0, len(codes), _BLOCK):
        block = np.zeros(len(codes[i : i + _BLOCK]), np.uint64)
        for view, runs in zip(words, packing.runs, strict=True):
            word = np.ascontiguousarray(view[i : i + _BLOCK])
            for at, size, to in runs:
                part = word >> np.uint64(at - to) if at >= to else word << np.uint64(to - at)
                part &= np.uint64(((1 << size) - 1) << to)
                block |= part
        codes[i : i + _BLOCK] = block
    return codes
