"""Correct the cost model by the first calls on a device that was never measured.

Its constants are derived from another device's (``choice/costs.py``). What kernels took is
compared with what the model expected of them, and where the median of several calls is far off, the
model's time of that kernel is multiplied by it. Other constants are not touched: those that
``calibrate`` measures are better.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from threading import Lock
from typing import NamedTuple

from dask_gpuagg.cuda.choice import costs
from dask_gpuagg.cuda.choice.calibration import plain
from dask_gpuagg.cuda.choice.cost_model import expected_kernel_ms
from dask_gpuagg.cuda.choice.decision import Decision, Direct, Hgb, Lphga, Partitioned, SpEga
from dask_gpuagg.cuda.choice.partitions import tile_of
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.runtime.driver import Device, Stopwatch

# Rows of a call, at least, and what the model expects of a kernel: launches count in others.
_ROWS, _LEAST_MS = 1 << 22, 0.05
# Calls that a factor is the median of, at least and at most.
_CALLS, _LATEST = 5, 15
# Calls that are timed in all.
_TIMED = 64
# How far off the model is left alone, and how far it is corrected at most.
_OFF, _FURTHEST = 0.3, 3.0
_DESCRIBED = (Direct, Hgb, Lphga, Partitioned, SpEga)


class _Timed(NamedTuple):
    """A call whose kernels have been launched."""

    query: Query
    rows: int
    decision: Decision | None
    stopwatch: Stopwatch


class _Ratios:
    """Of one device: measured over expected times, by kernel."""

    def __init__(self) -> None:
        self.timed = 0
        self.known: set[tuple[Query, str]] = set()
        self.pending: deque[_Timed] = deque()
        self.of: dict[str, deque[float]] = {}

    def factors(self) -> dict[str, float]:
        """How many times as long as expected each kernel takes, of those that are far off."""
        found = {n: statistics.median(r) for n, r in self.of.items() if len(r) >= _CALLS}
        return {
            name: min(_FURTHEST, max(1 / _FURTHEST, factor))
            for name, factor in found.items()
            if not 1 / (1 + _OFF) <= factor <= 1 + _OFF
        }


_ratios: dict[Device, _Ratios] = {}
# nothing that takes long is done under it
_lock = Lock()


def stopwatch_of(device: Device, rows: int) -> Stopwatch | None:
    """What times the kernels of a call, where the constants are derived; None elsewhere.

    Parameters
    ----------
    device : Device
    rows : int
        Of the call.
    """
    if rows < _ROWS or not costs.known(device).derived:
        return None
    with _lock:
        ratios = _ratios.setdefault(device, _Ratios())
        if ratios.timed >= _TIMED:
            return None
        ratios.timed += 1
    return Stopwatch()


def note(
    device: Device, query: Query, rows: int, decision: Decision | None, stopwatch: Stopwatch
) -> bool:
    """Compare what earlier calls took with what was expected; keep this one for later calls.

    Nothing is waited for: kernels that still run are looked at after another call.

    Parameters
    ----------
    device : Device
    query : Query
        Whose kernels were launched.
    rows : int
    decision : Decision or None
        None where more was done than the decision says.
    stopwatch : Stopwatch
        Of ``stopwatch_of``; it is not the caller's any more.

    Returns
    -------
    bool
        Whether the constants are others now.
    """
    with _lock:
        ratios = _ratios.get(device)
        if ratios is None:  # another thread has forgotten them
            stopwatch.destroy()
            return False
        ratios.pending.append(_Timed(query, rows, decision, stopwatch))
        done = []
        while ratios.pending and ratios.pending[0].stopwatch.is_done():
            done.append(ratios.pending.popleft())
        seen = [_compare(ratios, device, each) for each in done]
        if not any(seen):
            return False
        return costs.correct(device, ratios.factors())


def _compare(ratios: _Ratios, device: Device, call: _Timed) -> bool:
    """Add the ratios of a call; whether there are any."""
    laps, times = call.stopwatch.laps(), call.stopwatch.milliseconds()
    if not isinstance(call.decision, _DESCRIBED):
        return False
    # when a kernel is launched for the first time, it is compiled and loaded
    kind = call.query, call.decision.kernel
    if kind not in ratios.known:
        ratios.known.add(kind)
        return False
    once = {plain(name): ms for name, ms in times.items() if laps[name] == 1}
    found = ratios_of(device, call.query, call.rows, call.decision, once)
    for name, ratio in found.items():
        ratios.of.setdefault(name, deque(maxlen=_LATEST)).append(ratio)
    return bool(found)


def ratios_of(
    device: Device, query: Query, rows: int, decision: Decision, kernel_ms: Mapping[str, float]
) -> dict[str, float]:
    """Measured over expected times of the kernels for which they can be told.

    Parameters
    ----------
    device : Device
    query : Query
    rows : int
    decision : Decision
    kernel_ms : mapping of str to float
        By the model's names.
    """
    tile = tile_of(query, device, decision)
    derived = costs.shipped(device).costs
    expected = expected_kernel_ms(derived, query, rows, decision, device.multiprocessors, tile)
    return {
        name: kernel_ms[name] / ms
        for name, ms in expected.items()
        if ms >= _LEAST_MS and kernel_ms.get(name)
    }


def forget() -> None:
    """Time the calls of all devices anew; their constants are the derived ones again."""
    with _lock:
        for device, ratios in _ratios.items():
            costs.correct(device, {})
            for call in ratios.pending:
                call.stopwatch.destroy()
        _ratios.clear()
