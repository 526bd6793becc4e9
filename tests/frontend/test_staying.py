"""Dask's functions stay wrapped only where a result is made that needs it."""

from __future__ import annotations

from tests.running import run_python

OF_SORTED = """
import dask.dataframe as dd, pandas as pd, dask_gpuagg
from dask.dataframe.dask_expr._concat import Concat

before = Concat._lower
with dask_gpuagg.enabled():
    frame = dd.from_pandas(pd.DataFrame({"k": range(9), "x": 1}), npartitions=3)
    grouped = frame.groupby("k", sort=True)
    grouped.x.sum().compute()
    assert Concat._lower is before
    grouped.x.sum(split_out=2)
    first = Concat._lower
    assert first is not before
    grouped.x.sum(split_out=3)
assert Concat._lower is first
"""


def test_dask_is_changed_for_good_where_a_sorted_result_has_several_outputs() -> None:
    done = run_python("-c", OF_SORTED)
    assert done.returncode == 0, done.stderr


OF_OWN_HASH = """
import dask.dataframe as dd, pandas as pd, dask_gpuagg
from dask.dataframe.dask_expr._concat import Concat

before = Concat._lower
with dask_gpuagg.enabled():
    frame = dd.from_pandas(pd.DataFrame({"k": range(9), "x": 1}), npartitions=3)
    one = frame.groupby("k").x.sum().persist()
    assert len((one + frame.groupby("k").x.sum(split_out=2)).compute()) == 9
    frame.groupby("k").x.sum(split_out=2).compute()
    assert Concat._lower is before
    frame.groupby(frame.k.astype(object)).x.sum(split_out=2).compute()
    assert Concat._lower is not before
"""


def test_dask_is_changed_for_good_where_keys_have_our_hash() -> None:
    done = run_python("-c", OF_OWN_HASH)
    assert done.returncode == 0, done.stderr
