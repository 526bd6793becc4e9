"""Sketches: merging in any order, and their errors against exact answers."""

import datetime
from functools import reduce

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dask_gpuagg.engines.host import sketches
from dask_gpuagg.engines.host.sketches import SKETCHES, hashes_of

DISTINCT, QUANTILE = SKETCHES["nunique_approx"], SKETCHES["quantile_approx"]
GROUPS = 3

# the standard error of an estimate of distinct values
ERROR = 1.04 / sketches.REGISTERS**0.5


def rank_error(n: int) -> int:
    """The largest error of a quantile of ``n`` values, in ranks."""
    level, error = 0, 0
    while n > sketches.CAPACITY << level:
        error += (n // (sketches.CAPACITY << level)) << level
        level += 1
    return error


def sketched(sketch, seed, rows, kinds):
    """The entries of one partition of a few groups."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, GROUPS, rows)
    values = pd.Series(rng.integers(0, kinds, rows).astype(float))
    values[rng.random(rows) < 0.1] = np.nan
    return codes, values, sketch.update(codes, GROUPS, values)


def merged(sketch, *parts):
    codes = np.concatenate([codes for codes, _ in parts])
    names = parts[0][1].keys()
    fields = {name: np.concatenate([part[1][name] for part in parts]) for name in names}
    return sketch.merge(codes, GROUPS, fields)


def entries(part):
    codes, fields = part
    return sorted(zip(codes.tolist(), *(fields[name].tolist() for name in fields), strict=True))


PARTS = st.lists(
    st.tuples(st.integers(0, 2**32), st.integers(0, 12_000), st.sampled_from([1, 50, 10**9])),
    min_size=3,
    max_size=5,
)


@given(PARTS)
@example([(1, 0, 1), (2, 0, 1), (3, 0, 1)])
def test_registers_merge_in_any_order(parts):
    result = [sketched(DISTINCT, *part)[2] for part in parts]
    left = reduce(lambda a, b: merged(DISTINCT, a, b), result)
    right = reduce(lambda a, b: merged(DISTINCT, b, a), reversed(result))
    assert entries(left) == entries(right) == entries(merged(DISTINCT, *result))
    # a register is the largest of its own
    assert entries(merged(DISTINCT, left, left)) == entries(left)


@given(PARTS)
def test_entries_do_not_depend_on_how_many_groups_there_are(parts):
    codes, values, (_, fields) = sketched(DISTINCT, *parts[0])
    many = 1 + sketches.DENSE // sketches.REGISTERS
    of_many, sparse = DISTINCT.update(codes, many, values)
    few = of_many < GROUPS
    assert sorted(sparse["v"][few].tolist()) == sorted(fields["v"].tolist())


@given(PARTS, st.sampled_from([0.0, 0.01, 0.25, 0.5, 0.99, 1.0]), st.booleans())
def test_a_quantile_is_within_its_error_however_parts_merge(parts, q, by_pairs):
    result = [sketched(QUANTILE, *part) for part in parts]
    if by_pairs:
        codes, fields = reduce(lambda a, b: merged(QUANTILE, a, b), [part for *_, part in result])
    else:
        codes, fields = merged(QUANTILE, *(part for *_, part in result))
    got = QUANTILE.finish(codes, GROUPS, fields, q=q)
    rows = pd.concat([pd.Series(v.to_numpy(), index=c) for c, v, _ in result]).dropna()
    for group in range(GROUPS):
        values = np.sort(rows[rows.index == group])
        assert_within(got[group], values, q)


def assert_within(found, values, q):
    if len(values) == 0:
        assert np.isnan(found)
        return
    error, expected = rank_error(len(values)), q * (len(values) - 1)
    low = max(int(np.floor(expected)) - error, 0)
    high = min(int(np.ceil(expected)) + error, len(values) - 1)
    assert values[low] <= found <= values[high]
    if error == 0:
        assert found == pd.Series(values).quantile(q)


@given(st.integers(0, 2**32), st.integers(0, 30_000))
def test_weights_sum_to_the_number_of_values(seed, rows):
    _, values, (codes, fields) = sketched(QUANTILE, seed, rows, 10**9)
    weights = np.where(fields["w"] < 0, 0, 2.0 ** fields["w"])
    assert np.bincount(codes, weights, GROUPS).sum() == values.notna().sum()


def test_a_sketch_of_many_values_is_small_and_right():
    values = np.random.default_rng(5).normal(size=3_000_000)
    codes, fields = QUANTILE.update(np.zeros(len(values), np.int64), 1, pd.Series(values))
    levels = 1 + int(np.log2(len(values) / sketches.CAPACITY))
    assert len(codes) <= (levels + 1) * sketches.CAPACITY
    ordered = np.sort(values)
    for q in (0.001, 0.5, 0.999):
        (got,) = QUANTILE.finish(codes, 1, fields, q=q)
        assert_within(got, ordered, q)
        # far below the bound, because compactions do not all err in one direction
        off = np.searchsorted(ordered, got) - q * (len(values) - 1)
        assert abs(off) <= rank_error(len(values)) / 4


def test_the_error_that_the_documentation_states():
    assert rank_error(sketches.CAPACITY) == 0
    assert all(rank_error(10**n) <= 0.01 * 10**n for n in range(4, 10))
    assert ERROR < 0.0163


@pytest.mark.parametrize("distinct", [1, 5, 50, 500, 5_000])
def test_distinct_values_within_the_standard_error(distinct):
    groups = 200
    rng = np.random.default_rng(distinct)
    codes = np.repeat(np.arange(groups), distinct)
    values = pd.Series(rng.integers(0, 2**62, groups * distinct))
    codes, fields = DISTINCT.update(codes, groups, values)
    got = DISTINCT.finish(codes, groups, fields)
    errors = got / distinct - 1
    assert np.sqrt(np.mean(errors**2)) < 1.15 * ERROR
    # no bias beyond that of rounding, and what so many groups may show by chance
    assert abs(errors.mean()) < 4 * ERROR / groups**0.5 + 0.5 / distinct
    assert abs(errors).max() < 5 * ERROR


@given(PARTS, st.sampled_from([0, 1, 3, 100]), st.sampled_from(["nlargest", "nsmallest"]))
def test_the_first_values_merge_in_any_order(parts, n, name):
    sketch = SKETCHES[name]
    rows, result = [], []
    for seed, count, kinds in parts:
        codes, values, _ = sketched(DISTINCT, seed, count, kinds)
        rows.append(pd.Series(values.to_numpy(), index=codes))
        result.append(sketch.update(codes, GROUPS, values, n=n))

    def merge(*some):
        codes = np.concatenate([codes for codes, _ in some])
        fields = {f: np.concatenate([part[1][f] for part in some]) for f in ("v", "w")}
        return sketch.merge(codes, GROUPS, fields, n=n)

    got = [
        sketch.finish(codes, GROUPS, fields, n=n).tolist()
        for codes, fields in (
            merge(*result),
            reduce(merge, result),
            reduce(lambda a, b: merge(b, a), reversed(result)),
        )
    ]
    together = pd.concat(rows)
    for group in range(GROUPS):
        ordered = sorted(together[together.index == group].dropna(), reverse=name == "nlargest")
        assert [lists[group] for lists in got] == [ordered[:n]] * 3


@pytest.mark.parametrize("dtype", ["int64", "uint64", "uint8"])
def test_the_largest_integers_keep_all_digits(dtype):
    info = np.iinfo(dtype)
    values = pd.Series([info.max - 1, info.min, info.max], dtype=dtype)
    codes, fields = SKETCHES["nlargest"].update(np.zeros(3, int), 1, values, n=2)
    (got,) = SKETCHES["nlargest"].finish(codes, 1, fields, n=2)
    assert got == [info.max, info.max - 1]


EQUAL = [
    (pd.Series([1, 0, -7, 2**60]), pd.Series([1.0, -0.0, -7.0, 2.0**60])),
    (pd.Series([1, 0, 255], dtype="uint8"), pd.Series([1, 0, 255], dtype="int64[pyarrow]")),
    (pd.Series([True, False]), pd.Series([1, 0])),
    (pd.Series([1, 2], dtype="Int64"), pd.Series([1, 2], dtype="Float32")),
    (pd.Series(["a", "bc"], dtype="str"), pd.Series(["a", "bc"], dtype=object)),
    (pd.Series(["a", "bc"], dtype="category"), pd.Series(["a", "bc"], dtype="string[pyarrow]")),
    (
        pd.Series(pd.to_datetime(["2001-02-03", "1999-01-01"])).astype("datetime64[s]"),
        pd.Series(pd.to_datetime(["2001-02-03", "1999-01-01"])).astype("datetime64[ns]"),
    ),
    (
        pd.Series([datetime.date(2001, 2, 3)], dtype="date32[pyarrow]"),
        pd.Series(pd.to_datetime(["2001-02-03"])),
    ),
    (
        pd.Series(pd.to_timedelta([-1, 5], unit="ms")).astype("timedelta64[ms]"),
        pd.Series(pd.to_timedelta([-1, 5], unit="ms")).astype("duration[us][pyarrow]"),
    ),
]


@pytest.mark.parametrize(("some", "others"), EQUAL, ids=lambda s: str(s.dtype))
def test_equal_values_have_equal_hashes(some, others):
    np.testing.assert_array_equal(hashes_of(some), hashes_of(others))
    assert len(set(hashes_of(some).tolist())) == len(some)


@pytest.mark.parametrize(
    "values",
    [
        pd.Series([2**62, 2**62 + 1, 2**63 - 1, -(2**63), 2**53 + 1]),
        pd.Series([2**64 - 1, 2**64 - 2, 2**63, 2**63 - 1], dtype="uint64"),
        pd.Series(pd.to_datetime([1, 2, 3, 10**9, -1])),
        pd.Series([datetime.time(1), datetime.time(1, 0, 0, 1)], dtype="time64[us][pyarrow]"),
        pd.Series([b"", b"a", b"\x00"], dtype="binary[pyarrow]"),
    ],
    ids=lambda s: str(s.dtype),
)
def test_values_that_differ_little_have_different_hashes(values):
    assert len(set(hashes_of(values).tolist())) == len(values)
