"""Statistics of Parquet files: how many values an integer key may have, without a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dask_gpuagg
from dask_gpuagg.planning import bucketing, route
from dask_gpuagg.planning.bucketing import span_of_key
from dask_gpuagg.planning.chunks import Route, Routing

FILES = 40


def part(i: int) -> pd.DataFrame:
    rng = np.random.default_rng(i)
    return pd.DataFrame(
        {
            "k": rng.permutation(np.arange(300) % 11 - 3),
            "small": (rng.integers(0, 9, 300)).astype("u2"),
            "sparse": rng.permutation(np.arange(300) % 3) * 10**15,
            "sorted": i * 5 + np.arange(300) % 5,
            "null": pd.array([None, 2, 4] * 100, dtype="Int64"),
            "f": rng.random(300),
            "s": rng.choice(["a", "b"], 300),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    for i in range(FILES):
        part(i).to_parquet(made / f"{i:02d}.parquet", row_group_size=100)
    return made


def span(rows: Any, *by: Any) -> int | None:
    return span_of_key(rows.expr, by)


@pytest.mark.parametrize(
    ("key", "expected"),
    [("k", 11), ("small", 9), ("null", 3), ("sorted", 5 * FILES), ("sparse", 2 * 10**15 + 1)],
)
def test_integers_lie_between_the_least_and_the_largest(
    folder: Path, key: str, expected: int
) -> None:
    rows = dd.read_parquet(folder)
    assert span(rows, key) == expected
    assert span(rows[[key, "f"]].optimize(fuse=False), key) == expected
    assert span(rows[rows.f > 0.5], key) == expected


@pytest.mark.parametrize("by", [("f",), ("s",), ("k", "small"), ("absent",), (len,)], ids=str)
def test_other_keys_have_no_span(folder: Path, by: Any) -> None:
    assert span(dd.read_parquet(folder), *by) is None


def test_changed_keys_have_no_span(folder: Path) -> None:
    rows = dd.read_parquet(folder)
    assert span(rows.assign(k=rows.k * 1000), "k") is None
    assert span(rows, (rows.k % 2).expr) is None


def test_files_without_statistics_tell_nothing(tmp_path: Path) -> None:
    for i in range(3):
        path = tmp_path / f"{i}.parquet"
        pq.write_table(pa.Table.from_pandas(part(i)), path, write_statistics=i != 1)
    assert span(dd.read_parquet(tmp_path), "k") is None


def test_files_without_rows_tell_nothing(tmp_path: Path) -> None:
    part(0).head(0).to_parquet(tmp_path / "0.parquet")
    assert span(dd.read_parquet(tmp_path), "k") is None


def test_files_that_changed_are_read_again(tmp_path: Path) -> None:
    found = []
    for scale in (1, 7):
        pd.DataFrame({"k": np.arange(4) * scale, "v": 1.0}).to_parquet(tmp_path / "0.parquet")
        found.append(span(dd.read_parquet(tmp_path), "k"))
    assert found == [4, 22]


def decision_of(query: Any) -> Routing:
    (found,) = dask_gpuagg.explain(query).groupbys
    assert found.decision is not None, found
    return found.decision


@pytest.mark.parametrize(("key", "sampled"), [("k", False), ("sorted", False), ("sparse", True)])
def test_a_sample_is_taken_where_they_may_be_many(folder: Path, key: str, sampled: bool) -> None:
    route._recent.clear()
    here = {"gpuagg.fallback": "raise", "scheduler": "synchronous"}
    with dask_gpuagg.enabled(), dask.config.set(here):
        rows = dd.read_parquet(folder, blocksize=None)
        query = rows.groupby(key).f.sum()
        decision = decision_of(query)
        got = query.compute().sort_index()
    assert ("sampled 3 of" in decision.reason) == sampled
    assert ("statistics of three files" in decision.reason) == (not sampled)
    assert decision.route is Route.TREE
    expected = pd.concat(map(part, range(FILES))).groupby(key).f.sum()
    pd.testing.assert_series_equal(got, expected)


def test_files_that_cannot_be_read_tell_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query reads them too, or only others: it is not planning that fails."""

    def gone(reader: Any, label: str) -> int:
        raise FileNotFoundError(label)

    bucketing._spans.clear()
    monkeypatch.setattr(bucketing, "_span", gone)
    read = dd.read_parquet(folder)
    assert span_of_key(read.expr, ["k"]) is None
