"""The expected cost of a group-by on the device, from bytes, updates, accesses and runs.

Wu 2025 (section 5.2) chooses by a tree over the number of groups, Karnagel 2015 (section 4) by
rules of capacity and contention. Here both are counts of work times a device's constants, so that
the borders lie where two sums are equal, on each device elsewhere. Times are of the kernels that
the choice is between: making words of keys costs the same whichever is chosen.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dask_gpuagg.cuda.choice import partitions
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
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.query.forms import CODED, PACKED
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.tuning import ROOM_OF
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime.driver import Device

# Bytes that memory moves for a random access.
_SECTOR = 32
# A lane's expected wait for the bank that it shares with other lanes, by the copies of a state:
# from 32 lanes on 16 banks of 8 bytes at random down to one lane a bank (Monte Carlo).
_CONFLICT = {1: 1.0, 2: 0.95, 4: 0.87, 8: 0.65}
_NO_CONFLICT = 0.33
# A pass over the rows of which it takes an n-th costs n ** -0.18 of one that takes all: its warps
# run half empty, and only their bank conflicts get fewer.
_PASSES = 1 - 0.18
# Memory and shared memory work at the same time, but for the end of each tile.
_OVERLAP = 4.0
# Keys whose range is not wider than so many groups have first slots of their own.
_DENSE = 4
# Accesses of a group that is not the first of its slot, in those of one that is.
_NEXT = 2.0
# Rounds that have rows, where a table is as full as its estimate asks.
_ROUNDS = 6
# Share of a gather's cost where blocks take all partitions in so few rounds.
_CACHED_GATHER, _NEAR_ROUNDS = 0.45, 3
# What folding takes of a row and of a group (finding the slot, counting, finding the place), of a
# row in each column, and of a row in each state, in searches, moves and comparisons of a row.
_FOLD_FIND = 6.0
_FOLD_MOVE, _FOLD_STATE = 0.3, 0.9
# Where the slot is known, what is left of the first.
_FOLD_STRIPED_FIND = 2.5
# Bytes of the slot of a table that holds keys alone, as far as they cost.
_FOLD_SLOT = 8
# Atomics that nothing is looked up before come so close together that each takes longer.
_CLOSE = 1.25
# 64-bit sums, loops around a compare-and-swap, that an update of a state is made of. For those of
# 32 bits there is an instruction: they vanish behind the rest. States that are not here compare,
# and mostly change nothing.
_SUMS = {
    "Size": 0,
    "Count": 0,
    "IntegerSum": 1,
    "FloatSum": 1,
    "IntegerProduct": 1,
    "FloatProduct": 1,
    "WideSum": 2,
    "ExactSum": 3,
    "Moments": 2,
    "MergedMoments": 3,
}
# Resolution of the stopwatch, milliseconds.
_RESOLUTION = 0.01
# Weight of a constant's distance from its start: small, so that it matters only for constants that
# the measurements do not determine.
_INERTIA = 0.02
# Iterations of the fit, and by how much a logarithm is moved to find a slope.
_ITERATIONS, _STEP = 100, 1e-4
# Variants of a kernel, which the model gives the same constants.
_PLAIN = ("direct", "hgb", "scatter", "aggregate", "fold")


def expected_kernel_ms(
    costs: Costs, query: Query, rows: int, decision: Decision, device: Device
) -> dict[str, float]:
    """Expected device milliseconds of the kernels that a decision launches, by name.

    Variants of a kernel, as ``scatter_narrow``, have the name of the first. Without an estimate
    every row is taken for a group.
    """
    groups = max(1, rows if decision.estimate is None else min(rows, decision.estimate.groups))
    if isinstance(decision, Partitioned):
        query = decision.partition_query(query)
    model = _Model(costs, query, rows, groups, device, decision.estimate)
    match decision:
        case Partitioned():
            kernel_ms = model.partitioned(decision)
        case Direct():
            kernel_ms = {"direct": model.direct(decision)}
        case Hgb():
            kernel_ms = {"hgb": model.hgb(decision)}
        case Lphga():
            kernel_ms = {"lphga": model.lphga(decision)}
        case SpEga():
            kernel_ms = model.sp_ega(decision)
        case _:
            raise ValueError(f"the model does not describe {decision.kernel}")
    slot_bytes = sum(query.slot_bytes)
    if isinstance(decision, Direct | Hgb | Lphga | SpEga):
        slots = decision.global_slots
        kernel_ms |= {"clear": model.table(slots * slot_bytes), "collect": model.table(8 * slots)}
    # groups are read where they are and written as columns
    if not (isinstance(decision, Partitioned) and partitions.writes_columns(query, decision)):
        kernel_ms["write"] = model.table(2 * groups * slot_bytes)
    return {name: ms + costs.launch_us * 1e-3 for name, ms in kernel_ms.items()}


@dataclass(frozen=True)
class _Model:
    """Milliseconds of kernels, for so many rows and groups on one device."""

    costs: Costs
    query: Query
    rows: int
    groups: int
    device: Device
    estimate: KeySummary | None

    def columns(self, of_bytes: float) -> float:
        """Columns that are read or written."""
        return of_bytes / self.costs.bandwidth * 1e-6

    @property
    def read(self) -> float:
        """Keys and values of all rows."""
        return self.columns(self.rows * _row_bytes(self.query)[1])

    def table(self, of_bytes: float) -> float:
        """Global tables that are cleared, searched or written."""
        return of_bytes / self.costs.table_bandwidth * 1e-6

    def shared(self, picoseconds: float, blocks: int) -> float:
        """Work in shared memory of so many blocks."""
        return picoseconds * self.device.multiprocessors / blocks * 1e-9

    def hgb(self, decision: Hgb) -> float:
        work = self.find(self.groups / decision.shared_slots) + self.update(decision.replicas)
        accesses = decision.blocks * self.groups * _touched_fields(self.query)
        shared = self.shared(self.rows * work, decision.blocks)
        return _overlapped(self.read, shared) + accesses * self.costs.access_ps * 1e-9

    def direct(self, decision: Direct) -> float:
        fields = _touched_fields(self.query) - 1
        if not decision.in_shared:
            work = self.rows * fields * _CLOSE * self.costs.access_ps
            return _overlapped(self.read, max(work, self.in_line()) * 1e-9)
        # the bit that says that a key has occurred takes the place of the search
        work = self.costs.find_ps + self.update(decision.replicas)
        accesses = decision.blocks * self.groups * fields
        shared = self.shared(self.rows * work, decision.blocks)
        return _overlapped(self.read, shared) + accesses * self.costs.access_ps * 1e-9

    def lphga(self, decision: Lphga) -> float:
        work = self.rows * self.accesses(decision) + self.groups * self.costs.claim_ps
        return _overlapped(self.read, max(work, self.in_line()) * 1e-9)

    def sp_ega(self, decision: SpEga) -> dict[str, float]:
        row = self.accesses(decision)
        load = min(1.0, self.groups / decision.global_slots)
        # by chance, groups that are not the first of their slot
        lost = 1 - (1 - math.exp(-load)) / load
        first = max(self.rows * (1 - lost) * row, self.in_line())
        return {
            "first_place": _overlapped(self.read, first * 1e-9),
            "mark_free": self.table(8 * decision.global_slots * _ROUNDS),
            # they look at several slots, and read their rows again
            "next_place": self.rows * lost * _NEXT * row * 1e-9,
        }

    def partitioned(self, decision: Partitioned) -> dict[str, float]:
        hot = set(decision.hot)
        shares = self.estimate.hot if self.estimate is not None else ()
        moved = self.rows * (1 - min(1.0, sum(share for word, share in shares if word in hot)))
        # what a word is read or made from
        word = 8 if self.query.form.made_words else _row_bytes(self.query)[0]
        kernel_ms = {"scatter": self.scatter(decision, moved, word)}
        if decision.counted:
            counted = self.rows / ROOM_OF * word
            kernel_ms |= {"count_partitions": self.columns(counted), "lay_out": 0.0}
        if isinstance(decision, PgbFold):
            kernel_ms["fold"] = self.fold(decision, moved)
        elif isinstance(decision, Pgb):
            kernel_ms["aggregate"] = self.aggregate(decision, moved)
        return kernel_ms

    def scatter(self, decision: Partitioned, moved: float, word: int) -> float:
        query, costs = self.query, self.costs
        masked = sum(v.masked for v in query.all_inputs)
        # words that no register has room for are made twice, to count the rows and to move them
        words = 1 if decision.base is not None else 2
        # dividing a key by its step takes as long as reading a column
        keys = len(query.keys) * (1 + query.form.has_steps)
        loads = words * (1 if query.form.made_words else keys) + len(query.copied) + masked
        moves = 1 + len(query.copied) + query.has_row_numbers + (masked > 0)
        tile = partitions.scatter_of(query, self.device, decision)[1]
        runs = math.ceil(self.rows / max(tile, 1)) * decision.partitions * moves
        work = self.rows * loads * costs.load_ps + moved * moves * costs.move_ps
        work += (self.rows - moved) * (costs.find_ps + self.update(1)) + runs * costs.run_ps
        read = words * word + partitions.copied_bytes(query) + masked / 8
        memory = self.columns(self.rows * read + moved * partitions.moved_bytes(query, decision))
        return _overlapped(memory, work * 1e-9)

    def aggregate(self, decision: Pgb, rows: float) -> float:
        slices, slots = decision.slices, decision.partitions * decision.shared_slots
        memory = self.columns(slices * rows * partitions.moved_bytes(self.query, decision))
        if decision.window:
            once, copied = partitions.striped_bytes(self.query)
            find, slot = self.costs.find_ps, once + decision.replicas * copied
        else:
            find = self.find(self.groups / slices / slots)
            slot = partitions.hashed_bytes(self.query, decision.base)
        work = slices**_PASSES * rows * (find + self.update(decision.replicas))
        # the rows of a partition lie in order, so blocks side by side share what the cache holds
        near = _CACHED_GATHER if decision.partitions <= _NEAR_ROUNDS * decision.blocks else 1.0
        gathered = decision.gathered if isinstance(decision, PgbUr) else 0.0
        gathers = rows * gathered * near * self.costs.gather_ps
        tables = slices * slots * slot * self.costs.slot_ps
        writes = partitions.writes_columns(self.query, decision)
        written = self.groups * sum(self.query.slot_bytes) * writes
        shared = self.shared(work, decision.blocks)
        return _overlapped(memory, shared) + (gathers + tables) * 1e-9 + self.table(written)

    def fold(self, decision: PgbFold, rows: float) -> float:
        query, costs, slices = self.query, self.costs, decision.slices
        widths = [TYPE_BYTES[value.ctype] for _, value in query.copied]
        # a column is read as often as it fills shared memory, the places of its rows each time
        fills = [math.ceil(decision.fills * width / query.widest) for width in widths]
        read = partitions.moved_bytes(query, decision)
        read += sum((n - 1) * width for n, width in zip(fills, widths, strict=True))
        finds = _FOLD_STRIPED_FIND if decision.window else _FOLD_FIND
        moves = (len(widths) + query.has_row_numbers) * _FOLD_MOVE * costs.move_ps
        states = len(query.all_states) * _FOLD_STATE * costs.compare_ps
        work = (rows + self.groups) * finds * costs.find_ps + rows * (moves + states)
        slots = slices * decision.partitions * decision.shared_slots
        # phases of memory and of work alternate
        return (
            self.columns(slices * rows * read)
            + self.shared(slices**_PASSES * work, decision.blocks)
            + slots * _FOLD_SLOT * costs.slot_ps * 1e-9
            + self.table(self.groups * sum(query.slot_bytes))
        )

    def accesses(self, decision: Lphga | SpEga) -> float:
        """Picoseconds of what a row looks up and updates in a global table."""
        costs, accesses = self.costs, _touched_fields(self.query)
        # what is touched of the table: whole sectors, until the groups lie closer than these
        size = decision.global_slots * sum(self.query.slot_bytes)
        touched = min(self.groups * accesses * _SECTOR, size)
        missed = max(0.0, 1 - costs.l2_megabytes * 1e6 / touched)
        return accesses * (costs.access_ps + missed * costs.miss_ps)

    def in_line(self) -> float:
        """Picoseconds of the most frequent key: one address takes one atomic after the other."""
        heaviest = 0.0 if self.estimate is None else self.estimate.heaviest
        return self.rows * heaviest * self.costs.same_ps

    def find(self, load: float) -> float:
        """Picoseconds of finding a row's slot in a table that is so full."""
        if self.estimate is not None and self.query.form in (PACKED, CODED):
            least, greatest = self.estimate.bounds
            alone = self.query.form == CODED or len(self.query.keys) == 1
            if alone and greatest - least < _DENSE * self.groups:
                return self.costs.find_ps
        return self.costs.find_ps + self.costs.crowd_ps * math.sqrt(min(1.0, load))

    def update(self, replicas: int) -> float:
        """Picoseconds of all states of a row, of which there are so many copies."""
        sums, comparisons = _updates(self.query)
        conflict = _CONFLICT.get(replicas, _NO_CONFLICT)
        return conflict * sums * self.costs.add_ps + comparisons * self.costs.compare_ps


@lru_cache(maxsize=1024)
def _touched_fields(query: Query) -> int:
    """Arrays of a global table that a row accesses: the words, and the fields of its states."""
    return 1 + sum(max(1, _SUMS.get(state.policy, 0)) for state in query.all_states)


@lru_cache(maxsize=1024)
def _updates(query: Query) -> tuple[int, int]:
    """64-bit sums and comparisons of a row."""
    policies = [state.policy for state in query.all_states]
    return sum(_SUMS.get(p, 0) for p in policies), sum(p not in _SUMS for p in policies)


@lru_cache(maxsize=1024)
def _row_bytes(query: Query) -> tuple[int, float]:
    """Bytes of a row's keys, and of all that is read of it."""
    values = sum(TYPE_BYTES.get(value.ctype, 0) for value in query.inputs)
    words = query.form.made_words
    keys = 8 * words if words else query.row_bytes - values
    masked = sum(key.masked for key in query.keys) + sum(v.masked for v in query.inputs)
    return keys, keys + values + masked / 8


def _overlapped(memory: float, work: float) -> float:
    return float((memory**_OVERLAP + work**_OVERLAP) ** (1 / _OVERLAP))


def by_model(kernel_ms: Mapping[str, float]) -> dict[str, float]:
    """Milliseconds of kernels by the model's names, which their variants share."""
    of_model: dict[str, float] = {}
    for kernel, ms in kernel_ms.items():
        first = kernel.partition("_")[0]
        name = first if first in _PLAIN else kernel.removesuffix("_last")
        of_model[name] = of_model.get(name, 0.0) + ms
    return of_model


@dataclass(frozen=True)
class Observation:
    """One run: what was decided, and the milliseconds of its kernels, named as in the model."""

    query: Query
    rows: int
    decision: Decision
    device: Device
    kernel_ms: dict[str, float]

    def expected(self, costs: Costs) -> dict[str, float]:
        """The milliseconds that the model gives the same kernels."""
        expected = expected_kernel_ms(costs, self.query, self.rows, self.decision, self.device)
        return {name: expected[name] for name in self.kernel_ms if name in expected}


def fit(observations: Sequence[Observation], start: Costs) -> Costs:
    """Fit the constants of the model to measured times, but for the size of the L2 cache.

    Least squares of the logarithms of expected over measured time, and so of relative errors, by
    Levenberg's and Marquardt's method in the logarithms of the constants. Those that the times do
    not depend on stay.
    """
    names = [f.name for f in fields(Costs) if f.name != "l2_megabytes"]
    first = np.log([getattr(start, name) for name in names])

    def costs(x: npt.NDArray[np.float64]) -> Costs:
        constants = dict(zip(names, np.exp(x).tolist(), strict=True))
        return Costs(**(asdict(start) | constants))

    def residuals(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        tried, errors = costs(x), []
        for observation in observations:
            for name, ms in observation.expected(tried).items():
                measured = observation.kernel_ms[name] + _RESOLUTION
                errors.append(np.log((ms + _RESOLUTION) / measured))
        return np.concatenate([np.array(errors), _INERTIA * (x - first)])

    x, damping = first, 1e-2
    errors = residuals(x)
    for _ in range(_ITERATIONS):
        slopes = np.stack([(residuals(x + h) - errors) / _STEP for h in _STEP * np.eye(len(x))], 1)
        normal = slopes.T @ slopes
        move = np.linalg.solve(
            normal + damping * np.diag(np.diag(normal)), -slopes.T @ errors
        ).clip(-1, 1)
        tried = residuals(x + move)
        gain = errors @ errors - tried @ tried
        damping *= 1 / 3 if gain > 0 else 4
        if gain > 0:
            x, errors = x + move, tried
        if damping > 1e8 or 0 < gain < 1e-9 * (errors @ errors):
            break
    return costs(x)


def error_of(observations: Sequence[Observation], costs: Costs) -> float:
    """The median relative error of the kernels that take more than the stopwatch's resolution."""
    errors = [
        abs(ms / observation.kernel_ms[name] - 1)
        for observation in observations
        for name, ms in observation.expected(costs).items()
        if observation.kernel_ms[name] > 5 * _RESOLUTION
    ]
    return float(np.median(errors)) if errors else 0.0
