"""What the kernels did lately in this process."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dask_gpuagg.cuda.groupby import Run

_REMEMBERED = 1_000
_runs: deque[Run] = deque(maxlen=_REMEMBERED)
_lock = Lock()


def note_run(run: Run) -> None:
    """Remember one call of the kernels."""
    with _lock:
        _runs.append(run)


def last_runs() -> tuple[Run, ...]:
    """The latest calls of the kernels in this process, the oldest first.

    Returns
    -------
    tuple of Run
        Kernel and geometry, estimated and true groups, rows, rows spilled, bytes read.
    """
    with _lock:
        return tuple(_runs)
