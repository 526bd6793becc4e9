"""Tests of run-time compilation: NVRTC is needed, a GPU is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dask
import pytest


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """An empty kernel cache."""
    folder = tmp_path / "kernels"
    with dask.config.set({"gpuagg.kernel-cache": str(folder)}):
        yield folder
