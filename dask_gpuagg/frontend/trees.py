"""Walks through Dask's expressions, and nodes made again on other inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dask.dataframe.dask_expr._expr import Expr


def inputs(node: Any) -> list[Any]:
    """The expressions that a node is made of."""
    return list(node.dependencies())


def reached(root: Any, through: Callable[[Any], bool]) -> Iterator[Any]:
    """Each node once, from the root down, as far as a condition holds.

    Parameters
    ----------
    root : Expr
    through : callable
        Whether the inputs of a node are reached as well.

    Yields
    ------
    Expr
    """
    stack, seen = [root], set()
    while stack:
        node = stack.pop()
        if node._name in seen:
            continue
        seen.add(node._name)
        yield node
        if through(node):
            stack += inputs(node)


def with_inputs(node: Any, frames: Iterable[Any], change: Callable[[Any], Expr]) -> Expr:
    """The node with some of its inputs changed."""
    names = {frame._name for frame in frames}
    changed: Expr = type(node)(
        *(change(e) if isinstance(e, Expr) and e._name in names else e for e in node.operands)
    )
    return changed
