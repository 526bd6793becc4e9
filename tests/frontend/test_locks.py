"""Threads that read cached properties of Dask's expressions do not wait for each other."""

from __future__ import annotations

import sys
import threading
from typing import Any, ClassVar

import pandas as pd
import pytest
from dask._expr import Expr as AnyExpr
from dask.dataframe.dask_expr._expr import Expr

import dask_gpuagg
from dask_gpuagg.frontend import patches
from tests.running import run_python


class Reading(Expr):
    """Its partitions are known when another thread has read those of another node."""

    _parameters: ClassVar[list[str]] = ["inner"]
    _meta: ClassVar[pd.DataFrame] = pd.DataFrame({"x": [1]})

    def _divisions(self) -> tuple[None, ...]:
        if self.inner:
            return (None, None)
        found: list[int] = []
        other = threading.Thread(target=lambda: found.append(Reading(True).npartitions))
        other.daemon = True
        other.start()
        other.join(20)
        assert found == [1]
        return (None, None, None)


def test_a_property_is_read_while_another_thread_computes_it() -> None:
    with dask_gpuagg.enabled():
        assert Reading(False).npartitions == 2


def _locks() -> list[Any]:
    owners: list[type] = [AnyExpr, Expr]
    return [getattr(vars(o).get(n), "lock", None) for o in owners for n in ("npartitions", "_name")]


def test_the_locks_are_given_back() -> None:
    before = _locks()
    if patches.installed():
        pytest.skip("the plugin is on in this process")
    with dask_gpuagg.enabled(), dask_gpuagg.enabled():
        inside = _locks()
    assert _locks() == before
    assert (inside == before) is (sys.version_info >= (3, 12))


SORTS = """
import dask, dask.dataframe as dd, pandas as pd
from distributed import Client, LocalCluster
import dask_gpuagg

if __name__ == "__main__":
    rows = pd.DataFrame({"k": [n * 7 % 200 for n in range(600)], "x": range(600)})
    dask.config.set({"gpuagg.output-bytes": 1000})
    dask_gpuagg.enable()
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster):
            groups = dd.from_pandas(rows, npartitions=5, sort=False).groupby("k").x.sum()
            ordered = groups.reset_index().sort_values("k")[["k", "x"]]
            print(len(ordered.reset_index(drop=True).compute()))
"""


def test_results_are_sorted_where_the_scheduler_is_a_thread() -> None:
    ran = run_python("-c", SORTS)
    assert ran.stdout == "200\n", ran.stderr
