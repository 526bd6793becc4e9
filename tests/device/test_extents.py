"""Long names, thousands of columns, none, and as many rows as cuDF's columns have."""

from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from tests.correctness.test_extents import DATA, LONG, wide
from tests.device.frames import on_device

pytestmark = pytest.mark.usefixtures("raising")

# of a cuDF column, and of whole groups that are sorted by our kernels (``sgb.ROWS_AT_MOST``)
MOST_ROWS = 2**31 - 1
GROUPS = 100


def equal(made: Any, expected: Any) -> None:
    made = made.to_pandas().sort_index()
    assert list(made.columns) == list(expected.columns)
    np.testing.assert_allclose(made.to_numpy("float64"), expected.to_numpy("float64"), rtol=1e-9)
    assert list(made.index) == list(expected.index)


@pytest.mark.parametrize("how", ["sum", "mean", "median", "first"])
def test_2000_columns(how: str) -> None:
    data = wide(2000)
    query = getattr(on_device(data, 3).groupby("k"), how)()
    equal(query.compute(), getattr(data.groupby("k"), how)())


@pytest.mark.parametrize("name", ["k", "v"])
def test_names_of_10_kilobytes(name: str) -> None:
    data = DATA.rename(columns={name: LONG})
    key, value = data.columns
    spec = {value: ["sum", "nunique", "median"]}
    equal(on_device(data, 3).groupby(key).agg(spec).compute(), data.groupby(key).agg(spec))


def test_no_columns() -> None:
    made = on_device(DATA[["k"]], 3).groupby("k").size().compute().to_pandas().sort_index()
    assert made.to_dict() == DATA.groupby("k").size().to_dict()


@pytest.mark.parametrize("how", ["sum", "median", "nunique", "size", "first"])
def test_no_rows(how: str) -> None:
    made = getattr(on_device(DATA.iloc[:0], 1).groupby("k").v, how)().compute()
    assert len(made) == 0


def part(rows: int, first: int) -> Any:
    """Rows ``first`` and on of keys and values that repeat."""
    import cudf
    import cupy as cp

    fill = cp.ElementwiseKernel(
        "int64 first, int64 groups", "int8 k, int8 v",
        "k = (first + i) % groups; v = (first + i) % 7", "fill_extents",
    )  # fmt: skip
    k, v = cp.empty(rows, "int8"), cp.empty(rows, "int8")
    fill(first, GROUPS, k, v)
    return cudf.DataFrame({"k": k, "v": v})


def totals(rows: int) -> pd.DataFrame:
    """Sum, count and largest value of each group; keys and values repeat after 700 rows."""
    whole = np.arange(7 * GROUPS)
    frame = pd.DataFrame({"k": whole % GROUPS, "v": whole % 7})
    one = frame.groupby("k").v.agg(["sum", "count", "max"])
    rest = frame.iloc[: rows % len(frame)].groupby("k").v.agg(["sum", "count"])
    for name in ("sum", "count"):
        one[name] = one[name] * (rows // len(frame)) + rest[name].reindex(one.index, fill_value=0)
    return one


def rows_in(sizes: list[int]) -> Any:
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    return dd.from_map(part, sizes, starts, meta=part(0, 0))


@pytest.mark.parametrize(
    "sizes",
    [[MOST_ROWS], [MOST_ROWS - 1, 700], [1_500_000_000] * 2],
    ids=["one partition", "more together", "two"],
)
def test_as_many_rows_as_a_column_has(sizes: list[int]) -> None:
    query = rows_in(sizes).groupby("k").v.agg(["sum", "count", "max"])
    equal(query.compute(), totals(sum(sizes)))


def test_whole_groups_of_more_rows_than_are_sorted() -> None:
    values = rows_in([2**30 + 700]).groupby("k").v
    # each group has all seven values
    assert (values.nunique().compute() == 7).all()
    with pytest.raises(OverflowError, match="Repartition the collection"):
        values.median().compute()
