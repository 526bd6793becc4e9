"""Keys of some rows of a cuDF partition, as the planner gets them."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.plan import Column, Plan, StateUse
from dask_gpuagg.tasks.reading import Chunk
from dask_gpuagg.tasks.tasks import ROWS_OF_A_SAMPLE, gpuagg_sample

ROWS = 3 * ROWS_OF_A_SAMPLE + 5


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(4)
    pdf = pd.DataFrame({"k": rng.integers(0, 300, ROWS), "s": rng.choice(["a", "bc", "d"], ROWS)})
    pdf["c"] = pdf["s"].astype("category")
    pdf["n"] = pdf["k"].astype("Int32").mask(pdf["k"] > 250)
    return pdf


@pytest.mark.parametrize("by", [["k"], ["s"], ["c"], ["n"], ["k", "s"]], ids="+".join)
@pytest.mark.parametrize("dropna", [True, False])
def test_distinct_keys_are_in_pandas(by: list[str], dropna: bool) -> None:
    import cudf

    made: Any = cudf.DataFrame(frame())
    keys = tuple(Column(label, made[label].dtype) for label in by)
    plan = Plan(keys, (), (StateUse("size", ()),), (), dropna=dropna)
    part = ((), ((True, "frame"), (False, None), *((False, label) for label in by)))
    found = gpuagg_sample(Chunk((part,), {"frame": made}, 0), plan)
    expected = frame()[by].iloc[::4].drop_duplicates()
    expected = expected.dropna() if dropna else expected
    assert all(isinstance(key, pd.Series) for key in found.keys)
    assert {len(key) for key in found.keys} == {len(expected)}
    assert ROWS_OF_A_SAMPLE / 2 < found.taken <= ROWS_OF_A_SAMPLE
