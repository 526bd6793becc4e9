"""Partials of partitions: whole, in halves, and of host partitions that a GPU groups."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.streaming import stream
from dask_gpuagg.streaming.batches import Sizes
from dask_gpuagg.tasks import partials
from tests.comparison import assert_same
from tests.streaming.fake import FakeDevice

ASKED = {
    "f": ["sum", "mean", "min", "max", "var", "count", "any"],
    "g": ["mean", "first", "last"],
    "i": ["sum", "prod", "std"],
    "b": ["sum", "any", "all"],
    "t": ["min", "last", "mean"],
    "d": ["sum", "max"],
}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    fake = FakeDevice(Sizes(1 << 14, 1 << 20))
    module = ModuleType("dask_gpuagg.streaming.gpu")

    @contextmanager
    def exclusive() -> Iterator[FakeDevice]:
        yield fake

    module.exclusive = exclusive  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(stream, "obstacle", lambda: None)
    settings = {"gpuagg.engine": "device", "gpuagg.fallback": "raise", "scheduler": "synchronous"}
    with dask.config.set(settings), dask_gpuagg.enabled():
        yield fake


def frame(rows: int = 5_000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    columns = pd.DataFrame({
        "k": rng.integers(0, 90, rows), "f": rng.normal(size=rows),
        "g": rng.normal(size=rows).astype("float32"), "i": rng.integers(-3, 4, rows, "int16"),
        "b": rng.random(rows) < 0.8,
        "t": np.datetime64("2024-01-01", "us") + rng.integers(0, 10**12, rows),
        "d": rng.integers(-(10**6), 10**6, rows).astype("m8[ns]"),
    })  # fmt: skip
    for label, share in (("f", 0.2), ("g", 0.1), ("t", 0.1), ("d", 0.1)):
        columns.loc[rng.random(rows) < share, label] = None
    columns["text"] = pd.Series(rng.choice(["a", "bb", ""], rows), dtype="str")
    columns.loc[rng.random(rows) < 0.1, "text"] = None
    columns["kind"] = pd.Categorical.from_codes(rng.integers(-1, 3, rows), ["x", "y", "z"])
    columns["when"] = columns["t"].dt.floor("D").dt.tz_localize("Asia/Tokyo")
    return columns


@pytest.mark.parametrize("keys", [["k"], ["text"], ["kind", "b"], ["when"], ["f", "k"]])
@pytest.mark.parametrize(("dropna", "persisted"), [(True, True), (False, False)])
def test_pandas_groups(keys: list[str], dropna: bool, persisted: bool, device: FakeDevice) -> None:
    data = frame()
    collection = dd.from_pandas(data, npartitions=4)
    collection = collection.persist() if persisted else collection
    flags: Any = {"dropna": dropna, "observed": True, "sort": True}
    requested = {c: names for c, names in ASKED.items() if c not in keys}
    ours = collection.groupby(keys, **flags).agg(requested).compute()
    assert_same(ours, data.groupby(keys, **flags).agg(requested), rtol=1e-5, atol=1e-5)
    assert any(line.startswith("load") for line in device.log)
    assert device.streams == 1


def test_files(device: FakeDevice, tmp_path: Path) -> None:
    data = frame()[["k", "f", "i", "text"]]
    dd.from_pandas(data, npartitions=6).to_parquet(tmp_path)
    collection = dd.read_parquet(tmp_path)
    ours = collection.groupby("text", sort=True).agg({"f": ["sum", "max"], "i": "mean"}).compute()
    theirs = data.groupby("text").agg({"f": ["sum", "max"], "i": "mean"})
    assert_same(ours, theirs, rtol=1e-9, atol=1e-9)
    assert device.streams == 1


def test_partitions_unlike_the_metadata_are_the_hosts(device: FakeDevice) -> None:
    def changed(part: pd.DataFrame, partition_info: Any = None) -> pd.DataFrame:
        odd = partition_info is not None and partition_info["number"] == 1
        return part.assign(i=part["i"].astype("float64") + 0.5) if odd else part

    data = frame(3_000)
    collection = dd.from_pandas(data, npartitions=3)
    mapped = collection.map_partitions(changed, meta=data.iloc[:0])
    ours = mapped.groupby("k", sort=True).i.agg(["sum", "count"]).compute()
    parts = [
        changed(p, {"number": n}) for n, p in enumerate(dask.compute(*collection.to_delayed()))
    ]
    theirs = pd.concat(parts).groupby("k").i.agg(["sum", "count"])
    assert_same(ours, theirs, rtol=1e-9, atol=1e-9)


def test_persisted_partitions_are_one_task_and_explain_says_where(device: FakeDevice) -> None:
    here = dd.from_pandas(frame(), npartitions=8)
    for collection in (here, here[here.i > 0], here.persist()):
        text = str(dask_gpuagg.explain(collection.groupby("k").f.sum()))
        assert "8 partitions in 1 task" in text
    collection = here.persist()
    text = str(dask_gpuagg.explain(collection.groupby("k").f.sum()))
    assert "device, pandas partitions are copied to the GPU" in text
    assert "8 partitions in 1 task" in text
    text = str(dask_gpuagg.explain(collection.groupby("k").f.median()))
    assert "host: the GPU does not support median of pandas partitions" in text


def test_a_reason_is_warned_of_once_and_the_host_answers() -> None:
    data = frame(1_000)
    collection = dd.from_pandas(data, npartitions=2)
    stream._warn.cache_clear()
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.engine": "device"}):
        with pytest.warns(dask_gpuagg.FallbackWarning, match="does not support median"):
            ours = collection.groupby("k", sort=True).f.median().compute(scheduler="sync")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            collection.groupby("k").f.median().compute(scheduler="sync")
    assert_same(ours, data.groupby("k").f.median(), rtol=1e-12)


def test_without_a_gpu_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "obstacle", lambda: "no CUDA driver (none)")
    collection = dd.from_pandas(frame(100), npartitions=2)
    settings = {"gpuagg.engine": "device", "gpuagg.fallback": "raise", "scheduler": "synchronous"}
    with dask_gpuagg.enabled(), dask.config.set(settings):
        # tasks of the host engine, as many as without the setting
        text = str(dask_gpuagg.explain(collection.groupby("k").f.sum()))
        assert "host: no CUDA driver" in text
        assert "2 partial" in text
        reason = "'device', but no CUDA driver"
        with pytest.raises(dask_gpuagg.UnsupportedGroupBy, match=reason):
            collection.groupby("k").f.sum().compute()


@pytest.mark.parametrize(
    ("by", "asked", "reason"),
    [
        ("k", {"f": "nunique"}, "support nunique"),
        ("k", {"text": "min"}, "min of dtype str"),
        ("k", {"f": "idxmin"}, "idxmin of dtype float64"),
        ("o", {"f": "sum"}, "keys of dtype object"),
        ("n", {"f": "sum"}, "keys of dtype Int64"),
    ],
)
def test_reasons(by: str, asked: Any, reason: str, device: FakeDevice) -> None:
    data = frame(100).assign(o=lambda f: f["k"].astype(object), n=lambda f: f["k"].astype("Int64"))
    with dask.config.set({"dataframe.convert-string": False}):
        collection = dd.from_pandas(data, npartitions=2)
        with pytest.raises(dask_gpuagg.UnsupportedGroupBy, match=reason):
            collection.groupby(by).agg(asked).compute()


@pytest.mark.parametrize("limit", [None, 0, 16 * 4_000])
def test_batches_are_small_beside_the_memory_of_a_worker(
    limit: int | None, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = SimpleNamespace(memory_manager=SimpleNamespace(memory_limit=limit))
    monkeypatch.setattr(partials, "this_task", lambda: (worker, "key"))
    data = frame(6_000)[["k", "f"]]
    ours = dd.from_pandas(data, npartitions=3).groupby("k", sort=True).f.sum().compute()
    assert_same(ours, data.groupby("k").f.sum(), rtol=1e-9, atol=1e-9)
    rows = [int(line.split()[1]) for line in device.log if line.startswith("load")]
    assert max(rows) <= (4_000 if limit else 1 << 14) / 16
    assert sum(rows) == len(data)


def test_without_pinned_memory_the_host_groups(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def nothing() -> Iterator[None]:
        yield None

    monkeypatch.setattr(sys.modules["dask_gpuagg.streaming.gpu"], "exclusive", nothing)
    data = frame(2_000)
    collection = dd.from_pandas(data, npartitions=3)
    ours = collection.groupby("k", sort=True).f.agg(["sum", "count"]).compute()
    assert_same(ours, data.groupby("k").f.agg(["sum", "count"]), rtol=1e-9, atol=1e-9)
    assert device.log == []
    assert "the host has no pinned memory left" in str(dask_gpuagg.fallbacks())
