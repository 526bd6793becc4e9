"""Dense group numbers: the same partition of the rows as pandas' groupby makes."""

from typing import Any
from unittest import mock

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_gpuagg
from dask_gpuagg.engines.host import compiled, grouping
from dask_gpuagg.engines.host.grouping import Groups, encode, first_rows, group, repeated
from tests.engines.host.columns import DTYPES, I64, U64, series_of


@st.composite
def keys(draw: st.DrawFn, dtype: Any, rows: int) -> pd.Series:
    values, nullable = DTYPES[dtype]
    if nullable:
        values = st.none() | values
    # few distinct values, so that groups have several rows
    pool = draw(st.lists(values, min_size=1, max_size=6))
    return series_of(draw(st.lists(st.sampled_from(pool), min_size=rows, max_size=rows)), dtype)


@st.composite
def several_keys(draw: st.DrawFn) -> list[pd.Series]:
    rows = draw(st.integers(0, 20))
    dtypes = draw(st.lists(st.sampled_from(list(DTYPES)), min_size=2, max_size=4))
    return [draw(keys(dtype, rows)) for dtype in dtypes]


# of tests with a row for each dtype
FEWER = settings(max_examples=settings.default.max_examples // 3)


def plain(values: Any) -> list[Any]:
    """Values that compare: every null is None (and 0.0 equals -0.0 by itself)."""
    return [None if pd.isna(v) else v for v in pd.Series(values).astype(object)]


def check(columns: list[pd.Series], dropna: bool) -> None:
    """Assert that ``group`` makes pandas' groups, numbered densely, and names their keys.

    By the compiled loops, as many rows are grouped, and without them.
    """
    for rows_of_loops in (compiled.LEAST_ROWS, 1):
        with mock.patch.object(compiled, "LEAST_ROWS", rows_of_loops):
            check_groups(columns, dropna, group(columns, dropna))


def check_groups(columns: list[pd.Series], dropna: bool, groups: Groups) -> None:
    frame = pd.DataFrame({i: c.reset_index(drop=True) for i, c in enumerate(columns)})
    by = list(frame.columns)
    numbers = frame.groupby(by, dropna=dropna, observed=True, sort=False).ngroup()
    # null keys of a dropped row are -1, or NaN, depending on the dtype
    remaining = (numbers.fillna(-1) >= 0).to_numpy()
    ours = np.ones(len(frame), bool) if groups.has_group is None else groups.has_group
    assert (ours == remaining).all()
    pairs = set(zip(numbers[remaining].astype(int), groups.codes.tolist(), strict=True))
    assert len(pairs) == len({p for p, _ in pairs}) == len({c for _, c in pairs}) == groups.n
    assert {c for _, c in pairs} == set(range(groups.n))
    assert len(groups.keys) == len(columns)
    for key, column in zip(groups.keys, columns, strict=True):
        assert len(key) == groups.n
        assert key.dtype == column.dtype
        assert plain(key.take(groups.codes)) == plain(column[remaining])


@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
@FEWER
@given(data=st.data())
def test_one_key(dtype, dropna, data):
    check([data.draw(keys(dtype, data.draw(st.integers(0, 20))))], dropna)


@given(several_keys(), st.booleans())
def test_several_keys(columns, dropna):
    check(columns, dropna)


def test_rows_with_any_null_key_leave():
    a = pd.Series([1.0, np.nan, 1.0, np.nan])
    b = pd.Series(["x", "x", None, None])
    groups = group([a, b], dropna=True)
    assert groups.has_group.tolist() == [True, False, False, False]
    assert group([a, b], dropna=False).n == 4


def test_nan_none_and_nat_of_an_object_column_are_one_key():
    column = pd.Series([np.nan, None, pd.NaT, "a"], dtype=object)
    assert group([column], dropna=False).n == 2


def test_the_index_of_the_rows_does_not_matter():
    column = pd.Series([5, 6, 5], index=[7, 7, 0])
    assert plain(group([column], True).keys[0]) == [5, 6]
    check([column, pd.Series(["a", "b", "a"], index=[1, 2, 3])], True)


class TestIntegers:
    @pytest.mark.parametrize(
        "values",
        [
            [I64.min, I64.max, 0, I64.min],
            [I64.min, I64.min + 1, I64.min],
            [I64.max, I64.max - 1, I64.max],
            [-(1 << 62), 1 << 62, 0],
        ],
        ids=["all", "lowest", "highest", "beyond int64 apart"],
    )
    def test_int64_at_the_limits(self, values):
        check([pd.Series(values, dtype="int64")], True)

    @pytest.mark.parametrize("low", [0, I64.max - 1, U64.max - 2])
    def test_uint64_at_the_limits(self, low):
        check([pd.Series([low, low + 1, low + 2, low], dtype="uint64")], True)

    @pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
    def test_narrow_ones_at_the_limits(self, dtype):
        limits = np.iinfo(dtype)
        check([pd.Series([limits.min, limits.max, 0, limits.min], dtype=dtype)], True)

    def test_more_combinations_than_64_bits(self):
        rng = np.random.default_rng(0)
        columns = [pd.Series(rng.permutation(70_000)) for _ in range(4)]
        groups = group([*columns, pd.Series(np.arange(70_000))], True)
        assert groups.n == 70_000
        for key, column in zip(groups.keys, columns, strict=False):
            assert (key.take(groups.codes) == column).all()

    def test_unused_categories_beyond_64_bits(self):
        # the product of the radices, not of the observed values, would overflow
        dtype = pd.CategoricalDtype(range(100_000))
        column = pd.Series([3, 99_999, None, 3], dtype=dtype)
        check([column] * 5, True)
        check([column] * 5, False)


def many(words: list[str], rows: int = 1500) -> list[str]:
    rng = np.random.default_rng(len(words))
    return [words[i] for i in rng.integers(0, len(words), rows)]


@pytest.mark.parametrize("dtype", ["str", "string"])
class TestManyStrings:
    """Strings of one length in bytes are packed (see ``test_strings.py``), short ones hashed."""

    @pytest.mark.parametrize(
        "words",
        [
            ["aa", "bb", "é"],
            ["漢", "abc", "aé", "\0\0\0", "a\0b"],
            ["\0", "a", " "],
            ["a", "a\0", "a\0\0"],
            ["", "a"],
            [""],
            ["id042-7f3a", "id042-7f3b", "id142-7f3a"],
            ["constant"],
        ],
        ids=repr,
    )
    def test_one_key(self, dtype, words):
        check([pd.Series(many(words), dtype=dtype)], True)
        check([pd.Series([*many(words), None, words[0]], dtype=dtype)], True)
        check([pd.Series([*many(words), None, words[0]], dtype=dtype)], False)

    def test_slices_start_in_the_middle_of_the_buffers(self, dtype):
        values = ["much longer", "", *many(["aa", "é", "\0a"]), "much longer", None]
        check([pd.Series(values, dtype=dtype).iloc[2:-2]], True)

    def test_beside_other_keys(self, dtype):
        column = pd.Series(many(["aa", "bb", "é"]), dtype=dtype)
        numbers = pd.Series([None if i % 7 == 0 else i % 3 for i in range(1500)], dtype="Int64")
        check([numbers, column], True)
        check([column, numbers], False)

    def test_several_wide_words_overflow_64_bits_together(self, dtype):
        rng = np.random.default_rng(0)
        words = ["".join(rng.choice(list("abcdefgh"), 9)) for _ in range(1500)]
        columns = [pd.Series(rng.permutation(words), dtype=dtype) for _ in range(3)]
        check(columns, True)

    @given(data=st.data())
    def test_any_words_of_any_lengths(self, dtype, data):
        words = data.draw(st.lists(st.text(max_size=4), min_size=1, max_size=4))
        column = pd.Series(many(words, 1100), dtype=dtype)
        check([column.iloc[data.draw(st.integers(0, 50)) :]], True)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("texts", [["a", "b", None, "a"], ["x"], [None], []], ids=str)
@pytest.mark.parametrize("pieces", [1, 2])
def test_dictionaries_of_text_are_numbered_by_their_codes(kind, texts, pieces):
    # of several pieces the dictionaries differ
    arrays = [pa.array([*texts, f"only {i}"], kind).dictionary_encode() for i in range(pieces)]
    data = pa.chunked_array(arrays)
    column = pd.Series(pd.array(data, dtype=pd.ArrowDtype(data.type)))
    encoded = encode(column)
    assert encoded.decode(encoded.codes).dtype == column.dtype
    assert pa.array(encoded.decode(encoded.codes)).to_pylist() == data.to_pylist()
    assert encoded.size == len({*texts} - {None}) + pieces
    groups = group([column], dropna=True)
    assert sorted(pa.array(groups.keys[0]).to_pylist()) == sorted(
        {*texts, *(f"only {i}" for i in range(pieces))} - {None}
    )


def test_a_dictionary_may_hold_a_text_twice():
    twice = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], "int32"), ["a", "b", "a"])
    column = pd.Series(pd.array(twice, dtype=pd.ArrowDtype(twice.type)))
    groups = group([column], dropna=True)
    assert groups.n == 2
    assert groups.codes[0] == groups.codes[2]


@pytest.mark.parametrize("dtype", ["str", "string[pyarrow]", "large_string[pyarrow]"])
@pytest.mark.parametrize("dropna", [False, True])
@pytest.mark.parametrize("before", [None, ""])
def test_empty_texts_beside_nulls(before: str | None, dropna: bool, dtype: str) -> None:
    """A null has no bytes, as an empty text has none: whichever comes first, they are two keys."""
    after = "" if before is None else None
    texts = [before, after, "a", "bbb"] * 20_000
    key = pd.Series(texts, dtype=dtype).iloc[4:]
    frame = pd.DataFrame({"k": key.reset_index(drop=True), "x": 1})
    query = dd.from_pandas(frame, npartitions=1).groupby("k", dropna=dropna).x.sum()
    expected = query.compute().sort_index()
    assert len(expected) == 3 + (not dropna)
    with dask_gpuagg.enabled():
        result = query.compute().sort_index()
    pd.testing.assert_series_equal(result, expected)


# how the rows are looked up: by pandas, by one bit for each pair that may be, by hashing; and how
# many bits there may be
WAYS = {"pandas": 64, "bits": 1 << 16, "hash": 0}


def found(way: str, codes: Any, n: int, values: pd.Series) -> list[int]:
    least = compiled.LEAST_ROWS if way == "pandas" else 1
    with (
        mock.patch.object(compiled, "LEAST_ROWS", least),
        mock.patch.object(grouping, "_BITS_PER_ROW", WAYS[way]),
    ):
        return first_rows(codes, n, values).tolist()


def expected(codes: Any, values: pd.Series) -> list[int]:
    first: dict[Any, int] = {}
    for row, pair in enumerate(zip(codes.tolist(), plain(values), strict=True)):
        first.setdefault(pair, row)
    return list(first.values())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
@FEWER
@given(data=st.data())
def test_any_values(dtype, way, data):
    rows = data.draw(st.integers(1, 20))
    values = data.draw(keys(dtype, rows))
    codes = np.array(data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)))
    assert found(way, codes, 3, values) == expected(codes, values)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("way", WAYS)
def test_all_nan_are_one_value(way, dtype):
    values = np.array([np.nan, 1.0, -np.nan, np.nan, np.inf, -np.inf], dtype)
    values.view(f"int{values.itemsize * 8}")[3] += 1  # another pattern of the same
    assert np.isnan(values[3])
    rows = found(way, np.zeros(6, np.int64), 1, pd.Series(values))
    assert rows == [0, 1, 4, 5]


@pytest.mark.parametrize("dtype", ["Int64", "UInt64", "boolean", "int64[pyarrow]"])
@pytest.mark.parametrize("way", WAYS)
def test_a_null_is_no_zero_and_no_other_groups_null(way, dtype):
    values = pd.Series([0, None, 0, None, None, 1], dtype=dtype)
    codes = np.array([0, 0, 1, 1, 0, 2])
    assert found(way, codes, 3, values) == [0, 1, 2, 3, 5]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("distinct_values", [1, 300, 1 << 60])
@pytest.mark.parametrize("kind", [np.int64, np.float64, "datetime64[ns]"])
def test_many_rows(way, distinct_values, kind):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 50, 3000)
    values = pd.Series(rng.integers(0, distinct_values, 3000)).astype(kind)
    pairs = pd.DataFrame({"code": codes, "value": values})
    assert found(way, codes, 50, values) == pairs.drop_duplicates().index.tolist()


@pytest.mark.parametrize("way", WAYS)
def test_nulls_of_groups_whose_codes_have_few_bits(way):
    """A hundred categories: their codes fit int8, and twice as many numbers do not."""
    codes = np.tile(np.arange(100, dtype=np.int8), 20)
    values = pd.Series(np.arange(2000) % 700 // 100, dtype="Int64").where(np.arange(2000) % 3 > 0)
    pairs = pd.DataFrame({"code": codes, "value": values})
    assert found(way, codes, 100, values) == pairs.drop_duplicates().index.tolist()


@pytest.mark.parametrize("step", [1 << 20, 1 << 40, 1 << 52])
def test_values_that_differ_in_high_bits_only_do_not_collide(step):
    rows = 2 * compiled.LEAST_ROWS
    values = pd.Series(np.arange(rows) % 2000 * step)
    codes = np.arange(rows) // 2000
    assert len(first_rows(codes, rows // 2000, values)) == rows


@pytest.mark.parametrize(("pairs", "least", "most"), [(10, 0.9, 1), (10**5, 0.3, 0.7)])
def test_repeated_pairs_are_told_from_a_sample(pairs, least, most):
    rng = np.random.default_rng(7)
    rows = 150_000
    codes, values = rng.integers(0, 5, rows), pd.Series(rng.integers(0, pairs // 5, rows))
    assert least < repeated(codes, values) <= most


def test_few_rows_and_pairs_of_their_own():
    own = pd.Series(np.arange(compiled.LEAST_ROWS))
    codes = np.zeros(compiled.LEAST_ROWS, np.int32)
    assert repeated(codes, own) == 0
    assert repeated(codes[:9], own[:9]) == 1
