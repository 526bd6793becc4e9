"""``GpuWorker`` on a GPU: kernels are there before the first query asks for them."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
import pytest

import dask_gpuagg
from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.runtime import kernels
from tests.device.frames import on_device

ROWS = 600_000


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A worker of a fresh machine, set up: its report, and whether anything compiles later."""
    monkeypatch.setattr(kernels, "_known", Cache(1024))

    def start(**options: Any) -> dict[str, Any]:
        plugin, worker = dask_gpuagg.GpuWorker(**options), SimpleNamespace(metrics={}, nanny=None)
        plugin.setup(worker)
        assert plugin._warming is not None
        plugin._warming.join()
        plugin.teardown(worker)

        def refuse(source: str, architecture: str) -> bytes:
            raise AssertionError("compiled or loaded after all")

        monkeypatch.setattr(kernels, "cubin", refuse)
        report: dict[str, Any] = worker.metrics["dask_gpuagg"](worker)
        return report

    folder = str(tmp_path / "kernels")
    with dask.config.set({"gpuagg.kernel-cache": folder, "gpuagg.fallback": "raise"}):
        yield start


def frame() -> Any:
    import cudf

    rng = np.random.default_rng(1)
    made = cudf.DataFrame({"i": rng.integers(0, 100, ROWS), "v": rng.normal(size=ROWS)})
    # 32-bit offsets, as readers of files give them; what comes from pandas has 64
    made["s"] = "k" + made["i"].astype(str)
    return made


@pytest.mark.parametrize("npartitions", [1, 2])
def test_usual_queries_compile_nothing(npartitions: int, started: Any) -> None:
    before = dask_gpuagg.last_runs()
    report = started()
    assert report["kernels"].startswith("ready for 10 group-bys"), report
    assert dask_gpuagg.last_runs() == before
    ddf = on_device(frame(), npartitions)
    whole = frame().to_pandas()
    with dask_gpuagg.enabled(), dask.config.set(scheduler="synchronous"):
        for key in ("i", "s"):
            for name in ("sum", "count", "mean", "min", "max"):
                query = getattr(ddf.groupby(key).v, name)()
                found = query.compute().to_pandas().sort_index()
                expected = getattr(whole.groupby(key).v, name)()
                np.testing.assert_allclose(found.to_numpy(), expected.to_numpy(), rtol=1e-10)
                (explained,) = dask_gpuagg.explain(query).groupbys
                kernels = [run.decision.kernel for run in explained.runs]
                # strings as numbers of a wider range than there are groups
                kernel = "direct" if key == "i" else "hgb"
                assert kernels[:npartitions] == [kernel] * npartitions
                assert f"{kernel}: {ROWS // npartitions:,} rows to 100 groups" in str(explained)


def test_own_queries_compile_nothing(started: Any) -> None:
    ddf = on_device(frame(), 2)
    whole = frame().to_pandas()
    with dask_gpuagg.enabled(), dask.config.set(scheduler="synchronous"):
        query = ddf.groupby("s").agg({"v": ["var", "min"], "i": ["max"]})
        assert started(examples=[query])["kernels"].startswith("ready for 1 group-bys")
        found = query.compute().to_pandas().sort_index()
    expected = whole.groupby("s").agg({"v": ["var", "min"], "i": ["max"]})
    np.testing.assert_allclose(found.to_numpy(), expected.to_numpy(), rtol=1e-10)


def test_kernels_that_do_not_compile_are_a_message(
    started: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from dask_gpuagg.cuda.runtime.compiler import CompileError

    def refuse(source: str, architecture: str) -> bytes:
        raise CompileError("no compiler today")

    monkeypatch.setattr(kernels, "cubin", refuse)
    with caplog.at_level(logging.WARNING):
        report = started()
    assert "no compiler today" in report["kernels"]
    assert "no compiler today" in caplog.text
