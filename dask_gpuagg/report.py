"""What ran and why: the record of planned and refused group-bys, warnings, ``explain``."""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

import dask

from dask_gpuagg.plan import Unsupported


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
        return Counter(self.fallbacks.values())


tally = Tally()

# queries already warned about: one query is lowered several times on its way
_warned: OrderedDict[str, None] = OrderedDict()
_REMEMBERED = 1000


def note_fallback(name: str, what: str, reason: str, cause: BaseException | None = None) -> None:
    """Record a fallback and do what the configuration asks for.

    Parameters
    ----------
    name : str
        The expression's unique name.
    what : str
        What the user wrote, for the message.
    reason : str
    cause : BaseException, optional
        The error behind the reason.

    Raises
    ------
    UnsupportedGroupBy
        Under ``fallback: raise``.
    """
    tally.fallbacks[name] = reason
    policy = dask.config.get("gpuagg.fallback")
    message = f"group-by {what} runs with stock Dask: {reason}"
    if policy == "raise":
        raise UnsupportedGroupBy(message) from cause
    if policy == "warn" and name not in _warned:
        _warned[name] = None
        while len(_warned) > _REMEMBERED:
            _warned.popitem(last=False)
        warnings.warn(message, FallbackWarning, stacklevel=2)
