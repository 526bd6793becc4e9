"""The constants that host and device share, and the sizes of a query's kernels."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dask_gpuagg.cuda.query import tuning
from dask_gpuagg.cuda.query.tuning import EXTRA_SLOTS
from dask_gpuagg.cuda.query.types import KernelState
from dask_gpuagg.cuda.runtime.compiler import headers
from tests.cuda.specialisations import TABLE


def test_every_public_number_is_a_constant() -> None:
    text = headers()["constants.cuh"].decode()
    written = dict(re.findall(r"constexpr unsigned (\w+) = (\d+);", text))
    assert written == {n: str(v) for n, v in vars(tuning).items() if n.isupper()}
    assert written["EXTRA_SLOTS"] == str(EXTRA_SLOTS)


def test_no_header_has_a_constant_of_the_same_name() -> None:
    for name, text in headers().items():
        if name != "constants.cuh":
            defined = set(re.findall(r"constexpr u(?:32|64) (\w+) =", text.decode()))
            assert not [n for n in defined if n in vars(tuning)], name


@pytest.mark.parametrize(("heavy", "by_row", "threads"), [(8, False, 1024), (9, False, 512)])
def test_heavy_states_take_smaller_blocks(heavy: int, by_row: bool, threads: int) -> None:
    assert tuning.block_threads(heavy, by_row) == threads
    query = replace(TABLE["1 aggregation by int64"], states=(KernelState("Size"),) * heavy)
    assert query.threads == threads


@pytest.mark.parametrize("state_bytes", [0, 4, 8, 32, 100, 512, 4096])
def test_crowds_are_a_power_of_two(state_bytes: int) -> None:
    slots = tuning.crowds(state_bytes)
    assert 1 <= slots <= 16
    assert slots & (slots - 1) == 0
    assert slots == 1 or slots * state_bytes <= 512
