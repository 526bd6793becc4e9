"""Variances of groups of which the kernels' pivot is far from the mean."""

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.comparison import same
from tests.device.frames import on_device

pytestmark = pytest.mark.usefixtures("raising")

ROWS = 400_000
GROUPS = 4


def exact(values: Any, name: str = "var") -> float:
    wide = np.asarray(values, dtype=np.longdouble)
    var = ((wide - wide.mean()) ** 2).sum() / (len(wide) - 1)
    return float({"var": var, "std": np.sqrt(var), "sem": np.sqrt(var / len(wide))}[name])


@pytest.mark.parametrize("npartitions", [1, 4])
@pytest.mark.parametrize("outlier", [1e4, -1e7, 1e12])
def test_an_outlier_that_comes_first(outlier: float, npartitions: int) -> None:
    rng = np.random.default_rng(9)
    pdf = pd.DataFrame({"k": np.arange(ROWS) % GROUPS, "x": rng.normal(2.0, 1.0, ROWS)})
    pdf.loc[: GROUPS - 1, "x"] = outlier
    ddf = on_device(pdf, npartitions)
    made = ddf.groupby("k").agg({"x": ["var", "std", "sem"]}).compute().to_pandas()
    for k, group in pdf.groupby("k")["x"]:
        for name in ("var", "std", "sem"):
            # the rounding of so many addends
            assert abs(made.loc[k, ("x", name)] / exact(group, name) - 1) < 5e-11, (k, name)


@pytest.fixture
def everything_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    from dask_gpuagg.engines.device import digits

    monkeypatch.setattr(digits, "LOSS_AT_MOST", 0.0)


def small() -> pd.DataFrame:
    rng = np.random.default_rng(4)
    rows = 3_000
    pdf = pd.DataFrame({f"v{i}": rng.normal(i, 1.0 + i, rows) for i in range(25)})
    pdf["k"] = rng.integers(0, 40, rows)
    pdf["i"] = rng.integers(-100, 100, rows).astype("int16")
    pdf["h"] = pdf["v1"].astype("float32")
    pdf["n"] = pdf["v2"].where(rng.random(rows) < 0.5)
    pdf["s"] = rng.choice(["a", "b", "c"], rows)
    pdf["c"] = pdf["s"].astype("category")
    return pdf


@pytest.mark.parametrize("npartitions", [1, 5])
@pytest.mark.parametrize("keys", [["k"], ["s", "k"], ["c"]], ids="+".join)
def test_all_is_as_it_was(keys: list[str], npartitions: int, everything_is_lost: None) -> None:
    pdf = small()
    spec: dict[str, Any] = {
        "v0": ["var", "std", "sem", "sum", "first"], "i": ["var", "mean"], "h": ["std"],
        "n": ["var", "count"],
    }  # fmt: skip
    ddf = on_device(pdf, npartitions)
    ours = ddf.groupby(keys).agg(spec).compute().to_pandas()
    theirs = pdf.assign(h=pdf["h"].astype("float64")).groupby(keys, observed=True).agg(spec)
    if keys == ["c"]:
        ours.index, theirs.index = ours.index.astype(str), theirs.index.astype(str)
    same(ours, theirs, check_dtype=False, check_index_type=False, rtol=1e-11)


@pytest.mark.parametrize("npartitions", [1, 5])
def test_in_several_passes(npartitions: int, everything_is_lost: None) -> None:
    pdf = small()
    ddf = on_device(pdf, npartitions)
    spec = {f"v{i}": ["var", "std", "max"] for i in range(25)}
    ours = ddf.groupby("k").agg(spec).compute().to_pandas().sort_index()
    pd.testing.assert_frame_equal(ours, pdf.groupby("k").agg(spec), rtol=1e-11)


def test_of_decimals(everything_is_lost: None) -> None:
    import cudf

    values = [Decimal(i * i % 97) / 4 for i in range(200)]
    gdf = cudf.DataFrame({"k": [i % 3 for i in range(200)]})
    gdf["d"] = cudf.Series(values).astype(cudf.Decimal64Dtype(9, 2))
    for npartitions in (1, 3):
        ddf = on_device(gdf, npartitions)
        made = ddf.groupby("k").agg({"d": ["var", "std"]}).compute().to_pandas()
        for k in range(3):
            group = [float(v) for v in values[k::3]]
            assert abs(made.loc[k, ("d", "var")] / exact(group) - 1) < 1e-12


@pytest.mark.parametrize("npartitions", [1, 3])
def test_infinities_and_constants_stay_what_they_are(
    npartitions: int, everything_is_lost: None
) -> None:
    rng = np.random.default_rng(9)
    pdf = pd.DataFrame({"k": np.arange(900) % 3, "x": rng.normal(2.0, 1.0, 900)})
    pdf.loc[pdf["k"] == 1, "x"] = 0.1
    pdf.loc[5, "x"] = np.inf
    ddf = on_device(pdf, npartitions)
    made = ddf.groupby("k").x.var().compute().to_pandas()
    assert made.loc[1] == 0.0
    assert np.isnan(made.loc[2])
    assert abs(made.loc[0] / exact(pdf.loc[pdf["k"] == 0, "x"]) - 1) < 1e-12
