"""Quantiles of groups by brackets, on the device; ``dask_gpuagg.narrowing`` has the steps.

The kernels are those that select among the rows of one chunk (``kernels/select``). Here each step
is a task of its own: brackets and counts are tables by key, as chunks number their groups apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cudf
import cupy as cp
import numpy as np
import pylibcudf as plc
from pylibcudf.utils import _get_stream

from dask_gpuagg.aggregations import Kind
from dask_gpuagg.cuda.algorithms import sgb
from dask_gpuagg.cuda.algorithms.select import Selector
from dask_gpuagg.cuda.algorithms.sgb import Words, array_of
from dask_gpuagg.cuda.query.structs import Chunk
from dask_gpuagg.cuda.query.tuning import SIDES
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime.compiler import waiting
from dask_gpuagg.engines.device.columns import (
    FLOAT64,
    column_of,
    ctype_of,
    gather_columns,
    keys_of,
    names_of,
    series_from,
    table,
    to_series,
    view,
)
from dask_gpuagg.engines.device.groups import column_struct, counts_of, matches
from dask_gpuagg.engines.device.library import can_sort, number_rows
from dask_gpuagg.engines.device.tables import aligned, cast, stack
from dask_gpuagg.narrowing import Target, interpolation_of, share_inside, target_of, targets
from dask_gpuagg.plan import Plan

# Room for rows inside of brackets: one in so many of a chunk's rows, before a second attempt.
_ROOM = 8
_ROOM_AT_LEAST = 1 << 16

# The rows of some partitions, counted by the sides of brackets: ``keys``, a DataFrame of their
# groups; and for each target, with its number, ``counts`` of the groups of each side, one side
# after the other, and ``kept``, the group and the word of each row inside. Tables travel as
# buffers.
Counted = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Brackets:
    """For each target the two words between which a group's order statistics are looked for.

    ``keys`` are of the groups that have brackets, ``ends`` of shape (groups, 2) for each target.
    The brackets of all ``others`` are open, or closed. ``inside`` is the share of all rows that is
    expected between, by the sample.
    """

    keys: Any
    ends: list[cp.ndarray]
    others: bool
    inside: float = 0.0


def is_ready() -> bool:
    """Whether the kernels that select are there, or can be compiled."""
    with waiting(True):
        return can_sort()


def kept_rows(counted: Counted) -> int:
    """Number of rows that were kept."""
    return sum(len(t) for name, t in counted.items() if name.startswith("kept"))


def sample(run: Sequence[Any], plan: Plan, stride: int) -> Any:
    """One row of each ``stride``; see ``host.narrowed.sample``."""
    places: dict[int, plc.Column] = {}
    names = [f"k{i}" for i in range(len(run[0].keys))] + [f"v{c}" for c in plan.rows]
    dtypes = [column.dtype for column in _read(run[0], plan)]
    sampled = []
    for part in run:
        rows = len(part)
        if rows not in places:
            places[rows] = _places(rows, stride)
        sampled.append(gather_columns(list(map(view, _read(part, plan))), places[rows]))
    columns = [plc.concatenate.concatenate(list(pieces)) for pieces in zip(*sampled, strict=True)]
    triples = zip(names, columns, dtypes, strict=True)
    return table({name: to_series(column, dtype) for name, column, dtype in triples})


def _read(part: Any, plan: Plan) -> list[Any]:
    """The keys, and the columns of the targets."""
    return [*part.keys, *(part.columns[c] for c in plan.rows)]


def _places(rows: int, stride: int) -> plc.Column:
    """Numbers of one row of each ``stride``."""
    blocks = cp.arange(-(-rows // stride), dtype=cp.uint64)
    # not at equal distances: rows may have a period
    within = (blocks * cp.uint64(0x9E3779B97F4A7C15)) >> cp.uint64(40)
    places = blocks * cp.uint64(stride) + within % cp.uint64(stride)
    return column_of(cp.minimum(places, cp.uint64(max(rows - 1, 0))).astype(cp.int32))


def aim(samples: Sequence[Any], plan: Plan) -> Brackets:
    """Brackets from the samples of all chunks."""
    # in the dtypes that all partitions have together
    dtypes = {f"v{c}": plan.columns[c].dtype for c in plan.rows}
    rows = stack([t.assign(**{n: cast(t[n], dtypes[n]) for n in dtypes}) for t in samples])
    groups, codes = _numbered(keys_of(rows), not plan.dropna or plan.drops_late)
    ends = []
    for target in targets(plan):
        column = view(rows[f"v{target.column}"])
        width = max(4, TYPE_BYTES[ctype_of(column)])
        if len(groups) == 0:
            ends.append(cp.zeros((0, 2), f"u{width}"))
            continue
        with waiting(True):
            selector = _selector(ctype_of(column), len(groups), target)
            words = selector.aim([_chunk(column, codes, len(groups))], 1)
        ends.append(_array(words, width).reshape(-1, 2).copy())
    sampled = counts_of(codes[codes >= 0], len(groups))
    return Brackets(groups, ends, others=True, inside=share_inside(cp.asnumpy(sampled)))


def count(keys: Sequence[Any], columns: Sequence[Any], brackets: Brackets, plan: Plan) -> Counted:
    """Count rows by the sides of their group's brackets, and keep those inside."""
    groups, codes = _numbered(keys, not plan.dropna or plan.drops_late)
    counted: Counted = {"keys": groups}
    for i, target in enumerate(targets(plan)):
        column = view(cast(columns[target.column], plan.columns[target.column].dtype))
        ends = _ends_of(groups, brackets, i)
        sides, inside = _counted(column, codes, ends, target)
        counted |= {f"counts{i}": cudf.DataFrame({"n": series_from(sides)}), f"kept{i}": inside}
    return counted


def _counted(column: plc.Column, codes: cp.ndarray, ends: cp.ndarray, target: Target) -> Any:
    """Counts of shape (SIDES * groups,), and the table of the rows inside."""
    groups, rows = len(ends), column.size()
    width = ends.dtype.itemsize
    room = rows // _ROOM + _ROOM_AT_LEAST
    with waiting(True):
        selector = _selector(ctype_of(column), max(groups, 1), target)
        while True:
            counts, candidates = selector.counts(), selector.candidates(room)
            if groups:
                chunk = _chunk(column, codes, groups)
                selector.count(chunk, _words(ends), counts, candidates)
            number = selector.rows_inside(candidates)
            if number <= room:
                break
            room = number
    sides = cp.asarray(counts).view(cp.uint64)[: SIDES * groups]
    columns = {
        "g": _array(candidates.of_row, 4)[:number],
        "w": _array(candidates.words, width)[:number],
    }
    # copies: the room for more is given back
    return sides, cudf.DataFrame({n: series_from(c.copy()) for n, c in columns.items()})


@dataclass(frozen=True, slots=True)
class _Together:
    """The counts of all chunks; their groups are numbered."""

    groups: Any
    codes: list[cp.ndarray]
    counted: Sequence[Counted]

    @classmethod
    def of(cls, counted: Sequence[Counted], groups: Any = None) -> _Together:
        """Number the groups of all chunks, or by ``groups``, which have all of them."""
        stacked = stack([chunk["keys"] for chunk in counted])
        if groups is None:
            groups, codes = _numbered(keys_of(stacked), True)
        else:
            codes = cp.empty(len(stacked), cp.int32)
            rows, places = _matched(stacked, groups)
            codes[rows] = places
        ends = np.cumsum([len(chunk["keys"]) for chunk in counted])[:-1]
        return cls(groups, cp.split(codes, ends.tolist()), counted)

    def counts(self, target: int) -> cp.ndarray:
        """Sums over all chunks, of shape (SIDES, groups)."""
        sums = cp.zeros((SIDES, len(self.groups)), cp.uint64)
        for codes, chunk in zip(self.codes, self.counted, strict=True):
            counts = chunk[f"counts{target}"]["n"].values.reshape(SIDES, -1)
            sums[:, codes] += counts  # each group once in each
        return sums

    def rows_inside(self, target: int) -> tuple[cp.ndarray, cp.ndarray]:
        """Group and word of all rows that were kept."""
        tables = [chunk[f"kept{target}"] for chunk in self.counted]
        of = [c[t["g"].values] for c, t in zip(self.codes, tables, strict=True)]
        return cp.concatenate(of), cp.concatenate([t["w"].values for t in tables])


def _selector_of(together: _Together, i: int, plan: Plan) -> Selector:
    target = targets(plan)[i]
    empty = cudf.Series([], dtype=plan.columns[target.column].dtype)
    return _selector(ctype_of(view(empty)), len(together.groups), target)


def _narrow(selector: Selector, together: _Together, ends: Words, i: int) -> int:
    """Take the counts by brackets; the number of those that missed.

    The ends become brackets of the groups that are not settled, and closed ones of the others.
    """
    counts = _words(together.counts(i))
    return int(selector.narrow(counts.buffer, ends, selector.candidates(0)).missed)


def _settle(selector: Selector, together: _Together, ends: Words, i: int) -> int:
    """Take the counts, and pick the quantiles that are settled; see ``_narrow``."""
    missed = _narrow(selector, together, ends, i)
    of_row, words = together.rows_inside(i)
    candidates = selector.candidates(len(words))
    _array(candidates.words, words.dtype.itemsize)[: len(words)] = words
    _array(candidates.of_row, 4)[: len(words)] = of_row.astype(cp.uint32)
    selector.pick(candidates, len(words))
    return missed


def widened(brackets: Brackets, counted: Sequence[Counted], plan: Plan) -> Brackets | None:
    """Brackets that surely hold the ranks which others missed; ``None`` where none did."""
    together = _Together.of(counted)
    if len(together.groups) == 0:
        return None
    ends, missed = [], 0
    with waiting(True):
        for i in range(len(targets(plan))):
            words = _words(_ends_of(together.groups, brackets, i))
            missed += _narrow(_selector_of(together, i, plan), together, words, i)
            ends.append(_array(words, words.width).reshape(-1, 2).copy())
    return Brackets(together.groups, ends, others=False) if missed else None


def picked(
    brackets: Brackets,
    counted: Sequence[Counted],
    wider: Brackets | None,
    again: Sequence[Counted],
    plan: Plan,
) -> Any:
    """One row of each group, with its outputs of whole groups; see ``host.narrowed.picked``."""
    together = _Together.of(counted)
    groups = together.groups
    outputs = {f"o{i}": o for i, o in enumerate(plan.outputs) if o.kind is Kind.WHOLE}
    keys = {name: groups[name] for name in names_of(groups)}
    if len(groups) == 0:
        return table(keys | dict.fromkeys(outputs, cudf.Series([], dtype="float64")))
    second = None if wider is None else _Together.of(again, groups)
    columns = {}
    with waiting(True):
        selectors: dict[Target, Selector] = {}
        for i, target in enumerate(targets(plan)):
            selectors[target] = selector = _selector_of(together, i, plan)
            ends = _words(_ends_of(groups, brackets, i))
            if _settle(selector, together, ends, i) and second is not None:
                _settle(selector, second, ends, i)
        for label, output in outputs.items():
            data, mask, nulls = selectors[target_of(output)].quantiles(interpolation_of(output))
            mask = mask if nulls else None
            columns[label] = to_series(plc.Column(FLOAT64, len(groups), data, mask, nulls, 0, []))
    return table(keys | columns)


def _numbered(keys: Sequence[Any], keep_nulls: bool) -> tuple[Any, cp.ndarray]:
    """The groups of some rows, and the number of each row's group, -1 for none."""
    groups, numbering = number_rows(keys, keep_nulls)
    return groups, numbering.of_rows(len(keys[0]))


def _ends_of(groups: Any, brackets: Brackets, target: int) -> cp.ndarray:
    """The ends of the brackets of groups."""
    own = brackets.ends[target]
    ends = cp.empty((len(groups), 2), own.dtype)
    # open and closed as ``Pair`` of kernels/select/rows.cuh
    ends[:, 0] = 0 if brackets.others else 1
    ends[:, 1] = np.iinfo(own.dtype).max if brackets.others else 0
    rows, codes = _matched(groups, brackets.keys)
    ends[rows] = own[codes]
    return ends


def _matched(groups: Any, others: Any) -> tuple[cp.ndarray, cp.ndarray]:
    """Numbers of the groups that are among others, and their numbers there."""
    return matches(*map(keys_of, aligned([groups, others])))


def _selector(ctype: str, groups: int, target: Target) -> Selector:
    return Selector(sgb.launcher(_get_stream()), ctype, groups, target.q)


def _chunk(column: plc.Column, codes: cp.ndarray, groups: int) -> Chunk:
    return Chunk(column_struct(column), codes.data.ptr, column.size(), groups, 0)


def _array(words: Words, width: int) -> cp.ndarray:
    """Words as an array, not copied."""
    data = cp.asarray(words.buffer).view(cp.uint8)  # one byte for no words
    return data[: data.size // width * width].view(f"u{width}")


def _words(array: cp.ndarray) -> Words:
    """An array as words, copied."""
    width = array.dtype.itemsize
    words = array_of(sgb.launcher(_get_stream()), array.size, width)
    _array(words, width)[: array.size] = array.ravel()
    return words
