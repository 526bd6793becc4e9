"""Every aggregation of the registry that pandas has, on every dtype that it accepts."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import dask
import pandas as pd
import pyarrow as pa
import pytest

from dask_gpuagg.aggregations import REGISTRY, Kind
from dask_gpuagg.dtypes import DTYPE_CLASSES, dtype_class
from tests.comparison import compare, pandas_answers
from tests.data import ROWS, VALUES, partitioned

pytestmark = pytest.mark.usefixtures("plugin", "synchronous")

KEY = pd.Series(range(ROWS)) * 7 % 5

# the class that a column has when Dask has read it
CLASSES = {
    name: dtype_class(partitioned(values.to_frame("x"), 1)._meta["x"].dtype)
    for name, values in VALUES.items()
}
ADMITTED = [
    (dtype, name)
    for dtype, cls in CLASSES.items()
    for name, record in REGISTRY.items()
    if cls in record.accepts and record.kind is not Kind.SKETCH
    if record.in_agg and name != "size"
]
# float16 and float32 results are pandas' where it accumulates in the narrow type
ABSOLUTE = {"float16": 1e-2, "float32": 1e-5, "Float32": 1e-5, "float[pyarrow]": 1e-5}


def function(name: str) -> Any:
    """The function as a spec has it: pandas knows ``list`` only as the type."""
    return list if name == "list" else name


def frame(dtype: str) -> pd.DataFrame:
    return pd.DataFrame({"k": KEY, "x": VALUES[dtype]})


def test_every_class_has_a_column():
    # objects have tests of their own below
    assert set(CLASSES.values()) == set(DTYPE_CLASSES) - {"object"}


# a dtype of each class, of which every aggregation is a query of its own
TYPICAL = {cls: dtype for dtype, cls in reversed(CLASSES.items())}
TYPICAL |= {CLASSES[dtype]: dtype for dtype in ("int64", "uint64", "float64")}
ALONE = [(dtype, name) for dtype, name in ADMITTED if dtype in TYPICAL.values()]
OTHERS = [dtype for dtype in CLASSES if dtype not in TYPICAL.values()]


def reference_of(dtype: str, spec: Any, names: list[str]) -> Callable[[pd.DataFrame], Any]:
    """The query for pandas, of other values where it has no answer for these."""
    plain = "float64" if CLASSES[dtype] == "decimal" else object
    own = all(pandas_answers(CLASSES[dtype], name) for name in names)
    return lambda f: (f if own else f.assign(x=f["x"].astype(plain))).groupby("k").agg(spec)


def is_answered(dtype: str, name: str) -> bool:
    """Whether pandas answers it: min of categories without order it refuses as it sees values."""
    try:
        reference_of(dtype, {"x": function(name)}, [name])(frame(dtype))
    except (TypeError, ValueError, NotImplementedError):
        return False
    return True


def check(dtype: str, names: list[str], split_out: int) -> None:
    functions = [function(name) for name in names]
    spec = {"x": functions if len(names) > 1 else functions[0]}
    atol = ABSOLUTE.get(dtype, 1e-12)
    if CLASSES[dtype] == "timedelta" and names in (["std"], ["sem"]):
        atol = 1  # a float that is cut to ticks
    compare(
        lambda f, **options: f.groupby("k").agg(spec, **options),
        partitioned(frame(dtype), 5),
        options={"split_out": split_out},
        reference=reference_of(dtype, spec, names),
        refusable=len(names) == 1,
        atol=atol,
    )


# in turns by a tree and by an exchange
@pytest.mark.parametrize(
    ("dtype", "name", "split_out"), [(*pair, i % 2 * 2 + 1) for i, pair in enumerate(ALONE)]
)
def test_agg(dtype: str, name: str, split_out: int):
    check(dtype, [name], split_out)


@pytest.mark.parametrize(
    ("dtype", "split_out"), [(dtype, i % 2 * 2 + 1) for i, dtype in enumerate(OTHERS)]
)
def test_agg_of_several(dtype: str, split_out: int):
    """In one query those of a kind that stock Dask has or lacks, alone what pandas refuses."""
    queries: dict[Any, list[str]] = {}
    for name in (name for admitted, name in ADMITTED if admitted == dtype):
        own = pandas_answers(CLASSES[dtype], name)
        record = REGISTRY[name]
        is_alone = record.power is not None or not is_answered(dtype, name)
        together = name if is_alone else (record.stock_agg, own)
        queries.setdefault(together, []).append(name)
    for names in queries.values():
        check(dtype, names, split_out)


@pytest.mark.parametrize(
    ("dtype", "name", "plain"),
    [
        ("decimal128", "var", "float64"),
        ("decimal128", "std", "float64"),
        ("decimal128", "sem", "float64"),
        ("category", "list", "object"),
    ],
)
def test_beside_an_extension(dtype: str, name: str, plain: str):
    # pandas 3.0 refuses them: neither metadata nor answers may come from there
    def query(f: Any) -> Any:
        return f.groupby("k").agg({"x": [function(name), "nunique"]})

    data = frame(dtype)
    lazy = query(partitioned(data, 5))
    promised = pd.ArrowDtype(pa.float64()) if name != "list" else object
    assert lazy.dtypes["x", name] == promised
    got = compare(
        query,
        partitioned(data, 5),
        reference=lambda f: query(f.assign(x=f["x"].astype(plain))),
        dtypes=False,
        atol=1e-12,
    )
    assert got.dtypes["x", name] == promised


OBJECTS = {
    "stock": ["sum", "min", "max", "count", "first", "last", list],
    "extension": ["nunique", "count", "first", "last", list],
    "beside an extension": ["nunique", "sum", "min"],
}


@pytest.mark.parametrize("split_out", [None, 3])
@pytest.mark.parametrize("names", OBJECTS)
def test_objects(names: str, split_out: int | None):
    values = [Decimal(i % 7) / 4 if i % 5 else None for i in range(ROWS)]
    data = pd.DataFrame({"k": KEY, "x": pd.Series(values, dtype=object)})

    with dask.config.set({"dataframe.convert-string": False}):
        ddf = partitioned(data, 5)
        assert pd.api.types.is_object_dtype(ddf.dtypes["x"])
        options = {"split_out": split_out}
        compare(lambda f, **o: f.groupby("k").agg({"x": OBJECTS[names]}, **o), ddf, options=options)


@pytest.mark.parametrize("split_out", [None, 3])
@pytest.mark.parametrize("dropna", [True, False])
def test_objects_as_keys(dropna: bool, split_out: int | None):
    keys = [Decimal(i % 7) / 4 if i % 5 else None for i in range(ROWS)]
    data = pd.DataFrame({"k": pd.Series(keys, dtype=object), "x": range(ROWS)})
    flags, options, spec = {"dropna": dropna}, {"split_out": split_out}, ["sum", "nunique", "var"]
    with dask.config.set({"dataframe.convert-string": False}):
        ddf = partitioned(data, 5)
        compare(lambda f, **o: f.groupby("k", **flags).x.agg(spec, **o), ddf, options=options)


@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("name", ["nunique", "unique", "value_counts"])
def test_method(dtype: str, name: str):
    data, options = partitioned(frame(dtype), 5), {"split_out": 3}
    # pandas has no index of float16, so no value_counts
    refusable = dtype == "float16"
    query = lambda f, **o: getattr(f.groupby("k")["x"], name)(**o)  # noqa: E731
    compare(query, data, options=options, refusable=refusable)


@pytest.mark.parametrize("name", ["cov", "corr"])
@pytest.mark.parametrize(
    "dtype",
    [d for d, c in CLASSES.items() if c in REGISTRY["cov"].accepts and d != "bool[pyarrow]"],
)
def test_matrix(dtype: str, name: str):
    data = frame(dtype).assign(y=VALUES["float64"].to_numpy())
    atol = ABSOLUTE.get(dtype, 1e-12)
    compare(lambda f: getattr(f.groupby("k"), name)(), partitioned(data, 5), atol=atol)
