"""Who looks on while group-bys are lowered, and what is told: the plan, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from dask._expr import Expr

from dask_gpuagg.planning.query import GroupByQuery
from dask_gpuagg.planning.route import Routing


@dataclass(frozen=True, slots=True)
class Planned:
    """A group-by as it is planned: on lowered inputs, with its physical nodes."""

    query: GroupByQuery
    decision: Routing
    nodes: Expr


Noted = Callable[[Any, "Planned | str"], None]

# who is told what the planner did with a group-by: planned it, or why not
_watching: ContextVar[Noted | None] = ContextVar("_watching", default=None)


@contextmanager
def watching(note: Noted) -> Iterator[None]:
    """Context manager: ``note`` is called for each group-by that this thread lowers.

    Parameters
    ----------
    note : callable
        Of the logical node, and ``Planned`` or the reason why stock Dask runs it.
    """
    token = _watching.set(note)
    try:
        yield
    finally:
        _watching.reset(token)


def plans_of(tuned: Expr) -> dict[str, Planned | str]:
    """What the planner does with the group-bys of a query that Dask has tuned, by their names.

    Parameters
    ----------
    tuned : Expr

    Returns
    -------
    dict of str to Planned or str
        A text says why stock Dask runs a group-by.

    Raises
    ------
    Exception
        Whatever lowering the query raises.
    """
    plans: dict[str, Planned | str] = {}
    with watching(lambda node, found: plans.__setitem__(node._name, found)):
        tuned.lower_completely()
    return plans


def seen(expr: Any, found: Planned | str) -> None:
    """Tell who looks on what becomes of a group-by."""
    note = _watching.get()
    if note is not None:
        note(expr, found)
