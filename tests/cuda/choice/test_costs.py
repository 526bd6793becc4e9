"""Constants of devices: kept, read again, and not used for another device or other kernels."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dask_gpuagg.cuda import aggregate as attempts
from dask_gpuagg.cuda.choice import costs
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.runtime.disk_cache import cache_directory
from dask_gpuagg.cuda.runtime.driver import Device
from tests.cuda.choice.test_tables import SUM

H200 = Device(0, "NVIDIA H200", "sm_90", 132, 232_448)
FOUND = replace(costs.shipped(H200).costs, run_ps=77.0)


def device(name: str, multiprocessors: int = 132) -> Device:
    return replace(H200, name=name, multiprocessors=multiprocessors)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    costs.known.cache_clear()
    yield
    costs.known.cache_clear()


def kept(to: Device = H200) -> Path:
    directory = cache_directory()
    assert directory is not None
    path = costs.path_of(to, directory)
    costs.write(path, to, FOUND, {"date": "today"})
    return path


def test_what_is_written_is_read(cache: Path) -> None:
    path = kept()
    assert path == cache / "costs-nvidia-h200.json"
    assert costs.known(H200) == costs.Known(FOUND, "measured on today")
    # nothing else is left beside it
    assert list(cache.iterdir()) == [path]


def test_without_a_file_the_shipped_ones_are_used(cache: Path) -> None:
    assert costs.known(H200) == costs.shipped(H200)
    kept()
    # at once, in the process that measured
    assert costs.known(H200).costs == FOUND


def test_decisions_use_the_measured_constants(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = KeySummary(10**6, 4 * 10**6, 0.0, 1e-6, bounds=(0, 10**9))
    sample: Any = object()
    call: Any = SimpleNamespace(query=SUM, rows=10**8, device=H200, values=None)
    monkeypatch.setattr(attempts, "estimated", lambda call, forced, sample: estimate)
    assert attempts.decide(call, "auto", sample).kernel == "pgb"
    slow_scatter = replace(FOUND, move_ps=1e3)
    costs.write(kept(), H200, slow_scatter, {"date": "today"})
    assert attempts.decide(call, "auto", sample).kernel == "sp_ega"


def changed(**values: Any) -> str:
    report = json.loads(kept().read_text())
    return json.dumps(report | values)


@pytest.mark.parametrize(
    "values", [{"device": "NVIDIA H100"}, {"multiprocessors": 114}, {"kernels": "0" * 64}], ids=str
)
def test_files_of_something_else_are_ignored(values: dict[str, Any], cache: Path) -> None:
    text = changed(**values)
    (cache / "costs-nvidia-h200.json").write_text(text)
    costs.known.cache_clear()
    assert costs.known(H200) == costs.shipped(H200)


def ignored_with_one_warning(text: str | bytes) -> str:
    """The warning of a file that is read by two decisions."""
    path = kept()
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    costs.known.cache_clear()
    with pytest.warns(UserWarning, match="are ignored") as seen:
        found = [costs.known(H200) for _ in range(2)]
    assert found == [costs.shipped(H200)] * 2
    (warning,) = seen
    assert str(path) in str(warning.message)
    return str(warning.message)


@pytest.mark.parametrize(
    "values",
    [
        {"costs": {"bandwidth": 1.0}},
        {"costs": asdict(FOUND) | {"new_ps": 1.0}},
        *(
            {"costs": asdict(FOUND) | {"run_ps": value}}
            for value in (0, "fast", float("nan"), float("inf"), None)
        ),
        {"costs": []},
        {"costs": None},
    ],
    ids=str,
)
def test_files_with_other_values_are_ignored(values: dict[str, Any], cache: Path) -> None:
    ignored_with_one_warning(changed(**values))


@pytest.mark.parametrize("name", ["date", "costs", "device", "kernels", "multiprocessors"])
def test_files_without_a_value_are_ignored(name: str, cache: Path) -> None:
    text = changed().replace(f'"{name}"', '"else"')
    assert f"KeyError: '{name}'" in ignored_with_one_warning(text)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", b"\xff", "[" * 50_000], ids=lambda text: repr(text[:8])
)
def test_broken_files_are_ignored(text: str | bytes, cache: Path) -> None:
    ignored_with_one_warning(text)


def test_other_devices_are_scaled_by_their_bandwidth() -> None:
    measured = asdict(costs.shipped(H200).costs)
    a100 = replace(device("NVIDIA A100-SXM4-80GB", 108), bandwidth=2040.0, l2_bytes=40_000_000)
    share = 2040 / 4800
    expected = measured | {
        "bandwidth": measured["bandwidth"] * share,
        "table_bandwidth": measured["table_bandwidth"] * share,
        "gather_ps": measured["gather_ps"] / share,
        "miss_ps": measured["miss_ps"] / share,
        "l2_megabytes": 40.0,
    }
    assert asdict(costs.shipped(a100).costs) == pytest.approx(expected)
    assert costs.shipped(a100).source == "those of an H200 for 0.42 times its memory bandwidth"


def test_a_device_of_unknown_memory_has_the_constants_of_the_h200() -> None:
    assert costs.shipped(device("unknown", 66)).costs == costs.shipped(H200).costs
