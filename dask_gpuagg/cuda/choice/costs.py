"""Constants of the cost model: those that ship, and those that were measured on this machine."""

import json
import re
import warnings
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dask_gpuagg.cuda.runtime.compiler import sources_hash
from dask_gpuagg.cuda.runtime.disk_cache import directories, write_whole
from dask_gpuagg.cuda.runtime.driver import Device


@dataclass(frozen=True)
class Costs:
    """Constants of a device; by default those fitted to an H200 by ``benchmarks/choice.py``.

    Picoseconds are of the whole device at work, for each of its rows.
    """

    # GB/s of columns that are read and written
    bandwidth: float = 4500
    # GB/s of global tables that are cleared, searched for groups and written
    table_bandwidth: float = 3080
    l2_megabytes: float = 50
    # a kernel that has next to nothing to do
    launch_us: float = 10.3
    # finding a row's slot in shared memory
    find_ps: float = 0.86
    # more of it for keys that are not dense, times the root of the table's load: a warp waits for
    # the unluckiest of its lanes
    crowd_ps: float = 5.5
    # one update in shared memory: a 64-bit sum, an extreme
    add_ps: float = 4.1
    compare_ps: float = 0.69
    # emptying one byte of a partition's table and looking for groups in it
    slot_ps: float = 0.45
    # a column that the scatter reads, and one that it writes
    load_ps: float = 1.5
    move_ps: float = 2.9
    # a run of rows that leave a tile for one partition, in one column
    run_ps: float = 28
    # a value that is gathered by the number of its row: an access beyond the L2 cache
    gather_ps: float = 25
    # one access or atomic of a global table in the L2 cache, and more of it beyond that cache
    access_ps: float = 9.6
    miss_ps: float = 39
    # a group's claim of a slot in a global table
    claim_ps: float = 115
    # an atomic where others go to the same address: a bound from cuDF's times with few groups, not
    # fitted
    same_ps: float = 600


@dataclass(frozen=True)
class Known:
    """Constants of a device, and where they come from."""

    costs: Costs
    source: str


# Measured constants are below this.
_PLAUSIBLE = 1e9
# Peak bandwidth of an H200's memory, GB/s: NVIDIA's published figure.
_H200_PEAK = 4800


@cache
def shipped(device: Device) -> Known:
    """The constants that come with the package.

    Of any device but the H200 those of the H200, of which the ones that depend on memory are scaled
    by its bandwidth.
    """
    if "H200" in device.name.split():
        return Known(Costs(), "measured on an H200")
    share = device.bandwidth / _H200_PEAK or 1.0
    constants = Costs(
        bandwidth=Costs.bandwidth * share,
        table_bandwidth=Costs.table_bandwidth * share,
        gather_ps=Costs.gather_ps / share,
        miss_ps=Costs.miss_ps / share,
        l2_megabytes=device.l2_bytes / 1e6 or Costs.l2_megabytes,
    )
    return Known(constants, f"those of an H200 for {share:.2f} times its memory bandwidth")


@cache
def known(device: Device) -> Known:
    """The constants that ``dask-gpuagg calibrate`` measured on this device; else those shipped.

    Read once.
    """
    for directory in directories():
        measured = read(path_of(device, directory), device)
        if measured is not None:
            return measured
    return shipped(device)


def path_of(device: Device, directory: Path) -> Path:
    """Path of a device's constants, beside its compiled kernels."""
    name = re.sub(r"\W+", "-", device.name).strip("-").lower()
    return directory / f"costs-{name}.json"


def read(path: Path, device: Device) -> Known | None:
    """The constants of a file; None without one, or if it is of another device or other kernels.

    A file that no calibration has written is ignored with a warning.
    """
    try:
        report = json.loads(path.read_bytes())
        of = (report["device"], report["multiprocessors"], report["kernels"])
        if of != (device.name, device.multiprocessors, sources_hash()):
            return None
        costs = report["costs"]
        if sorted(costs) != sorted(asdict(Costs())):
            raise ValueError("it has other constants")
        for name, value in costs.items():
            if not 0 < value < _PLAUSIBLE:
                raise ValueError(f"{name} is {value!r}")
        return Known(Costs(**costs), f"measured on {report['date']}")
    except OSError:  # not there
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        warnings.warn(
            f"the measured constants in {path} are ignored ({type(error).__name__}: {error}); "
            "`dask-gpuagg calibrate` measures them again",
            stacklevel=2,
        )
        return None


def write(path: Path, device: Device, costs: Costs, more: dict[str, Any]) -> None:
    """Keep the constants of a device, entirely or not at all.

    ``more`` is what else belongs to the measurement: ``date`` and versions.
    """
    report = {
        **more,
        "device": device.name,
        "multiprocessors": device.multiprocessors,
        "kernels": sources_hash(),
        "costs": asdict(costs),
    }
    write_whole(path, (json.dumps(report, indent=1) + "\n").encode())
    known.cache_clear()
