"""Results of dask-cudf collections have the partitions that stock dask-cudf announces."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.announced import QUERIES, both
from tests.device.frames import on_device

RNG = np.random.default_rng(4)
ROWS = pd.DataFrame(
    {
        "k": RNG.permutation(960) % 120,
        "j": RNG.integers(0, 4, 960),
        "x": RNG.normal(size=960),
        "y": RNG.integers(0, 100, 960),
    }
)
# stock dask-cudf refuses named aggregations and computed keys, and fails at sizes in several
# outputs
OF_CUDF = sorted(QUERIES.keys() - {"named", "an expression", "size"})


@pytest.mark.parametrize("npartitions", [1, 6, 20])
@pytest.mark.parametrize("name", OF_CUDF)
def test_partitions_are_those_of_stock_dask(name: str, npartitions: int) -> None:

    ours, theirs = both(QUERIES[name], on_device(ROWS, npartitions))
    assert ours == theirs
