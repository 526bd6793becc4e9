"""Row groups that a filter below a group-by excludes are not read, and answers are pandas'."""

import operator
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_gpuagg
from dask_gpuagg.planning.chunks import Chunks
from dask_gpuagg.planning.filters import BoundedFSSpec
from dask_gpuagg.tasks import reading
from tests.comparison import compare, same

pytestmark = pytest.mark.usefixtures("synchronous", "plugin")

FILESYSTEMS = ["fsspec", "arrow"]
FILES, GROUPS, ROWS = 4, 3, 5
START = pd.Timestamp("2024-01-01")


def write(
    folder: Path, columns: dict[str, pa.Array], files: int = FILES, rows: int = ROWS, **options: Any
) -> None:
    """Columns cut into files of about equal length, with row groups of so many rows."""
    table = pa.table(columns)
    for i, part in enumerate(np.array_split(np.arange(len(table)), files)):
        pq.write_table(table.take(part), folder / f"{i}.parquet", row_group_size=rows, **options)


def ascending(rows: int = FILES * GROUPS * ROWS) -> dict[str, pa.Array]:
    numbers = np.arange(rows)
    return {
        "k": pa.array(numbers % 3),
        "v": pa.array(numbers / 4),
        "i": pa.array(numbers),
        "mixed": pa.array(numbers * 7 % 11),
        "t": pa.array(START + pd.to_timedelta(numbers, unit="h"), pa.timestamp("us")),
        "s": pa.array([f"{i:03}" for i in numbers]),
        "c": pa.array([f"c{i // 20}" for i in numbers]).dictionary_encode(),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ascending")
    write(path, ascending())
    return path


@pytest.fixture
def read_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of all tables that are read within bounds."""
    rows: list[int] = []

    def noting(function: Callable[..., pa.Table]) -> Callable[..., pa.Table]:
        def call(*args: Any, **kwargs: Any) -> pa.Table:
            table = function(*args, **kwargs)
            rows.append(table.num_rows)
            return table

        return call

    monkeypatch.setattr(reading, "_table_of", noting(reading._table_of))
    return rows


def is_bounded(query: Any) -> bool:
    """Whether a reader of the query leaves row groups out."""
    stack, readers = [query.optimize(fuse=False).expr], []
    while stack:
        node = stack.pop()
        readers += [node] if isinstance(node, BoundedFSSpec) else []
        for operand in node.operands:
            if isinstance(operand, Chunks):
                stack.append(operand.frame)
            elif hasattr(operand, "operands"):
                stack.append(operand)
    return bool(readers)


def unbounded(query: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The answer of a query that reads all row groups."""
    with monkeypatch.context() as patched:
        patched.setattr("dask_gpuagg.frontend.merges.within_bounds", lambda query: query)
        assert not is_bounded(query)
        return query.compute()


def total(rows: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda d: d[rows(d)].groupby("k").v.sum()


# each with the row groups of five rows that it needs; of ``isin`` Dask's own readers read all
EXCLUDING: dict[str, tuple[Callable[[Any], Any], int]] = {
    "first": (lambda d: (d.i < 5) & d.k.isin([0, 1, 2]), 1),
    "last": (lambda d: (d.i >= 55) & d.k.isin([0, 1, 2]), 1),
    "above": (lambda d: (d.i > 4) & (d.i <= 10) & d.k.isin([0, 1, 2]), 2),
    "inside": (lambda d: d.i.between(4, 10, inclusive="neither"), 1),
    "half inside": (lambda d: d.i.between(4, 9, inclusive="left"), 2),
    "one": (lambda d: (d.i == 17) & d.k.isin([0, 1, 2]), 1),
    "between": (lambda d: d.t.between(START, START + pd.Timedelta("9h")), 2),
    "open end": (lambda d: d.t.between(START + pd.Timedelta("50h"), pd.NaT), 2),
    "text of a time": (lambda d: d.t.between("2024-01-01", "2024-01-01 04:00"), 1),
    "list": (lambda d: d.i.isin([1, 2, 58]), 2),
    "of text": (lambda d: d.s.isin(["001", "044"]), 2),
    "of no row": (lambda d: d.i.between(70, 80), 0),
    "other part": (lambda d: (d.i.between(0, 4)) & (d.v * 2 > 1), 1),
    "constants": (lambda d: d.i.isin(np.array([3, 4], "i2")), 1),
}
KEEPING: dict[str, Callable[[Any], Any]] = {
    "unsorted": lambda d: d.mixed.isin([3]),
    "unequal": lambda d: (d.i != 3) & d.k.isin([0, 1, 2]),
    "either": lambda d: (d.i < 3) | (d.v > 2),
    "negated": lambda d: ~(d.i >= 3),
    "of columns": lambda d: (d.i < d.mixed) & d.k.isin([0, 1, 2]),
    "derived": lambda d: (d.i + 1).between(0, 3),
    "of a mean": lambda d: d.i < d.i.mean(),
    "a longer list": lambda d: d.i.isin(list(range(-1000, 5))),
    "a rounded number": lambda d: d.i.isin([3.0]),
    "with null": lambda d: d.v.isin([1.0, None]),
    "another type": lambda d: d.i.isin([2.5]),
}


@pytest.mark.parametrize("name", EXCLUDING)
def test_row_groups_out_of_bounds_are_not_read(
    folder: Path, read_rows: list[int], name: str
) -> None:
    rows, needed = EXCLUDING[name]
    ddf = dd.read_parquet(folder)
    expected = total(rows)(ddf.compute())
    read_rows.clear()
    query = total(rows)(ddf)
    text = str(dask_gpuagg.explain(query))
    pd.testing.assert_series_equal(query.compute().sort_index(), expected)
    assert sum(read_rows) == needed * ROWS
    assert len(read_rows) == FILES
    assert "where" in text


@pytest.mark.parametrize("filesystem", FILESYSTEMS)
@pytest.mark.parametrize("name", KEEPING)
def test_all_is_read_where_statistics_exclude_nothing(
    folder: Path, read_rows: list[int], filesystem: str, name: str
) -> None:
    ddf = dd.read_parquet(folder, filesystem=filesystem)
    compare(total(KEEPING[name]), ddf)
    assert sum(read_rows) in (0, FILES * GROUPS * ROWS)


def late(d: Any) -> Any:
    return d.i.between(30, 44)


LEFT: dict[str, Callable[[Any], Any]] = {
    "labels": lambda d: d[late(d)].groupby("k").v.idxmax(),
    "categories": lambda d: d[late(d)].groupby("c", observed=True).v.sum(),
    "shared": lambda d: d[late(d)].groupby("k").v.sum() + d.groupby("k").v.sum(),
    "assigned": lambda d: total(late)(d.assign(i=d.i * 2)),
}


@pytest.mark.parametrize("filesystem", FILESYSTEMS)
@pytest.mark.parametrize("name", LEFT)
def test_some_queries_read_all_row_groups(folder: Path, filesystem: str, name: str) -> None:
    ddf = dd.read_parquet(folder, filesystem=filesystem)
    compare(LEFT[name], ddf)
    assert not is_bounded(LEFT[name](ddf))


@pytest.mark.parametrize("filesystem", FILESYSTEMS)
@pytest.mark.parametrize("key", ["s", ["s", "k"], "t"])
def test_keys_of_files_without_a_row_group(folder: Path, filesystem: str, key: Any) -> None:
    ddf = dd.read_parquet(folder, filesystem=filesystem)
    for spec in ({"v": ["sum", "first"]}, {"v": "median", "s": "nunique"}):
        compare(lambda d, spec=spec: d[late(d)].groupby(key).agg(spec), ddf)


def test_a_key_of_labels_reads_all_row_groups(folder: Path) -> None:
    ddf = dd.read_parquet(folder, index="s", columns=["k", "v", "i"])
    for by in (lambda e: "s", lambda e: ["s", e.k]):

        def query(d: Any, by: Callable[[Any], Any] = by) -> Any:
            e = d[late(d)]
            return e.groupby(by(e)).v.sum()

        compare(query, ddf)
        assert not is_bounded(query(ddf))


@pytest.mark.parametrize("filesystem", FILESYSTEMS)
def test_tasks_travel(folder: Path, filesystem: str) -> None:
    query = total(late)(dd.read_parquet(folder, filesystem=filesystem)).optimize()
    assert (
        query._name == total(late)(dd.read_parquet(folder, filesystem=filesystem)).optimize()._name
    )
    sent = cloudpickle.loads(cloudpickle.dumps(dict(query.dask)))
    (result,) = dask.get(sent, query.__dask_keys__())
    pd.testing.assert_series_equal(result, query.compute())


OPTIONS: dict[str, dict[str, Any]] = {
    "columns": {"columns": ["k", "v", "i"]},
    "an index": {"index": "s"},
    "divisions": {"index": "i", "calculate_divisions": True},
    "a part of a file": {"split_row_groups": 2},
    "adaptive": {"split_row_groups": "adaptive", "blocksize": 300},
    "several files": {"split_row_groups": 4, "aggregate_files": True},
    "filters": {"filters": [("i", ">", 35)]},
    "nullable": {"dtype_backend": "numpy_nullable"},
    "Arrow": {"dtype_backend": "pyarrow"},
    "to_pandas": {"arrow_to_pandas": {"types_mapper": {pa.int64(): pd.Int64Dtype()}.get}},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_the_reader(folder: Path, name: str) -> None:
    ddf = dd.read_parquet(folder, **OPTIONS[name])
    query = total(lambda d: d.v.between(7.5, 11))
    compare(query, ddf)
    assert is_bounded(query(ddf)) == (name != "to_pandas")


@pytest.mark.parametrize("filesystem", FILESYSTEMS)
def test_folders_named_after_values(tmp_path: Path, filesystem: str) -> None:
    frame = pa.table(ascending()).to_pandas().drop(columns="c")
    dd.from_pandas(frame, npartitions=2).to_parquet(tmp_path, partition_on=["k"])
    ddf = dd.read_parquet(tmp_path, filesystem=filesystem)
    for rows in (late, lambda d: d.k.isin([1]) & late(d)):
        compare(lambda d, rows=rows: d[rows(d)].groupby("s").v.sum(), ddf)


def test_a_file_of_metadata(tmp_path: Path) -> None:
    frame = pa.table(ascending()).to_pandas().drop(columns="c")
    dd.from_pandas(frame, npartitions=3).to_parquet(tmp_path, write_metadata_file=True)
    compare(total(late), dd.read_parquet(tmp_path))


def test_one_file_is_one_partition(tmp_path: Path, read_rows: list[int]) -> None:
    write(tmp_path, ascending(), files=1)
    ddf = dd.read_parquet(tmp_path)
    assert ddf.npartitions == 1
    expected = total(late)(ddf.compute())
    read_rows.clear()
    pd.testing.assert_series_equal(total(late)(ddf).compute().sort_index(), expected)
    assert read_rows == [15]


def test_nulls_of_integers_decide_on_a_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ascending(30)
    columns["n"] = pa.array([None if i in (2, 17) else i for i in range(30)])
    columns["b"] = pa.array([None if i == 24 else i % 2 == 0 for i in range(30)])
    write(tmp_path, columns, files=1)
    ddf = dd.read_parquet(tmp_path)
    for column in "nb":
        for first in (5, 25):
            query = ddf[ddf.i.between(first, first + 4)].groupby("k")[column].max()
            assert is_bounded(query)
            same(query.compute(), unbounded(query, monkeypatch))


def test_files_of_other_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pandas rounds the constant for a file of float32, where statistics have another value."""
    for i, dtype in enumerate([pa.float64(), pa.float32(), pa.int64()]):
        part = pa.array([0.1, 0.5, 1.7]).cast(dtype, safe=False)
        pq.write_table(pa.table({"k": [1, 2, 3], "x": part}), tmp_path / f"{i}.parquet")
    ddf = dd.read_parquet(tmp_path)
    query = ddf[ddf.x.between(0.1, 0.1)].groupby("k").x.count()
    assert is_bounded(query)
    same(query.compute(), unbounded(query, monkeypatch))


def test_times_that_python_has_no_objects_of(tmp_path: Path) -> None:
    times = pa.array([0, 2**61, 2**60, 5], pa.timestamp("us"))
    write(tmp_path, {"k": pa.array([1, 2, 1, 2]), "t": times}, files=1, rows=1)
    ddf = dd.read_parquet(tmp_path)
    for ends in ((START, pd.NaT), ("1970", "1971")):
        compare(lambda d, ends=ends: d[d.t.between(*ends)].groupby("k").t.count(), ddf)


NUMBERS = [*range(-3, 4), 100, -100]
DAYS = [START + pd.Timedelta(days=i) for i in range(4)] + [START + pd.Timedelta("1us")]
# of each type: values, and constants that are compared with them
VALUES: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "int": (pa.int64(), NUMBERS, [*NUMBERS, 0.5, 2**53 + 1, 2.0]),
    "great": (pa.int64(), [2**53, 2**53 + 1, 2**53 + 2], [2**53, 2**53 + 1, 2.0**53]),
    "int8": (pa.int8(), NUMBERS, [*NUMBERS, 300, np.int64(2)]),
    "uint64": (pa.uint64(), [0, 1, 2**63, 2**64 - 1], [0, 1, 2]),
    "float": (pa.float64(), [*NUMBERS, 0.1, -0.0, np.nan, np.inf], [*NUMBERS, 0.1, np.inf, np.nan]),
    "float32": (pa.float32(), [*NUMBERS, 0.1, np.nan, 0.5], [*NUMBERS, 0.1, 0.5]),
    "bool": (pa.bool_(), [True, False], [True, False]),
    "text": (
        pa.string(),
        ["", "a", "ab", "é", "z\uffff", "\U0001f600"],
        ["", "a", "é", "\U0001f600"],
    ),
    "times": (pa.timestamp("us"), DAYS, [*DAYS, DAYS[0] + pd.Timedelta("500ns"), "2024-01-02"]),
    "seconds": (pa.timestamp("s"), DAYS[:4], [*DAYS, DAYS[0].to_datetime64()]),
    "nanoseconds": (pa.timestamp("ns"), DAYS, [*DAYS, DAYS[0].to_pydatetime()]),
    "zoned": (
        pa.timestamp("us", "Europe/Berlin"),
        [day.tz_localize("UTC") for day in DAYS],
        [day.tz_localize(zone) for day in DAYS for zone in ("UTC", "Europe/Berlin", "Asia/Tokyo")],
    ),
    "durations": (
        pa.duration("us"),
        [pd.Timedelta(days=i) for i in range(3)],
        [pd.Timedelta("1D")],
    ),
    "decimals": (
        pa.decimal128(9, 2),
        [Decimal(i) / 4 for i in range(5)],
        [Decimal("0.5"), Decimal(1)],
    ),
    "dates": (pa.date32(), [day.date() for day in DAYS], [DAYS[1].date()]),
}
OPERATORS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@st.composite
def filtered(draw: st.DrawFn) -> tuple[str, list[Any], Callable[[Any], Any]]:
    """A type, a column's values, and a predicate of it."""
    name = draw(st.sampled_from(sorted(VALUES)))
    _, values, constants = VALUES[name]
    # floats, which integers are beside nulls, would round the greatest ones
    nulls = [] if name in ("great", "uint64") else [None]
    drawn = draw(st.lists(st.sampled_from([*values, *nulls]), min_size=2, max_size=24))
    if draw(st.booleans()):
        drawn = sorted(v for v in drawn if v is not None and v == v) or [values[0]]
    constant = st.sampled_from(constants)

    def compared() -> Callable[[Any], Any]:
        kind = draw(st.sampled_from(["operator", "between", "list"]))
        if kind == "operator":
            compare, value = draw(st.sampled_from(OPERATORS)), draw(constant)
            return lambda d: compare(d.x, value)
        if kind == "between":
            low, high = draw(constant), draw(constant)
            inclusive = draw(st.sampled_from(["both", "left", "right", "neither"]))
            return lambda d: d.x.between(low, high, inclusive=inclusive)
        listed = draw(st.lists(constant, min_size=1))
        # Dask and pandas make other arrays of several types
        listed = [v for v in listed if type(v) is type(listed[0])]
        if isinstance(listed[0], str) and name != "text":
            listed = [START]
        return lambda d: d.x.isin(listed)

    one, other = compared(), compared()
    both = draw(st.sampled_from([operator.and_, operator.or_, lambda a, b: a, lambda a, b: ~a & b]))
    # else Dask's own reader for Arrow's file systems filters, by the rules of Arrow
    return name, drawn, lambda d: both(one(d), other(d)) & d.k.isin([0, 1, 2])


@given(
    filtered(), st.sampled_from(FILESYSTEMS), st.integers(1, 3), st.integers(1, 5), st.booleans()
)
def test_answers_are_those_of_pandas(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: tuple[str, list[Any], Callable[[Any], Any]],
    filesystem: str,
    files: int,
    rows: int,
    statistics: bool,
) -> None:
    name, values, predicate = drawn
    folder = tmp_path_factory.mktemp("drawn")
    numbers = np.arange(len(values))
    columns = {
        "k": pa.array(numbers % 3),
        "x": pa.array(values, VALUES[name][0]),
        "n": pa.array(numbers),
    }
    write(folder, columns, min(files, len(values)), rows, write_statistics=statistics)
    ddf = dd.read_parquet(folder, filesystem=filesystem)
    compare(
        lambda d: d[predicate(d)].groupby("k").agg({"n": ["sum", "count"], "x": "count"}),
        ddf,
        dtypes=False,
        refusable=True,
    )
