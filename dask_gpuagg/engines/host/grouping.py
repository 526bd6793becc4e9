"""Dense group numbers on the host: every row's keys become one integer in ``range(n)``.

This is where a host group-by spends most of its time, so it is done once per partition and
everything else works on the dense numbers. The encodings, cheapest first:

* integers of a narrow range and categorical codes are used as they are (direct addressing), others
  hashed by a compiled loop if there are many;
* many strings of one length are packed into integers (``Packed``) and go the same way;
* strings shorter than eight bytes are hashed as integers by that loop too;
* other text is numbered by Arrow's dictionaries, and everything else by ``pandas.factorize``.

Several keys are combined by mixed-radix arithmetic on their codes and made dense again. Distinct
pairs of group and value are looked up by a compiled loop in a hash table of row numbers, four bytes
each, so that no pair is numbered, and nothing is sorted.
"""

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_gpuagg.dtypes import TEMPORAL, dtype_class, is_plain
from dask_gpuagg.engines.host import compiled

# arrays of any integer type
Codes = npt.NDArray[Any]

# up to this many slots, addressing directly is cheaper than hashing even for few rows
_FEW_SLOTS = 1 << 16
# beyond that, as long as the slots stay within this multiple of the rows
_SLOTS_PER_ROW = 4
_WIDEST = 1 << 62
# bits that distinct pairs may take for each row: as much memory as the hash table takes
_BITS_PER_ROW = 64
_SAMPLED_ROWS = 1 << 14
# strings between which their hash table may grow; that of few stays in the second-level cache
_STEP_OF_TEXTS = 1 << 14


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
    """The groups of some rows, in an unspecified order.

    ``codes`` has the dense number of each row's group, ``n`` is the number of groups, and ``keys``
    are the key values of each group. ``has_group`` tells which rows have a group, and then only
    these have codes; it is ``None`` when all have.
    """

    codes: Codes
    n: int
    keys: list[Any]
    has_group: npt.NDArray[np.bool_] | None


def group(columns: Sequence[pd.Series], dropna: bool) -> Groups:
    """Number the groups of one key column or several, of any hashable dtypes.

    NaN, NaT and null are one key; -0.0 and 0.0 are one key. ``dropna`` leaves out rows in which any
    key is null.
    """
    encoded = [encode(column) for column in columns]
    has_group = None
    if dropna and any(e.has_null for e in encoded):
        has_group = np.logical_and.reduce([e.codes >= 0 for e in encoded])
        encoded = [Encoded(e.codes[has_group], e.size, e.decode, False) for e in encoded]
    if len(encoded) == 1 and encoded[0].dense:
        codes, present = encoded[0].codes, [np.arange(encoded[0].size)]
    else:
        radix = [e.size + e.has_null for e in encoded]
        nulls_last = [
            np.where(e.codes < 0, e.size, e.codes) if e.has_null else e.codes for e in encoded
        ]
        codes, present = _combine(nulls_last, radix)
    keys = [
        e.decode(np.where(c < e.size, c, -1) if e.has_null else c)
        for e, c in zip(encoded, present, strict=True)
    ]
    return Groups(codes, len(present[0]), keys, has_group)


def _combine(columns: list[Codes], radix: list[int]) -> tuple[Codes, list[Codes]]:
    """Dense codes of the rows of ``columns``, and the column codes of each dense code."""
    size, rows = math.prod(radix), len(columns[0])
    if size > _WIDEST:
        return _combine_wide(columns, radix)
    if _addresses(size, rows) and compiled.should_run(rows, size):
        codes, present = compiled.number_blocks(_mixed_blocks(columns, radix), rows, 0, size)
    else:
        codes, present = densify(_mixed(columns, radix), size)
    parts = []
    for digits in reversed(radix[1:]):
        present, digit = np.divmod(present, max(digits, 1))
        parts.append(digit)
    return codes, [present, *reversed(parts)]


def _mixed(columns: Sequence[Codes], radix: list[int]) -> Codes:
    """One integer per row: the codes as digits of a mixed radix."""
    mixed = columns[0]
    for column, size in zip(columns[1:], radix[1:], strict=True):
        mixed = mixed.astype(np.int64) * size + column
    return mixed


def _mixed_blocks(columns: Sequence[Codes], radix: list[int]) -> Iterator[tuple[int, Codes]]:
    for start in range(0, len(columns[0]), compiled.BLOCK):
        block = [column[start : start + compiled.BLOCK] for column in columns]
        yield start, compiled.read_only(_mixed(block, radix), np.int64)


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
        occurs = np.zeros(size, dtype=bool)
        occurs[codes] = True
        present = np.flatnonzero(occurs)
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
    if isinstance(dtype, np.dtype) and dtype.kind in "mM" and not column.hasnans:
        ticks = _encode_integers(column.array.asi8)
        return replace(ticks, decode=lambda codes: pd.array(ticks.decode(codes).view(dtype)))
    if is_dictionary(dtype):
        return _encode_text(column)
    if isinstance(dtype, pd.StringDtype) and dtype.storage == "pyarrow":
        return _encode_packed(column) or _encode_short(column) or _encode_text(column)
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


def _encode_text(column: pd.Series) -> Encoded:
    """Text by the numbers of a dictionary, made anew where it has a text twice, or null."""
    dtype, has_codes = column.dtype, is_dictionary(column.dtype)
    if has_codes:
        array = pa.chunked_array(pa.array(column)).unify_dictionaries().combine_chunks()
        texts = array.dictionary
        if texts.null_count or len(texts.unique()) < len(texts):
            array = array.dictionary_decode().dictionary_encode()
    else:
        array = contiguous(column).dictionary_encode()
    texts, null = array.dictionary, array.null_count > 0
    codes = array.indices.fill_null(-1).to_numpy() if null else array.indices.to_numpy()

    def decode(chosen: Codes) -> Any:
        numbers = pa.array(chosen.astype(np.int32, copy=False), mask=chosen < 0)
        if has_codes:
            return pd.array(pa.DictionaryArray.from_arrays(numbers, texts), dtype=dtype)
        return pd.array(texts.take(numbers), dtype=dtype)

    return Encoded(codes, len(texts), decode, null, dense=not (has_codes or null))


def _encode_integers(values: npt.NDArray[Any]) -> Encoded:
    """Integers by direct addressing, or hashed where their range is too wide for that."""
    if len(values) == 0:
        return Encoded(np.zeros(0, np.int64), 0, lambda w: values[:0].take(w), False)
    if values.dtype.kind == "b":
        return Encoded(values.view(np.int8), 2, lambda w: w.astype(bool), False)
    low, high = int(values.min()), int(values.max())
    span = high - low + 1
    dtype = values.dtype
    if not _addresses(span, len(values)):
        if not compiled.should_run(len(values)):
            return _encode_any(values)
        widest = np.dtype(np.uint64 if dtype.kind == "u" else np.int64)
        numbered = compiled.number_hashed(values.astype(widest, copy=False).view(np.int64))
        return _numbered(numbered, lambda w: w.view(widest).astype(dtype, copy=False))
    # uint64 stays as it is: a value beyond int64 minus the lowest one fits either way
    wide = np.dtype(dtype if dtype.itemsize == 8 else np.int64)

    def decode(chosen: Codes) -> Any:
        return (chosen.astype(wide) + wide.type(low)).astype(dtype)

    if compiled.should_run(len(values), span):
        return _numbered(compiled.number(values, low, span), decode)
    shifted = values.astype(wide, copy=False) - wide.type(low)
    return Encoded(shifted.astype(np.int64, copy=False), span, decode, False)


def _encode_packed(column: pd.Series) -> Encoded | None:
    """Text packed into integers; ``None`` of few rows and where it cannot be."""
    packed = pack(column) if compiled.should_run(len(column)) else None
    if packed is None:
        return None
    size, dtype = 1 << packed.bits, column.dtype

    def decode(chosen: Codes) -> Any:
        return packed.unpack(chosen, dtype)

    if compiled.should_run(len(column), size) and _addresses(size, len(column)):
        return _numbered(packed.numbers(), decode)
    return Encoded(packed.codes(), size, decode, False)


def _encode_short(column: pd.Series) -> Encoded | None:
    """Short text hashed as integers by a compiled loop; ``None`` of few rows and of longer text."""
    words = short_words(column) if compiled.should_run(len(column)) else None
    if words is None:
        return None
    codes, present = compiled.number_hashed(words, _STEP_OF_TEXTS)
    null = column.isna().to_numpy()
    has_null = bool(null.any())
    if has_null:
        codes[null] = -1

    def decode(chosen: Codes) -> Any:
        words = present.take(np.maximum(chosen, 0))
        return from_short_words(words, chosen < 0, column.dtype)

    return Encoded(codes, len(present), decode, has_null, dense=not has_null)


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


def lists_of(values: list[Any], sizes: Codes) -> npt.NDArray[np.object_]:
    """The values of each group as a list; they come group by group, of these sizes."""
    lists = np.empty(len(sizes), dtype=object)
    start = 0
    for i, end in enumerate(np.cumsum(sizes).tolist()):
        lists[i] = values[start:end]
        start = end
    return lists


def first_rows(codes: Codes, n: int, values: pd.Series) -> npt.NDArray[np.int64]:
    """Row numbers, ascending, of the first row of each distinct pair of group and value.

    Values are of any hashable dtype. Nulls are one value, and so are all NaN, and -0.0 and 0.0.
    """
    if not compiled.should_run(len(codes), n):
        pairs = pd.DataFrame({"code": codes, "value": values.array})
        return np.flatnonzero(~pairs.duplicated().to_numpy())
    loops = compiled.import_loops()
    bits = compiled.read_only(_bits_of(values), np.int64)
    low, high = int(bits.min()), int(bits.max())
    slots = n * (high - low + 1)
    rows = np.empty(len(codes), np.int64)
    codes = compiled.read_only(codes, np.int32)
    if slots <= _BITS_PER_ROW * len(codes):
        bitmap = np.zeros(slots // 64 + 1, np.uint64)
        count = loops.first_of_slots(codes, bits, low, high - low + 1, bitmap, rows)
    else:
        table, shift = compiled.hash_table(len(codes))
        count = loops.first_of_pairs(codes, bits, table, shift, rows)
    return rows[:count]


def _bits_of(values: pd.Series) -> npt.NDArray[np.int64]:
    """Integers that are equal just where the values are."""
    dtype, cls = values.dtype, dtype_class(values.dtype)
    if isinstance(dtype, np.dtype) and dtype.kind in "biu":
        wide = np.uint64 if dtype.kind == "u" else np.int64
        return np.asarray(values.to_numpy().astype(wide, copy=False).view(np.int64))
    if isinstance(dtype, np.dtype) and dtype.kind == "f" and dtype.itemsize <= 8:
        floats: Codes = values.to_numpy().astype(np.float64) + 0.0
        floats[np.isnan(floats)] = np.nan  # all NaN have one pattern
        return floats.view(np.int64)
    if cls in TEMPORAL and not isinstance(dtype, pd.ArrowDtype):
        return np.asarray(values.array.view("int64"))
    return encode(values).codes.astype(np.int64, copy=False)


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


Array = npt.NDArray[Any]

# rows per step: the codes of a step stay in the second-level cache
_BLOCK = 1 << 15
_LONGEST = 32
_MOST_BITS = 62


@dataclass(frozen=True, slots=True)
class Packed:
    """A column of strings of one length, and how the bits that differ are packed into codes.

    Keys such as ``id042`` differ in a few bits of a few bytes. Their bytes are read as overlapping
    64-bit words, and the bits that differ anywhere in the column are packed next to each other into
    one integer, a lossless code. That reads the text once; the codes are then addressed directly or
    hashed as integers, which is cheaper than a dictionary of strings.

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
