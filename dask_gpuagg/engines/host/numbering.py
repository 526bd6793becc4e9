"""Dense numbers by the compiled loops: one read of a key column, addressed directly or hashed.

Each function returns the number of every row, in order of appearance, and the code of every
number. Callers ask ``fused.usable`` first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dask_gpuagg.engines.host import fused

Array = npt.NDArray[Any]
Numbered = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]


# slots of a table of few strings, which stays in the second-level cache
_FIRST_BITS = 16
_WORD = 8


class _Slots:
    """What a numbering of rows with codes below ``size`` writes to."""

    def __init__(self, rows: int, size: int) -> None:
        # untouched pages of the two cost nothing
        self.slots = np.zeros(size, np.int32)
        self.present = np.empty(min(rows, size), np.int64)
        self.codes = np.empty(rows, np.int32)

    def numbered(self, found: int) -> Numbered:
        return self.codes, self.present[:found].copy()


def differing(
    text: Array, first: int, starts: list[int], offsets: Array, length: int
) -> list[int] | None:
    """For each word of strings, which bits differ between rows; ``None`` if lengths differ.

    Parameters
    ----------
    text : ndarray of uint8
    first : int
        Where the first string begins.
    starts : list of int
        Where in a string each word begins.
    offsets : ndarray of int32 or int64, shape (rows + 1,)
    length : int
        Of the first string.
    """
    from dask_gpuagg.engines.host import loops

    if not loops.same_lengths(fused.frozen(offsets, offsets.dtype), length):
        return None
    text, rows = fused.frozen(text, np.uint8), len(offsets) - 1
    return [int(loops.differing_bits(text, first + start, length, rows)) for start in starts]


def number_strings(
    text: Array, first: int, rows: int, length: int, runs: Array, size: int
) -> Numbered:
    """Number the distinct strings of one length.

    Parameters
    ----------
    text : ndarray of uint8
    first : int
        Where the first string begins.
    rows, length : int
    runs : ndarray of int64, shape (runs, 4)
        How the strings are packed: first byte of the word, position in it, mask, position in
        the code.
    size : int
        Codes are below it.
    """
    from dask_gpuagg.engines.host import loops

    made = _Slots(rows, size)
    text = fused.frozen(text[first:], np.uint8)
    found = loops.number_strings(text, length, runs, made.slots, made.present, made.codes)
    return made.numbered(found)


def number(values: Array, low: int, size: int) -> Numbered:
    """Number distinct integers of ``range(low, low + size)``.

    Parameters
    ----------
    values : ndarray of int, shape (rows,)
    low, size : int
    """
    from dask_gpuagg.engines.host import loops

    made = _Slots(len(values), size)
    found = 0
    # all in the bits of int64: the difference is taken modulo 2**64
    low -= (low >> 63) << 64 if low > 0 else 0
    wide = np.uint64 if values.dtype == np.uint64 else np.int64
    for start, block in fused.blocks(values, wide):
        codes = made.codes[start : start + len(block)]
        found = loops.number_integers(
            block.view(np.int64), low, made.slots, made.present, found, codes
        )
    return made.numbered(found)


def number_hashed(values: Array) -> Numbered:
    """Number distinct integers of any range.

    Parameters
    ----------
    values : ndarray of int64, shape (rows,)
    """
    from dask_gpuagg.engines.host import loops

    rows = len(values)
    table, shift = hash_table(rows)
    present, codes = np.empty(rows, np.int64), np.empty(rows, np.int32)
    found = loops.number_hashed(fused.frozen(values, np.int64), table, shift, present, codes)
    return codes, present[:found].copy()


def number_texts(text: Array, offsets: Array) -> tuple[Array, Array]:
    """Number distinct strings.

    Parameters
    ----------
    text : ndarray of uint8
    offsets : ndarray of int, shape (rows + 1,)

    Returns
    -------
    codes : ndarray of int32, shape (rows,)
    first : ndarray of int64
        The first row of every number.
    """
    from dask_gpuagg.engines.host import loops

    rows = len(offsets) - 1
    table, shift = hash_table(rows)
    bits = min(64 - shift, _FIRST_BITS)
    # untouched pages of these cost nothing
    first, hashes = np.empty(rows, np.int64), np.empty(rows, np.uint64)
    codes = np.empty(rows, np.int32)
    text, offsets = fused.frozen(text, np.uint8), fused.frozen(offsets, np.int64)
    short = bool((offsets[1:] - offsets[:-1]).max(initial=0) < _WORD)
    found = loops.number_texts(text, offsets, short, table, bits, first, hashes, codes)
    return codes, first[:found].copy()


def hash_table(rows: int) -> tuple[npt.NDArray[np.int32], int]:
    """Slots of a hash table for rows, at most half of which are taken, and the loops' shift."""
    width = max(2 * rows - 1, 1).bit_length()
    return np.zeros(1 << width, np.int32), 64 - width


def number_pairs(left: Array, right: Array, radix: int, size: int) -> Numbered:
    """Number distinct pairs, whose code is ``left * radix + right``.

    Parameters
    ----------
    left, right : ndarray of int, each of shape (rows,)
    radix : int
        Codes of the right are below it.
    size : int
        Codes of the pairs are below it.
    """
    from dask_gpuagg.engines.host import loops

    made = _Slots(len(left), size)
    left, right = fused.frozen(left, np.int32), fused.frozen(right, np.int32)
    found = loops.number_pairs(left, right, radix, made.slots, made.present, made.codes)
    return made.numbered(found)
