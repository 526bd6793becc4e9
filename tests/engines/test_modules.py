"""Modules of the device engine that several threads ask for at once."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dask_gpuagg import engines
from dask_gpuagg.engines import device


def test_a_module_that_another_thread_still_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text("import time\n\ntime.sleep(0.5)\nready = True\n")
    monkeypatch.setattr(device, "__path__", [*device.__path__, str(tmp_path)])
    try:
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda name: hasattr(engines._device(name), "ready"), ["slow"] * 4)
            assert all(found)
    finally:
        sys.modules.pop(f"{device.__name__}.slow", None)
        vars(device).pop("slow", None)
