"""The expected cost of a group-by on the device, from bytes, updates, accesses and runs.

Wu 2025 (section 5.2) chooses by a tree over the number of groups, Karnagel 2015 (section 4) by
rules of capacity and contention. Here both are counts of work times a device's constants, so that
the borders lie where two sums are equal, on each device elsewhere. Times are of the kernels that
the choice is between: making words of keys and verifying them cost the same whichever is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dask_gpuagg.cuda.choice.costs import Costs
from dask_gpuagg.cuda.choice.decision import (
    Decision,
    Direct,
    Hgb,
    Lphga,
    Partitioned,
    Pgb,
    PgbFold,
    PgbUr,
    SpEga,
)
from dask_gpuagg.cuda.choice.partitions import (
    copied_bytes,
    hashed_bytes,
    moved_bytes,
    striped_bytes,
    writes_columns,
)
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.query.forms import CODED, PACKED
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.tuning import ROOM_OF
from dask_gpuagg.cuda.query.types import TYPE_BYTES

# Bytes that memory moves for a random access.
_SECTOR = 32
# A lane's expected wait for the bank that it shares with other lanes, by the copies of a state:
# from 32 lanes on 16 banks of 8 bytes at random down to one lane a bank (Monte Carlo).
_CONFLICT = {1: 1.0, 2: 0.95, 4: 0.87, 8: 0.65}
_NO_CONFLICT = 0.33
# A pass over the rows of which it takes an n-th costs n ** -0.18 of one that takes all: its warps
# run half empty, and only their bank conflicts get fewer.
_THINNED = 0.18
# Memory and shared memory work at the same time, but for the end of each tile.
_OVERLAP = 4.0
# Keys whose range is not wider than so many groups have first slots of their own.
_DENSE = 4
# Share of losers that dense keys have of those that chance gives, and accesses that a loser takes.
_DENSE_MEET = 0.25
_NEXT = 2.0
# Share of a gather's cost where blocks take all partitions in so few rounds.
_NEAR = 0.45
_NEAR_ROUNDS = 3
# What folding takes of a row and of a group (finding the slot, counting, finding the place), of a
# row in each column, and of a row in each state, in searches, moves and comparisons of a row.
_FOLD_FIND = 6.0
# Where the slot is known, what is left of the first.
_FOLD_STRIPED_FIND = 2.5
_FOLD_MOVE = 0.3
_FOLD_STATE = 0.9
# Bytes of the slot of a table that holds keys alone, as far as they cost.
_FOLD_SLOT = 8
# Atomics that nothing is looked up before come so close together that each takes longer.
_CLOSE = 1.25
# 64-bit sums, loops around a compare-and-swap, that an update of a state is made of. States that
# are not here compare, and mostly change nothing.
_SUMS = {
    "IntegerSum": 1,
    "FloatSum": 1,
    "IntegerProduct": 1,
    "FloatProduct": 1,
    "WideSum": 2,
    "ExactSum": 3,
    "Moments": 2,
    "MergedMoments": 3,
}
# 32-bit sums, for which there is an instruction: they vanish behind the rest.
_COUNTS = ("Size", "Count")
# Resolution of the stopwatch, milliseconds.
_RESOLUTION = 0.01
# Weight of a constant's distance from its start: small, so that it matters only for constants that
# the measurements do not determine.
_INERTIA = 0.02
_STEPS = 100
# Variants of a kernel, which the model gives the same constants.
_PLAIN = ("direct", "hgb", "scatter", "aggregate", "fold")


def expected_kernel_ms(
    costs: Costs, query: Query, rows: int, decision: Decision, multiprocessors: int, tile: int
) -> dict[str, float]:
    """Expected device milliseconds of each kernel that a decision launches.

    Parameters
    ----------
    costs : Costs
    query : Query
    rows : int
    decision : Decision
        Without an estimate every row is taken for a group.
    multiprocessors : int
    tile : int
        Rows of a tile of the scatter, where there is one.

    Returns
    -------
    dict of str to float
        By name; the variants of a kernel, as ``scatter_narrow``, have the name of the first.
    """
    groups = max(1, rows if decision.estimate is None else min(rows, decision.estimate.groups))
    if isinstance(decision, Partitioned):
        kernel_ms = _partitioned(costs, query, rows, decision, groups, multiprocessors, tile)
        writes = not writes_columns(decision.partition_query(query), decision)
    else:
        kernel_ms = _in_table(costs, query, rows, decision, groups, multiprocessors)
        writes = True
    # groups are read where they are and written as columns
    if writes:
        kernel_ms["write"] = groups * 2 * sum(query.slot_bytes) / costs.table_bandwidth * 1e-6
    return {name: ms + costs.launch_us * 1e-3 for name, ms in kernel_ms.items()}


def _in_table(
    costs: Costs, query: Query, rows: int, decision: Decision, groups: int, multiprocessors: int
) -> dict[str, float]:
    """Kernels that leave the groups in a table in global memory."""
    match decision:
        case Direct():
            kernel_ms = {"direct": _direct(costs, query, rows, decision, groups, multiprocessors)}
        case Hgb():
            kernel_ms = {"hgb": _hgb(costs, query, rows, decision, groups, multiprocessors)}
        case SpEga():
            kernel_ms = _sp_ega(costs, query, rows, decision, groups)
        case Lphga():
            kernel_ms = {"lphga": _lphga(costs, query, rows, decision, groups)}
        case _:
            raise ValueError(f"the model does not describe {decision.kernel}")
    slots = decision.global_slots
    return {
        "clear": slots * sum(query.slot_bytes) / costs.table_bandwidth * 1e-6,
        **kernel_ms,
        "collect": 8 * slots / costs.table_bandwidth * 1e-6,
    }


def _partitioned(
    costs: Costs,
    query: Query,
    rows: int,
    decision: Partitioned,
    groups: int,
    multiprocessors: int,
    tile: int,
) -> dict[str, float]:
    query = decision.partition_query(query)
    left = rows - _hot_rows(rows, decision)
    kernel_ms = {"scatter": _scatter(costs, query, rows, left, decision, tile)}
    if decision.counted:
        counted = rows / ROOM_OF * (8 if query.form.made_words else _key_bytes(query))
        kernel_ms |= {"count_partitions": counted / costs.bandwidth * 1e-6, "lay_out": 0.0}
    if isinstance(decision, PgbFold):
        kernel_ms["fold"] = _fold(costs, query, left, decision, groups, multiprocessors)
    elif isinstance(decision, Pgb):
        kernel_ms["aggregate"] = _aggregate(costs, query, left, decision, groups, multiprocessors)
    return kernel_ms


def least_ms(costs: Costs, query: Query, rows: int) -> float:
    """What a table in global memory takes at least: its accesses, all in the L2 cache.

    Parameters
    ----------
    costs : Costs
    query : Query
    rows : int

    Returns
    -------
    float
        Device milliseconds, no more than ``expected_kernel_ms`` would give.
    """
    return rows * _touched_fields(query) * costs.access_ps * 1e-9


def _hgb(
    costs: Costs, query: Query, rows: int, decision: Hgb, groups: int, multiprocessors: int
) -> float:
    memory = rows * _read_bytes(query) / costs.bandwidth * 1e-6
    load = min(1.0, groups / decision.shared_slots)
    work = _find(costs, query, decision.estimate, groups, load)
    work += _update(costs, query, _CONFLICT.get(decision.replicas, _NO_CONFLICT))
    if decision.estimate is not None and decision.kernel == "hgb_runs":
        work *= 1 - decision.estimate.repeats
    shared = rows * work * multiprocessors / decision.blocks * 1e-9
    accesses = decision.blocks * groups * _touched_fields(query)
    return _overlapped(memory, shared) + accesses * costs.access_ps * 1e-9


def _direct(
    costs: Costs, query: Query, rows: int, decision: Direct, groups: int, multiprocessors: int
) -> float:
    memory = rows * _read_bytes(query) / costs.bandwidth * 1e-6
    fields = _touched_fields(query) - 1
    if not decision.in_shared:
        work = rows * fields * _CLOSE * costs.access_ps
        return _overlapped(memory, max(work, _in_line(costs, rows, decision)) * 1e-9)
    # the bit that says that a key has occurred takes the place of the search
    work = costs.find_ps + _update(costs, query, _CONFLICT.get(decision.replicas, _NO_CONFLICT))
    shared = rows * work * multiprocessors / decision.blocks * 1e-9
    return _overlapped(memory, shared) + decision.blocks * groups * fields * costs.access_ps * 1e-9


def _scatter(
    costs: Costs, query: Query, rows: int, moved: float, decision: Partitioned, tile: int
) -> float:
    masked = sum(v.masked for v in query.all_inputs)
    # words that no register has room for are made twice, to count the rows and to move them
    words = 1 if decision.base is not None else 2
    # dividing a key by its step takes as long as reading a column
    keys = 1 if query.form.made_words else len(query.keys) * (1 + query.form.has_steps)
    loads = words * keys + len(query.copied) + masked
    moves = 1 + len(query.copied) + query.has_row_numbers + (masked > 0)
    runs = math.ceil(rows / max(tile, 1)) * decision.partitions * moves
    work = rows * loads * costs.load_ps + moved * moves * costs.move_ps
    key_bytes = 8 if query.form.made_words else _key_bytes(query)
    read = words * key_bytes + copied_bytes(query) + masked / 8
    memory = (rows * read + moved * moved_bytes(query, decision)) / costs.bandwidth * 1e-6
    work += (rows - moved) * (costs.find_ps + _update(costs, query, 1.0))
    return _overlapped(memory, (work + runs * costs.run_ps) * 1e-9)


def _hot_rows(rows: int, decision: Partitioned) -> float:
    """Rows that are in no partition."""
    if not decision.hot or decision.estimate is None:
        return 0.0
    hot = set(decision.hot)
    return rows * min(1.0, sum(share for word, share in decision.estimate.hot if word in hot))


def _aggregate(
    costs: Costs, query: Query, rows: float, decision: Pgb, groups: int, multiprocessors: int
) -> float:
    parts, slots = decision.slices, decision.partitions * decision.shared_slots
    memory = parts * rows * moved_bytes(query, decision) / costs.bandwidth * 1e-6
    table = hashed_bytes(query, decision.base)
    if decision.window:
        once, copied = striped_bytes(query)
        work = costs.find_ps
        table = once + decision.replicas * copied
    else:
        load = min(1.0, groups / parts / slots)
        work = _find(costs, query, decision.estimate, groups, load)
    work += _update(costs, query, _CONFLICT.get(decision.replicas, _NO_CONFLICT))
    shared = rows * work * _passes(parts) * multiprocessors / decision.blocks * 1e-9
    # the rows of a partition lie in order, so blocks side by side share what the cache holds
    near = _NEAR if decision.partitions <= _NEAR_ROUNDS * decision.blocks else 1.0
    gathered = decision.gathered if isinstance(decision, PgbUr) else 0.0
    gathers = rows * gathered * near * costs.gather_ps * 1e-9
    tables = parts * slots * table * costs.slot_ps * 1e-9
    # columns, or what they are made of
    written = groups * sum(query.slot_bytes) / costs.table_bandwidth * 1e-6
    if not writes_columns(query, decision):
        written = 0.0
    return _overlapped(memory, shared) + gathers + tables + written


def _fold(
    costs: Costs, query: Query, rows: float, decision: PgbFold, groups: int, multiprocessors: int
) -> float:
    parts, widths = decision.slices, [TYPE_BYTES[value.ctype] for _, value in query.copied]
    # a column is read as often as it fills shared memory, the places of its rows each time
    fills = [math.ceil(decision.fills * width / query.widest) for width in widths]
    read = moved_bytes(query, decision)
    read += sum((n - 1) * width for n, width in zip(fills, widths, strict=True))
    memory = parts * rows * read / costs.bandwidth * 1e-6
    finds = _FOLD_STRIPED_FIND if decision.window else _FOLD_FIND
    find = (rows + groups) * finds * costs.find_ps
    moves = (len(widths) + query.has_row_numbers) * _FOLD_MOVE * costs.move_ps
    states = len(query.all_states) * _FOLD_STATE * costs.compare_ps
    work = find + rows * (moves + states)
    shared = work * _passes(parts) * multiprocessors / decision.blocks * 1e-9
    slots = parts * decision.partitions * decision.shared_slots
    tables = slots * _FOLD_SLOT * costs.slot_ps * 1e-9
    # phases of memory and of work alternate
    written = groups * sum(query.slot_bytes) / costs.table_bandwidth * 1e-6
    return memory + shared + tables + written


def _lphga(costs: Costs, query: Query, rows: int, decision: Lphga, groups: int) -> float:
    memory = rows * _read_bytes(query) / costs.bandwidth * 1e-6
    work = rows * _accesses(costs, query, decision, groups) + groups * costs.claim_ps
    return _overlapped(memory, max(work, _in_line(costs, rows, decision)) * 1e-9)


def _sp_ega(
    costs: Costs, query: Query, rows: int, decision: SpEga, groups: int
) -> dict[str, float]:
    slots = decision.global_slots
    memory = rows * _read_bytes(query) / costs.bandwidth * 1e-6
    each = _accesses(costs, query, decision, groups)
    load = min(1.0, groups / slots)
    # by chance, groups that are not the first of their slot; dense keys meet so seldom
    lost = 1 - (1 - math.exp(-load)) / load
    if _dense(query, decision.estimate, groups):
        lost *= _DENSE_MEET
    first = max(rows * (1 - lost) * each, _in_line(costs, rows, decision))
    return {
        "first_place": _overlapped(memory, first * 1e-9),
        "list_free": 8 * slots / costs.table_bandwidth * 1e-6,
        # they look at several slots, and read their rows by number
        "next_place": rows * lost * _NEXT * each * 1e-9,
    }


def _accesses(costs: Costs, query: Query, decision: Lphga | SpEga, groups: int) -> float:
    """Picoseconds of what a row looks up and updates in a global table."""
    accesses = _touched_fields(query)
    # what is touched of the table: whole sectors, until the groups lie closer than these
    fixed, replica = query.slot_bytes
    touched = min(groups * accesses * _SECTOR, decision.global_slots * (fixed + replica))
    missed = max(0.0, 1 - costs.l2_megabytes * 1e6 / touched)
    return accesses * (costs.access_ps + missed * costs.miss_ps)


@lru_cache(maxsize=1024)
def _touched_fields(query: Query) -> int:
    """Arrays of a global table that a row accesses: the words, and the fields of its states."""
    return 1 + sum(max(1, _SUMS.get(state.policy, 0)) for state in query.all_states)


def _in_line(costs: Costs, rows: int, decision: Decision) -> float:
    """Picoseconds of the most frequent key: one address takes one atomic after the other."""
    return rows * decision.estimate.heaviest * costs.same_ps if decision.estimate else 0.0


def _find(
    costs: Costs, query: Query, estimate: KeySummary | None, groups: int, load: float
) -> float:
    if _dense(query, estimate, groups):
        return costs.find_ps
    return costs.find_ps + costs.crowd_ps * math.sqrt(load)


def _dense(query: Query, estimate: KeySummary | None, groups: int) -> bool:
    if estimate is None or query.form not in (PACKED, CODED):
        return False
    if query.form == PACKED and len(query.keys) > 1:
        return False
    least, greatest = estimate.bounds
    return greatest - least < _DENSE * groups


@lru_cache(maxsize=1024)
def _updates(query: Query) -> tuple[int, int]:
    """64-bit sums and comparisons of a row."""
    policies = [state.policy for state in query.all_states if state.policy not in _COUNTS]
    sums = sum(_SUMS.get(policy, 0) for policy in policies)
    return sums, sum(policy not in _SUMS for policy in policies)


def _update(costs: Costs, query: Query, conflict: float) -> float:
    """Of all states of a row; ``conflict`` is what copies leave of the sums."""
    sums, comparisons = _updates(query)
    return conflict * sums * costs.add_ps + comparisons * costs.compare_ps


def _passes(parts: int) -> float:
    """How often the rows' work in shared memory counts when each pass takes one part of them."""
    return float(parts ** (1 - _THINNED))


def _overlapped(memory: float, work: float) -> float:
    return float((memory**_OVERLAP + work**_OVERLAP) ** (1 / _OVERLAP))


@lru_cache(maxsize=1024)
def _key_bytes(query: Query) -> int:
    words = query.form.made_words
    return 8 * words if words else query.row_bytes - _value_bytes(query)


@lru_cache(maxsize=1024)
def _value_bytes(query: Query) -> int:
    return sum(TYPE_BYTES.get(value.ctype, 0) for value in query.inputs)


@lru_cache(maxsize=1024)
def _read_bytes(query: Query) -> float:
    masked = sum(key.masked for key in query.keys) + sum(v.masked for v in query.inputs)
    return _key_bytes(query) + _value_bytes(query) + masked / 8


def plain(kernel: str) -> str:
    """The model's name of a kernel, which its variants share.

    Parameters
    ----------
    kernel : str

    Returns
    -------
    str
    """
    first = kernel.partition("_")[0]
    return first if first in _PLAIN else kernel


@dataclass(frozen=True)
class Observation:
    """One run: what was decided, and the milliseconds of its kernels, named as in the model."""

    query: Query
    rows: int
    decision: Decision
    multiprocessors: int
    tile: int
    kernel_ms: dict[str, float]

    def expected(self, costs: Costs) -> dict[str, float]:
        """The milliseconds that the model gives the same kernels."""
        expected = expected_kernel_ms(
            costs, self.query, self.rows, self.decision, self.multiprocessors, self.tile
        )
        return {name: expected[name] for name in self.kernel_ms if name in expected}


def fit(observations: Sequence[Observation], start: Costs) -> Costs:
    """Fit the constants of the model to measured times.

    Parameters
    ----------
    observations : sequence of Observation
    start : Costs
        Constants that the times do not depend on keep these values. So does the size of the L2
        cache, which the device reports.

    Returns
    -------
    Costs

    Notes
    -----
    Least squares of the logarithms of expected over measured time, and so of relative errors, by
    Levenberg's and Marquardt's method in the logarithms of the constants.
    """
    names = [f.name for f in fields(Costs) if f.name != "l2_megabytes"]
    first = np.log([getattr(start, name) for name in names])

    def costs(x: npt.NDArray[np.float64]) -> Costs:
        constants = dict(zip(names, np.exp(x).tolist(), strict=True))
        return Costs(**(asdict(start) | constants))

    def residuals(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        tried, errors = costs(x), []
        for seen in observations:
            for name, ms in seen.expected(tried).items():
                errors.append(np.log((ms + _RESOLUTION) / (seen.kernel_ms[name] + _RESOLUTION)))
        return np.concatenate([np.array(errors), _INERTIA * (x - first)])

    x, damping = first, 1e-2
    errors = residuals(x)
    for _ in range(_STEPS):
        step = 1e-4
        slopes = np.stack(
            [(residuals(x + step * unit) - errors) / step for unit in np.eye(len(x))], axis=1
        )
        normal = slopes.T @ slopes
        move = np.linalg.solve(
            normal + damping * np.diag(np.diag(normal)), -slopes.T @ errors
        ).clip(-1, 1)
        tried = residuals(x + move)
        if tried @ tried < errors @ errors:
            done = errors @ errors - tried @ tried < 1e-9 * (errors @ errors)
            x, errors, damping = x + move, tried, damping / 3
            if done:
                break
        else:
            damping *= 4
            if damping > 1e8:
                break
    return costs(x)


def error_of(observations: Sequence[Observation], costs: Costs) -> float:
    """The median relative error of the kernels that take more than the stopwatch's resolution."""
    errors = [
        abs(ms / seen.kernel_ms[name] - 1)
        for seen in observations
        for name, ms in seen.expected(costs).items()
        if seen.kernel_ms[name] > 5 * _RESOLUTION
    ]
    return float(np.median(errors)) if errors else 0.0
