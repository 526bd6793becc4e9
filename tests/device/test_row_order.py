"""Results of dask-cudf that cuDF combines by position have equal groups in equal rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.comparison import same
from tests.device.frames import on_device

pytestmark = pytest.mark.usefixtures("raising")

ROWS = 80_000
QUERIES: dict[str, Callable[[Any], Any]] = {
    "sum": lambda g: g.x.sum(min_count=2),
    "prod": lambda g: g.y.prod(min_count=2),
    "where": lambda g: g.x.sum().where(g.y.count() > 1),
    "mask": lambda g: g.x.sum().mask(g.y.max() > 0.5),
    "filter of a frame": lambda g: g[["x", "y"]].sum()[g.y.count() > 1],
    "filter of a column": lambda g: g.x.sum()[g.y.count() > 1],
}


@pytest.mark.parametrize("npartitions", [1, 4])
@pytest.mark.parametrize("name", QUERIES)
def test_as_in_pandas(name: str, npartitions: int) -> None:
    rng = np.random.default_rng(4)
    keys = {"k": rng.integers(0, 10**6, ROWS), "j": rng.integers(0, 200, ROWS).astype("uint8")}
    rows = pd.DataFrame(keys | {"x": rng.integers(0, 99, ROWS) / 4, "y": rng.normal(size=ROWS)})
    rows["k"] //= 20  # groups of one row and of several
    ddf = on_device(rows, npartitions)
    query, by = QUERIES[name], ["k", "j"]
    # cuDF takes no series of truths for an index of several levels
    if name in ("prod", "filter of a column"):
        by = ["k"]
    ours = query(ddf.groupby(by)).compute().to_pandas()
    same(ours, query(rows.groupby(by)), check_dtype=False, rtol=1e-9)
