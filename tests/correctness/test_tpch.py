"""TPC-H's 22 queries, whole: the same rows with the plugin off and on."""

from pathlib import Path
from typing import Any

import dask
import pandas as pd
import pytest

import dask_gpuagg
from benchmarks.tpch import read, write_parquet
from benchmarks.tpch_queries import QUERIES, WITHOUT_GROUPBY
from dask_gpuagg.reporting.runs import session

pytestmark = pytest.mark.usefixtures("synchronous")

SCALE = 0.01
# small files would be read together
SEVERAL_PARTITIONS = {"dataframe.parquet.minimum-partition-size": 1}
PARTS = 3
# those that stock Dask runs on decimals too
OF_DECIMALS = ("q4", "q5", "q7", "q12", "q13", "q16", "q21", "q22")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(SCALE, PARTS, tmp_path_factory.mktemp("tpch"))


def rows(result: Any) -> pd.DataFrame:
    """The rows in an order of their own: floats last, which may differ in their last digits."""
    if not isinstance(result, pd.DataFrame):
        return pd.DataFrame({"value": [result]})
    exact = [c for c in result.columns if not pd.api.types.is_float_dtype(result[c].dtype)]
    inexact = [c for c in result.columns if c not in exact]
    return result.sort_values([*exact, *inexact]).reset_index(drop=True)


@pytest.mark.parametrize(
    ("name", "filesystem", "money"),
    [
        *((name, "fsspec", "float") for name in QUERIES),
        *((name, "arrow", "decimal") for name in OF_DECIMALS),
    ],
)
def test_same_rows(folder: Path, name: str, filesystem: str, money: str):
    def run() -> Any:
        tables = read(folder, SCALE, filesystem, decimals=money == "decimal")
        with dask.config.set(SEVERAL_PARTITIONS):
            return QUERIES[name](tables).compute()

    assert not dask_gpuagg.is_enabled()
    stock = run()
    assert len(rows(stock)) > 0
    session.reset()
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "raise"}):
        ours = run()
    assert bool(session.planned) == (name not in WITHOUT_GROUPBY)
    assert type(ours) is type(stock)
    pd.testing.assert_frame_equal(rows(ours), rows(stock), rtol=1e-12, atol=0.0)
