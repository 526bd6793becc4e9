"""Methods that pandas' group-bys have and dask-cudf's lack."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.comparison import same
from tests.device.frames import on_device

pytestmark = pytest.mark.usefixtures("raising")


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    pdf = pd.DataFrame(
        {
            "k": rng.integers(0, 5, 1_200),
            "j": rng.integers(0, 2, 1_200),
            "x": rng.random(1_200),
            "i": rng.integers(0, 900, 1_200),
            "b": rng.random(1_200) < 0.5,
        }
    )
    return pdf


QUERIES: dict[str, Callable[[Any], Any]] = {
    "named": lambda d: d.groupby("k").agg(total=("x", "sum"), largest=("i", "max")),
    "quantile": lambda d: d.groupby("k").x.quantile(0.9),
    "quantiles": lambda d: d.groupby("k").x.quantile([0.1, 0.9]),
    "quantiles of a frame": lambda d: d.groupby(["k", "j"])[["x", "i"]].quantile([0.1, 0.5, 0.9]),
    "any": lambda d: d.groupby("k").b.any(),
    "all": lambda d: d.groupby("k")[["b", "i"]].all(),
    "sem": lambda d: d.groupby("k").x.sem(),
    "nunique": lambda d: d.groupby("k").nunique(),
    "describe": lambda d: d.groupby("k").x.describe(),
    "describe a frame": lambda d: d.groupby("k")[["x", "i"]].describe(),
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
