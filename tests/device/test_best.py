"""``nlargest`` and ``nsmallest`` on dask-cudf collections, against plain Python."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from tests.device.frames import arrow, by_key, collection, frame, groups_of, on_device

pytestmark = pytest.mark.usefixtures("raising")

# one partition, a tree of two levels, an exchange
HOW = pytest.mark.parametrize(("npartitions", "split_out"), [(1, 1), (9, 1), (6, 3)])
DTYPES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]


def best(values: list[Any], name: str, n: int) -> list[Any]:
    some = [v for v in values if v is not None and not math.isnan(v)]
    return sorted(some, reverse=name == "nlargest")[:n]


def numbers(dtype: str, rows: int = 4_000) -> Any:
    """Keys of which one has no values, and values at both ends of a dtype; an eighth is null."""
    import cudf

    rng = np.random.default_rng(6)
    if "int" in dtype:
        ends = np.iinfo(dtype)
        values = rng.integers(ends.min, ends.max, rows, dtype=dtype, endpoint=True)
    else:
        values = rng.normal(0.0, 1e6, rows).astype(dtype)
        values[::97], values[1::89], values[2::83] = np.inf, -np.inf, np.nan
        values[3::79], values[4::73] = 0.0, -0.0
    keys = rng.integers(0, 70, rows)
    column = cudf.Series(values, nan_as_null=False)
    nulls = (rng.random(rows) < 0.125) | (keys == 5)
    return cudf.DataFrame({"k": keys, "v": column.mask(cudf.Series(nulls))})


def plainly(rows: Any) -> dict[Any, list[Any]]:
    """The values of each group, by its key."""
    return groups_of(rows.to_arrow(preserve_index=False), ["k"], "v")


@HOW
@pytest.mark.parametrize("name", ["nlargest", "nsmallest"])
@pytest.mark.parametrize("dtype", [*DTYPES, "float32", "float64"])
def test_every_dtype(dtype: str, name: str, npartitions: int, split_out: int) -> None:
    import cudf

    rows = numbers(dtype)
    grouped = on_device(rows, npartitions).groupby("k")
    query = grouped.agg(
        few=pd.NamedAgg("v", name, n=2), five=("v", name), split_out=split_out, split_every=2
    )
    result = query.compute()
    for label, n in (("few", 2), ("five", 5)):
        assert result[label].dtype == query[label].dtype == cudf.ListDtype(dtype)
        assert by_key(result[label]) == {k: best(v, name, n) for k, v in plainly(rows).items()}


@pytest.mark.parametrize("npartitions", [1, 5])
@pytest.mark.parametrize("n", [0, 1, 10**20])
def test_any_number(n: int, npartitions: int) -> None:
    rows = numbers("int32")
    result = on_device(rows, npartitions).groupby("k").v.agg("nlargest", n=n)
    found = by_key(result.compute())
    assert found == {k: best(v, "nlargest", n) for k, v in plainly(rows).items()}
    assert found[5,] == []


@pytest.mark.parametrize("npartitions", [1, 6])
@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("keys", [["s"], ["g"], ["s", "g"]], ids="+".join)
def test_keys_with_nulls(keys: list[str], dropna: bool, npartitions: int) -> None:
    rows = arrow()
    grouped = on_device(frame(rows), npartitions).groupby(keys, dropna=dropna)
    ours = grouped.agg({"f": "nsmallest", "i": "sum"}).compute()
    wanted = groups_of(rows, keys, "f", dropna)
    assert by_key(ours["f"], len(keys)) == {k: best(v, "nsmallest", 5) for k, v in wanted.items()}
    sums = groups_of(rows, keys, "i", dropna)
    assert by_key(ours["i"], len(keys)) == {k: sum(v) for k, v in sums.items()}


@pytest.mark.parametrize("npartitions", [1, 6])
def test_unobserved_categories_have_no_values(npartitions: int) -> None:
    ddf = collection(npartitions)
    found = by_key(ddf.groupby("c", observed=False).agg({"i": "nlargest"}).compute()["i"])
    assert found["never",] == []
    wanted = groups_of(arrow(), ["s"], "i")
    assert found == {k: best(v, "nlargest", 5) for k, v in wanted.items()} | {("never",): []}


def test_without_the_kernels_that_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    from dask_gpuagg.engines.device import library as module

    monkeypatch.setattr(module, "by_kernels", lambda make, rows: None)
    for dtype in ("int8", "uint64", "float64"):
        rows = numbers(dtype)
        ddf = on_device(rows, 4)
        for name in ("nlargest", "nsmallest"):
            found = by_key(ddf.groupby("k").v.agg(name, n=3).compute())
            assert found == {k: best(v, name, 3) for k, v in plainly(rows).items()}


def test_partitions_of_other_dtypes_than_promised() -> None:
    import cudf
    import dask.dataframe as dd

    def part(number: int) -> Any:
        values = [1, 5, 3] if number else [4.5, 2.5, None]
        return cudf.DataFrame({"k": [0, 0, 1], "v": cudf.Series(values)})

    meta = cudf.DataFrame({"k": cudf.Series([], dtype="i8"), "v": cudf.Series([], dtype="i8")})
    lazy = dd.from_map(part, [0, 1], meta=meta, enforce_metadata=False)
    assert by_key(lazy.groupby("k").v.agg("nlargest", n=3).compute()) == {
        (0,): [5.0, 4.5, 2.5],
        (1,): [3.0],
    }


def test_no_rows() -> None:
    rows = numbers("float64")
    ddf = on_device(rows, 3)
    assert len(ddf[ddf.k < 0].groupby("k").v.agg("nlargest").compute()) == 0
    rows["v"] = rows["v"].mask(rows["k"] >= 0)
    found = by_key(on_device(rows, 3).groupby("k").v.agg("nlargest").compute())
    assert set(map(tuple, found.values())) == {()}


def test_rows_of_their_own_by_explode() -> None:
    rows = numbers("float64")
    ddf = on_device(rows, 4)
    with dask_gpuagg.enabled():
        query = ddf.groupby("k").v.agg("nlargest", n=2)
        (explained,) = dask_gpuagg.explain(query).groupbys
        found = query.explode().compute().to_pandas().sort_index(kind="stable")
    assert explained.engine == "device"
    assert "sketches nlargest of v" in str(explained)
    # pandas' are of groups with values
    theirs = rows.to_pandas().dropna().groupby("k").v.nlargest(2)
    assert found.dropna().tolist() == theirs.tolist()
    assert found.index[found.isna()].tolist() == [5]
