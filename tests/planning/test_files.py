"""Parquet: files are read one by one, or a few at a time, for the same answers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dask_gpuagg.planning import bucketing
from dask_gpuagg.planning.bucketing import by_file, by_size, text_keys, without_labels
from dask_gpuagg.planning.chunks import MOST_APART, Chunks, chunked
from dask_gpuagg.planning.nodes import GroupByExchange, GroupByPartial, GroupByTree
from dask_gpuagg.tasks.reading import frame_of
from tests.comparison import same
from tests.planning.test_chunks import QUERIES, frame, nodes

pytestmark = pytest.mark.usefixtures("plugin", "synchronous")

FILES = 9
# some of the columns are wide: Dask reads several files together where few columns are asked for
WIDE = 3
AS_DASK = ("labels", "custom")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    whole = frame().assign(**{f"wide{i}": lambda f: f.v * 3 for i in range(WIDE)})
    for i, part in enumerate(np.array_split(np.arange(len(whole)), FILES)):
        whole.iloc[part].to_parquet(made / f"{i}.parquet")
    return made


def chunks_in(query: Any) -> list[Chunks]:
    found = query.optimize(fuse=False).expr.walk()
    return [op for node in found for op in node.operands if isinstance(op, Chunks)]


@pytest.mark.parametrize(
    ("filesystem", "chunk"), [("fsspec", "auto"), ("arrow", "auto"), ("fsspec", 4), ("arrow", 100)]
)
@pytest.mark.parametrize("name", QUERIES)
def test_answers_are_those_of_dasks_partitions(
    folder: Path, filesystem: str, chunk: Any, name: str
) -> None:
    if chunk != "auto" and name == "function as key":
        pytest.skip("rows of files have labels that repeat")
    ddf = dd.read_parquet(folder, filesystem=filesystem)
    with dask.config.set({"gpuagg.chunk": chunk}):
        query = QUERIES[name](ddf)
        if chunk == "auto":
            joined = filesystem == "arrow"
            assert len(chunks_in(query)) == (0 if name in AS_DASK or joined else 1)
        else:
            assert not nodes(query, GroupByPartial)
        got = query.compute()
    with dask.config.set({"gpuagg.chunk": 1}):
        expected = QUERIES[name](ddf)
        assert not chunks_in(expected)
        same(got, expected.compute())


def test_a_task_takes_the_files_of_a_partition(folder: Path) -> None:
    query = dd.read_parquet(folder).groupby("k").v.sum()
    (chunks,) = chunks_in(query)
    with dask.config.set({"gpuagg.chunk": 1}):
        (partial,) = nodes(query, GroupByPartial)
    assert 1 < len(chunks) == partial.npartitions < FILES
    assert [i for bucket in chunks.buckets for i in bucket] == list(range(FILES))
    assert str(chunks) == f"{FILES} partitions in {len(chunks)} tasks, 1 read at a time"


def test_few_files_are_a_task_each_where_rows_are_exchanged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = dd.read_parquet(folder).groupby("k").v.median()
    (chunks,) = chunks_in(query)
    assert chunks.buckets == tuple((i,) for i in range(FILES))
    monkeypatch.setattr("dask_gpuagg.planning.chunks.MOST_APART", FILES - 1)
    (chunks,) = chunks_in(dd.read_parquet(folder).groupby("k").v.median())
    assert 1 < len(chunks) < FILES < MOST_APART


@pytest.mark.parametrize("filesystem", ["fsspec", "arrow"])
def test_files_that_dask_does_not_join_have_a_task_each(folder: Path, filesystem: str) -> None:
    wide = dd.read_parquet(folder, filesystem=filesystem)
    with dask.config.set({"dataframe.parquet.minimum-partition-size": 1}):
        query = wide.groupby("k").agg(dict.fromkeys(set(wide.columns) - {"k"}, "count"))
        (chunks,) = chunks_in(query)
        got = query.compute()
        assert chunks.buckets == tuple((i,) for i in range(FILES))
        with dask.config.set({"gpuagg.chunk": 1}):
            same(got, query.compute())


def test_only_one_reader_of_parquet_is_read_by_file(folder: Path) -> None:
    ddf = dd.read_parquet(folder)
    one = ddf.optimize(fuse=False).expr
    other = ddf[["k"]].optimize(fuse=False).expr
    written = dd.from_pandas(frame(), npartitions=2).optimize(fuse=False).expr
    assert by_file(one, ["k"], [one]) is not None
    assert by_file(one, ["k"], [one, other]) is None
    assert by_file(written, ["k"], [written]) is None


def test_text_that_nothing_else_reads_may_be_a_dictionary(folder: Path) -> None:
    reader = dd.read_parquet(folder).optimize(fuse=False).expr
    assert text_keys(reader, ["k", "s"], ["v"]) == ("s",)
    assert text_keys(reader, ["k", "s"], ["v", "s"]) == ()
    assert text_keys(reader, ["s", len], ["v"]) == ("s",)
    assert text_keys(reader, ["s", reader["s"] == "a"], ["v"]) == ()
    filtered = (lambda d: d[d.s != "a"])(dd.read_parquet(folder)).optimize(fuse=False).expr
    assert text_keys(filtered, ["s"], ["v"]) == ()
    derived = dd.read_parquet(folder).assign(w=lambda d: d.v * 2).optimize(fuse=False).expr
    assert text_keys(derived, ["s"], ["w"]) == ("s",)


TEXTS = {
    "sum": lambda d: d.groupby("s").v.sum(),
    "nulls": lambda d: d.groupby("s", dropna=False).v.sum(),
    "two keys": lambda d: d.groupby(["s", "k"]).agg({"v": ["sum", "std"]}),
    "sorted": lambda d: d.groupby("s", sort=True).v.sum(),
    "outputs": lambda d: d.groupby("s").v.sum(split_out=3),
    "the key itself": lambda d: d.groupby("s").s.count(),
    "distinct": lambda d: d.groupby("s").k.nunique(),
    "size": lambda d: d.groupby("s").size(),
    "values": lambda d: d.groupby("s").k.value_counts(),
    "labels": lambda d: d.groupby("s").v.idxmax(),
    "first": lambda d: d.groupby("s").agg({"v": ["first", "last"]}),
    "filtered": lambda d: d[d.s != "a"].groupby("s").v.sum(),
    "observed": lambda d: d.groupby("s", observed=False).v.sum(),
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text in a dictionary in every file but one, in which every row has its own."""
    made, rng = tmp_path_factory.mktemp("texts"), np.random.default_rng(5)
    for i in range(4):
        rows = 3000
        part = pd.DataFrame(
            {
                "s": rng.choice(["a", "bb", "é", None, f"only {i}"], rows),
                "k": rng.integers(0, 9, rows),
                "v": rng.random(rows),
            }
        )
        if i == 2:
            part["s"] = [f"text of row {j}" for j in range(rows)]
        # dictionaries of row groups differ
        part.to_parquet(made / f"{i}.parquet", row_group_size=1000)
    return made


@pytest.mark.parametrize("name", TEXTS)
def test_text_keys_read_as_dictionaries_are_text(texts: Path, name: str) -> None:
    ddf = dd.read_parquet(texts)
    got = TEXTS[name](ddf).compute()
    with dask.config.set({"gpuagg.chunk": 1}):
        expected = TEXTS[name](ddf).compute()
    assert got.index.get_level_values(0).dtype == expected.index.get_level_values(0).dtype
    same(got, expected)


def test_keys_that_are_no_text_in_some_file(tmp_path: Path) -> None:
    keys = [
        pa.array(["1", "2", "1"]),
        pa.array(["2", None, "3"]).dictionary_encode(),
        pa.array([1, 2, 2], "int64").dictionary_encode(),
    ]
    for i, key in enumerate(keys):
        pq.write_table(pa.table({"s": key, "v": [1.0, 2.0, 4.0]}), tmp_path / f"{i}.parquet")
    text = dd.read_parquet([tmp_path / f"{i}.parquet" for i in (0, 1)]).groupby("s").v.sum()
    assert chunks_in(text)[0].text_keys == ("s",)
    assert text.compute().sort_index().to_dict() == {"1": 5.0, "2": 3.0, "3": 4.0}
    mixed = dd.read_parquet([tmp_path / f"{i}.parquet" for i in (0, 2)]).groupby("s").v.sum()
    with dask.config.set({"gpuagg.chunk": 1}):
        expected = mixed.compute()
    assert mixed.compute().to_dict() == expected.to_dict()


def test_files_that_differ_from_the_metadata(tmp_path: Path) -> None:
    parts = [
        pa.table({"k": pa.array([1, 2, 1], "int64"), "v": pa.array([1, 2, 3], "int64")}),
        pa.table({"k": pa.array([1, None, 2], "int64"), "v": pa.array([1.5, None, 2.0])}),
        pa.table({"k": pa.array([2, 1], "int32"), "v": pa.array([None, 7], "int16")}),
    ]
    for i, part in enumerate(parts):
        pq.write_table(part, tmp_path / f"{i}.parquet")
    query = dd.read_parquet(tmp_path).groupby("k").v.agg(["sum", "count", "max"])
    assert chunks_in(query)
    expected = pd.DataFrame(
        {"sum": [12.5, 4.0], "count": [4, 2], "max": [7.0, 2.0]}, index=pd.Index([1, 2], name="k")
    )
    pd.testing.assert_frame_equal(query.compute().sort_index(), expected, check_index_type=False)


@pytest.mark.parametrize("damage", [b"", b"no Parquet at all", None])
def test_a_file_that_cannot_be_read_is_dasks_error(tmp_path: Path, damage: bytes | None) -> None:
    for i in range(4):
        frame().drop(columns="c").to_parquet(tmp_path / f"{i}.parquet")
    query = dd.read_parquet(tmp_path).groupby("s").v.sum()
    assert chunks_in(query)[0].text_keys == ("s",)
    if damage is None:
        (tmp_path / "2.parquet").unlink()
    else:
        (tmp_path / "2.parquet").write_bytes(damage)
    with dask.config.set({"gpuagg.chunk": 1}), pytest.raises((pa.ArrowInvalid, OSError)) as stock:
        query.compute()
    with pytest.raises(stock.type):
        query.compute()


def test_distinct_pairs_are_exchanged_in_one_process(folder: Path) -> None:
    query = dd.read_parquet(folder).groupby("k").agg({"row": "nunique"})
    expected = frame().groupby("k").agg({"row": "nunique"})
    with dask.config.set(scheduler="threads"):
        assert not nodes(query, GroupByTree)
        same(query.compute(), expected)
    persisted = dd.from_pandas(frame(), npartitions=5).groupby("k").agg({"row": "nunique"})
    (exchange,) = nodes(persisted, GroupByExchange)
    assert exchange.npartitions == 5
    same(persisted.compute(), expected)


def as_read(collection: Any) -> Any:
    """The lowered expression of a collection that something reads: Dask joins files there."""
    whole = collection.map_partitions(lambda part: part, meta=collection._meta)
    return whole.optimize(fuse=False).expr.dependencies()[0]


def read_by_chunks(chunks: Chunks) -> list[pd.DataFrame]:
    parts = [part for parts, _ in chunks.parts for part in parts]
    return [frame_of(part, {})[0] for part in parts]


def of_a_gpu(expr: Any, by: list[Any], columns: list[str] | None) -> Chunks:
    """The chunks of readers that read ahead, as partitions of a GPU have them."""
    plan = SimpleNamespace(states=[], order_sensitive=False, reads_labels=columns is None)
    about = {"on_device": True, "shared": False, "predicate": None}
    query: Any = SimpleNamespace(plan=plan, frame=expr, by=by, **about)
    made = chunked(query)
    assert made is not None
    return made


@pytest.mark.parametrize("files_a_read", [1, 2, 1000])
def test_a_read_takes_as_many_files_as_its_bytes_allow(
    folder: Path, monkeypatch: pytest.MonkeyPatch, files_a_read: int
) -> None:
    expr = as_read(dd.read_parquet(folder)[["k", "v"]])
    row_bytes = sum(dtype.itemsize for dtype in expr._meta.dtypes)
    rows = pq.read_metadata(folder / "0.parquet").num_rows
    most = files_a_read * rows * row_bytes
    monkeypatch.setattr(bucketing, "BYTES_OF_A_READ", most)
    of_dask = [len(bucket) for bucket in expr._fusion_buckets]
    assert max(of_dask) > 2
    read, by, buckets = by_size(expr, ["k"], [expr])
    expected = [-(-n // files_a_read) for n in of_dask]
    assert [len(bucket) for bucket in buckets] == expected
    assert read.npartitions == sum(expected)
    assert (read is expr) == (files_a_read == 1000)
    assert by == ("k",)
    chunks = of_a_gpu(expr, ["k"], ["v"])
    found = read_by_chunks(chunks)
    assert len(found) == read.npartitions
    assert max(frame.memory_usage(index=False).sum() for frame in found) <= max(
        most, rows * row_bytes
    )
    pd.testing.assert_frame_equal(pd.concat(found), dd.read_parquet(folder)[["k", "v"]].compute())


def test_what_is_computed_of_a_read_is_computed_of_its_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucketing, "BYTES_OF_A_READ", 1)
    ddf = dd.read_parquet(folder)[["k", "v"]]
    expr = as_read(ddf[ddf.v > 0].assign(w=ddf.v * 2))
    chunks = of_a_gpu(expr, ["k", expr["k"] % 3], ["w"])
    assert chunks.frame.npartitions == chunks.by[1].npartitions == FILES > expr.npartitions
    whole = ddf.compute()
    whole = whole[whole.v > 0].assign(w=lambda f: f.v * 2)
    found = [frame_of(part, {}) for parts, _ in chunks.parts for part in parts]
    pd.testing.assert_frame_equal(pd.concat([got for got, _, _ in found]), whole)
    pd.testing.assert_series_equal(pd.concat([by[1] for _, by, _ in found]), whole.k % 3)


def test_row_labels_are_those_of_dasks_partitions(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucketing, "BYTES_OF_A_READ", 1)
    expr = as_read(dd.read_parquet(folder)[["k", "v"]])
    assert of_a_gpu(expr, ["k"], None).frame is expr
    assert of_a_gpu(expr, ["k"], ["v"]).frame is not expr


def test_the_setting_counts_dasks_partitions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketing, "BYTES_OF_A_READ", 1)
    expr = as_read(dd.read_parquet(folder)[["k", "v"]])
    of_dask = [len(bucket) for bucket in expr._fusion_buckets]
    with dask.config.set({"gpuagg.chunk": 2}):
        chunks = of_a_gpu(expr, ["k"], ["v"])
    ends = [sum(of_dask[:i]) for i in range(len(of_dask) + 1)]
    assert len(chunks) == -(-len(of_dask) // 2)
    assert {i for bucket in chunks.buckets for i in bucket} == set(range(FILES))
    assert all(bucket[0] in ends and bucket[-1] + 1 in ends for bucket in chunks.buckets)


WITHOUT_LABELS = {
    "columns": lambda d: (d, ["k"]),
    "a filter": lambda d: (d[d.v > 0], ["k"]),
    "a new column": lambda d: (d.assign(w=d.v * 2), ["k"]),
}
WITH_LABELS = {
    "row labels": lambda d: (d.assign(w=d.index), ["k"]),
    "rows numbered again": lambda d: (d.reset_index(), ["k"]),
    "a level": lambda d: (d, ["labels"]),
    "a function": lambda d: (d, [len]),
    "a function of rows": lambda d: (d.map_partitions(len, meta=d._meta), ["k"]),
}


@pytest.mark.parametrize("name", [*WITHOUT_LABELS, *WITH_LABELS])
def test_where_row_labels_are_not_read(folder: Path, name: str) -> None:
    ddf = dd.read_parquet(folder)[["k", "v"]]
    made, by = (WITHOUT_LABELS | WITH_LABELS)[name](ddf)
    expr = as_read(made)
    assert without_labels(expr, by, list(expr.walk())) == (name in WITHOUT_LABELS)


def test_columns_of_which_pandas_says_more_than_the_file(folder: Path) -> None:
    plain = as_read(dd.read_parquet(folder)[["k", "v", "s"]])
    assert without_labels(plain, ["k"], [plain])
    category = as_read(dd.read_parquet(folder)[["k", "c"]])
    assert category._meta.dtypes["c"] == "category"
    assert not without_labels(category, ["k"], [category])


def test_times_in_a_zone_are_read_by_what_pandas_says(tmp_path: Path) -> None:
    times = pd.date_range("2026-03-29", periods=9, freq="h")
    rows = pd.DataFrame({"k": np.arange(9) % 2, "t": times, "z": times.tz_localize("UTC")})
    rows["z"] = rows["z"].dt.tz_convert("Europe/Berlin")
    rows.to_parquet(tmp_path / "0.parquet")
    for column in ("t", "z"):
        expr = as_read(dd.read_parquet(tmp_path)[["k", column]])
        assert expr._meta.dtypes[column] == rows.dtypes[column]
        assert without_labels(expr, ["k"], [expr]) == (column == "t")
