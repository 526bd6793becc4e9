"""``doctor``: checks of this machine and of the workers of a cluster, with advice."""

import os
import platform
import sys
import warnings
from collections.abc import Iterable
from importlib import metadata
from typing import Any, NamedTuple

import dask

from dask_gpuagg._version import __version__
from dask_gpuagg.cluster import HERE, Gathered, check_cluster, gather
from dask_gpuagg.cuda.choice import costs
from dask_gpuagg.cuda.runtime import compiler, disk_cache, driver
from dask_gpuagg.frontend.activation import NEWEST_DASK, OLDEST_DASK, as_if_enabled, numbers
from dask_gpuagg.reporting.text import size_text
from dask_gpuagg.settings import BadSetting, settings

OK, NONE, PROBLEM = "ok", "none", "problem"
_OLDEST_PYTHON = (3, 11)
# packages that the host engine needs
_NEEDED = ("pandas", "numpy", "pyarrow", "numba", "distributed")
# modules of RAPIDS; packages have the CUDA version in their names
_RAPIDS = ("cudf", "dask-cudf", "dask-cuda", "rmm")


class Check(NamedTuple):
    """A finding: ``ok``, ``none`` (not there and not needed) or ``problem``, and what to do."""

    name: str
    status: str
    found: str
    advice: str = ""


class Report(NamedTuple):
    """The checks of this process, of workers by their addresses, and of the cluster as such."""

    places: dict[str, list[Check]]

    @property
    def healthy(self) -> bool:
        """Whether no problem was found."""
        return all(check.status != PROBLEM for checks in self.places.values() for check in checks)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        checks = [
            {"place": place, **check._asdict()}
            for place, checks in self.places.items()
            for check in checks
        ]
        return {"healthy": self.healthy, "checks": checks}

    def __str__(self) -> str:
        lines: list[str] = []
        here = self.places.get(HERE, [])
        places_of: dict[str, list[str]] = {}
        for place, checks in self.places.items():
            # only a worker's differences from this process
            shown = checks if place == HERE else [check for check in checks if check not in here]
            lines.append(place)
            for check in shown or [Check("all", OK, f"as in {HERE}")]:
                mark = {OK: "ok", NONE: "--", PROBLEM: "!!"}[check.status]
                lines.append(f"  {mark}  {check.name:<13} {check.found}")
            lines.append("")
            for check in checks:
                if check.advice:
                    places_of.setdefault(check.advice, []).append(place)
        lines.append("what to do:" if places_of else "what to do: nothing")
        for number, (advice, places) in enumerate(places_of.items(), 1):
            where = "" if places == [HERE] else f" ({', '.join(places)})"
            lines.append(f"  {number}. {advice}{where}")
        return "\n".join(lines)


def doctor() -> Report:
    """Look at this process and at the cluster of the current client."""
    gathered = gather(examined)
    between = _between(gathered)
    return Report(gathered.answers | ({"the cluster": between} if between else {}))


def _between(gathered: Gathered) -> list[Check]:
    """Checks of several places: workers that do not answer, and versions."""
    advice = "install dask-gpuagg in the client's version on the scheduler and all workers"
    missing = [
        Check(place, PROBLEM, f"cannot be asked: {reason}", advice)
        for place, reason in gathered.missing.items()
    ]
    if missing or len(gathered.answers) == 1:
        return missing
    text = f"dask-gpuagg {__version__} on the scheduler and {len(gathered.answers) - 1:,} workers"
    advice = "install the same version of dask-gpuagg everywhere"
    return [_judged("versions", text, advice, check_cluster())]


def examined() -> list[Check]:
    """Look at this process."""
    checks: list[Check] = []
    for examine in (_versions, _dask, _configuration, _gpu, _cache, _ucx):
        try:
            checks += examine()
        except Exception as error:
            # a broken installation raises any type, and the error is the finding
            name = examine.__name__.strip("_")
            advice = f"reinstall what {name} needs: looking at it raised {type(error).__name__}"
            checks.append(Check(name, PROBLEM, f"raised {error!r}", advice))
    return checks


def _judged(name: str, text: str, advice: str, problem: str | bool | None) -> Check:
    """A finding that is fine, or a problem, which may have a text of its own."""
    if not problem:
        return Check(name, OK, text)
    return Check(name, PROBLEM, problem if isinstance(problem, str) else text, advice)


def _versions() -> Iterable[Check]:
    yield Check("dask-gpuagg", OK, __version__)
    text = f"{platform.python_version()} on {platform.machine()}"
    advice = f"use Python {'.'.join(map(str, _OLDEST_PYTHON))} or newer"
    yield _judged("Python", text, advice, sys.version_info[:2] < _OLDEST_PYTHON)
    for name in _NEEDED:
        version = _version(name)
        yield _judged(name, version, f"install {name}", "" if version else "not installed")
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        advice = "unset NUMBA_DISABLE_JIT: the compiled loops are several times as fast"
        yield Check("NUMBA_DISABLE_JIT", PROBLEM, "is set: pandas does all work", advice)


def _dask() -> Iterable[Check]:
    version, text = dask.__version__, f"tested from {OLDEST_DASK} to {NEWEST_DASK}"
    problem = ""
    try:
        with warnings.catch_warnings(action="ignore"), as_if_enabled():
            pass  # entered only if the installed Dask passes the checks of enable()
        if numbers(version) > numbers(NEWEST_DASK):
            text = "newer than those tested; test queries are answered right"
    except BadSetting:  # a finding about the settings
        pass
    except RuntimeError as error:
        problem = f"{version}: {error}"
    advice = f'install a Dask of the tested range: pip install "dask<={NEWEST_DASK}"'
    yield _judged("Dask", f"{version}; {text}", advice, problem)


def _configuration() -> Iterable[Check]:
    try:
        here = settings()
    except BadSetting as error:
        yield Check("settings", PROBLEM, str(error), "correct the setting under gpuagg")
        return
    advice = "remove gpuagg.enabled: false (or DASK_GPUAGG__ENABLED) to use the plugin"
    problem = "gpuagg.enabled is false: the plugin stays off" if here.enabled is False else ""
    yield _judged("settings", "valid", advice, problem)


def _gpu() -> Iterable[Check]:
    rapids = {name: version for name in _RAPIDS if (version := _version(name, "-cu"))}
    reason = driver.unavailable()
    if reason is not None and not rapids:
        yield Check("GPU", NONE, f"{reason}; pandas collections run on the CPU")
        return
    is_one_release = len({numbers(version)[:2] for version in rapids.values()}) == 1
    text = ", ".join(f"{name} {version}" for name, version in rapids.items()) or "not installed"
    advice = (
        'install RAPIDS as one release: pip install "dask-gpuagg[cu13]" (or cu12), from '
        "NVIDIA's package index"
    )
    yield _judged("RAPIDS", text, advice, len(rapids) < len(_RAPIDS) or not is_one_release)
    advice = 'install the extra: pip install "dask-gpuagg[cu13]"'
    for name in ("cupy", "cuda-bindings"):
        version = _version(name) or _version(name, "-cuda")
        yield _judged(name, version, advice, "" if version else "not installed")
    if reason is not None:
        advice = "install NVIDIA's driver, or start this process where it sees a GPU"
        yield Check("GPU", PROBLEM, reason, advice)
        return
    yield from _device()


def _device() -> Iterable[Check]:
    """A GPU that the driver has."""
    device = driver.current_device()
    cuda = driver.driver_version()
    text = f"{device.name}, {device.architecture}, {device.multiprocessors} multiprocessors"
    yield Check("GPU", OK, text)
    yield Check("driver", OK, f"CUDA {cuda // 1000}.{cuda % 1000 // 10}")
    try:
        nvrtc = compiler.compiler_version().splitlines()[0]
    except compiler.CompileError as error:
        advice = "install NVIDIA's run-time compiler: nvidia-cuda-nvrtc"
        yield Check("compiler", PROBLEM, str(error), advice)
    else:
        advice = "install the extra of the driver's CUDA version, or a newer driver"
        is_newer = numbers(nvrtc)[:1] > (cuda // 1000,)
        yield _judged("compiler", f"NVRTC {nvrtc}", advice, is_newer)
    yield Check("cost model", OK, costs.known(device).source)
    yield from _memory()


def _memory() -> Iterable[Check]:
    import rmm

    resource = type(rmm.mr.get_current_device_resource())
    text, advice = resource.__name__, ""
    if resource is rmm.mr.CudaMemoryResource:
        text += ": each allocation asks the driver"
        advice = "let GpuWorker(pool=...) or dask-cuda make a pool of device memory"
    yield Check("RMM", OK, text, advice)


def _cache() -> Iterable[Check]:
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            places = disk_cache.directories()
        except BadSetting:  # a finding about the settings
            return
    advice = "set gpuagg.kernel-cache to a directory of yours that nobody else may write"
    for warning in raised:
        yield Check("kernel cache", PROBLEM, str(warning.message).partition(". ")[0], advice)
    for place in places:
        entries = list(place.glob(f"*{disk_cache.SUFFIX}")) if place.is_dir() else []
        size = size_text(sum(entry.stat().st_size for entry in entries))
        text = f"{place}: {len(entries):,} entries, {size}"
        existing = next(path for path in (place, *place.parents) if path.exists())
        if driver.unavailable() is not None:
            yield Check("kernel cache", NONE, text)
        elif place == disk_cache.cache_directory() and not os.access(existing, os.W_OK | os.X_OK):
            yield Check("kernel cache", PROBLEM, f"{text}; it cannot be written", advice)
        else:
            yield Check("kernel cache", OK, text)


def _ucx() -> Iterable[Check]:
    names = ("distributed-ucxx", "ucxx")
    versions = [f"{name} {version}" for name in names if (version := _version(name, "-cu"))]
    if versions:
        yield Check("UCX", OK, ", ".join(versions))
    elif driver.unavailable() is None:
        text = "not installed; GPUs exchange partials through host memory"
        advice = 'for several GPUs, install distributed-ucxx and start the cluster with "ucx"'
        yield Check("UCX", NONE, text, advice)


def _version(name: str, infix: str = "") -> str:
    """The version of a package; those for CUDA have its version behind their names."""
    suffixes = ("12", "13", "12x", "13x") if infix else ()
    for package in (name, *(f"{name}{infix}{suffix}" for suffix in suffixes)):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return ""
