"""Complex values in partitions of a column that was promised real."""

from typing import Any

import pandas as pd
import pytest

import dask_gpuagg
from tests.data import in_pieces
from tests.judging import judge

pytestmark = pytest.mark.usefixtures("synchronous")

REAL = pd.DataFrame({"k": [0, 1, 0, 1, 2], "x": [1.0, 2.0, 3.0, 4.0, 0.0], "y": 1.0})
PIECES = [REAL, REAL.assign(x=[1 + 2j, 3, 4j, 5, 0]).set_axis(range(5, 10))]


def collection() -> Any:
    return in_pieces(PIECES, REAL.iloc[:0])


@pytest.mark.parametrize("options", [{}, {"split_out": 2, "shuffle_method": "tasks"}])
def test_keys(options: dict[str, Any]) -> None:
    judge(lambda f, **o: f.groupby("x").y.sum(**o), collection, PIECES, [options])


@pytest.mark.parametrize("name", ["sum", "var", "first", "median"])
def test_values_are_refused(name: str) -> None:
    with dask_gpuagg.enabled(), pytest.raises(TypeError, match="complex numbers, where float64"):
        getattr(collection().groupby("k").x, name)().compute()
