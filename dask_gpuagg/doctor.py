"""What this machine and the workers of a cluster have of what the plugin needs: ``doctor``."""

from __future__ import annotations

import os
import platform
import sys
import warnings
from collections.abc import Iterable
from importlib import metadata
from typing import Any, NamedTuple

from dask_gpuagg._version import __version__
from dask_gpuagg.cluster import HERE, Gathered, check_cluster, gather
from dask_gpuagg.cuda.choice import costs
from dask_gpuagg.cuda.runtime import compiler, disk_cache, driver
from dask_gpuagg.cuda.runtime.compiler import CompileError
from dask_gpuagg.frontend.activation import NEWEST_DASK, OLDEST_DASK, numbers, trying
from dask_gpuagg.reporting.text import size_text
from dask_gpuagg.settings import BadSetting, settings

OK, NONE, PROBLEM = "ok", "none", "problem"
_OLDEST_PYTHON = (3, 11)
# of the host engine
_NEEDED = ("pandas", "numpy", "pyarrow", "numba", "distributed")
# of RAPIDS, by the name that they are imported by; packages have the CUDA version in theirs
_RAPIDS = ("cudf", "dask-cudf", "dask-cuda", "rmm")
_OF_CUDA = ("cupy", "cuda-bindings")
_UCX = ("distributed-ucxx", "ucxx")


class Check(NamedTuple):
    """One thing that was looked at.

    Attributes
    ----------
    name : str
    status : str
        ``ok``, ``none`` for what is not there and is not needed, or ``problem``.
    found : str
    advice : str
        What to do; empty where nothing is to be done.
    """

    name: str
    status: str
    found: str
    advice: str = ""


class Report(NamedTuple):
    """What was found here, on the workers, and between them.

    Attributes
    ----------
    places : dict of str to list of Check
        By ``this process`` and the addresses of workers.
    cluster : list of Check
    """

    places: dict[str, list[Check]]
    cluster: list[Check]

    @property
    def checks(self) -> list[tuple[str, Check]]:
        """All checks, each with its place."""
        found = [(place, check) for place, checks in self.places.items() for check in checks]
        return found + [("the cluster", check) for check in self.cluster]

    @property
    def healthy(self) -> bool:
        """Whether no problem was found."""
        return all(check.status != PROBLEM for _, check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "healthy": self.healthy,
            "checks": [{"place": place, **check._asdict()} for place, check in self.checks],
        }

    def __str__(self) -> str:
        lines: list[str] = []
        here = self.places.get(HERE, [])
        for place, checks in self.places.items():
            # of a worker, what is not as it is here
            told = checks if place == HERE else [check for check in checks if check not in here]
            lines += ["", place, *map(_line, told or [Check("all", OK, f"as in {HERE}")])]
        if self.cluster:
            lines += ["", "the cluster", *map(_line, self.cluster)]
        return "\n".join([*lines[1:], "", *self._to_do()])

    def _to_do(self) -> list[str]:
        advice: dict[str, list[str]] = {}
        for place, check in self.checks:
            if check.advice:
                advice.setdefault(check.advice, []).append(place)
        if not advice:
            return ["what to do: nothing"]
        lines = ["what to do:"]
        for number, (text, places) in enumerate(advice.items(), 1):
            where = "" if places == [HERE] else f" ({', '.join(places)})"
            lines.append(f"  {number}. {text}{where}")
        return lines


def _line(check: Check) -> str:
    mark = {OK: "ok", NONE: "--", PROBLEM: "!!"}[check.status]
    return f"  {mark}  {check.name:<13} {check.found}"


def doctor() -> Report:
    """Look at this process and at the cluster of the current client.

    Returns
    -------
    Report
    """
    gathered = gather(examined)
    return Report(gathered.answers, _between(gathered))


def _between(gathered: Gathered) -> list[Check]:
    """What concerns several places: workers that do not answer, and versions."""
    found = []
    for place, reason in gathered.missing.items():
        advice = "install dask-gpuagg in the client's version on the scheduler and all workers"
        found.append(Check(place, PROBLEM, f"cannot be asked: {reason}", advice))
    if len(gathered.answers) > 1 and not found:
        problem = check_cluster()
        if problem is None:
            number = len(gathered.answers) - 1
            text = f"dask-gpuagg {__version__} on the scheduler and {number:,} workers"
            found.append(Check("versions", OK, text))
        else:
            advice = "install the same version of dask-gpuagg everywhere"
            found.append(Check("versions", PROBLEM, problem, advice))
    return found


def examined() -> list[Check]:
    """Look at this process."""
    found: list[Check] = []
    for examine in (_python, _dask, _libraries, _configuration, _gpu, _cache, _ucx):
        try:
            found += examine()
        except Exception as error:
            # what a broken installation raises is of any type, and is the finding
            name = examine.__name__.strip("_")
            advice = f"reinstall what {name} needs: looking at it raised {type(error).__name__}"
            found.append(Check(name, PROBLEM, f"raised {error!r}", advice))
    return found


def _python() -> Iterable[Check]:
    yield Check("dask-gpuagg", OK, __version__)
    version = platform.python_version()
    fine = sys.version_info[:2] >= _OLDEST_PYTHON
    oldest = ".".join(map(str, _OLDEST_PYTHON))
    advice = "" if fine else f"use Python {oldest} or newer"
    yield Check("Python", OK if fine else PROBLEM, f"{version} on {platform.machine()}", advice)


def _dask() -> Iterable[Check]:
    import dask

    version = dask.__version__
    tested = f"tested from {OLDEST_DASK} to {NEWEST_DASK}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trying()
    except BadSetting:
        yield Check("Dask", OK, f"{version}; {tested}")
        return
    except RuntimeError as error:
        advice = f'install a Dask of the tested range: pip install "dask<={NEWEST_DASK}"'
        yield Check("Dask", PROBLEM, f"{version}: {error}", advice)
        return
    newer = numbers(version) > numbers(NEWEST_DASK)
    text = "newer than those tested; test queries are answered right" if newer else tested
    yield Check("Dask", OK, f"{version}; {text}")


def _libraries() -> Iterable[Check]:
    for name in _NEEDED:
        found = _version(name)
        advice = "" if found or name == "distributed" else f"install {name}"
        missing = NONE if name == "distributed" else PROBLEM
        yield Check(name, OK if found else missing, found or "not installed", advice)
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        advice = "unset NUMBA_DISABLE_JIT: the compiled loops are several times as fast"
        yield Check("NUMBA_DISABLE_JIT", PROBLEM, "is set: pandas does all work", advice)


def _configuration() -> Iterable[Check]:
    try:
        here = settings()
    except BadSetting as error:
        yield Check("settings", PROBLEM, str(error), "correct the setting under gpuagg")
        return
    if here.enabled is False:
        advice = "remove gpuagg.enabled: false (or DASK_GPUAGG__ENABLED) to use the plugin"
        yield Check("settings", PROBLEM, "gpuagg.enabled is false: the plugin stays off", advice)
    else:
        yield Check("settings", OK, "valid")


def _gpu() -> Iterable[Check]:
    rapids = {name: found for name in _RAPIDS if (found := _version(name, "-cu"))}
    reason = driver.unavailable()
    if reason is not None and not rapids:
        yield Check("GPU", NONE, f"{reason}; pandas collections run on the CPU")
        return
    yield _rapids(rapids)
    for name in _OF_CUDA:
        found = _version(name) or _version(name, "-cuda")
        advice = "" if found else 'install the extra: pip install "dask-gpuagg[cu13]"'
        yield Check(name, OK if found else PROBLEM, found or "not installed", advice)
    if reason is not None:
        advice = "install NVIDIA's driver, or start this process where it sees a GPU"
        yield Check("GPU", PROBLEM, reason, advice)
        return
    yield from _device()


def _rapids(found: dict[str, str]) -> Check:
    text = ", ".join(f"{name} {version}" for name, version in found.items()) or "not installed"
    missing = [name for name in _RAPIDS if name not in found]
    releases = {numbers(version)[:2] for version in found.values()}
    if missing or len(releases) > 1:
        advice = (
            'install RAPIDS as one release: pip install "dask-gpuagg[cu13]" (or cu12), from '
            "NVIDIA's package index"
        )
        return Check("RAPIDS", PROBLEM, text, advice)
    return Check("RAPIDS", OK, text)


def _device() -> Iterable[Check]:
    """A GPU that the driver has."""
    device = driver.current_device()
    cuda = driver.driver_version()
    text = f"{device.name}, {device.architecture}, {device.multiprocessors} multiprocessors"
    yield Check("GPU", OK, text)
    yield Check("driver", OK, f"CUDA {cuda // 1000}.{cuda % 1000 // 10}")
    try:
        nvrtc = compiler.compiler_version().splitlines()[0]
    except CompileError as error:
        advice = "install NVIDIA's run-time compiler: nvidia-cuda-nvrtc"
        yield Check("compiler", PROBLEM, str(error), advice)
    else:
        newer = numbers(nvrtc)[:1] > (cuda // 1000,)
        advice = "install the extra of the driver's CUDA version, or a newer driver"
        status = PROBLEM if newer else OK
        yield Check("compiler", status, f"NVRTC {nvrtc}", advice if newer else "")
    yield Check("cost model", OK, costs.known(device).source)
    yield from _memory()


def _memory() -> Iterable[Check]:
    import rmm

    resource = rmm.mr.get_current_device_resource()
    name = type(resource).__name__
    plain = type(resource) is rmm.mr.CudaMemoryResource
    advice = "let GpuWorker(pool=...) or dask-cuda make a pool of device memory" if plain else ""
    yield Check("RMM", OK, name + (": each allocation asks the driver" if plain else ""), advice)


def _cache() -> Iterable[Check]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            places = disk_cache.directories()
        except BadSetting:  # told beside the settings
            return
    advice = "set gpuagg.kernel-cache to a directory of yours that nobody else may write"
    for warning in told:
        yield Check("kernel cache", PROBLEM, str(warning.message).partition(". ")[0], advice)
    for place in places:
        entries = list(place.glob(f"*{disk_cache.SUFFIX}")) if place.is_dir() else []
        size = size_text(sum(entry.stat().st_size for entry in entries))
        text = f"{place}: {len(entries):,} entries, {size}"
        if driver.unavailable() is not None:
            yield Check("kernel cache", NONE, text)
        elif place == disk_cache.cache_directory() and not _may_write(place):
            yield Check("kernel cache", PROBLEM, f"{text}; it cannot be written", advice)
        else:
            yield Check("kernel cache", OK, text)


def _may_write(place: Any) -> bool:
    there = next(path for path in (place, *place.parents) if path.exists())
    return os.access(there, os.W_OK | os.X_OK)


def _ucx() -> Iterable[Check]:
    found = [f"{name} {version}" for name in _UCX if (version := _version(name, "-cu"))]
    if found:
        yield Check("UCX", OK, ", ".join(found))
        return
    text = "not installed; GPUs exchange partials through host memory"
    if driver.unavailable() is None:
        advice = 'for several GPUs, install distributed-ucxx and start the cluster with "ucx"'
        yield Check("UCX", NONE, text, advice)
    else:
        yield Check("UCX", NONE, "not installed; it serves GPUs only")


def _version(name: str, infix: str = "") -> str:
    """The version of a package; those for CUDA have its version behind their names."""
    suffixes = ("12", "13", "12x", "13x") if infix else ()
    for each in (name, *(f"{name}{infix}{suffix}" for suffix in suffixes)):
        try:
            return metadata.version(each)
        except metadata.PackageNotFoundError:
            continue
    return ""
