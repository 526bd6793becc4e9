"""dask-cudf collections whose partitions differ from their metadata, with the plugin on and off."""

from typing import Any

import dask
import pytest

import dask_gpuagg
from tests.device.test_like_stock import assert_like

# values of a column by partition, each with its dtype; the metadata are the first one's
COLUMNS: dict[str, list[tuple[list[Any], str]]] = {
    "a null among integers": [([1, 2, 3, 4], "int64"), ([5, None, 7, 8], "float64")],
    "fractions": [([1, 2, 3, 4], "int64"), ([0.5, 1.5, 2.5, 3.5], "float64")],
    "wider integers": [([1, 2, 3, 4], "int32"), ([2**40, 1, 2, 3], "int64")],
    "wider floats": [([0.5, 1.5, 2.5, 3.5], "float32"), ([0.1, 0.2, 0.3, 0.4], "float64")],
    "unsigned": [([1, 2, 3, 4], "uint8"), ([-1, 2, 3, 4], "int64")],
    "bools": [([True, False, True, True], "bool"), ([1, 0, 5, 1], "int64")],
    "units": [([1, 2, 3, 4], "datetime64[s]"), ([10**9, 1, 2, 3], "datetime64[ns]")],
    "nothing but nulls": [([1, 2, 3, 4], "int64"), ([None] * 4, "float64")],
    "categories and strings": [(["a", "b", "a", None], "category"), (["c", "a", None, "b"], "str")],
    "categories": [(["a", "b", "a", None], "category"), (["c", "a", None, "b"], "category")],
    "objects and strings": [(["a", "b", "a", None], "object"), (["c", "a", None, "b"], "str")],
}
NUMERIC = ["sum", "mean", "min", "max", "count", "var", "first", "last"]
OTHERS = ["first", "last", "count"]


def series(values: list[Any], dtype: str) -> Any:
    import cudf

    if dtype.startswith("datetime"):
        return cudf.Series(values, dtype="int64").astype(dtype)
    return cudf.Series(values, dtype=dtype)


def part(i: int, case: str, as_key: bool) -> Any:
    import cudf

    values, dtype = COLUMNS[case][i % 2]
    column, other = series(values, dtype), cudf.Series([1, 2, 1, 3])
    return cudf.DataFrame({"k": column, "v": other} if as_key else {"k": other, "v": column})


def collection(name: str, as_key: bool) -> Any:
    import dask.dataframe as dd

    meta = part(0, name, as_key).iloc[:0]
    return dd.from_map(part, range(4), case=name, as_key=as_key, meta=meta)


def number_of_keys(name: str, dropna: bool) -> int:
    """Distinct keys of all partitions; equal ones are one, whatever their dtypes."""
    seconds = {"datetime64[s]": 10**9}
    keys = {
        value if value is None else value * seconds.get(dtype, 1)
        for values, dtype in COLUMNS[name]
        for value in values
    }
    return len(keys - {None} if dropna else keys)


def assert_as_stock(query: Any, name: str, as_key: bool, groups: int = 3) -> None:
    with dask.config.set({"scheduler": "synchronous", "gpuagg.fallback": "raise"}):
        error = None
        try:
            stock = query(collection(name, as_key)).compute()
        except Exception as caught:
            error = caught
        with dask_gpuagg.enabled():
            ours = query(collection(name, as_key)).compute()
    if error is None:
        assert_like(ours, stock)
    else:  # stock has no answer, ours has all groups
        assert len(ours) == groups


def functions_of(name: str) -> list[str]:
    dtypes = [dtype for _, dtype in COLUMNS[name]]
    numeric = all(dtype.startswith(("int", "uint", "float", "bool")) for dtype in dtypes)
    if name == "wider integers":  # stock's squares overflow
        return [function for function in NUMERIC if function != "var"]
    return NUMERIC if numeric else OTHERS


@pytest.mark.parametrize("split_out", [1, 2])
@pytest.mark.parametrize("name", COLUMNS)
def test_values(name: str, split_out: int) -> None:
    spec = {"v": functions_of(name)}
    assert_as_stock(lambda d: d.groupby("k").agg(spec, split_out=split_out), name, False)


@pytest.mark.parametrize("name", COLUMNS)
def test_methods(name: str) -> None:
    for function in functions_of(name):
        assert_as_stock(lambda d, f=function: getattr(d.groupby("k").v, f)(), name, False)


@pytest.mark.parametrize("split_out", [1, 2])
@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("name", COLUMNS)
def test_keys(name: str, dropna: bool, split_out: int) -> None:
    assert_as_stock(
        lambda d: d.groupby("k", dropna=dropna).agg({"v": ["sum", "count"]}, split_out=split_out),
        name,
        True,
        number_of_keys(name, dropna),
    )
