"""Methods that pandas' group-bys have and dask-cudf's lack."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.comparison import same
from tests.device.frames import on_device
from tests.frontend.test_methods import ADDED

pytestmark = pytest.mark.usefixtures("raising")


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "k": rng.integers(0, 5, 1_200),
            "j": rng.integers(0, 2, 1_200),
            "x": rng.random(1_200),
            "i": rng.integers(0, 900, 1_200),
            "b": rng.random(1_200) < 0.5,
        }
    )


QUERIES: dict[str, Callable[[Any], Any]] = {
    "named": lambda d: d.groupby("k").agg(total=("x", "sum"), largest=("i", "max")),
    **{name: ADDED[name] for name in ("a quantile", "quantiles", "quantiles of a frame", "any")},
    **{name: ADDED[name] for name in ("all of a frame", "sem", "nunique of a frame")},
    **{name: ADDED[name] for name in ("describe", "describe a frame")},
    "nlargest": lambda d: d.groupby("k").x.nlargest(3),
    "nsmallest": lambda d: d.groupby("k").x.nsmallest(3),
    "shares": lambda d: d.groupby("k").j.value_counts(normalize=True),
    "chosen": lambda d: d.groupby("k")[["x", "i"]].mean(),
}


@pytest.mark.parametrize("npartitions", [1, 4])
@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_method_answers_as_pandas(query: Callable[[Any], Any], npartitions: int) -> None:
    pdf = frame()
    lazy = query(on_device(pdf, npartitions))
    found, expected = (
        result.sort_index(kind="stable") for result in (lazy.compute().to_pandas(), query(pdf))
    )
    if expected.ndim == 2:
        assert list(lazy.columns) == list(expected.columns)
    same(found, expected, check_dtype=False, check_index_type=False, check_names=False)
