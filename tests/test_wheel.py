"""What a wheel holds: the package, and the CUDA sources inside of it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
ASK = "import dask_gpuagg; from dask_gpuagg.cuda.runtime.compiler import KERNELS; print(KERNELS)"


def test_a_wheel_brings_package_and_kernels(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", tmp_path, CHECKOUT], check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    # some distributions leave such a file in site-packages
    (installed / "pyproject.toml").touch()
    environment = os.environ | {"PYTHONPATH": str(installed)}
    asked = subprocess.run(
        [sys.executable, "-c", ASK],
        env=environment,
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    kernels = Path(asked.stdout.strip())
    assert kernels == installed / "dask_gpuagg" / "kernels"
    expected = {p.relative_to(CHECKOUT / "kernels") for p in CHECKOUT.glob("kernels/**/*.cuh")}
    assert expected == {p.relative_to(kernels) for p in kernels.glob("**/*.cuh")}
    assert (installed / "dask_gpuagg" / "gpuagg.yaml").exists()
