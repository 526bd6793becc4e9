"""The arms of ``benchmarks.end_to_end``: stock Dask, ours, the floor."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import dask

from benchmarks.end_to_end_cluster import (
    DEVICE,
    HOST,
    Files,
    Persisted,
    Query,
    Run,
    Session,
    Stopped,
    libraries,
    message_of,
    timed,
    without_frames,
)
from benchmarks.gpu import aggregator_of

TUNED, OURS, EXACT, FLOOR = "stock-tuned", "ours", "ours-exact", "floor"
ARMS = (TUNED, OURS, EXACT, FLOOR)

CANDIDATES = tuple(
    {"split_out": outputs, "shuffle_method": method}
    for outputs in (1, 3, 16)
    for method in ("p2p", "tasks")
)
MANY = 1_000_000


@dataclass(frozen=True, slots=True)
class Question:
    """One query on one input."""

    query: Query
    key: str
    groups: int
    source: Persisted | Files

    @property
    def session(self) -> Session:
        """The cluster."""
        return self.source.session


@dataclass(slots=True)
class DaskArm:
    """Stock Dask with some tuning, or the plugin."""

    question: Question
    name: str
    tuning: dict[str, Any] = field(default_factory=dict)

    def build(self) -> Any:
        """The collection."""
        asked = self.question
        return asked.query.build(asked.source.frame(), asked.key, **self.tuning)

    @contextlib.contextmanager
    def switched(self) -> Iterator[None]:
        """The plugin on or off; what it does not run is an error, and not stock Dask's time."""
        if self.name not in (OURS, EXACT):
            yield
            return
        import dask_gpuagg

        settings: dict[str, Any] = {"gpuagg.fallback": "raise", "gpuagg.compile": "wait"}
        settings |= {"gpuagg.deterministic": self.name == EXACT}
        with dask.config.set(settings), dask_gpuagg.enabled():
            yield

    def run(self, limit: float, look: bool) -> Run:
        """One run, from a cluster at rest to a cluster at rest."""
        asked = self.question
        asked.source.ready()

        def found(result: Any) -> dict[str, Any]:
            return asked.session.summary(result, asked.query, asked.key, asked.groups)

        try:
            with self.switched():
                done = timed(asked.session, self.build, limit, found if look else None)
        except Exception as error:
            failure = without_frames(error)
        else:
            if not asked.session.settle():
                asked.session.recover()
            return done
        asked.session.recover()
        raise failure


def tuned(
    question: Question, limit: Callable[[], float]
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The best of the candidates for stock Dask, and what was seen of each.

    A candidate is stopped when it takes longer than ``limit()`` or than twice the best so far; the
    two best run again, because the first run of a plan may compile or import. Candidates that
    Dask lowers to the same expression are one.
    """
    seen: list[dict[str, Any]] = []
    known: dict[str, dict[str, Any]] = {}

    def attempt(entry: dict[str, Any]) -> None:
        arm = DaskArm(question, TUNED, tuning_of(entry))
        try:
            name = arm.build().optimize(fuse=True).expr._name
            if known.setdefault(name, entry) is not entry:
                entry["same_as"] = tuning_of(known[name])
                return
            least = min((ms for e in seen for ms in e["times_ms"]), default=float("inf"))
            done = arm.run(min(limit(), 2 * least / 1e3 + 1), False)
            entry["times_ms"].append(done.seconds * 1e3)
        except Exception as error:
            entry["error"] = message_of(error)

    # one output of many groups takes longest: last, it is stopped soonest
    for tuning in CANDIDATES if question.groups < MANY else CANDIDATES[::-1]:
        seen.append({**tuning, "times_ms": []})
        attempt(seen[-1])
    finished = sorted((e for e in seen if e["times_ms"]), key=lambda e: e["times_ms"][0])
    for entry in finished[:2]:
        attempt(entry)
    finished = [entry for entry in finished if "error" not in entry]
    best = min(finished, key=lambda entry: min(entry["times_ms"]), default=None)
    return best and tuning_of(best), seen


def tuning_of(entry: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a candidate."""
    return {label: entry[label] for label in ("split_out", "shuffle_method")}


# ---- the floor: what takes no less, whoever plans the query --------------------------------------

READERS = 4
REPEATS = 5
COPIED = {HOST: 1 << 27, DEVICE: 1 << 32}


@dataclass(slots=True)
class Floor:
    """Reading the columns, and the kernels alone.

    For persisted rows each worker at once groups its own, stacked to one table, in one
    task, and measures its memory; on the host it only reads. For files, each worker at once reads
    its share of them by several threads. Bringing results together is left out.
    """

    question: Question
    name: str = FLOOR

    def run(self, limit: float, look: bool) -> Run:
        """``seconds``: the slowest worker's median, of the kernels where there are some."""
        session = self.question.session
        calls = [
            session.client.submit(call, *arguments, workers=[address], pure=False)
            for address, call, *arguments in self._calls()
        ]
        found, failure = [], None
        try:
            found = _gathered(calls, limit)
        except Exception as error:
            session.client.cancel(calls)
            failure = without_frames(error)
        calls.clear()
        session.recover()
        if failure is not None:
            raise failure
        slowest = {step: max(one[step] for one in found) for step in found[0]}
        return Run(slowest.get("kernels", slowest["read"]), slowest)

    def _calls(self) -> Iterator[tuple[Any, ...]]:
        """For each worker its address, a function, and its arguments."""
        from distributed import futures_of

        asked = self.question
        engine = asked.session.engine
        if isinstance(asked.source, Files):
            columns, workers = [asked.key, *asked.query.values], asked.session.addresses()
            for i, address in enumerate(workers):
                yield address, read, asked.source.paths[i :: len(workers)], columns, engine
            return
        futures = futures_of(asked.source.frame())
        where, parts = asked.session.client.who_has(futures), collections.defaultdict(list)
        for future in futures:
            parts[where[future.key][0]].append(future)
        for address, held in parts.items():
            yield address, group, held, asked.query, asked.key, engine


def _gathered(calls: list[Any], limit: float) -> list[dict[str, float]]:
    end = time.perf_counter() + limit
    try:
        return [call.result(timeout=max(0.1, end - time.perf_counter())) for call in calls]
    except TimeoutError:
        raise Stopped(f"more than {limit:.0f} s") from None


def read(paths: Sequence[str], columns: list[str], engine: str) -> dict[str, float]:
    """Read columns of files by several threads; what was read is dropped."""
    if engine == HOST:
        from pyarrow import parquet

        def one(path: str) -> int:
            return int(parquet.read_table(path, columns=columns, use_threads=False).num_rows)
    else:
        import cudf

        def one(path: str) -> int:
            return len(cudf.read_parquet(path, columns=columns))

    def all_of_them() -> None:
        with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
            list(pool.map(one, paths))

    return {"read": median_seconds(all_of_them, engine)}


def group(parts: Sequence[Any], query: Query, key: str, engine: str) -> dict[str, float]:
    """Read the columns at the bandwidth of a copy; on a device, the kernels on one table too."""
    rows = sum(map(len, parts))
    found = {"read": rows * query.row_bytes / bandwidth(engine)}
    kernels = {"sum", "count", "min", "max", "mean"}
    if engine == DEVICE and {function for _, function in query.aggregations} <= kernels:
        import cudf

        columns = [key, *query.values]
        table = cudf.concat([part[columns] for part in parts], ignore_index=True)
        column = {label: table[label].to_pylibcudf()[0] for label in columns}
        pairs = [(column[label], [function]) for label, function in query.aggregations]
        found["kernels"] = median_seconds(
            lambda: aggregator_of([column[key]], pairs).run(key_labels=(key,)), engine
        )
    return found


def bandwidth(engine: str) -> float:
    """Bytes a second that a copy reads and writes."""
    xp, _ = libraries(engine)
    source = xp.ones(COPIED[engine], dtype="uint8")
    target = xp.empty_like(source)

    def copy() -> None:
        target[...] = source

    return float(2 * COPIED[engine] / median_seconds(copy, engine))


def median_seconds(call: Callable[[], Any], engine: str) -> float:
    """Median of some calls after a first one."""
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        result = call()
        if engine == DEVICE:
            import cupy

            cupy.cuda.Device().synchronize()
        times.append(time.perf_counter() - start)
        del result
    return statistics.median(times[1:])
