"""Strings that differ in few bits, alone and beside integers."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.device.test_kernels import (
    KERNELS,
    WANTED,
    aggregated,
    assert_equal,
    by_pandas,
    check,
    frame_of,
    in_sample,
    values,
)
from tests.device.test_wide_keys import with_nulls

ROWS = 1_500_000
# A row that no sample sees.
UNSEEN = np.flatnonzero(~in_sample(ROWS))[3_000]


@pytest.fixture
def coded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of calls that made codes."""
    from dask_gpuagg.cuda.keys import codes

    made: list[int] = []
    make_words = codes.make_words

    def recorded(call: Any, *operands: Any) -> None:
        made.append(call.rows)
        make_words(call, *operands)

    monkeypatch.setattr(codes, "make_words", recorded)
    return made


def keys_of(kind: str, groups: int, rng: np.random.Generator) -> dict[str, Any]:
    codes = rng.integers(0, groups, ROWS)
    numbers = pd.Series(np.arange(groups))
    if kind == "dates":
        days = pd.Timestamp("2020-01-01") + pd.to_timedelta(numbers, unit="min")
        return {"a": days.dt.strftime("%Y-%m-%dT%H:%M").to_numpy(object)[codes]}
    if kind == "strings and integers":
        first = np.array([f"id{i:03d}" for i in range(97)], object)
        last = np.array([f"{i}" for i in range(89)], object)
        rest = (codes // 97 // 89 - 40).astype("int16")
        return {"a": first[codes % 97], "b": rest, "c": last[codes // 97 % 89]}
    width = {"names": 0, "10 digits": 10, "40 digits": 40, "64 digits": 64}[kind]
    names = "name_" + numbers.astype(str) if kind == "names" else numbers.astype(str)
    return {"a": names.str.zfill(width).to_numpy(object)[codes]}


KINDS = ["10 digits", "40 digits", "64 digits", "names", "dates", "strings and integers"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("groups", [1, 1_000, 100_000, 700_000])
@pytest.mark.parametrize("kind", KINDS)
def test_cardinalities(kind: str, groups: int, kernel: str, coded: list[int]) -> None:
    rng = np.random.default_rng(groups)
    keys = keys_of(kind, groups, rng)
    frame = pd.DataFrame(keys | values(rng, ROWS))
    run = check(frame, list(keys), WANTED, kernel)
    assert coded == [ROWS]
    # only keys of one word are sorted, they may lie in a wide range, and one group is not folded
    if kernel not in ("auto", "sgb", "direct") and (kernel, groups) != ("pgb_fold", 1):
        assert run.decision.kernel.startswith(kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("keep_nulls", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_nulls(kind: str, keep_nulls: bool, kernel: str, coded: list[int]) -> None:
    rng = np.random.default_rng(2)
    keys = with_nulls(keys_of(kind, 3_000, rng), rng)
    check(frame_of(keys), list(keys), WANTED, kernel, keep_nulls)
    assert coded == [ROWS]


@pytest.mark.parametrize("kernel", ["hgb", "pgb", "lphga"])
@pytest.mark.parametrize("other", ["id00x17", "id0001", "id000001", "", "x" * 80, "id00017\0"])
@pytest.mark.parametrize("groups", [2_000, 400_000])
def test_a_row_unlike_those_of_the_sample(
    groups: int, other: str, kernel: str, coded: list[int]
) -> None:
    rng = np.random.default_rng(6)
    names = np.array([f"id{i:06d}" for i in range(groups)], object)
    keys = names[rng.integers(0, groups, ROWS)]
    keys[UNSEEN] = other
    frame = pd.DataFrame({"k": keys} | values(rng, ROWS))
    run = check(frame, ["k"], WANTED, kernel)
    assert run.groups == frame["k"].nunique()
    # where keys may have slots of their own, by near codes first; and then with other words
    tries = 2 if kernel == "pgb" and other not in names else 1
    assert coded == [ROWS] * tries


@pytest.mark.parametrize("other", ["id099999", "id400001"])
@pytest.mark.parametrize("kernel", ["auto", "direct", "pgb"])
def test_digits_outside_of_near_codes(kernel: str, other: str, coded: list[int]) -> None:
    """They cost another try by wider ones, which later calls begin with."""
    rng = np.random.default_rng(16)
    names = np.array([f"id0{i:05d}" for i in range(90_000)], object)
    keys = names[rng.integers(0, len(names), ROWS)]
    frame = pd.DataFrame({"k": keys} | values(rng, ROWS))
    theirs = by_pandas(frame, ["k"], WANTED)
    ours, run = aggregated(frame, ["k"], WANTED, kernel)
    assert_equal(ours, theirs)
    assert "of a narrow range" in run.decision.why or kernel != "auto"
    frame.loc[UNSEEN, "k"] = other
    theirs = by_pandas(frame, ["k"], WANTED)
    for _ in range(2):
        ours, run = aggregated(frame, ["k"], WANTED, kernel)
        assert_equal(ours, theirs)
    assert coded == [ROWS] * 4


def test_integers_that_no_sample_saw(coded: list[int]) -> None:
    rng = np.random.default_rng(7)
    keys = keys_of("strings and integers", 100_000, rng)
    keys["b"][UNSEEN] = -(2**15)
    frame = pd.DataFrame(keys | values(rng, ROWS))
    check(frame, list(keys), WANTED)
    # by near codes and by wider ones
    assert coded == [ROWS] * 2


@pytest.mark.parametrize("keep_nulls", [False, True])
def test_no_string_but_empty_ones_and_nulls(keep_nulls: bool) -> None:
    rng = np.random.default_rng(9)
    for texts in ([""], [None], ["", None], [None, "late"]):
        drawn = np.zeros(ROWS, int) if "late" in texts else rng.integers(0, len(texts), ROWS)
        if "late" in texts:
            drawn[UNSEEN] = 1
        key = pd.Series(np.array(texts, object)[drawn], dtype="str")
        frame = pd.DataFrame({"k": key} | values(rng, ROWS))
        check(frame, ["k"], WANTED, "auto", keep_nulls)


@pytest.mark.parametrize("groups", [2_000, 300_000])
def test_decisions_are_repeated_for_the_same_codes(groups: int, coded: list[int]) -> None:
    """For others, which another sample has shown, they are made anew; and rows may be in doubt."""
    names = np.array([f"id{i:06d}" for i in range(groups // 2)], object)

    def grouped(seed: int, texts: Any, odd: str = "") -> str:
        rng = np.random.default_rng(seed)
        keys = texts[rng.integers(0, len(texts), ROWS)]
        if odd:
            keys[UNSEEN] = odd
        frame = pd.DataFrame({"k": keys, "n": rng.integers(0, 2, ROWS)} | values(rng, ROWS))
        return str(check(frame, ["k", "n"], WANTED).decision.why)

    told = "as for rows before"
    assert told not in grouped(1, names)
    assert told in grouped(2, names)
    others = np.array([f"no{i:06d}" for i in range(groups // 2)], object)
    assert told not in grouped(3, others)
    # the numbers of its bytes are no others', so that it is grouped by other words
    grouped(4, others, odd="no0x0001")
    # from then on there is room for other digits
    assert told not in grouped(6, names)
    assert told in grouped(7, names)
    assert coded == [ROWS] * 7
