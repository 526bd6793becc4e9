"""Dense group numbers on the host: every row's keys become one integer in ``range(n)``.

This is where a host group-by spends most of its time, so it is done once per partition and
everything else works on the dense numbers. The encodings, cheapest first:

* integers of a narrow range and categorical codes are used as they are (direct addressing), others
  hashed by a compiled loop if there are many;
* Arrow's dictionaries of text are used as they are;
* many strings of one length are packed into integers (``strings.py``) and go the same way;
* everything else goes through ``pandas.factorize`` (Arrow's dictionary encoding for strings).

Several keys are combined by mixed-radix arithmetic on their codes and made dense again. Distinct
pairs of group and value are found by codes too: a compiled loop looks them up in a hash table of
row numbers, four bytes each, so that no pair is numbered, and nothing is sorted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from dask_gpuagg.dtypes import dtype_class, is_plain
from dask_gpuagg.engines.host import compiled, strings

# of any integer type
Codes = npt.NDArray[Any]

# up to this many slots, addressing directly is cheaper than hashing even for few rows
_FEW_SLOTS = 1 << 16
# and beyond that as long as the slots stay within this multiple of the rows
_SLOTS_PER_ROW = 4
# Longer strings, with their offsets, are compared faster by Arrow.
_BYTES_OF_A_TEXT = 32
_WIDEST = 1 << 62
# the first two of three keys and more are numbered before the others where they have few pairs
_ROWS_PER_PAIR = 32
# bits that distinct pairs may take for each row: as much memory as the hash table takes
_BITS_PER_ROW = 64
_SAMPLED_ROWS = 1 << 14


@dataclass(frozen=True, slots=True)
class Encoded:
    """One key column as codes: ``-1`` is null, ``decode`` turns codes back into values.

    ``dense``: every code below ``size`` occurs, and no null.
    """

    codes: Codes
    size: int
    decode: Callable[[Codes], Any]
    has_null: bool
    dense: bool = False


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of some rows.

    Attributes
    ----------
    codes : ndarray of int, shape (rows kept,)
        The dense number of each kept row's group.
    n : int
        Number of groups; every number below it occurs.
    keys : list of arrays, each of shape (n,)
        The key values of each group. The order of groups is unspecified.
    kept : ndarray of bool, shape (rows,), optional
        Which rows have a group; ``None`` when all have.
    """

    codes: Codes
    n: int
    keys: list[Any]
    kept: npt.NDArray[np.bool_] | None


def group(columns: Sequence[pd.Series], dropna: bool) -> Groups:
    """Number the groups of the given key columns.

    Parameters
    ----------
    columns : sequence of Series, at least one, of equal length
        Keys of any hashable dtype. NaN, NaT and null are one key; -0.0 and 0.0 are one key.
    dropna : bool
        Leave out rows in which any key is null.

    Returns
    -------
    Groups
    """
    encoded = [encode(column) for column in columns]
    kept = None
    if dropna and any(e.has_null for e in encoded):
        kept = np.logical_and.reduce([e.codes >= 0 for e in encoded])
        encoded = [Encoded(e.codes[kept], e.size, e.decode, False) for e in encoded]
    radix = [e.size + e.has_null for e in encoded]
    if len(encoded) == 1 and encoded[0].dense:
        codes, present = encoded[0].codes, [np.arange(encoded[0].size)]
    else:
        codes, present = _combine([_nulls_last(e) for e in encoded], radix)
    keys = [
        e.decode(np.where(c < e.size, c, -1) if e.has_null else c)
        for e, c in zip(encoded, present, strict=True)
    ]
    return Groups(codes, len(present[0]), keys, kept)


def pair_codes(codes: Codes, n: int, values: Encoded) -> Codes:
    """One integer per row, the same for two rows where group and value are."""
    of_value, size = _nulls_last(values), values.size + values.has_null
    if n * size > _WIDEST:
        of_value, present = densify(of_value, size)
        size = len(present)
    return codes.astype(np.int64) * size + of_value


def _nulls_last(encoded: Encoded) -> Codes:
    if not encoded.has_null:
        return encoded.codes
    return np.where(encoded.codes < 0, encoded.size, encoded.codes)


def _combine(columns: list[Codes], radix: list[int]) -> tuple[Codes, list[Codes]]:
    """Dense codes of the rows of ``columns``, and the column codes of each dense code."""
    if math.prod(radix) > _WIDEST:
        return _combine_wide(columns, radix)
    if len(columns) > 1:
        slots, rows = radix[0] * radix[1], len(columns[0])
        few = len(columns) == 2 or slots * _ROWS_PER_PAIR <= rows
        if few and compiled.should_run(rows, slots) and _addresses(slots, rows):
            return _combine_pair(columns, radix)
    combined = columns[0]
    for column, size in zip(columns[1:], radix[1:], strict=True):
        combined = combined.astype(np.int64) * size + column
    codes, present = densify(combined, math.prod(radix))
    parts = []
    for size in reversed(radix[1:]):
        present, digit = np.divmod(present, max(size, 1))
        parts.append(digit)
    return codes, [present, *reversed(parts)]


def _combine_pair(columns: list[Codes], radix: list[int]) -> tuple[Codes, list[Codes]]:
    """Combine columns, the first two of which become one that is dense."""
    pair, present = compiled.number_pairs(columns[0], columns[1], radix[1], radix[0] * radix[1])
    of_pair = np.divmod(present, radix[1])
    if len(columns) == 2:
        return pair, list(of_pair)
    codes, parts = _combine([pair, *columns[2:]], [len(present), *radix[2:]])
    return codes, [*(part.take(parts[0]) for part in of_pair), *parts[1:]]


def _combine_wide(columns: list[Codes], radix: list[int]) -> tuple[Codes, list[Codes]]:
    """Combine columns where one integer is too narrow for the codes as they are."""
    dense = [densify(column, size) for column, size in zip(columns, radix, strict=True)]
    columns = [codes for codes, _ in dense]
    radix = [len(present) for _, present in dense]
    if math.prod(radix) > _WIDEST:
        # no column has more codes than rows, so any two of them fit
        pair, of_pair = _combine(columns[:2], radix[:2])
        codes, parts = _combine([pair, *columns[2:]], [len(of_pair[0]), *radix[2:]])
        parts = [part.take(parts[0]) for part in of_pair] + parts[1:]
    else:
        codes, parts = _combine(columns, radix)
    return codes, [present.take(p) for (_, present), p in zip(dense, parts, strict=True)]


def densify(codes: Codes, size: int) -> tuple[Codes, Codes]:
    """Renumber codes below ``size`` so that every number occurs; also the old code of each."""
    if _addresses(size, len(codes)):
        if compiled.should_run(len(codes), size):
            return compiled.number(codes, 0, size)
        seen = np.zeros(size, dtype=bool)
        seen[codes] = True
        present = np.flatnonzero(seen)
        if len(present) == size:
            return codes, present
        number = np.empty(size, dtype=np.int32 if size <= np.iinfo(np.int32).max else np.int64)
        number[present] = np.arange(len(present))
        return number.take(codes), present
    if compiled.should_run(len(codes)):
        return compiled.number_hashed(codes.astype(np.int64, copy=False))
    dense, present = pd.factorize(codes)
    return dense, present


def encode(column: pd.Series) -> Encoded:
    """Codes of one key column; the module describes the encodings."""
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return _encode_categorical(column)
    if isinstance(dtype, np.dtype) and dtype.kind in "biu":
        return _encode_integers(column.to_numpy())
    if is_dictionary(dtype):
        return _encode_dictionary(column)
    arrow = isinstance(dtype, pd.StringDtype) and dtype.storage == "pyarrow"
    if arrow and compiled.should_run(len(column)):
        encoded = _encode_packed(column) or _encode_texts(column)
        if encoded is not None:
            return encoded
    return _encode_any(column.to_numpy() if is_plain(dtype) else column.array)


def _encode_any(values: Any) -> Encoded:
    codes, uniques = pd.factorize(values)

    def decode(chosen: Codes) -> Any:
        return take(uniques, chosen)

    return Encoded(codes, len(uniques), decode, bool((codes < 0).any()))


def _encode_categorical(column: pd.Series) -> Encoded:
    dtype = column.dtype
    codes = column.cat.codes.to_numpy()

    def decode(chosen: Codes) -> Any:
        return pd.Categorical.from_codes(chosen, dtype=dtype)

    return Encoded(codes, len(dtype.categories), decode, bool((codes < 0).any()))


def is_dictionary(dtype: Any) -> bool:
    """Whether values of a dtype are numbers into a dictionary of Arrow's, of text."""
    if not isinstance(dtype, pd.ArrowDtype) or not pa.types.is_dictionary(dtype.pyarrow_dtype):
        return False
    of = dtype.pyarrow_dtype.value_type
    return bool(pa.types.is_string(of) or pa.types.is_large_string(of))


def _encode_dictionary(column: pd.Series) -> Encoded:
    """The numbers of a dictionary, which is made anew where it has a text twice, or null."""
    array = pa.chunked_array(pa.array(column)).unify_dictionaries().combine_chunks()
    if array.dictionary.null_count or len(array.dictionary.unique()) < len(array.dictionary):
        array = array.dictionary_decode().dictionary_encode()
    texts = array.dictionary
    null = array.null_count > 0
    codes = array.indices.fill_null(-1).to_numpy() if null else array.indices.to_numpy()

    def decode(chosen: Codes) -> Any:
        numbers = pa.array(chosen.astype(np.int32, copy=False), mask=chosen < 0)
        return pd.array(pa.DictionaryArray.from_arrays(numbers, texts), dtype=column.dtype)

    return Encoded(codes, len(texts), decode, null)


def _encode_integers(values: npt.NDArray[Any]) -> Encoded:
    if len(values) == 0:
        return Encoded(np.zeros(0, np.int64), 0, lambda w: values[:0].take(w), False)
    if values.dtype.kind == "b":
        return Encoded(values.view(np.int8), 2, lambda w: w.astype(bool), False)
    low, high = int(values.min()), int(values.max())
    span = high - low + 1
    if not _addresses(span, len(values)):
        return _encode_wide(values)
    dtype = values.dtype
    # uint64 stays as it is: a value beyond int64 minus the lowest one fits either way
    wide = np.dtype(dtype if dtype.itemsize == 8 else np.int64)

    def decode(chosen: Codes) -> Any:
        return (chosen.astype(wide) + wide.type(low)).astype(dtype)

    if compiled.should_run(len(values), span):
        return _numbered(compiled.number(values, low, span), decode)
    shifted = values.astype(wide, copy=False) - wide.type(low)
    return Encoded(shifted.astype(np.int64, copy=False), span, decode, False)


def _encode_wide(values: npt.NDArray[Any]) -> Encoded:
    """Integers of too wide a range for direct addressing."""
    dtype = values.dtype
    if not compiled.should_run(len(values)):
        return _encode_any(values)
    wide = np.dtype(np.uint64 if dtype.kind == "u" else np.int64)
    numbered = compiled.number_hashed(values.astype(wide, copy=False).view(np.int64))
    return _numbered(numbered, lambda w: w.view(wide).astype(dtype, copy=False))


def _encode_packed(column: pd.Series) -> Encoded | None:
    packed = strings.pack(column)
    if packed is None:
        return None
    packing, dtype = packed.packing, column.dtype
    size = 1 << packing.bits

    def decode(chosen: Codes) -> Any:
        return strings.unpack(chosen, packing, dtype)

    if compiled.should_run(len(column), size) and _addresses(size, len(column)):
        return _numbered(packed.numbers(), decode)
    return Encoded(packed.codes(), size, decode, False)


def _encode_texts(column: pd.Series) -> Encoded | None:
    """Strings of any lengths by the hash table of the loops; ``None`` where they are long."""
    array = strings.contiguous(column)
    if array.nbytes > _BYTES_OF_A_TEXT * len(array):
        return None
    null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    codes, first = compiled.number_texts(*strings.text_of(array))

    def decode(chosen: Codes) -> Any:
        places = pa.array(first[chosen], mask=chosen < 0)
        return pd.array(array.take(places), dtype=column.dtype)

    if null is None:
        return Encoded(codes, len(first), decode, False, dense=True)
    # the text in the place of a null has a number, mostly that of the empty text
    if null[first].any():
        valid = np.flatnonzero(~null)[::-1]
        first[codes[valid]] = valid  # the first of several rows is written last
    codes[null] = -1
    return Encoded(codes, len(first), decode, True)


def _numbered(numbered: compiled.Numbered, decode: Callable[[Codes], Any]) -> Encoded:
    """Dense codes, of which ``decode`` gives the values by their former codes."""
    codes, present = numbered
    return Encoded(codes, len(present), lambda w: decode(present.take(w)), False, dense=True)


def _addresses(size: int, rows: int) -> bool:
    """Whether so many slots may be addressed directly."""
    return size <= max(_FEW_SLOTS, _SLOTS_PER_ROW * rows)


def take(values: Any, rows: Codes) -> Any:
    """Rows of an array; a negative row gives null."""
    fill = bool((rows < 0).any())
    if isinstance(values, np.ndarray):
        return pd.api.extensions.take(values, rows, allow_fill=fill)
    return values.take(rows, allow_fill=fill)


def first_rows(codes: Codes, n: int, values: pd.Series) -> npt.NDArray[np.int64]:
    """Row numbers, ascending, of the first row of each distinct pair of group and value.

    Values are of any hashable dtype. Nulls are one value, and so are all NaN, and -0.0 and 0.0.
    """
    if not compiled.should_run(len(codes), 2 * n):
        pairs = pair_codes(codes, n, encode(values))
        return np.flatnonzero(~pd.Series(pairs).duplicated().to_numpy())
    loops = compiled.import_loops()
    codes, bits = _with_bits(codes, n, values)
    low, high = int(bits.min()), int(bits.max())
    slots = (int(codes.max()) + 1) * (high - low + 1)
    rows = np.empty(len(codes), np.int64)
    codes, bits = compiled.read_only(codes, np.int32), compiled.read_only(bits, np.int64)
    if slots <= _BITS_PER_ROW * len(codes):
        seen = np.zeros(slots // 64 + 1, np.uint64)
        count = loops.first_of_slots(codes, bits, low, high - low + 1, seen, rows)
    else:
        table, shift = compiled.hash_table(len(codes))
        count = loops.first_of_pairs(codes, bits, table, shift, rows)
    return rows[:count]


def _with_bits(codes: Codes, n: int, values: pd.Series) -> tuple[Codes, npt.NDArray[np.int64]]:
    """Integers that are equal just where the values of a group are."""
    dtype, cls = values.dtype, dtype_class(values.dtype)
    if cls in ("bool", "int", "uint"):
        wide: Any = np.uint64 if cls == "uint" else np.int64
        if isinstance(dtype, np.dtype):
            return codes, values.to_numpy().astype(wide, copy=False).view(np.int64)
        null = values.isna().to_numpy()
        zero = False if cls == "bool" else 0  # Arrow's own take nothing else
        bits = values.to_numpy(dtype=wide, na_value=zero).view(np.int64)
        # the nulls of a group are a pair of a number that no group has
        return (np.where(null, codes.astype(np.int64) + n, codes) if null.any() else codes), bits
    if cls == "float" and isinstance(dtype, np.dtype) and dtype.itemsize <= 8:
        floats = values.to_numpy().astype(np.float64) + 0.0
        floats[np.isnan(floats)] = np.nan  # all NaN have one pattern
        return codes, floats.view(np.int64)
    if cls in ("datetime", "timedelta") and not isinstance(dtype, pd.ArrowDtype):
        return codes, np.asarray(values.array.view("int64"))
    return codes, encode(values).codes.astype(np.int64, copy=False)


def repeated(codes: Codes, values: pd.Series) -> float:
    """About which part of the rows repeats a pair of group and value; 1 of few, not looked at."""
    if len(codes) < compiled.LEAST_ROWS:
        return 1.0
    load = rows_of_each([codes, values.array])
    # rows of a pair, thrown at random: the part of the pairs that is met at all
    return 1 - (1 - math.exp(-load)) / load if load else 0.0


def rows_of_each(columns: Sequence[Any]) -> float:
    """About how many rows each distinct one has, by how often a sample meets one again."""
    rows = len(columns[0])
    step = max(rows // _SAMPLED_ROWS, 1)
    sample = pd.DataFrame({i: column[::step] for i, column in enumerate(columns)})
    again = int(sample.duplicated().sum())
    # about s^2 / (2 distinct ones) of s rows meet one again: the birthday problem
    return 2 * again * rows / max(len(sample), 1) ** 2
