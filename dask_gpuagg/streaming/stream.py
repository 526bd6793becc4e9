"""Host partitions to partials of the host engine, grouped by a GPU batch by batch.

Batches are copied ahead of the kernels. The groups of several batches are merged on the device as
they grow. Where device memory does not suffice, groups leave for the host, batches are halved, and
what is then still too large is grouped by the host engine: its partials have the same layout.

A billion groups have no kernel that reads their rows once: partitions whose tables fit shared
memory hold some ten million. So tables of many groups are divided first, and each part is grouped
by itself, after MP-EGA (section 4.2 of Wang and Shen, EGA, 2025). Groups are balls, parts are bins,
and the bound on the fullest bin says how many parts there have to be.
"""

from __future__ import annotations

import importlib.util
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from dask.system import cpu_count

from dask_gpuagg.aggregations import Kind
from dask_gpuagg.cuda.runtime.driver import unavailable
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.host import engine as host
from dask_gpuagg.plan import Plan
from dask_gpuagg.reporting.events import Fallback, FellBack, emit
from dask_gpuagg.reporting.fallbacks import UnsupportedGroupBy, warn_user
from dask_gpuagg.states import STATES
from dask_gpuagg.streaming.batches import Batch, Sizes, Slice, batches, halves, is_exact

if TYPE_CHECKING:
    # it imports cuDF; tests have a device without it
    from dask_gpuagg.streaming.gpu import Gpu

# Parts of divided tables: a power of two, which libcudf divides by with a mask. With more of them
# the calls of the kernels take longer than they save.
PARTS = 16
# Groups of an undivided table: beyond them a part has enough for a pass of the kernels.
MOST_GROUPS = 1 << 27
# Probability that some part exceeds the capacity.
_RISK = 1e-6
_MOST_PARTS = 256
# Groups that are merged at the end only.
_FEW_ROWS = 1 << 22
# A batch of fewer rows is not halved any more.
_LEAST_ROWS = 1 << 16
# Groups of all rows for each of those that a table has when it leaves: if there are fewer, several
# parts are loaded together.
_GROWTH = 16
# Parts of the host that are larger are merged before the end, whenever they have doubled.
_SPILLED_BYTES = 32 << 30
_LACKING = FellBack(
    Fallback(
        "some rows of host partitions", "run on the host", "device memory does not suffice for them"
    )
)


def parts_of(groups: int, capacity: int) -> int:
    """Number of parts with which none is likely to have more groups than fit.

    Some of ``m`` bins has ``k`` of ``n`` balls with a probability of at most ``m (n e / (k
    m))**k``. That is ``p`` for ``m = exp((k ln(n e / k) - ln p) / (k - 1))``. Of large ``k`` that
    is ``e n / k``.
    """
    if groups <= capacity:
        return 1
    k = max(capacity, 2)
    number = math.exp(min((k * math.log(groups * math.e / k) - math.log(_RISK)) / (k - 1), 99.0))
    return min(math.ceil(number), _MOST_PARTS)


def loads(rows: Sequence[int], capacity: int) -> list[list[int]]:
    """Parts in loads, greedily: as many as fit together, a larger one alone, empty ones in none."""
    result: list[list[int]] = []
    size = 0
    for part, n in enumerate(rows):
        if not n:
            continue
        if not result or size + n > capacity:
            result.append([])
            size = 0
        result[-1].append(part)
        size += n
    return result


class Stream:
    """The groups of the batches until now; the host engine grouped ``by_host`` of their rows."""

    def __init__(self, plan: Plan, device: Gpu, sizes: Sizes) -> None:
        self.plan, self.device, self.sizes = plan, device, sizes
        self.by_host = 0
        # in the order of their rows: tables of groups as the host engine has them
        self.finished: list[pd.DataFrame] = []
        # behind those, on the device: by part and in the order of their rows. No two parts share a
        # group; there is one until they are divided.
        self.tables: list[list[Any]] = [[]]
        # groups after the last merge
        self.merged_rows = 0
        # a batch of the rows that the tables are of: its dtypes are theirs
        self.like: Batch = ()
        # of tables that were too large: tables of the host, by part and in order
        self.parts: list[list[pd.DataFrame]] = []
        self.part_like: Batch = ()
        self.part_capacity = 0
        # rows of the parts after they were merged
        self.compacted_rows = 0

    def take(self, waiting: deque[tuple[Batch, Future[Any]]]) -> None:
        """Group the first batch of those that wait."""
        batch, loaded = waiting.popleft()
        tables = self._grouped(loaded.result)
        # the future keeps what it has loaded
        del loaded
        if tables is not None:
            self._hold(batch, tables)
            return
        self.sizes.refused()
        self.device.release()
        self._step_down(batch)

    def _hold(self, batch: Batch, tables: list[Any]) -> None:
        """Keep the tables of a batch on the device, and merge what has grown."""
        groups = sum(map(len, tables))
        nbytes = sum(_bytes_of(each.part) * len(each) / max(len(each.part), 1) for each in batch)
        self.sizes.grouped(sum(map(len, batch)), groups, nbytes)
        # of null keys alone: the number of parts is made of the groups that are held
        if not groups:
            return
        if self.like and not _are_alike(self.like[0].part, batch[0].part):
            self.spill()
        if not any(self.tables):
            self.tables = [[] for _ in tables]
        for part, table in zip(self.tables, tables, strict=True):
            part.append(table)
        self.like = batch[:1]
        # a merge releases its tables, which nothing else may keep
        tables.clear()
        many = self._rows() > max(_FEW_ROWS, 2 * self.merged_rows)
        large = 0 < self._kept < self._nbytes()
        if self._can_merge() and (many or large):
            self.merge()
            if len(self.tables) == 1 and self.merged_rows > MOST_GROUPS:
                _attempt(self._divide)

    def _divide(self) -> None:
        ((table,),) = self.tables
        self.tables = [[piece] for piece in self.device.divided(table, self.plan, PARTS)]

    def _rows(self) -> int:
        """Groups of all tables of the device."""
        return sum(len(table) for part in self.tables for table in part)

    def _nbytes(self) -> int:
        return sum(self.device.nbytes(table) for part in self.tables for table in part)

    def _can_merge(self) -> bool:
        return any(len(part) > 1 for part in self.tables)

    @property
    def _kept(self) -> int:
        """Bytes of groups that stay: those of parts are held twice one part at a time."""
        return self.sizes.of_groups if len(self.tables) == 1 else self.sizes.of_groups * 3 // 2

    def merge(self, last: bool = False) -> None:
        """Merge the tables of the device; where that does not fit, move them.

        The last ones are moved in parts only where others were: they are complete then.
        """
        if not self._can_merge():
            return
        is_merged = _attempt(self._merge_parts)
        most = max(self._kept, self.sizes.most)
        if not is_merged or (not last and self._nbytes() > most):
            self.spill_partitioned()

    def _merge_parts(self) -> bool:
        """Make one table of each part; those merged before memory lacks stay so."""
        for part in self.tables:
            if len(part) > 1:
                part[:] = [self.device.merged(part, self.plan)]
        self.merged_rows = self._rows()
        return True

    def _take_tables(self) -> list[Any]:
        """Give away all tables of the device; undivided ones follow."""
        tables = [table for part in self.tables for table in part]
        self.tables, self.merged_rows = [[]], 0
        return tables

    def spill(self) -> None:
        """Move the tables of the device to the host."""
        together = not self._can_merge()
        self._to_host(self._take_tables(), together)

    def _to_host(self, tables: list[Any], together: bool = False) -> None:
        if together and tables:
            self.finished.append(self.device.to_host(tables, self.plan, self.like))
            tables.clear()
        tables.reverse()
        while tables:
            self.finished.append(self.device.to_host([tables.pop()], self.plan, self.like))
        self.like = ()

    def spill_partitioned(self) -> None:
        """Move the tables of the device to the host, divided by key hash if that can be.

        So what is to be merged later can be merged part by part on the device.
        """
        rows = self._rows()
        row_bytes = self._nbytes() / max(rows, 1)
        tables = self._take_tables()
        if not self.plan.order_sensitive and (
            not self.parts or _are_alike(self.like[0].part, self.part_like[0].part)
        ):
            self.part_like = self.like
            self.part_capacity = max(int(self.sizes.most / max(row_bytes, 1.0)), 1)
            number = len(self.parts) or max(2, parts_of(_GROWTH * rows, self.part_capacity))
            in_parts = self.device.to_host_in_parts
            while tables:
                divided = _attempt(lambda: in_parts(tables[0], self.plan, self.like, number))
                if divided is None:
                    break
                del tables[0]
                self.parts = self.parts or [[] for _ in divided]
                for part, piece in zip(self.parts, divided, strict=True):
                    part.append(piece)
            spilled = sum(len(piece) for part in self.parts for piece in part)
            if spilled > max(_SPILLED_BYTES / max(row_bytes, 1.0), 2 * self.compacted_rows):
                self._compact()
        self._to_host(tables)

    def _compact(self) -> None:
        """Merge the tables of each part on the host: its memory holds groups, however many rows."""
        for part in self.parts:
            pieces = [piece for piece in part if len(piece)]
            part[:] = [self._merged_part(pieces)] if len(pieces) > 1 else pieces
        self.compacted_rows = sum(len(piece) for part in self.parts for piece in part)

    def finish(self) -> list[Any]:
        """The partials of all rows."""
        self.merge(last=True)
        if self.parts and any(self.tables):
            self.spill_partitioned()
        self.spill()
        if self.parts:
            self._finish_parts()
        return [{"groups": table} for table in self.finished if len(table)]

    def _finish_parts(self) -> None:
        """Merge the parts, as many at a time as the device takes; no two share a group."""
        merged: list[pd.DataFrame] = []
        rows = [sum(map(len, part)) for part in self.parts]
        for numbers in loads(rows, self.part_capacity):
            pieces = [piece for number in numbers for piece in self.parts[number]]
            merged += [self._merged_part(pieces)] if len(pieces) > 1 else pieces
            for number in numbers:
                self.parts[number] = []
        self.parts = []
        tables = host.alike(merged, self.plan)
        del merged
        # column by column: what is concatenated is released before the next
        groups = {
            name: _concatenated([table.pop(name) for table in tables])
            for name in list(tables[0].columns)
        }
        self.finished.append(pd.DataFrame(groups, copy=False))

    def _merged_part(self, pieces: list[pd.DataFrame]) -> Any:
        """The groups of some tables of the host, by the device if they fit there."""

        def on_device() -> Any:
            tables: list[Any] = []
            # the groups may fit though the pieces do not
            for numbers in loads(list(map(len, pieces)), self.part_capacity):
                loaded = host.alike([pieces[i] for i in numbers], self.plan)
                tables.append(self.device.from_host(loaded, self.plan))
                tables = [self.device.merged(tables, self.plan)]
            return tables[0]

        table = _attempt(on_device)
        if table is None:
            partials = [{"groups": piece.reset_index(drop=True)} for piece in pieces]
            return host.combine(partials, self.plan)["groups"]
        return self.device.to_host([table], self.plan, self.part_like)

    def _grouped(self, load: Callable[[], Any]) -> Any | None:
        """The groups of what a call loads; None where device memory does not suffice."""
        parts = len(self.tables)
        return _attempt(lambda: self.device.partial(load(), self.plan, parts))

    def _step_down(self, batch: Batch) -> None:
        """Group a batch for which device memory did not suffice: with less and less of it."""
        if any(self.tables):
            self.spill_partitioned()
        tables = self._grouped(lambda: self.device.load(batch))
        if tables is not None:
            self._hold(batch, tables)
        elif sum(map(len, batch)) > _LEAST_ROWS:
            for half in halves(batch):
                self._step_down(half)
        else:
            self.spill()
            for each in batch:
                self.by_host += len(each)
                self.finished.append(by_host(each, self.plan)["groups"])


def _concatenated(columns: list[pd.Series]) -> pd.Series:
    """Columns in one. All cores copy numbers: what takes long is to touch new memory."""
    dtype, *others = {column.dtype for column in columns}
    if others or not isinstance(dtype, np.dtype) or dtype.hasobject:
        return pd.concat(columns, ignore_index=True)
    ends = np.cumsum([len(column) for column in columns])
    values = np.empty(ends[-1], dtype)
    with ThreadPoolExecutor(cpu_count()) as pool:
        list(pool.map(np.copyto, np.split(values, ends[:-1]), columns))
    return pd.Series(values, copy=False)


def _attempt(make: Callable[[], Any]) -> Any | None:
    """Call ``make``; None where device memory does not suffice."""
    try:
        return make()
    except MemoryError:
        return None


def by_host(rows: Slice, plan: Plan) -> Any:
    """The partial that the host engine makes of some rows."""
    part, span = rows.part, slice(rows.start, rows.stop)
    keys = [key.iloc[span] for key in part.keys]
    columns = [column.iloc[span] for column in part.columns]
    return host.partial(keys, columns, part.index[span], plan)


def partials_of(
    parts: Iterator[Any], plan: Plan, device: Gpu, most: int | None = None
) -> list[Any]:
    """The partials of host partitions, in their order; one, where device memory suffices.

    ``parts`` have ``keys``, ``columns`` and ``index``, of the dtypes of the plan, which
    ``refusal`` admits. A batch has at most so many bytes, whatever the device takes.
    """
    sizes = device.sizes()
    if most is not None:
        sizes.limit(most)
    stream = Stream(plan, device, sizes)
    waiting: deque[tuple[Batch, Future[Any]]] = deque()
    last: list[Any] = []

    def seen() -> Iterator[Any]:
        for part in parts:
            last[:] = [part]
            yield part

    # two: the copies of a batch begin while the last ones of the batch before are under way
    with ThreadPoolExecutor(2, "gpuagg-copy", device.begin) as copier:
        for batch in batches(seen(), sizes, _bytes_of, _are_alike):
            waiting.append((batch, copier.submit(device.load, batch)))
            if len(waiting) > 1:
                stream.take(waiting)
        while waiting:
            stream.take(waiting)
        partials = stream.finish()
    if stream.by_host:
        emit(_LACKING)
    if not partials:
        # dtypes of no groups are the host engine's matter: these rows have none either
        partials = [by_host(Slice(part, 0, min(len(part), 1)), plan) for part in last]
    return partials


def _bytes_of(part: Any) -> int:
    return host.bytes_of((*part.keys, *part.columns))


def _are_alike(part: Any, other: Any) -> bool:
    """Whether the columns of two partitions have the same dtypes."""
    columns, others = (*part.keys, *part.columns), (*other.keys, *other.columns)
    return all(_is_same(a.dtype, b.dtype) for a, b in zip(columns, others, strict=True))


def _is_same(dtype: Any, other: Any) -> bool:
    # equal categories may be in another order, which their codes show
    categories = getattr(dtype, "categories", None)
    return bool(dtype == other and (categories is None or categories.equals(other.categories)))


def refusal(plan: Plan) -> str | None:
    """Why the host engine groups the partitions of a plan of pandas; None if the GPU does."""
    refused = _refused(plan)
    return None if refused is None else f"the GPU does not support {refused} of pandas partitions"


def _refused(plan: Plan) -> str | None:
    if plan.shape != "groups" or not plan.is_one_table:
        refused = [o for o in plan.outputs if o.kind is not Kind.MERGEABLE] or plan.outputs
        return " and ".join(sorted({output.aggregation for output in refused}))
    if not plan.observed and any(dtype_class(key.dtype) == "category" for key in plan.keys):
        return "groups of categories without rows"
    for key in plan.keys:
        if not is_exact(key.dtype, key=True):
            return f"keys of dtype {key.dtype}"
    for use in plan.states:
        words = STATES[use.state].words or use.state
        for c in use.columns:
            column = plan.columns[c]
            accepted = dtype_class(column.dtype) in STATES[use.state].kernels
            if not accepted or not is_exact(column.dtype, key=False):
                return f"{words} of dtype {column.dtype}"
        if not STATES[use.state].kernels:
            return words
    return None


def is_as_promised(keys: Any, columns: Any, plan: Plan) -> bool:
    """Whether the columns of a partition have the dtypes of the plan."""
    dtypes = [column.dtype for column in (*keys, *columns)]
    promised = [column.dtype for column in (*plan.keys, *plan.columns)]
    return all(
        is_exact(own, key=i < len(keys))
        and (own == other or dtype_class(own) == dtype_class(other) == "category")
        for i, (own, other) in enumerate(zip(dtypes, promised, strict=True))
    )


def streams(plan: Plan) -> bool:
    """Whether the GPU groups the host partitions of a plan.

    Where it was asked to and does not, the reason is counted, and warned of once in each process,
    or raised under ``gpuagg.fallback: raise``.
    """
    settings = plan.settings
    if settings is None or settings.engine != "device":
        return False
    reason = refusal(plan) or obstacle()
    if reason is None:
        return True
    if settings.fallback == "raise":
        raise UnsupportedGroupBy(f"gpuagg.engine is 'device', but {reason}")
    emit(FellBack(Fallback("a group-by of host partitions", "runs on the host", reason)))
    if settings.fallback == "warn":
        _warn(reason)
    return False


@lru_cache(1)
def obstacle() -> str | None:
    """Why no partition can be grouped on a GPU in this process; None if it can."""
    if importlib.util.find_spec("cudf") is None:
        return "cuDF is not installed"
    return unavailable()


@lru_cache(1000)
def _warn(reason: str) -> None:
    warn_user(f"gpuagg.engine is 'device', but a group-by runs on the host: {reason}")
