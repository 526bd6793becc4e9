"""What the examples find on this machine."""

from __future__ import annotations

import importlib.util

from dask_gpuagg import doctor

# what dask-cudf runs on
NEEDED = ("GPU", "RAPIDS")


def without_gpu() -> str | None:
    """Say why no GPU can be used here, and what to do; None if one can."""
    # without importing cuDF, which takes seconds and fails where there is no driver
    found = [check for check in doctor.examined() if check.name in NEEDED]
    missing = [check for check in found if check.status != doctor.OK]
    if not missing and importlib.util.find_spec("dask_cudf") is not None:
        return None
    lines = [f"{check.name}: {check.found}" for check in missing] or ["RAPIDS: not installed"]
    lines += [
        "",
        "Needed: an NVIDIA GPU of compute capability 8.0 or newer, its driver, and RAPIDS:",
        "    pip install '.[cu13]'     # or '.[cu12]', by the CUDA version of the driver",
        "`dask-gpuagg doctor` looks at each part. Without a GPU:",
        "    make quickstart",
        "    python examples/db_benchmark.py",
    ]
    return "\n".join(lines)
