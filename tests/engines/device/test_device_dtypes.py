"""Dtypes of mixed partitions on the device: what can be told without a GPU."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.decomposition import make_plan
from dask_gpuagg.plan import Column, Plan, Requested
from tests.engines.device import stand_ins
from tests.engines.device.stand_ins import without_rapids

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("cudf") is not None, reason="cuDF itself is there: see tests/device"
)

FOLDER = Path(dask_gpuagg.__file__).parent / "engines" / "device"
STRING = pd.StringDtype(na_value=np.nan)


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """Two modules of the device engine, with stand-ins for what they touch columns with."""
    with without_rapids(), pytest.MonkeyPatch.context() as patch:
        tables, results = stand_ins.module("tables"), stand_ins.module("results")
        patch.setattr(tables, "find_common_type", lambda dtypes: np.result_type(*dtypes))
        yield SimpleNamespace(tables=tables, results=results)


def test_modules_import_what_others_define(engine: Any) -> None:
    for file in FOLDER.glob("*.py"):
        stand_ins.module(file.stem)


def plan_of(dtype: Any, *names: str) -> Plan:
    columns = [Column("k", np.dtype("int64")), Column("v", dtype)]
    wanted = [Requested(name, name, "v") for name in names]
    return make_plan(columns[:1], columns, wanted, dropna=True, observed=True, sort=False)


# dtype of the values, aggregation, what the metadata promised, what the result has
RESULTS = [
    ("int64", "sum", "int64", "int64"), ("int8", "sum", "int64", "int64"),
    ("bool", "sum", "int64", "int64"), ("uint8", "sum", "uint64", "uint64"),
    ("float64", "sum", "int64", "float64"), ("float64", "sum", "float32", "float64"),
    ("float32", "sum", "float32", "float32"), ("int64", "sum", "uint64", "int64"),
    ("float64", "mean", "float64", "float64"), ("float64", "mean", "int64", "float64"),
    ("float32", "mean", "float32", "float32"), ("M8[ns]", "mean", "M8[s]", "M8[ns]"),
    ("m8[us]", "sum", "m8[s]", "m8[us]"), ("int64", "min", "int32", "int64"),
    ("float64", "max", "int64", "float64"), ("M8[us]", "last", "M8[s]", "M8[us]"),
    ("int64", "count", "int64", "int64"), ("float64", "var", "int64", "float64"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "name", "promised", "made"), RESULTS)
def test_results_have_the_dtypes_of_the_plan(
    values: str, name: str, promised: str, made: str, engine: Any
) -> None:
    plan = plan_of(np.dtype(values), name)
    shape = engine.results.Shape(("k",), "v", (np.dtype(promised),), True)
    assert engine.results.of_plan(shape, plan).dtypes == (np.dtype(made),)


@pytest.mark.parametrize("name", ["first", "last", "min", "max", "sum"])
def test_strings_keep_their_dtype(name: str, engine: Any) -> None:
    shape = engine.results.Shape(("k",), "v", (np.dtype("object"),), True)
    assert engine.results.of_plan(shape, plan_of(STRING, name)).dtypes == (STRING,)


@pytest.mark.parametrize(
    ("dtypes", "common"),
    [
        ((np.dtype("int64"), np.dtype("float64")), np.dtype("float64")),
        ((np.dtype("M8[s]"), np.dtype("M8[ns]")), np.dtype("M8[ns]")),
        ((np.dtype("object"), STRING), STRING),
        ((pd.CategoricalDtype(["a"]), STRING), STRING),
        ((pd.CategoricalDtype([1]), np.dtype("float64")), np.dtype("float64")),
        (
            (pd.DatetimeTZDtype("s", "UTC"), pd.DatetimeTZDtype("us", "UTC")),
            pd.DatetimeTZDtype("us", "UTC"),
        ),
    ],
)
def test_common_dtypes(dtypes: tuple[Any, ...], common: Any, engine: Any) -> None:
    assert engine.tables.common_dtype(dtypes) == common
    assert engine.tables.common_dtype(dtypes[::-1]) == common


def test_categories_stay_categories(engine: Any) -> None:
    dtypes = [pd.CategoricalDtype(["a"]), pd.CategoricalDtype(["b"])]
    assert engine.tables.common_dtype(dtypes) == dtypes[0]


@pytest.mark.parametrize("dtypes", [("int64", "M8[s]"), ("M8[s]", "m8[s]"), ("int64", "object")])
def test_what_has_no_common_dtype(dtypes: tuple[str, str], engine: Any) -> None:
    with pytest.raises(TypeError, match="does not concatenate"):
        engine.tables.common_dtype([np.dtype(d) for d in dtypes])


def test_slices_of_text_have_its_bytes_together(engine: Any) -> None:
    """Parts of one table are such slices: each has the characters of all."""
    plc = engine.tables.plc

    def column(kind: Any, rows: int, characters: int = 0, children: tuple[Any, ...] = ()) -> Any:
        return SimpleNamespace(
            size=lambda: rows,
            type=lambda: SimpleNamespace(id=lambda: kind),
            data=lambda: SimpleNamespace(size=characters),
            children=lambda: children,
            child=children.__getitem__,
            num_children=lambda: len(children),
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plc.types, "size_of", lambda kind: 4)
        offsets = column(plc.TypeId.INT32, 161)
        text = [column(plc.TypeId.STRING, rows, 3_200, (offsets,)) for rows in (160, 10, 0)]
        whole, part, nothing = map(engine.tables._bytes_of, text)
        assert 3_200 + 640 <= whole <= 3_200 + 4 * 162
        assert 16 * part == pytest.approx(whole, abs=16)
        assert nothing == 0
        empty = column(plc.TypeId.STRING, 0, 0, (column(plc.TypeId.INT32, 0),))
        assert engine.tables._bytes_of(empty) == 0
        numbers = column(plc.TypeId.LIST, 10, 0, (offsets, column(plc.TypeId.INT32, 50)))
        assert engine.tables._bytes_of(numbers) == 4 * (161 + 50)
