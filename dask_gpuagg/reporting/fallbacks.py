"""The record of planned and refused group-bys, and warnings about fallbacks."""

from __future__ import annotations

import sys
import warnings
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock
from types import FrameType
from typing import Any

from dask_gpuagg.cache import Cache, after_fork
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.reporting.events import Fallback, FellBack, Planned, emit, is_dry_run
from dask_gpuagg.settings import settings


class UnsupportedGroupBy(NotImplementedError):
    """Raised under ``gpuagg.fallback: raise`` for a group-by that our plan cannot run."""


class FallbackWarning(UserWarning):
    """A group-by runs with stock Dask, or without our kernels; the message says why."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one aggregation of a query would fall back.

    Attributes
    ----------
    aggregation : str
        The aggregation, or ``*`` when the whole group-by is concerned.
    column : hashable
        The input column, if one is concerned.
    reason : str
    """

    aggregation: str
    column: Hashable
    reason: str

    @classmethod
    def of(cls, refusal: Unsupported) -> Reason:
        """The reason that a refusal carries."""
        return cls(refusal.aggregation or "*", refusal.column, refusal.reason)

    @property
    def what(self) -> str:
        """The aggregation and its column."""
        column = "" if self.column is None else f" of {self.column!r}"
        return f"{self.aggregation}{column}"

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


# queries whose names are remembered, and fallbacks that are told apart
_NAMES = 10_000
_FALLBACKS = 1_000
# of all tallies
_lock = Lock()


class Tally:
    """Counts queries since the last reset; each distinct query counts once, by its name.

    ``planned`` has the names of the queries planned last as its keys, ``fallbacks`` the reasons of
    those that fell back last by their names.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start counting anew."""
        with _lock:
            self.planned: OrderedDict[str, None] = OrderedDict()
            self.fallbacks: OrderedDict[str, str] = OrderedDict()
            self._queries = 0
            self._entries: OrderedDict[Fallback, int] = OrderedDict()

    def plan(self, event: Planned) -> None:
        """Count a query that is planned."""
        name = event.node._name
        with _lock:
            if name not in self.planned:
                self._queries += 1
                self.planned[name] = None
                _limit(self.planned, _NAMES)

    def fall_back(self, event: FellBack) -> None:
        """Count a query that falls back, or a task that does."""
        fallback, name = event
        with _lock:
            if name:
                if self.fallbacks.get(name) == fallback.reason:
                    return
                self.fallbacks[name] = fallback.reason
                _limit(self.fallbacks, _NAMES)
            self._entries[fallback] = self._entries.pop(fallback, 0) + 1
            _limit(self._entries, _FALLBACKS)

    def reasons(self) -> Counter[str]:
        """How often each reason led to a fallback."""
        with _lock:
            return Counter(self.fallbacks.values())

    def counted(self) -> tuple[int, dict[Fallback, int]]:
        """The number of queries that were planned, and of each fallback."""
        with _lock:
            return self._queries, dict(self._entries)


def _limit(entries: OrderedDict[Any, Any], limit: int) -> None:
    while len(entries) > limit:
        entries.popitem(last=False)


# of the session
tally = Tally()


@after_fork
def _reset() -> None:
    """In the child: it has planned nothing yet."""
    global _lock
    _lock = Lock()
    tally.reset()


# lines of users' code that were warned about, with the message: queries are lowered several times
_warned: Cache[tuple[str, int, str], object] = Cache(1000)

# code between the user's and ours, by top-level module
_BETWEEN = frozenset(
    (
        *("dask_gpuagg", "dask", "dask_expr", "dask_cudf", "distributed", "pandas", "cudf"),
        *("toolz", "cytoolz", "tlz", "tornado", "asyncio", "concurrent", "threading"),
        *("contextlib", "functools"),
    )
)


def note_fallback(
    name: str,
    what: str,
    reason: str,
    cause: BaseException | None = None,
    how: str = "runs with stock Dask",
) -> None:
    """Record the fallback of a query, by its name, and warn or raise as ``gpuagg.fallback`` says.

    The message says that the call (``what``) runs otherwise (``how``), and why.
    """
    if is_dry_run():
        return
    frame = _frame_of_user()
    file, line = frame.f_code.co_filename, frame.f_lineno
    of_user = _top_module(frame) not in _BETWEEN
    fallback = Fallback(f"group-by {what}", how, reason, f"{file}:{line}" if of_user else "")
    emit(FellBack(fallback, name))
    policy = settings().fallback
    message = f"group-by {what} {how}: {reason}"
    if policy == "raise":
        raise UnsupportedGroupBy(message) from cause
    if policy == "warn":
        mine = object()  # of several threads, the one whose object is cached warns
        if _warned.of((file, line, message), lambda: mine) is mine:
            warn_user(message)


def warn_user(message: str, category: type[Warning] = FallbackWarning) -> None:
    """Warn at the line of user code that led here, or at none in the libraries' own threads.

    ``warnings.warn(skip_file_prefixes=...)`` needs Python 3.12.
    """
    frame = _frame_of_user()
    if _top_module(frame) in _BETWEEN:
        warnings.warn_explicit(message, category, "dask_gpuagg", 0)
        return
    module = frame.f_globals.get("__name__", "<unknown>")
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    file, line = frame.f_code.co_filename, frame.f_lineno
    warnings.warn_explicit(message, category, file, line, module, registry)


def _frame_of_user() -> FrameType:
    """The innermost frame that belongs to none of the libraries; in their threads there is none."""
    frame = caller = sys._getframe(1)
    while _top_module(frame) in _BETWEEN:
        if frame.f_back is None:
            return caller
        frame = frame.f_back
    return frame


def _top_module(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]
