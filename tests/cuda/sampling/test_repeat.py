"""Reuse of the decision of the previous partition."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.cuda.call import Run
from dask_gpuagg.cuda.choice.decision import Decision, Direct, Hgb, Lphga, Pgb, PgbFold, Sgb
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.keys.ranges import RangedKeys
from dask_gpuagg.cuda.query.forms import STEPPED
from dask_gpuagg.cuda.query.structs import Codes
from dask_gpuagg.cuda.sampling import repeat as expectation
from dask_gpuagg.cuda.sampling.sample import Numbers
from tests.cuda.choice.test_tables import SUM

ROWS = 10**6
HALF = 1 << 63
EVEN = KeySummary(64, 64, 0.0, 0.02, bounds=(0, 63))
ABOUT: Any = {"why": "few groups", "estimate": EVEN}
TABLE: Any = ABOUT | {"shared_slots": 128, "blocks": 132, "global_slots": 4096}
PARTITIONS: Any = TABLE | {"partitions": 256, "capacity": 5_000, "slices": 1, "base": None}
HGB = Hgb(**TABLE, replicas=1)
PARTS = Pgb(**PARTITIONS)
SORTED = Sgb(**ABOUT)
GLOBAL = Lphga(**ABOUT, global_slots=4096)
FOLD = PgbFold(**PARTITIONS, fills=1)


def numbers(least: int = 0, greatest: int = 63, **changed: int) -> Numbers:
    """Of 65,536 rows with 64 even keys, unless changed."""
    made = Numbers(
        pairs=64 * 256 * 255,
        least=least + HALF,
        greatest=HALF - 1 - greatest,
        rows=65_536,
        distinct=64,
        once=0,
        twice=0,
        most=1_100,
        repeats=1_000,
        segment_keys=64 * 256,
        hot_keys=64,
        descents=31_000,
    )
    return made._replace(**changed)


def alike(seen: Numbers, of: Numbers, decision: Decision = HGB) -> bool:
    """As the device compares."""
    expected = expectation.bounds_of(of, decision)
    return all(
        low <= n <= high for low, n, high in zip(expected.least, seen, expected.most, strict=True)
    )


def call_of(rows: int = ROWS, **other: Any) -> Any:
    call = {"kernels": "kernels", "values": 1.0, "key_labels": ("a",), "codes": None}
    return SimpleNamespace(rows=rows, **call | other)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    expectation.forget()
    yield
    expectation.forget()


word = st.integers(-HALF, HALF - 1)
count = st.integers(0, 65_536)


COUNTS = [name for name in Numbers._fields if name not in ("least", "greatest")]


def test_a_sample_without_plain_keys_is_like_itself() -> None:
    """As of a column of nulls alone."""
    seen = numbers(HALF - 1, -HALF)
    assert seen.bounds == (HALF - 1, -HALF)
    assert alike(seen, seen)
    assert not alike(numbers(), seen)
    assert not alike(seen, numbers())


@given(word, word, st.fixed_dictionaries(dict.fromkeys(COUNTS, count)))
def test_a_sample_is_like_itself(a: int, b: int, counts: dict[str, int]) -> None:
    seen = numbers(min(a, b), max(a, b), **counts)
    assert seen.bounds == (min(a, b), max(a, b))
    assert alike(seen, seen)


@pytest.mark.parametrize("name", COUNTS)
def test_a_sample_with_other_counts_is_unlike(name: str) -> None:
    before = numbers()
    n = getattr(before, name)
    assert not alike(before._replace(**{name: 2 * n + 50}), before)
    if n > 100:
        assert not alike(before._replace(**{name: n // 2}), before)


def test_sorted_rows_are_unlike_unsorted_ones() -> None:
    before = numbers(descents=3)
    assert alike(before._replace(descents=1), before)
    assert not alike(before._replace(descents=0), before)


@pytest.mark.parametrize(
    ("least", "greatest", "expected"),
    [(0, 63, True), (-20, 80, True), (-40, 63, False), (0, 100, False), (40, 63, False)],
)
def test_the_range_may_differ_a_little(least: int, greatest: int, expected: bool) -> None:
    assert alike(numbers(least, greatest), numbers()) == expected


@pytest.mark.parametrize(
    "decision",
    [
        Direct(**ABOUT, base=-2, keys=68, blocks=132, in_shared=False, shift=2),
        replace(PARTS, base=-2, window=68),
    ],
)
def test_keys_outside_of_the_window_are_unlike(decision: Decision) -> None:
    assert alike(numbers(-2, 65), numbers(), decision)
    assert not alike(numbers(-3, 63), numbers(), decision)
    assert not alike(numbers(0, 66), numbers(), decision)


def test_narrow_words_hold_what_they_are_counted_from() -> None:
    decision = replace(PARTS, base=-100)
    wide = numbers(0, 2**32 - 200)
    assert alike(numbers(-100, 2**32 - 101), wide, decision)
    assert not alike(numbers(0, 2**32 - 100), wide, decision)


@pytest.mark.parametrize(
    ("least", "greatest", "expected"),
    [(0, 99, True), (-2, 101, True), (-3, 99, False), (0, 102, False), (50, 50, True)],
)
def test_no_value_may_come_near_the_end_of_a_range(
    least: int, greatest: int, expected: bool
) -> None:
    """109 codes from -4 on: 100 values, 4 more at both ends, a null."""
    bounds = expectation.bounds_of(numbers(), PARTS, RangedKeys(SUM, [(-4, 109), (0, 40)]))
    half = 1 << 63
    seen = [least + half, half - 1 - greatest, 20 + half, half - 1 - 20]
    assert all(low <= n for low, n in zip(bounds.ends, seen, strict=False)) == expected
    # nothing is asked of other columns, nor of any without ranges
    assert list(bounds.ends[4:]) == [0] * 12
    assert list(expectation.bounds_of(numbers(), PARTS).ends) == [0] * 16


def test_the_window_of_numbers_is_no_window_of_words() -> None:
    decision = replace(PARTS, base=0, window=133 * 40)
    seen = numbers(-(2**40), 2**41)
    assert not alike(seen, seen, decision)
    expected = expectation.bounds_of(seen, decision, RangedKeys(SUM, [(-16, 133), (0, 40)]))
    least, most = expected.least, expected.most
    assert all(low <= n <= high for low, n, high in zip(least, seen, most, strict=True))


@pytest.mark.parametrize(
    ("least", "greatest", "expected"),
    [(0, 9_900, True), (-200, 10_100, True), (-300, 9_900, False), (0, 10_200, False)],
)
def test_no_key_may_come_near_the_end_of_a_range_of_steps(
    least: int, greatest: int, expected: bool
) -> None:
    """100 keys a hundred apart, four more at both ends, a null."""
    stepped = replace(SUM, chosen=STEPPED)
    bounds = expectation.bounds_of(
        numbers(0, 9_900), PARTS, RangedKeys(stepped, [(-400, 109)], 100)
    )
    seen = numbers(least, greatest)
    inside = [
        low <= n <= high for low, n, high in zip(bounds.least, seen, bounds.most, strict=True)
    ]
    assert all(inside) == expected
    # the sample of one column tells no ranges
    assert not any(bounds.ends)


@pytest.mark.parametrize("decision", [HGB, PARTS, FOLD])
def test_a_decision_is_repeated(decision: Decision) -> None:
    assert expectation.expectation(call_of(), "auto") is None
    expectation.keep(call_of(), "auto", decision, numbers(), 0)
    found = expectation.expectation(call_of(), "auto")
    assert found is not None
    assert found.decision == replace(decision, why="few groups; as for rows before")
    assert expectation.expectation(call_of(), "hgb") is None
    assert expectation.expectation(call_of(kernels="others"), "auto") is None
    assert expectation.expectation(call_of(values=0.9), "auto") is None
    assert expectation.expectation(call_of(key_labels=("b",)), "auto") is None
    # the same words stand for other keys
    codes = Codes(), Codes()
    assert expectation.expectation(call_of(codes=codes[0]), "auto") is None
    expectation.keep(call_of(codes=codes[0]), "auto", decision, numbers(), 0)
    assert expectation.expectation(call_of(codes=codes[0]), "auto") is not None
    assert expectation.expectation(call_of(codes=codes[1]), "auto") is None
    expectation.forget()
    assert expectation.expectation(call_of(), "auto") is None


@pytest.mark.parametrize(("decision", "more"), [(HGB, True), (PARTS, False)])
def test_decisions_are_repeated_for_about_as_many_rows(decision: Decision, more: bool) -> None:
    """Partitions have no room for more."""
    expectation.keep(call_of(), "auto", decision, numbers(), 0)
    for rows, expected in [
        (ROWS * 15 // 16, True),
        (ROWS * 14 // 16, False),
        (ROWS * 17 // 16, more),
        (ROWS * 18 // 16, False),
    ]:
        assert (expectation.expectation(call_of(rows), "auto") is not None) == expected


def test_decisions_are_seldom_repeated_after_refusals() -> None:
    guessed = 0
    for _ in range(200):
        if expectation.expectation(call_of(), "auto") is not None:
            guessed += 1
            expectation.refused(call_of(), "auto")
        expectation.keep(call_of(), "auto", HGB, numbers(), 0)
    assert 5 <= guessed <= 12
    # until one is
    while expectation.expectation(call_of(), "auto") is None:
        pass
    expectation.judge(call_of(), "auto", Run(HGB, ROWS, 64))
    assert all(expectation.expectation(call_of(), "auto") is not None for _ in range(10))


@pytest.mark.parametrize(
    "run", [Run(HGB, ROWS, 64, restarted=True), Run(HGB, ROWS, 64, spilled=ROWS // 10)]
)
def test_a_repeated_decision_that_does_badly_is_dropped(run: Run) -> None:
    expectation.keep(call_of(), "auto", HGB, numbers(), 0)
    expectation.judge(call_of(), "auto", Run(HGB, ROWS, 64, spilled=10))
    assert expectation.expectation(call_of(), "auto") is not None
    expectation.judge(call_of(), "auto", run)
    assert expectation.expectation(call_of(), "auto") is None


SKEWED = replace(EVEN, skewed=True)


@pytest.mark.parametrize(
    ("decision", "spilled"),
    [(None, 0), (SORTED, 0), (GLOBAL, 0), (replace(PARTS, estimate=SKEWED), 0), (HGB, ROWS // 10)],
)
def test_a_decision_that_does_badly_is_dropped(decision: Decision | None, spilled: int) -> None:
    expectation.keep(call_of(), "auto", HGB, numbers(), 0)
    expectation.keep(call_of(), "auto", decision, numbers(), spilled)
    assert expectation.expectation(call_of(), "auto") is None


def test_decisions_for_skewed_keys_in_shared_tables_are_repeated() -> None:
    expectation.keep(call_of(), "auto", replace(HGB, estimate=SKEWED), numbers(), 0)
    assert expectation.expectation(call_of(), "auto") is not None
