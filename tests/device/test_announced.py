"""Results of dask-cudf collections have the partitions that stock dask-cudf announces."""

import pytest

from tests.announced import QUERIES, ROWS, both
from tests.device.frames import on_device

# stock dask-cudf refuses named aggregations and computed keys, and fails at sizes in several
# outputs
OF_CUDF = sorted(QUERIES.keys() - {"named", "an expression", "size"})


@pytest.mark.parametrize("npartitions", [1, 6, 20])
@pytest.mark.parametrize("name", OF_CUDF)
def test_partitions_are_those_of_stock_dask(name: str, npartitions: int) -> None:
    ours, theirs = both(QUERIES[name], on_device(ROWS, npartitions))
    assert ours == theirs
