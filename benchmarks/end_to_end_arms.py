"""The arms of ``benchmarks.end_to_end``: stock Dask, ours, and peers on the same files."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dask

from benchmarks.end_to_end_cluster import (
    Files,
    Persisted,
    Run,
    Session,
    message_of,
    timed,
    without_frames,
)
from benchmarks.end_to_end_queries import Query, probes, summary

DEFAULT, TUNED, OURS, FLOOR = "stock-default", "stock-tuned", "ours", "floor"
CUDF_POLARS, POLARS, DUCKDB = "cudf-polars", "polars", "duckdb"
ARMS = (DEFAULT, TUNED, OURS, FLOOR, CUDF_POLARS, POLARS, DUCKDB)

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
    """Stock Dask, as it is or tuned, or the plugin."""

    question: Question
    name: str
    tuning: dict[str, Any] = field(default_factory=dict)

    def build(self) -> Any:
        """The collection."""
        asked = self.question
        return asked.query.build(asked.source.frame(), asked.key, **self.tuning)

    def switched(self) -> contextlib.AbstractContextManager[Any]:
        """The plugin on or off; what it does not run is an error, and not stock Dask's time."""
        if self.name != OURS:
            return contextlib.nullcontext()
        import dask_gpuagg

        stack = contextlib.ExitStack()
        stack.enter_context(dask.config.set({"gpuagg.fallback": "raise", "gpuagg.compile": "wait"}))
        stack.enter_context(dask_gpuagg.enabled())
        return stack

    def run(self, limit: float, look: bool) -> Run:
        """One run, from a cluster at rest to a cluster at rest."""
        asked = self.question
        asked.source.ready()

        def found(result: Any) -> dict[str, Any]:
            return asked.session.summary(result, asked.query, asked.key, asked.groups)

        failure: Exception
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

    def peak(self, limit: float) -> int:
        """Memory, in a separate run."""
        with self.question.session.counted() as peak:
            self.run(limit, False)
            return peak()

    def plan(self) -> list[str]:
        """What ``explain()`` says of ours, line by line."""
        import dask_gpuagg

        with self.switched():
            return str(dask_gpuagg.explain(self.build())).splitlines()

    def ran(self) -> list[str]:
        """What the kernels did last on a worker."""
        found = self.question.session.client.run(_last_runs)
        return next(iter(found.values()), [])


def _last_runs() -> list[str]:
    import dask_gpuagg

    return [str(run) for run in dask_gpuagg.last_runs()[-8:]]


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
    # one output of many groups takes longest: last, it is stopped soonest
    order = CANDIDATES if question.groups < MANY else CANDIDATES[::-1]
    for tuning in order:
        entry: dict[str, Any] = {**tuning, "times_ms": []}
        seen.append(entry)
        arm = DaskArm(question, TUNED, dict(tuning))
        try:
            name = arm.build().optimize(fuse=True).expr._name
            if name in known:
                entry["same_as"] = {label: known[name][label] for label in tuning}
                continue
            known[name] = entry
            _again(arm, entry, seen, limit)
        except Exception as error:
            entry["error"] = message_of(error)
    finished = sorted((e for e in seen if e["times_ms"]), key=lambda e: e["times_ms"][0])
    for entry in finished[:2]:
        try:
            tuning = {label: entry[label] for label in ("split_out", "shuffle_method")}
            _again(DaskArm(question, TUNED, tuning), entry, seen, limit)
        except Exception as error:
            entry["error"] = message_of(error)
    finished = [entry for entry in finished if "error" not in entry]
    if not finished:
        return None, seen
    best = min(finished, key=lambda entry: min(entry["times_ms"]))
    return {label: best[label] for label in ("split_out", "shuffle_method")}, seen


def _again(
    arm: DaskArm, entry: dict[str, Any], seen: list[dict[str, Any]], limit: Callable[[], float]
) -> None:
    least = min((ms for e in seen for ms in e["times_ms"]), default=float("inf"))
    done = arm.run(min(limit(), 2 * least / 1e3 + 1), False)
    entry["times_ms"].append(done.seconds * 1e3)


@dataclass(slots=True)
class Peer:
    """Another library on the same files, in this process; it cannot be stopped."""

    question: Question
    name: str

    def run(self, limit: float, look: bool) -> Run:
        """One run, to a table in this process."""
        call = {DUCKDB: _duckdb, POLARS: _polars, CUDF_POLARS: _cudf_polars}[self.name]
        asked = self.question
        assert isinstance(asked.source, Files)
        start = time.perf_counter()
        result, to_pandas = call(asked, f"{asked.source.folder}/*.parquet")
        seconds = time.perf_counter() - start
        found = None
        if look:
            frame = to_pandas(result).set_index(asked.key)
            found = summary(frame, asked.query, asked.key, probes(asked.groups))
        return Run(seconds, {}, found)


def _polars(asked: Question, files: str, engine: Any = "streaming") -> tuple[Any, Any]:
    import polars as pl

    outputs = [
        getattr(pl.col(column), function)().alias(f"{column}_{function}")
        for column, function in asked.query.aggregations
    ]
    result = pl.scan_parquet(files).group_by(asked.key).agg(outputs).collect(engine=engine)
    return result, lambda frame: frame.to_pandas()


def _cudf_polars(asked: Question, files: str) -> tuple[Any, Any]:
    # by default it takes most of the free memory as managed memory, beside the workers' pools
    os.environ.setdefault("POLARS_GPU_ENABLE_CUDA_MANAGED_MEMORY", "0")
    # libcudf in this process copies files by as many threads as on the workers
    from dask_gpuagg.worker.plugin import copy_files_by_all_cores

    copy_files_by_all_cores()
    import polars as pl

    return _polars(asked, files, pl.GPUEngine(executor="streaming", raise_on_fail=True))


def _duckdb(asked: Question, files: str) -> tuple[Any, Any]:
    import duckdb

    outputs = ", ".join(
        f"{'avg' if function == 'mean' else function}({column}) as {column}_{function}"
        for column, function in asked.query.aggregations
    )
    query = f"select {asked.key}, {outputs} from read_parquet('{files}') group by {asked.key}"
    connection = duckdb.connect()
    # a separate table: handing many rows to Arrow takes one thread longer than the query
    connection.execute(f"create temp table answer as {query}")
    return connection, lambda c: c.execute("select * from answer").df()


def missing(name: str) -> str | None:
    """Why a peer cannot run."""
    needed = {DUCKDB: ["duckdb"], POLARS: ["polars"], CUDF_POLARS: ["polars", "cudf_polars"]}
    absent = [module for module in needed.get(name, []) if not importlib.util.find_spec(module)]
    return f"{' and '.join(absent)} not installed" if absent else None
