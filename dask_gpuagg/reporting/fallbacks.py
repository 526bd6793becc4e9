"""The record of planned and refused group-bys, and warnings about fallbacks."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType

from dask_gpuagg.cache import Cache
from dask_gpuagg.plan import Unsupported
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

    def __str__(self) -> str:
        column = "" if self.column is None else f" of {self.column!r}"
        return f"{self.aggregation}{column}: {self.reason}"


@dataclass(slots=True)
class Tally:
    """Counts since the last reset; each distinct query (by name) counts once."""

    planned: set[str] = field(default_factory=set)
    fallbacks: dict[str, str] = field(default_factory=dict)

    def reset(self) -> None:
        """Start counting anew."""
        self.planned.clear()
        self.fallbacks.clear()

    def reasons(self) -> Counter[str]:
        """How often each reason led to a fallback."""
        return Counter(list(self.fallbacks.values()))


tally = Tally()

# True while a query is only looked at: nothing is recorded, warned about or raised then
looking: ContextVar[bool] = ContextVar("looking", default=False)

# lines of the user's code that were warned about, with the message
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
    """Record a fallback, and warn or raise as configured.

    Parameters
    ----------
    name : str
        The expression's unique name.
    what : str
        What the user wrote, for the message.
    reason : str
    cause : BaseException, optional
        The error behind the reason.
    how : str, optional
        What happens instead.

    Raises
    ------
    UnsupportedGroupBy
        Under ``fallback: raise``.
    """
    if looking.get():
        return
    tally.fallbacks[name] = reason
    policy = settings().fallback
    message = f"group-by {what} {how}: {reason}"
    if policy == "raise":
        raise UnsupportedGroupBy(message) from cause
    if policy == "warn" and _is_news(message):
        warn_user(message)


def _is_news(message: str) -> bool:
    """Whether this line was not warned about yet: a query is lowered several times."""
    frame = _line_of_user()
    line = (frame.f_code.co_filename, frame.f_lineno, message)
    mine = object()  # of several threads, the one whose object is kept warns
    return _warned.of(line, lambda: mine) is mine


def warn_user(message: str, category: type[Warning] = FallbackWarning) -> None:
    """Warn at the line of user code that led here.

    ``warnings.warn(skip_file_prefixes=...)`` needs Python 3.12.
    """
    frame = _line_of_user()
    module = frame.f_globals.get("__name__", "<unknown>")
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    file, line = frame.f_code.co_filename, frame.f_lineno
    warnings.warn_explicit(message, category, file, line, module, registry)


def _line_of_user() -> FrameType:
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
