"""``dask-gpuagg doctor``: each finding, and what to do about it."""

import json
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import dask
import pytest

from dask_gpuagg import doctor
from dask_gpuagg._version import __version__
from dask_gpuagg.cluster import HERE, Gathered
from dask_gpuagg.cuda.runtime.driver import Device
from dask_gpuagg.doctor import NONE, OK, PROBLEM, Check, Report, examined

H200 = Device(0, "NVIDIA H200", "sm_90", 132, 232_448)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.driver, "unavailable", lambda: "no CUDA device")


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Other versions of packages; ``None`` for one that is not installed."""
    real = metadata.version

    def pretend(**packages: str | None) -> None:
        pretended = {name.replace("_", "-"): text for name, text in packages.items()}

        def version(name: str) -> str:
            installed = pretended[name] if name in pretended else real(name)
            if installed is None:
                raise metadata.PackageNotFoundError(name)
            return installed

        monkeypatch.setattr(doctor.metadata, "version", version)

    return pretend


def checks() -> dict[str, Check]:
    return {check.name: check for check in examined()}


@pytest.mark.usefixtures("no_gpu")
def test_a_healthy_machine_without_a_gpu(cache: Path) -> None:
    findings = checks()
    assert {name for name, check in findings.items() if check.status == PROBLEM} == set()
    assert findings["dask-gpuagg"].found == __version__
    assert findings["Dask"].found.startswith(dask.__version__)
    assert findings["GPU"] == Check(
        "GPU", NONE, "no CUDA device; pandas collections run on the CPU"
    )
    assert findings["kernel cache"].found == f"{cache}: 0 entries, 0 B"
    report = Report({HERE: examined()})
    assert report.healthy
    assert str(report).endswith("\nwhat to do: nothing")


@pytest.mark.usefixtures("no_gpu")
class TestProblems:
    def test_what_the_process_was_started_with(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor.sys, "version_info", (3, 10, 4))
        monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
        with dask.config.set({"gpuagg.enabled": False}):
            findings = checks()
        assert findings["Python"].advice == "use Python 3.11 or newer"
        assert "unset" in findings["NUMBA_DISABLE_JIT"].advice
        assert "DASK_GPUAGG__ENABLED" in findings["settings"].advice

    def test_a_dask_that_is_too_old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dask, "__version__", "2024.1.0")
        check = checks()["Dask"]
        assert check.status == PROBLEM
        assert "2024.1.0 is installed" in check.found
        assert 'pip install "dask<=' in check.advice

    def test_a_dask_that_is_newer_than_tested(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dask, "__version__", "2099.1.0")
        check = checks()["Dask"]
        assert check.status == OK
        assert "newer than those tested" in check.found

    def test_missing_packages(self, versions: Callable[..., None]) -> None:
        versions(numba=None, distributed=None)
        findings = checks()
        assert (findings["numba"].status, findings["numba"].advice) == (PROBLEM, "install numba")
        assert findings["distributed"].advice == "install distributed"

    def test_a_bad_setting(self) -> None:
        with dask.config.set({"gpuagg.fallback": "explode"}):
            findings = checks()
        assert "explode" in findings["settings"].found
        assert findings["Dask"].status == OK

    def test_a_cache_that_is_not_used(self) -> None:
        with dask.config.set({"gpuagg.kernel-cache": "relative/path"}):
            check = checks()["kernel cache"]
        assert check.status == PROBLEM
        assert "absolute" in check.found

    def test_rapids_without_a_gpu(self, versions: Callable[..., None]) -> None:
        of_cuda = {"cudf_cu13": "26.10.1", "dask_cudf_cu13": "26.10.1", "dask_cuda": "26.10.0"}
        versions(**of_cuda, rmm_cu13="26.10.0", cupy="14.0", cuda_bindings="13.1")
        findings = checks()
        assert findings["RAPIDS"].status == OK
        assert (findings["GPU"].status, findings["GPU"].found) == (PROBLEM, "no CUDA device")

    def test_what_raises_is_a_finding(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken() -> None:
            raise OSError("libcuda is of another machine")

        monkeypatch.setattr(doctor.driver, "unavailable", broken)
        check = checks()["gpu"]
        assert check.status == PROBLEM
        assert "libcuda is of another machine" in check.found


class TestDevice:
    """As on a machine with a GPU; what is asked of the driver is made up."""

    @pytest.fixture(autouse=True)
    def _h200(self, monkeypatch: pytest.MonkeyPatch, versions: Callable[..., None]) -> None:
        monkeypatch.setattr(doctor.driver, "unavailable", lambda: None)
        monkeypatch.setattr(doctor.driver, "current_device", lambda: H200)
        monkeypatch.setattr(doctor.driver, "driver_version", lambda: 13000)
        monkeypatch.setattr(doctor.compiler, "compiler_version", lambda: "13.0\n// more")
        pool = [Check("RMM", OK, "PoolMemoryResource")]
        monkeypatch.setattr(doctor, "_memory", lambda: pool)
        self.rapids = dict.fromkeys(("cudf_cu13", "dask_cudf_cu13", "dask_cuda"), "26.10.1")
        self.versions = versions
        versions(**self.rapids, rmm_cu13="26.10.0", cupy="14.0", cuda_bindings="13.1")

    def test_all_is_well(self, cache: Path) -> None:
        findings = checks()
        assert {name for name, check in findings.items() if check.status == PROBLEM} == set()
        assert findings["GPU"].found == "NVIDIA H200, sm_90, 132 multiprocessors"
        assert findings["driver"].found == "CUDA 13.0"
        assert findings["compiler"].found == "NVRTC 13.0"
        assert findings["cost model"].found == "measured on an H200"
        assert findings["kernel cache"].status == OK
        assert "ucxx" in findings["UCX"].advice

    def test_rapids_of_two_releases(self) -> None:
        self.versions(**self.rapids, rmm_cu13="26.8.0", cupy="14.0", cuda_bindings="13.1")
        assert "as one release" in checks()["RAPIDS"].advice

    def test_a_compiler_newer_than_the_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor.driver, "driver_version", lambda: 12080)
        findings = checks()
        assert findings["driver"].found == "CUDA 12.8"
        assert "driver's CUDA version" in findings["compiler"].advice

    def test_no_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing() -> None:
            raise doctor.compiler.CompileError("NVRTC cannot be loaded: no such file")

        monkeypatch.setattr(doctor.compiler, "compiler_version", missing)
        assert "nvidia-cuda-nvrtc" in checks()["compiler"].advice

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_cache_that_cannot_be_written(self, cache: Path) -> None:
        cache.mkdir()
        cache.chmod(0o500)
        assert "cannot be written" in checks()["kernel cache"].found


class TestReport:
    def report(self) -> Report:
        fine, old = Check("x", OK, "1"), Check("x", PROBLEM, "0", "install x 1")
        places = {HERE: [fine], "tcp://a:1": [fine], "tcp://b:1": [old], "tcp://c:1": [old]}
        return Report(places | {"the cluster": [Check("versions", OK, "the same")]})

    def test_workers_that_are_as_this_process_are_one_line(self) -> None:
        lines = str(self.report()).splitlines()
        assert lines[lines.index("tcp://a:1") + 1] == "  ok  all           as in this process"
        assert lines[lines.index("tcp://b:1") + 1] == "  !!  x             0"

    def test_advice_is_given_once_with_the_places(self) -> None:
        assert str(self.report()).endswith("what to do:\n  1. install x 1 (tcp://b:1, tcp://c:1)")
        assert not self.report().healthy

    def test_plain_values(self) -> None:
        report = json.loads(json.dumps(self.report().to_dict()))
        assert report["healthy"] is False
        assert len(report["checks"]) == 5

    def test_a_worker_that_cannot_be_asked(self) -> None:
        gathered = Gathered({HERE: []}, {"tcp://a:1": "ModuleNotFoundError('dask_gpuagg')"})
        (check,) = doctor._between(gathered)
        assert (check.name, check.status) == ("tcp://a:1", PROBLEM)
        assert "install dask-gpuagg" in check.advice
