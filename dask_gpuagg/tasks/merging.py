"""Partials to one partial or to an output; part by part where device memory does not suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from dask_gpuagg.engines import DEVICE, column_of, engine_name, engine_of
from dask_gpuagg.engines.device.memory import Spilled, after_free, first_that_fits, out_of_memory
from dask_gpuagg.plan import Plan
from dask_gpuagg.tasks.unify import DTYPES, unify

T = TypeVar("T")
Partial = dict[str, Any]

# Parts by key hash, each of which needs so small a share of the memory.
_PARTS = 16


def combined(partials: Sequence[Partial], plan: Plan, owned: bool = False) -> Partial:
    """Several partials as one; ``owned`` as for ``finalized``."""
    if len(partials) == 1:
        return partials[0]
    engine = engine_of(partials[0])
    tables, together, dtypes = unify(partials, plan, engine)
    least = _least(tables)
    copied = owned and _in_one(partials, tables, together, engine)
    made = _merged(
        lambda: engine.combine(tables, together, **({"least": least} if copied else {})),
        lambda: combined_in_parts(tables, together, engine, _PARTS, **_of_parts(copied)),
        tables,
        together,
    )
    return labelled(made, dtypes)


def finalized(
    partials: Sequence[Partial],
    plan: Plan,
    meta: Any,
    bucket: tuple[int, int] | None = None,
    owned: bool = False,
) -> Any:
    """The output of all partials of its groups.

    Parameters
    ----------
    partials : sequence of partials
    plan : Plan
    meta : DataFrame or Series
    bucket : (int, int), optional
        Number of the output, and how many there are.
    owned : bool
        Whether nobody else needs the partials: they may leave the device while they merge, and
        the output may take its memory from them.
    """
    engine = engine_of(partials[0])
    tables, together, _ = unify(partials, plan, engine)
    least = _least(tables)
    copied = owned and _in_one(partials, tables, together, engine)
    given = {"least": least} if copied else {}
    return _merged(
        lambda: engine.finalize(tables, together, meta, bucket, owned, **given),
        lambda: finalized_in_parts(
            tables, together, meta, engine, _PARTS, owned, **_of_parts(copied)
        ),
        tables,
        together,
    )


def _in_one(partials: Sequence[Partial], tables: list[Partial], plan: Plan, engine: Any) -> bool:
    """Make partials of a GPU one, in which a group may have several rows; the others are emptied.

    Merging needs room for what it moves, which that of the partials themselves may be. Where
    there is none for a copy of them, they stay, and the answer is false.
    """
    if plan.tables != ("groups",) or len(tables) == 1 or engine_name(tables[0]) != DEVICE:
        return False

    def copied() -> Any:
        return engine.stack(engine.alike([t["groups"] for t in tables], plan))

    made = first_that_fits([copied, lambda: None], MemoryError)
    if made is None:
        return False
    for each in (*partials, *tables):
        each.clear()
    tables[:] = [{"groups": made}]
    return True


def _least(tables: Sequence[Partial]) -> int:
    """How many groups partials have together, at least; 0 where that is not known."""
    return max(len(each["groups"]) if "groups" in each else 0 for each in tables)


def _of_parts(copied: bool) -> dict[str, int]:
    """What is known of parts of one table that has groups in several rows: nothing."""
    return {"least": 0} if copied else {}


def labelled(tables: Partial, dtypes: tuple[Any, ...] | None) -> Partial:
    """A partial with the dtypes of its columns, where they are not as the plan has them."""
    return tables if dtypes is None else tables | {DTYPES: dtypes}


def _merged(
    at_once: Callable[[], T], in_parts: Callable[[], T], tables: Sequence[Partial], plan: Plan
) -> T:
    """What merges partials, by the first way for which memory suffices."""
    if engine_name(tables[0]) != DEVICE:
        return at_once()
    steps = [at_once, after_free(at_once)]
    if plan.observed and plan.shape == "groups":
        steps.append(in_parts)
    rows = sum(len(next(iter(t.values()))) for t in tables)
    what = f"merging {len(tables):,} partials of {rows:,} rows"
    return first_that_fits(steps, lambda refused: out_of_memory(what, refused, bytes_of(tables)))


def bytes_of(partials: Iterable[Any]) -> int:
    """Bytes of the tables of some partials, roughly; those in host memory have none."""
    tables = [
        table for p in partials if isinstance(p, dict) for n, table in p.items() if n != DTYPES
    ]
    columns = [[column_of(table, label) for label in table.columns] for table in tables]
    engines = map(engine_of, tables)
    return int(sum(e.bytes_of(c) for e, c in zip(engines, columns, strict=True)))


def combined_in_parts(
    tables: Sequence[Partial], plan: Plan, engine: Any, parts: int, **given: int
) -> Partial:
    """Partials combined one part of the key hashes after the other, the others on the host."""
    made = []
    for pieces in _parts_on_host(tables, plan, engine, parts):
        made.append(Spilled.of(engine.combine(pieces(), plan, **given)))
    found = [each.restored() for each in made]
    stacked = {name: engine.alike([tables[name] for tables in found], plan) for name in plan.tables}
    return {name: engine.stack(tables) for name, tables in stacked.items()}


def finalized_in_parts(
    tables: Sequence[Partial],
    plan: Plan,
    meta: Any,
    engine: Any,
    parts: int,
    owned: bool = False,
    **given: int,
) -> Any:
    """The output of partials, made one part of the key hashes after the other."""
    made = []
    for pieces in _parts_on_host(tables, plan, engine, parts, owned):
        made.append(Spilled.of(engine.finalize(pieces(), plan, meta, **given)))
    outputs = [each.restored() for each in made]
    return engine.concatenated_outputs(outputs, plan, meta)


def _slices(tables: Partial, number: int) -> Iterator[Partial]:
    """The rows of each table in so many slices, in their order."""
    for i in range(number):
        yield {
            name: table.iloc[len(table) * i // number : len(table) * (i + 1) // number]
            for name, table in tables.items()
        }


def _parts_on_host(
    tables: Sequence[Partial], plan: Plan, engine: Any, parts: int, owned: bool = False
) -> list[Callable[[], list[Partial]]]:
    """For each part a call that brings its pieces back, in the order of the partials.

    Partials that are ``owned`` are emptied: they all leave before the first is divided. Few are
    divided by slices of their rows: to divide a table takes several times its memory.
    """
    spilled: list[list[Spilled[Partial]]] = [[] for _ in range(parts)]
    wholes: list[Callable[[], Partial]] = [partial(dict, each) for each in tables]
    if owned:
        wholes = []
        for each in tables:
            wholes.append(Spilled.of(dict(each)).restored)
            each.clear()
    for whole in wholes:
        for rows in _slices(whole(), -(-parts // len(wholes))):
            for of_part, piece in zip(spilled, engine.split(rows, plan, parts, True), strict=True):
                of_part.append(Spilled.of(piece))

    def bring(pieces: list[Spilled[Partial]]) -> Callable[[], list[Partial]]:
        return lambda: [piece.restored() for piece in pieces]

    return [bring(pieces) for pieces in spilled]
