"""Reasons of fallbacks, and warnings about them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Hashable
from dataclasses import dataclass
from types import FrameType

from dask_gpuagg.cache import Cache
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.reporting.events import Fallback, FellBack, emit, is_dry_run
from dask_gpuagg.settings import settings


class UnsupportedGroupBy(NotImplementedError):
    """Raised for a group-by that neither our plan nor stock Dask can run.

    Under ``gpuagg.fallback: raise`` also for one that stock Dask could.
    """


class FallbackWarning(UserWarning):
    """A group-by runs with stock Dask, or without our kernels; the message says why."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one aggregation of a query would fall back."""

    #: the aggregation, or ``*`` when the whole group-by is concerned
    aggregation: str
    #: the input column, if one is concerned
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
        mine = object()  # the thread whose object is cached warns
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
