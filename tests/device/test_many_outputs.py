"""More outputs than one pass of the kernels writes."""

from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.cuda.query.tuning import OUTPUTS_AT_MOST
from tests.device.frames import on_device

pytestmark = pytest.mark.usefixtures("raising")

ROWS = 2_000


def frame(columns: int) -> pd.DataFrame:
    rng = np.random.default_rng(11)
    keys = {"k": rng.integers(0, 30, ROWS), "f": rng.integers(0, 5, ROWS).astype("float64")}
    values = {f"v{i}": rng.normal(i, 1.0, ROWS) for i in range(columns)}
    pdf = pd.DataFrame(keys | values)
    pdf["s"] = rng.choice(["a", "b", "c"], ROWS)
    pdf.loc[rng.random(ROWS) < 0.1, "f"] = np.nan
    pdf["c"] = pdf["s"].astype("category")
    return pdf


def compare(spec: dict[str, Any], keys: list[str], npartitions: int, split_out: int = 1) -> None:
    pdf = frame(sum(name.startswith("v") for name in spec))
    ddf = on_device(pdf, npartitions)
    grouped = ddf.groupby(keys, dropna=False)
    ours = grouped.agg(spec, split_out=split_out).compute().reset_index().to_pandas()
    theirs = pdf.groupby(keys, dropna=False, observed=True).agg(spec).reset_index()
    ours.columns = theirs.columns = [str(label) for label in theirs.columns]
    names = list(theirs.columns[: len(keys)])
    for table in (ours, theirs):
        table[names] = table[names].astype("object").map(lambda v: "" if pd.isna(v) else str(v))
    ours, theirs = (table.sort_values(names, ignore_index=True) for table in (ours, theirs))
    pd.testing.assert_frame_equal(ours, theirs, rtol=1e-9, check_dtype=False)


@pytest.mark.parametrize(("npartitions", "split_out"), [(1, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize(
    ("columns", "function"),
    [(OUTPUTS_AT_MOST - 1, "sum"), (OUTPUTS_AT_MOST + 1, "sum"), (21, "var"), (150, "max")],
)
def test_one_function_of_many_columns(
    columns: int, function: str, npartitions: int, split_out: int
) -> None:
    compare({f"v{i}": function for i in range(columns)}, ["k"], npartitions, split_out)


@pytest.mark.parametrize("npartitions", [1, 3])
@pytest.mark.parametrize("keys", [["f"], ["s"], ["k", "f", "s"], ["c"], ["c", "f"]], ids="+".join)
def test_groups_of_every_pass_are_the_same(keys: list[str], npartitions: int) -> None:
    spec: dict[str, Any] = {f"v{i}": ["sum", "var", "mean", "first"] for i in range(40)}
    compare(spec, keys, npartitions)


def test_with_outputs_of_other_kinds() -> None:
    spec: dict[str, Any] = {f"v{i}": ["min", "var"] for i in range(30)}
    compare(spec | {"v1": ["median", "nunique"]}, ["k", "s"], 3)


@pytest.mark.parametrize("kernel", ["hgb", "lphga", "pgb", "sgb"])
def test_by_every_kernel(kernel: str) -> None:
    with dask.config.set({"gpuagg.kernel": kernel}):
        compare({f"v{i}": "sum" for i in range(70)}, ["k"], 1)
