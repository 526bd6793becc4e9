"""Host columns as they are copied and come back, and their rows in batches."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.streaming.batches import (
    CODES,
    FLOAT,
    NAT,
    TEXT,
    TICKS,
    Image,
    Sizes,
    Slice,
    batches,
    halves,
    image_of,
    is_exact,
    restored,
    restored_text,
)

EXACT = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32",
    "float64", "M8[s]", "M8[ms]", "M8[us]", "M8[ns]", "m8[s]", "m8[ns]",
]  # fmt: skip
BITS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30)


def there_and_back(image: Image, dtype: Any) -> Any:
    """As the device does it: nulls become a mask, and the mask nulls."""
    if image.kind == TEXT:
        return restored_text(image.values.combine_chunks(), dtype)
    values = image.values
    if image.kind == FLOAT:
        valid = ~np.isnan(values)
    elif image.kind == TICKS:
        valid = values != NAT
    elif image.kind == CODES:
        valid = values != -1
    else:
        valid = np.ones(len(values), bool)
    # what lies under a null is anything
    blank = np.where(valid, values, values.dtype.type(0))
    return restored(blank, None if valid.all() else valid, dtype)


@pytest.mark.parametrize("dtype", EXACT)
@given(bits=BITS)
def test_every_bit_pattern_of_numbers_and_times(dtype: str, bits: list[int]) -> None:
    wanted = np.dtype(dtype)
    if wanted.kind == "b":
        values = np.array(bits, "uint64") % 2 == 1
    else:
        values = np.array(bits, "uint64").view(wanted)
    column = pd.Series(values)
    assert is_exact(column.dtype, key=False)
    back = there_and_back(image_of(column), column.dtype)
    pd.testing.assert_series_equal(pd.Series(back), column)


@given(codes=st.lists(st.integers(-1, 2), min_size=1), ordered=st.booleans())
def test_categories(codes: list[int], ordered: bool) -> None:
    made = pd.Categorical.from_codes(codes, categories=["b", "a", "c"], ordered=ordered)
    column = pd.Series(made)
    assert is_exact(column.dtype, key=True)
    assert not is_exact(column.dtype, key=False)
    back = there_and_back(image_of(column), column.dtype)
    pd.testing.assert_series_equal(pd.Series(back), column)


@pytest.mark.parametrize("unit", ["s", "ns"])
def test_times_in_a_zone(unit: str) -> None:
    column = pd.Series(pd.to_datetime(["2024-03-31 01:30", None, "2024-10-27 00:30"], utc=True))
    column = column.dt.tz_convert("Europe/Berlin").dt.as_unit(unit)
    back = there_and_back(image_of(column), column.dtype)
    pd.testing.assert_series_equal(pd.Series(back), column)


@given(st.lists(st.one_of(st.none(), st.text()), min_size=1))
def test_text(values: list[str | None]) -> None:
    column = pd.Series(pd.array(values, dtype=pd.StringDtype("pyarrow", na_value=np.nan)))
    assert is_exact(column.dtype, key=True)
    image = image_of(column)
    back = there_and_back(image, column.dtype)
    pd.testing.assert_series_equal(pd.Series(back), column)
    half = len(column) // 2
    part = restored_text(image.rows(0, half).values.combine_chunks(), column.dtype)
    pd.testing.assert_series_equal(pd.Series(part), column[:half])


def test_columns_of_a_block_are_not_copied_and_rows_of_them_neither() -> None:
    frame = pd.DataFrame(np.arange(20.0).reshape(10, 2), columns=["a", "b"]).copy()
    image = image_of(frame["a"])
    part = image.rows(2, 5)
    assert np.shares_memory(part.values, image.values)
    assert list(part.values) == [4.0, 6.0, 8.0]


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype("O"), np.dtype("f2"), np.dtype(">i8"), np.dtype("M8[D]"), np.dtype("c16"),
        pd.Int64Dtype(), pd.ArrowDtype(pa.int64()), pd.StringDtype("python"), pd.PeriodDtype("D"),
        np.dtype("m8[25s]"),
    ],
)  # fmt: skip
def test_what_is_not_exact(dtype: Any) -> None:
    assert not is_exact(dtype, key=True)


def test_a_null_among_integers_is_an_error() -> None:
    with pytest.raises(AssertionError, match="has none"):
        restored(np.array([1, 2]), np.array([True, False]), np.dtype("int64"))


PARTS = st.lists(st.lists(st.integers(), max_size=50), min_size=1, max_size=8)


@given(parts=PARTS, nbytes=st.integers(1, 900), kinds=st.lists(st.booleans(), min_size=8))
def test_each_row_is_in_one_batch_in_order(
    parts: list[list[int]], nbytes: int, kinds: list[bool]
) -> None:
    numbered = list(zip(parts, kinds, strict=False))

    class Part(list[int]):
        kind = False

    made = []
    for rows, kind in numbered:
        part = Part(rows)
        part.kind = kind
        made.append(part)
    found = list(
        batches(iter(made), Sizes(nbytes, 900), lambda p: 8 * len(p), lambda a, b: a.kind == b.kind)
    )
    rows = [row for batch in found for each in batch for row in each.part[each.start : each.stop]]
    assert rows == [row for part in parts for row in part]
    for batch in found:
        assert len({each.part.kind for each in batch}) == 1
        assert all(len(each) > 0 for each in batch)
        assert sum(map(len, batch)) <= max(nbytes // 8, 1)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6).filter(lambda n: sum(n) > 1))
def test_halves(lengths: list[int]) -> None:
    batch = [Slice(list(range(n)), 0, n) for n in lengths]
    first, second = halves(batch)
    assert sum(map(len, first)) == sum(lengths) // 2
    both = [each.part[row] for each in (*first, *second) for row in range(each.start, each.stop)]
    assert both == [row for each in batch for row in each.part]


def test_batches_grow_by_many_groups_and_shrink_where_memory_lacks() -> None:
    sizes = Sizes.of_memory(120 << 30, 12)
    assert (sizes.nbytes, sizes.most, sizes.of_groups) == (256 << 20, 10 << 30, 30 << 30)
    for gibibytes in (0.5, 1, 2, 2, 2):
        sizes.grouped(rows=1_000, groups=10, nbytes=sizes.nbytes)
        assert sizes.nbytes == gibibytes * (1 << 30)
    for _ in range(9):
        sizes.grouped(rows=1_000, groups=900, nbytes=sizes.nbytes)
    assert sizes.nbytes == sizes.most
    sizes.refused()
    assert sizes.nbytes == sizes.most == 5 << 30
    sizes.grouped(rows=1_000, groups=900, nbytes=sizes.nbytes)
    assert sizes.nbytes == 5 << 30


def test_groups_are_compared_with_the_rows_of_the_next_batch() -> None:
    """Batches that are on their way have been made larger already."""
    sizes = Sizes(4_000, 1 << 20)
    sizes.grouped(rows=100, groups=40, nbytes=1_000)
    assert sizes.nbytes == 4_000
    sizes.grouped(rows=100, groups=60, nbytes=1_000)
    assert sizes.nbytes == 8_000


def test_batches_are_as_large_as_they_may_be() -> None:
    sizes = Sizes.of_memory(12 << 30, 12)
    for _ in range(4):
        sizes.grouped(rows=1_000, groups=10, nbytes=sizes.nbytes)
    assert sizes.nbytes == 1 << 30
    sizes.limit(100 << 20)
    sizes.grouped(rows=1_000, groups=900, nbytes=sizes.nbytes)
    assert sizes.nbytes == 100 << 20
    sizes.limit(0)
    assert sizes.nbytes == 1


def test_short_memory_leaves_batches_worth_a_call() -> None:
    """They had 1,250 rows, then one, and thousands of calls took minutes."""
    sizes = Sizes.of_memory(320_000, 16)
    assert sizes.most == 1 << 20
    for _ in range(30):
        sizes.refused()
    assert sizes.nbytes == 1 << 20
