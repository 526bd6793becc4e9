"""Keys as hashes of them: strings, whatever they are and however many, and wide keys."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.cuda.sampling import repeat
from tests.device.test_kernels import check, values
from tests.device.test_wide_keys import random_texts
from tests.running import run_python

ROWS = 1_500_000
WANTED = {"i": ["sum", "count", "min"], "f": ["sum"]}


def frame_of(texts: Any, codes: Any, rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame({"k": np.array(texts, object)[codes]} | values(rng, len(codes)))


def assert_grouped(frame: pd.DataFrame, keep_nulls: bool = False) -> None:
    check(frame, ["k"], WANTED, keep_nulls=keep_nulls)


@pytest.mark.parametrize("groups", [7, 2_000, 20_000, 80_000])
@pytest.mark.parametrize(("low", "high"), [(16, 44), (10, 66)])
def test_lengths(groups: int, low: int, high: int) -> None:
    """Of one word and of many, and longer than one stretch of the hash."""
    rng = np.random.default_rng(groups)
    texts = random_texts(groups, low, high, rng)
    codes = rng.integers(0, groups, ROWS)
    # so that strings differ in more bits than a number of them has
    texts[0] = "".join(chr(33 + i % 90) for i in range(high))
    assert_grouped(frame_of(texts, codes, rng))


@pytest.mark.parametrize("order", ["ascending", "skewed"])
def test_orders(order: str) -> None:
    rng = np.random.default_rng(1)
    texts = random_texts(50_000, 16, 40, rng)
    codes = np.sort(rng.integers(0, 50_000, ROWS)) if order == "ascending" else None
    if codes is None:
        codes = np.minimum(49_999, rng.pareto(0.7, ROWS) * 5).astype("int64")
    assert_grouped(frame_of(texts, codes, rng))


def test_strings_that_hardly_repeat() -> None:
    rng = np.random.default_rng(3)
    texts = random_texts(1_000_000, 16, 40, rng)
    assert_grouped(frame_of(texts, rng.integers(0, 10**6, ROWS), rng))


def test_strings_that_differ_anywhere() -> None:
    rng = np.random.default_rng(4)
    texts = [""] + ["\0" * n for n in range(1, 20)] + random_texts(50, 16, 70, rng)
    for n in (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 47, 56, 57, 64, 65, 129):
        texts += ["x" * i + "ä" + "x" * (n - i - 1) for i in range(n)] + ["x" * n]
    # long strings are rare
    weights = np.array([1 / (8 + len(text.encode())) ** 1.5 for text in texts])
    codes = rng.choice(len(texts), ROWS, p=weights / weights.sum())
    assert_grouped(frame_of(texts, codes, rng))


@pytest.mark.parametrize("exponent", [0.8, 1.2])
def test_skewed_keys_as_for_rows_before(exponent: float) -> None:
    """Hot keys are those of the rows before, unless some of them do not occur."""
    rng = np.random.default_rng(9)
    groups, rows = 60_000, 1 << 21
    chances = np.cumsum(np.arange(1, groups + 1) ** -exponent)
    keys = rng.permutation(groups) * 7_919

    def run_of(missing: int | None = None) -> Any:
        # after a refusal the next guess would be left out
        repeat._refused.clear()
        column = keys[np.searchsorted(chances, rng.random(rows) * chances[-1])]
        if missing is not None:
            column[column == keys[missing]] = keys[-1]
        frame = pd.DataFrame({"k": column} | values(rng, rows))
        return check(frame, ["k"], WANTED)

    first, again = run_of(), run_of()
    assert first.decision.hot
    assert "as for rows before" not in first.decision.why
    assert again.decision.why == f"{first.decision.why}; as for rows before"
    assert "as for rows before" not in run_of(missing=3).decision.why
    keys = rng.permutation(groups) * 7_919
    assert "as for rows before" not in run_of().decision.why


FEW_BITS = """
import numpy as np, pandas as pd
from dask_gpuagg.cuda.runtime import compiler
real, name, line = compiler.headers, "key/by_row.cuh", b"return scramble(first.sum);"
assert line in real()[name]
changed = real() | {name: real()[name].replace(line, b"return scramble(first.sum) & 0xffull;")}
compiler.headers = lambda: changed
from tests.device.test_hashed import check, random_texts, values
from tests.device.test_kernels import KERNELS
rng = np.random.default_rng(6)
for groups, rows in ((2, 1_000), (300, 50_000), (2_000, 1_200_000)):
    codes = rng.integers(0, groups, rows)
    texts = np.array(random_texts(groups, 16, 70, rng), object)
    numbers = {c: rng.integers(0, 2**62, groups, dtype=np.uint64)[codes] for c in "abc"}
    frame = pd.DataFrame({"k": texts[codes]} | numbers | values(rng, rows))
    for keys in (["k"], ["k", "a"], list("abc")):
        run = check(frame, keys, {"i": ["sum", "count"], "f": ["min"]})
        assert run.groups == groups, (keys, run.groups)
        # how each kernel tells that a group has several keys
        for kernel in KERNELS if groups == 300 else ():
            run = check(frame, keys, {"i": ["sum", "count"], "f": ["min"]}, kernel)
            assert run.groups == groups, (keys, kernel, run.groups)
print("right")
"""


def test_hashes_of_few_bits(tmp_path: Path) -> None:
    """Of 8 bits, many keys share one: the second hash tells, and rows are compared instead."""
    settings = {"DASK_GPUAGG__KERNEL_CACHE": str(tmp_path), "DASK_GPUAGG__COMPILE": "wait"}
    path = [entry for entry in sys.path if entry]
    done = run_python("-c", FEW_BITS, env=settings, path=path, timeout=900)
    assert done.stdout.endswith("right\n"), done.stderr[-3_000:]
