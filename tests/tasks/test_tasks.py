"""Keys of some rows of a partition."""

import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.plan import Column, Plan, StateUse
from dask_gpuagg.tasks.reading import Chunk
from dask_gpuagg.tasks.tasks import ROWS_OF_A_SAMPLE, KeySample, gpuagg_sample


def sample(pdf: pd.DataFrame, by: list[str], dropna: bool = True) -> KeySample:
    keys = tuple(Column(label, pdf[label].dtype) for label in by)
    plan = Plan(keys, (), (StateUse("size", ()),), (), dropna=dropna)
    part = ((), ((True, "frame"), (False, None), *((False, label) for label in by)))
    return gpuagg_sample(Chunk((part,), {"frame": pdf}, 0), plan)


@pytest.mark.parametrize("rows", [0, 1, 300, ROWS_OF_A_SAMPLE])
def test_few_rows_are_all_looked_at(rows: int) -> None:
    got = sample(pd.DataFrame({"k": np.arange(rows) % 7}), ["k"])
    assert (got.taken, got.rows) == (rows, rows)
    assert sorted(got.keys[0]) == list(range(min(rows, 7)))


@pytest.mark.parametrize("rows", [ROWS_OF_A_SAMPLE + 1, 3 * ROWS_OF_A_SAMPLE, 1_000_003])
def test_of_many_rows_some_at_equal_distances(rows: int) -> None:
    got = sample(pd.DataFrame({"k": np.arange(rows)}), ["k"])
    assert got.rows == rows
    assert ROWS_OF_A_SAMPLE / 2 <= got.taken <= ROWS_OF_A_SAMPLE
    assert got.keys[0].diff().dropna().nunique() == 1
    assert got.keys[0].iloc[-1] > rows * 0.99


@pytest.mark.parametrize(("dropna", "expected"), [(True, 4), (False, 6)])
def test_several_keys_and_nulls(dropna: bool, expected: int) -> None:
    pdf = pd.DataFrame({"a": ["x", "y", None] * 20, "b": [1, 2] * 30})
    got = sample(pdf, ["a", "b"], dropna)
    assert [len(key) for key in got.keys] == [expected, expected]
    assert got.taken == (40 if dropna else 60)
