"""Python in a process of its own, with the package importable as it is here."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_python(
    *arguments: str | Path,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    path: Sequence[str | Path] = (ROOT,),
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run ``python *arguments`` and return what it printed.

    ``env`` is added to the environment, ``path`` the ``PYTHONPATH``, ``timeout`` in seconds.
    """
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(path) | (env or {}),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def environment(path: Sequence[str | Path] = (ROOT,)) -> dict[str, str]:
    """The environment without settings of this package, and with a ``PYTHONPATH``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DASK_GPUAGG__")}
    return kept | {"PYTHONPATH": os.pathsep.join(map(str, path))}
