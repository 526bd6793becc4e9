"""Merging of partials for which device memory may not suffice: at once, or in parts by key hash.

``engine`` has ``combine_tables`` and ``finalize_tables``, which merge at once, ``alike``,
``stack``, ``split``, ``concatenated_outputs`` and ``bytes_of_partials``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from dask_gpuagg.engines.device.memory import Spilled, first_that_fits, within_memory
from dask_gpuagg.plan import Partial, Plan

T = TypeVar("T")

# Parts by key hash, each of which needs so small a share of the memory.
PARTS = 16


def combine(engine: Any, partials: Sequence[Partial], plan: Plan, owned: bool) -> Partial:
    """Merge partials into one; those that are ``owned`` may be emptied."""
    tables, least = _stacked(engine, partials, plan, owned)
    at_once = partial(engine.combine_tables, tables, plan, least)
    in_parts = partial(combined_in_parts, engine, tables, plan, PARTS, least)
    return _merged(engine, tables, plan, at_once, in_parts)


def finalize(engine: Any, partials: Sequence[Partial], plan: Plan, meta: Any, owned: bool) -> Any:
    """Merge partials and compute the outputs; those that are ``owned`` may leave the device."""
    tables, least = _stacked(engine, partials, plan, owned)
    at_once = partial(engine.finalize_tables, tables, plan, meta, least)
    in_parts = partial(finalized_in_parts, engine, tables, plan, meta, PARTS, owned, least)
    return _merged(engine, tables, plan, at_once, in_parts)


def _stacked(
    engine: Any, partials: Sequence[Partial], plan: Plan, owned: bool
) -> tuple[list[Partial], int | None]:
    """Owned partials as one table, in which a group may have several rows, and the others empty.

    Merging needs room for what it moves, which that of the partials may be. Where there is no room
    for a copy of them, they stay. The second result is a lower bound of the number of groups,
    which a stacked table does not show.
    """
    tables = list(partials)
    if not (owned and plan.is_one_table and len(tables) > 1):
        return tables, None
    least = max(len(table["groups"]) for table in tables)

    def copied() -> Any:
        return engine.stack(engine.alike([table["groups"] for table in tables], plan))

    stacked = first_that_fits([copied, lambda: None], MemoryError)
    if stacked is None:
        return tables, None
    for emptied in tables:
        emptied.clear()
    return [{"groups": stacked}], least


def _merged(engine: Any, tables: list[Partial], plan: Plan, *ways: Callable[[], T]) -> T:
    """Merge tables at once, or in parts where memory does not suffice."""
    at_once, in_parts = ways
    rows = sum(len(next(iter(table.values()))) for table in tables)
    return within_memory(
        f"merging {len(tables):,} partials of {rows:,} rows",
        at_once,
        in_parts if plan.observed and plan.shape == "groups" else None,
        held_bytes=lambda: engine.bytes_of_partials(tables),
    )


def combined_in_parts(
    engine: Any, tables: list[Partial], plan: Plan, parts: int, least: int | None = None
) -> Partial:
    """Combine one part of the key hashes after the other, the others on the host."""
    # of a part nothing is known, if a group may have several rows
    least = None if least is None else 0
    spilled = [
        Spilled.of(engine.combine_tables(pieces(), plan, least))
        for pieces in parts_on_host(engine, tables, plan, parts)
    ]
    restored = [part.restored() for part in spilled]
    names = [table.name for table in plan.tables]
    stacked = {name: engine.alike([part[name] for part in restored], plan) for name in names}
    return {name: engine.stack(tables) for name, tables in stacked.items()}


def finalized_in_parts(
    engine: Any,
    tables: list[Partial],
    plan: Plan,
    meta: Any,
    parts: int,
    owned: bool = False,
    least: int | None = None,
) -> Any:
    """Compute the outputs of one part of the key hashes after the other."""
    least = None if least is None else 0
    spilled = [
        Spilled.of(engine.finalize_tables(pieces(), plan, meta, least))
        for pieces in parts_on_host(engine, tables, plan, parts, owned)
    ]
    return engine.concatenated_outputs([part.restored() for part in spilled], plan, meta)


def parts_on_host(
    engine: Any, tables: Sequence[Partial], plan: Plan, parts: int, owned: bool = False
) -> list[Callable[[], list[Partial]]]:
    """For each part a call that brings its pieces back, in the order of the partials.

    Partials that are ``owned`` are emptied: several all leave before the first is divided. Few are
    divided by slices of their rows: to divide a table takes several times its memory.
    """
    spilled: list[list[Spilled[Partial]]] = [[] for _ in range(parts)]
    bring_back: list[Callable[[], Partial]] = [partial(dict, table) for table in tables]
    if owned:
        bring_back = []
        for table in tables:
            own = [dict(table)]
            table.clear()
            # the only one would come back at once
            bring_back.append(own.pop if len(tables) == 1 else Spilled.of(own.pop()).restored)
    for bring_table in bring_back:
        for rows in _slices(bring_table(), -(-parts // len(bring_back))):
            for of_part, piece in zip(spilled, engine.split(rows, plan, parts, True), strict=True):
                of_part.append(Spilled.of(piece))
    return [partial(_restored, pieces) for pieces in spilled]


def _restored(pieces: list[Spilled[Partial]]) -> list[Partial]:
    return [piece.restored() for piece in pieces]


def _slices(tables: Partial, number: int) -> Iterator[Partial]:
    """The rows of each table in so many slices, in their order."""
    for i in range(number):
        yield {
            name: table.iloc[len(table) * i // number : len(table) * (i + 1) // number]
            for name, table in tables.items()
        }
