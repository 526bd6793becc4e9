"""``GpuWorker``: it reports, and does no harm where there is no GPU."""

import gc
import importlib
import itertools
import os
import pickle
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import dask.dataframe as dd
import pandas as pd
import pytest
from distributed import Client

import dask_gpuagg
from dask_gpuagg.cuda.runtime import driver
from dask_gpuagg.engines.device import memory
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.worker import plugin as worker
from tests.workers import workers_of


def test_without_a_gpu_the_reason_is_in_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "unavailable", lambda: "no CUDA device")
    fake = SimpleNamespace(metrics={}, nanny=None)
    worker.GpuWorker().setup(fake)
    report = fake.metrics["dask_gpuagg"](fake)
    assert report == {"version": dask_gpuagg.__version__, "unavailable": "no CUDA device"}


@pytest.mark.parametrize(
    ("cores", "set_before", "threads"),
    [(2, None, None), (12, None, "12"), (96, None, "16"), (96, "6", "6")],
)
def test_files_are_copied_by_a_thread_for_each_core(
    cores: int, set_before: str | None, threads: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "cpu_count", lambda: cores)
    # restored after the test
    monkeypatch.setenv("KVIKIO_NTHREADS", set_before or "")
    if set_before is None:
        monkeypatch.delenv("KVIKIO_NTHREADS")
    memory.copy_files_by_all_cores()
    assert os.environ.get("KVIKIO_NTHREADS") == threads


def test_dask_knows_how_large_frames_of_cudf_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes are registered by dask_cudf, before a partition has arrived; without it nothing is."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "dask_cudf", raising=False)
    worker.know_sizes()
    assert "dask_cudf" not in sys.modules
    (tmp_path / "dask_cudf.py").write_text("registered = True\n")
    importlib.invalidate_caches()
    worker.know_sizes()
    assert sys.modules["dask_cudf"].registered
    monkeypatch.delitem(sys.modules, "dask_cudf")


def test_a_heartbeat_that_reads_the_metrics_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "unavailable", lambda: "no CUDA device")
    fake = SimpleNamespace(metrics={"a": 1, "b": 2}, nanny=None)
    reads = iter(fake.metrics)
    assert next(reads) == "a"
    worker.GpuWorker().setup(fake)
    assert list(reads) == ["b"]
    assert list(fake.metrics) == ["a", "b", "dask_gpuagg"]


def test_it_pickles_and_takes_a_pool_in_words() -> None:
    assert pickle.loads(pickle.dumps(dask_gpuagg.GpuWorker())).pool is None
    assert pickle.loads(pickle.dumps(dask_gpuagg.GpuWorker("1GB"))).pool == 10**9
    with pytest.raises(ValueError, match="apples"):
        dask_gpuagg.GpuWorker("20 apples", examples=[])


def test_the_usual_examples_pickle_and_can_be_switched_off() -> None:
    examples = pickle.loads(pickle.dumps(dask_gpuagg.GpuWorker())).examples
    found = {(str(e.plan.keys[0].dtype), e.plan.outputs[0].aggregation) for e in examples}
    assert found == set(itertools.product(("int64", "string"), worker.USUAL))
    assert dask_gpuagg.GpuWorker(examples=[]).examples == []


def test_own_examples_are_read_from_queries() -> None:
    ddf = dd.from_pandas(pd.DataFrame({"k": [1, 2], "v": [1.0, 2.0]}), npartitions=1)
    grouped = ddf.groupby("k").agg({"v": ["sum", "var"]})
    plugin = dask_gpuagg.GpuWorker(examples=[grouped + ddf.groupby("k").v.max().sum(), grouped])
    names = [[o.aggregation for o in e.plan.outputs] for e in plugin.examples]
    assert sorted(names) == [["max"], ["sum", "var"], ["sum", "var"]]
    with pytest.raises(Unsupported, match="without a group-by"):
        dask_gpuagg.GpuWorker(examples=[ddf.v.sum()])


def test_a_failure_to_warm_is_a_message(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a worker whose device is there and whose cuDF is not."""
    monkeypatch.setattr(worker, "setup_device", lambda pool: {"device": "some GPU"})
    monkeypatch.setitem(sys.modules, "cudf", None)
    plugin, fake = dask_gpuagg.GpuWorker(), SimpleNamespace(metrics={}, nanny=None)
    plugin.setup(fake)
    plugin._warming.join()
    message = fake.metrics["dask_gpuagg"](fake)["kernels"]
    assert message.startswith("failed after 0 of 10 group-bys: ModuleNotFoundError")
    assert message in caplog.text
    plugin.teardown(fake)


@pytest.mark.parametrize("examples", [None, []])
def test_garbage_collections_leave_out_what_is_loaded(
    monkeypatch: pytest.MonkeyPatch, examples: list[object] | None
) -> None:
    monkeypatch.setattr(worker, "setup_device", lambda pool: {"device": "some GPU"})
    monkeypatch.setattr(worker, "warm", lambda examples, go_on: "ready")
    plugin = dask_gpuagg.GpuWorker(examples=examples)
    gc.unfreeze()
    try:
        # in the process of a user, whose objects would stay for good
        plugin.setup(SimpleNamespace(metrics={}, nanny=None))
        plugin.teardown(None)
        assert gc.get_freeze_count() == 0
        plugin.setup(SimpleNamespace(metrics={}, nanny="tcp://somewhere"))
        plugin.teardown(None)
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()


def test_a_setup_that_failed_can_be_torn_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def setup(pool: object) -> None:
        raise RuntimeError("no memory for the pool")

    monkeypatch.setattr(worker, "setup_device", setup)
    plugin, fake = dask_gpuagg.GpuWorker(), SimpleNamespace(metrics={}, nanny=None)
    plugin.teardown(fake)
    with pytest.raises(RuntimeError, match="no memory"):
        plugin.setup(fake)
    plugin.teardown(fake)
    assert pickle.loads(pickle.dumps(dask_gpuagg.GpuWorker())).name == plugin.name


def test_warming_stops_as_the_worker_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed = []
    monkeypatch.setattr(worker, "_rehearse", rehearsed.append)
    examples = worker.usual_examples()
    assert worker.warm(examples, lambda: len(rehearsed) < 3).startswith("ready for 3 group-bys")
    assert rehearsed == examples[:3]


def test_a_cluster_without_gpus_runs_as_before(client: Client) -> None:
    client.register_plugin(dask_gpuagg.GpuWorker())
    try:
        ddf = dd.from_pandas(pd.DataFrame({"k": [1, 2, 1], "v": [1, 2, 3]}), npartitions=2)
        assert ddf.groupby("k").v.sum().compute().to_dict() == {1: 4, 2: 2}
        reports: list[dict[str, str]] = []
        while len(reports) < 2:  # metrics travel with the next heartbeat
            time.sleep(0.05)
            workers = workers_of(client).values()
            every = [w["metrics"] for w in workers]
            reports = [m["dask_gpuagg"] for m in every if "dask_gpuagg" in m]
        for report in reports:
            if "device" not in report:
                assert "CUDA" in report["unavailable"]
    finally:
        client.unregister_worker_plugin("dask_gpuagg")
