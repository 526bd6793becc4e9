"""The constants that host and device share, and the sizes of a query's kernels."""

import re

from dask_gpuagg.cuda.query import tuning
from dask_gpuagg.cuda.query.tuning import EXTRA_SLOTS
from dask_gpuagg.cuda.runtime.compiler import headers


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
