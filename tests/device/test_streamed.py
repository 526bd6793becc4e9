"""Collections of pandas through the GPU: pandas' groups, also where memory lacks."""

import gc
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.reporting.runs import forget
from dask_gpuagg.streaming import stream
from tests.comparison import assert_same
from tests.device.failing import current, failing, numbers

ROWS = 40_000
ASKED = {
    "f": ["sum", "mean", "min", "max", "var", "std", "count", "prod", "any", "all"],
    "g": ["sum", "mean", "first", "last", "sem"],
    "i": ["sum", "mean", "min", "max", "first", "last", "count", "var"],
    "u": ["sum", "max", "prod"],
    "b": ["sum", "any", "all", "min"],
    "t": ["min", "max", "first", "last", "count", "mean"],
    "d": ["sum", "min", "max", "mean"],
}


@pytest.fixture(autouse=True)
def streaming() -> Iterator[None]:
    given = {"gpuagg.engine": "device", "gpuagg.fallback": "raise", "scheduler": "synchronous"}
    with dask.config.set(given), dask_gpuagg.enabled():
        forget()
        yield


def frame(rows: int = ROWS, seed: int = 1) -> pd.DataFrame:
    """Values of every exact dtype, some null, and keys of many."""
    rng = np.random.default_rng(seed)

    def holes(values: Any, nothing: Any) -> Any:
        values[rng.random(rows) < 0.1] = nothing
        return values

    days = np.datetime64("2020-01-01", "ns") + rng.integers(0, 10**15, rows)
    made = pd.DataFrame({
        "k": rng.integers(0, 300, rows),
        "k8": rng.integers(-5, 5, rows).astype("int8"),
        "kf": holes(rng.integers(0, 50, rows).astype("float64"), np.nan),
        "kb": rng.random(rows) < 0.5,
        "kt": pd.Series(days).dt.floor("D"),
        "f": holes(rng.normal(size=rows), np.nan),
        "g": holes(rng.normal(size=rows).astype("float32"), np.nan),
        "i": rng.integers(-1000, 1000, rows).astype("int32"),
        "u": rng.integers(0, 3, rows).astype("uint8"),
        "b": rng.random(rows) < 0.9,
        "t": holes(days, np.datetime64("NaT")),
        "d": holes(rng.integers(-(10**9), 10**9, rows).astype("m8[us]"), np.timedelta64("NaT")),
    })  # fmt: skip
    made["ks"] = pd.Series(rng.choice(["one", "two", "", "dreiundzwanzig"], rows)).astype("str")
    made.loc[rng.random(rows) < 0.05, "ks"] = None
    made["kc"] = pd.Categorical.from_codes(
        holes(rng.integers(0, 3, rows), -1), categories=["x", "y", "z"]
    )
    made["kz"] = made["kt"].dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin")
    return made


def check(collection: Any, whole: pd.DataFrame, keys: list[str], asked: Any, **flags: Any) -> None:
    """The groups are those of the host engine, which the tests of the host hold to pandas."""
    flags |= {"sort": True, "observed": True}
    ours = collection.groupby(keys, **flags).agg(asked).compute()
    assert any(run.decision.kernel != "host" for run in dask_gpuagg.last_runs())
    with dask.config.set({"gpuagg.engine": "auto"}):
        theirs = dd.from_pandas(whole, npartitions=1).groupby(keys, **flags).agg(asked).compute()
    assert_same(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize(
    "keys",
    [["k"], ["k8"], ["kf"], ["kb"], ["kt"], ["ks"], ["kc"], ["kz"], ["k", "kf"], ["ks", "kc"]],
)
def test_every_key_and_value(keys: list[str], dropna: bool) -> None:
    whole = frame()
    check(dd.from_pandas(whole, npartitions=3), whole, keys, ASKED, dropna=dropna)


@pytest.mark.parametrize("how", ["persisted", "files", "filtered"])
def test_every_kind_of_collection(how: str, tmp_path: Path) -> None:
    whole = frame()
    collection = dd.from_pandas(whole, npartitions=5)
    if how == "persisted":
        collection = collection.persist()
    elif how == "files":
        collection.to_parquet(tmp_path)
        collection = dd.read_parquet(tmp_path)
        whole = pd.read_parquet(tmp_path)
    else:
        collection, whole = collection[collection.i > 0], whole[whole.i > 0]
    asked = {c: ASKED[c] for c in ("f", "g", "i", "b")}
    check(collection, whole, ["k", "k8"], asked)


def test_many_groups_in_several_outputs() -> None:
    rng = np.random.default_rng(3)
    whole = pd.DataFrame({"k": rng.integers(0, 90_000, 200_000), "x": rng.normal(size=200_000)})
    collection = dd.from_pandas(whole, npartitions=4).persist()
    ours = collection.groupby("k").x.agg(["sum", "max"], split_out=3).compute().sort_index()
    assert_same(ours, whole.groupby("k").x.agg(["sum", "max"]), rtol=1e-9, atol=1e-9)


def test_what_is_the_host_engines_says_so() -> None:
    whole = frame(1_000)
    collection = dd.from_pandas(whole, npartitions=2)
    with pytest.raises(dask_gpuagg.UnsupportedGroupBy, match="does not support"):
        collection.groupby("k").f.median().compute()


@pytest.mark.parametrize("batch", [1 << 12, 1 << 16, 1 << 20])
def test_batches_of_any_size(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from dask_gpuagg.streaming import batches

    monkeypatch.setattr(batches, "LEAST_BYTES", batch)
    whole = frame()
    asked = {c: ASKED[c] for c in ("f", "i", "t")}
    check(dd.from_pandas(whole, npartitions=3).persist(), whole, ["ks", "k8"], asked)


@pytest.fixture
def small_device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A call sets how many bytes batches and tables of the GPU have, and how many groups merge."""
    from dask_gpuagg.streaming.batches import Sizes
    from dask_gpuagg.streaming.gpu import Gpu

    def set_sizes(nbytes: int, few_rows: int, of_groups: int = 0) -> None:
        monkeypatch.setattr(Gpu, "sizes", lambda self: Sizes(nbytes, 2 * nbytes, 0, of_groups))
        monkeypatch.setattr(stream, "_FEW_ROWS", few_rows)

    return set_sizes


@pytest.mark.parametrize("key", ["k", "text", "kf"])
def test_groups_beyond_the_device_leave_in_parts(
    key: str, small_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dask_gpuagg.streaming.gpu import Gpu

    small_device(1 << 22, 1 << 18)
    divided: list[int] = []
    real = Gpu.to_host_in_parts

    def counted(self: Gpu, groups: Any, plan: Any, like: Any, parts: int) -> list[Any]:
        divided.append(parts)
        return real(self, groups, plan, like, parts)

    monkeypatch.setattr(Gpu, "to_host_in_parts", counted)
    rng = np.random.default_rng(8)
    rows = 2_000_000
    whole = pd.DataFrame({"k": rng.integers(0, 900_000, rows), "x": rng.normal(size=rows)})
    whole["kf"] = whole["k"].where(whole["k"] > 9).astype("float64")
    whole["text"] = whole["k"].astype("str")
    whole.loc[rng.random(rows) < 0.3, "x"] = np.nan
    collection = dd.from_pandas(whole, npartitions=3).persist()
    asked = ["sum", "count", "min", "var"]
    ours = collection.groupby(key).x.agg(asked).compute().sort_index()
    assert_same(ours, whole.groupby(key).x.agg(asked), rtol=1e-7, atol=1e-9)
    assert len(divided) > 1
    assert len(set(divided)) == 1


def test_parts_have_bins_of_exact_sums_of_their_own(
    small_device: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of large values are in the tables that leave last."""
    from dask_gpuagg.streaming.gpu import Gpu

    small_device(1 << 20, 1 << 16)
    loaded: list[int] = []
    real = Gpu.from_host
    monkeypatch.setattr(
        Gpu, "from_host", lambda self, *given: loaded.append(len(given[0])) or real(self, *given)
    )
    rng = np.random.default_rng(9)
    rows = 400_000
    whole = pd.DataFrame({"k": rng.integers(0, 100_000, rows), "x": rng.normal(size=rows)})
    last = rng.random(rows // 2) < 0.5
    whole.loc[rows // 2 :, "x"] *= np.where(last, 1e30, 1.0)
    collection = dd.from_pandas(whole, npartitions=4).persist()
    with dask.config.set({"gpuagg.deterministic": True}):
        ours = collection.groupby("k").x.sum().compute().sort_index()
    assert max(loaded) > 1
    theirs = whole.groupby("k").x.agg(lambda x: math.fsum(x))
    pd.testing.assert_series_equal(ours, theirs, check_exact=True)


@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("keys", [["k"], ["kf"], ["ks", "k"], ["kc", "kt"], ["kz", "kb"]])
def test_many_groups_are_grouped_part_by_part(
    keys: list[str],
    dropna: bool,
    small_device: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows are divided as groups are; those whose order counts after they are grouped."""
    from dask_gpuagg.streaming.gpu import Gpu

    small_device(1 << 18, 20, of_groups=1 << 30)
    monkeypatch.setattr(stream, "MOST_GROUPS", 2)
    parts: list[int] = []
    real = Gpu.partial

    def counted(self: Gpu, loaded: Any, plan: Any, number: int) -> list[Any]:
        parts.append(number)
        return real(self, loaded, plan, number)

    monkeypatch.setattr(Gpu, "partial", counted)
    whole = frame()
    whole["kf"] = np.where(whole["kf"] == 0, -0.0, whole["kf"])
    collection = dd.from_pandas(whole, npartitions=6).persist()
    asked = {c: ASKED[c] for c in ("f", "i", "t", "d")}
    check(collection, whole, keys, asked, dropna=dropna)
    assert set(parts) == {1, stream.PARTS}
    parts.clear()
    unordered = {"f": ["sum", "var", "min"], "i": ["count", "max"]}
    check(collection, whole, keys, unordered, dropna=dropna)
    assert set(parts) == {1, stream.PARTS}
    with dask.config.set({"gpuagg.deterministic": True}):
        check(collection, whole, keys, {"f": ["sum", "mean"]}, dropna=dropna)


@pytest.mark.parametrize("undivided", [1 << 16, 1 << 27])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 1.0])
def test_less_memory_than_rows_need(
    share: float, undivided: int, limited: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MOST_GROUPS", undivided)
    monkeypatch.setattr(stream, "_FEW_ROWS", 1 << 16)
    rng = np.random.default_rng(5)
    rows = 2_000_000
    whole = pd.DataFrame({"k": rng.integers(0, 500_000, rows), "x": rng.normal(size=rows)})
    collection = dd.from_pandas(whole, npartitions=4).persist()
    with limited(int(share * 16 * rows)):  # libcudf keeps scalars that its first calls make
        collection.groupby("k").x.agg(["sum", "count", "min"]).compute()
    with limited(int(share * 16 * rows)) as counted:
        ours = collection.groupby("k").x.agg(["sum", "count", "min"]).compute()
        assert counted.allocation_counts.current_bytes == 0
    expected = whole.groupby("k").x.agg(["sum", "count", "min"])
    assert_same(ours.sort_index(), expected, rtol=1e-9, atol=1e-9)


@pytest.fixture
def limited() -> Callable[[int], Any]:
    """A context with so much device memory, which counts what is held."""
    from contextlib import contextmanager

    import rmm

    @contextmanager
    def at_most(limit: int) -> Iterator[Any]:
        counted = rmm.mr.StatisticsResourceAdaptor(rmm.mr.get_current_device_resource())
        with current(rmm.mr.LimitingResourceAdaptor(counted, limit)):
            yield counted

    return at_most


def test_a_stream_without_a_pool_takes_one_and_gives_it_back() -> None:
    import rmm

    from dask_gpuagg.cuda.runtime.driver import bindings, checked, current_device
    from dask_gpuagg.streaming import gpu

    rng = np.random.default_rng(9)
    rows = 2_000_000
    whole = pd.DataFrame({"k": rng.integers(0, 500_000, rows), "x": rng.normal(size=rows)})
    collection = dd.from_pandas(whole, npartitions=4).persist()
    plain = rmm.mr.CudaMemoryResource()
    with current(plain):
        ours = collection.groupby("k").x.agg(["sum", "count"]).compute()
        assert rmm.mr.get_current_device_resource() is plain
    assert_same(ours.sort_index(), whole.groupby("k").x.agg(["sum", "count"]), rtol=1e-9, atol=1e-9)
    made = gpu._pools[current_device().ordinal]
    assert made is not None
    driver = bindings()
    names = driver.CUmemPool_attribute

    def reserved(name: Any) -> int:
        return int(checked(driver.cuMemPoolGetAttribute(made.handle, name)))

    assert reserved(names.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) > 16 * rows
    assert reserved(names.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("key", ["k", "text"])
def test_each_failed_allocation_costs_no_answer(key: str, once: bool) -> None:
    """The n-th allocation fails, alone or with all behind it: the groups are pandas'."""
    rng = np.random.default_rng(6)
    rows = 300_000
    whole = pd.DataFrame({"k": rng.integers(0, 70_000, rows), "x": rng.normal(size=rows)})
    whole["text"] = whole["k"].astype(str)
    collection = dd.from_pandas(whole, npartitions=2).persist()
    expected = whole.groupby(key).x.agg(["sum", "count"]).sort_index()
    query = collection.groupby(key).x.agg(["sum", "count"])
    query.compute()
    for n in numbers():
        with failing(n, once) as memory:
            ours = query.compute()
        gc.collect()
        assert memory.held() == 0, n
        assert_same(ours.sort_index(), expected, rtol=1e-9, atol=1e-9)
        if memory.allocations <= n:
            break
    assert n > 5
