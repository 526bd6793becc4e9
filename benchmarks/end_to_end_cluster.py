"""Queries in a cluster, for ``benchmarks.end_to_end``: rows, right answers, one timed run, memory.

Everything is drawn from a partition's number, so that the expected answer is made from the rows
again, whether a query met them in memory or in a file. Code that runs on workers imports what it
needs there: the client may have no GPU.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd

from benchmarks import machine
from benchmarks.arms import describe_error

HOST, DEVICE = "host", "device"
TOLERANCE = {"v": 1e-9, "w": 1e-3}
"""Largest relative difference that is right, by column. cuDF sums float32 as float32."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query: pairs of column and aggregation."""

    name: str
    title: str
    aggregations: tuple[tuple[str, str], ...]

    @property
    def values(self) -> list[str]:
        """Columns that are aggregated."""
        return list(dict.fromkeys(column for column, _ in self.aggregations))

    @property
    def labels(self) -> list[str]:
        """Columns of the answer."""
        return [f"{column}_{function}" for column, function in self.aggregations]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row that have to be read, an int64 key included."""
        return 8 + sum({"v": 8, "w": 4}[column] for column in self.values)

    def build(self, frame: Any, key: str, **tuning: Any) -> Any:
        """The query as a user writes it, on a collection or on a frame."""
        grouped = frame.groupby(key)
        if len(self.aggregations) == 1:
            ((column, function),) = self.aggregations
            return getattr(grouped[column], function)(**tuning)
        spec: dict[str, list[str]] = {}
        for column, function in self.aggregations:
            spec.setdefault(column, []).append(function)
        return grouped.agg(spec, **tuning)


QUERIES = {
    query.name: query
    for query in (
        Query("sum", "sum of one column", (("v", "sum"),)),
        Query(
            "five",
            "sum, count, min, max and a mean",
            (("v", "sum"), ("v", "count"), ("v", "min"), ("v", "max"), ("w", "mean")),
        ),
        Query("median", "median of one column", (("v", "median"),)),
    )
}


@dataclass(frozen=True, slots=True)
class Rows:
    """How rows are drawn: how many, in how many partitions, and the groups of each key column."""

    rows: int
    partitions: int
    keys: tuple[tuple[str, int], ...]
    engine: str

    def draw(self, index: int) -> Any:
        """A partition: int64 keys, float64 ``v`` and float32 ``w``, uniform."""
        xp, frames = libraries(self.engine)
        rng = xp.random.default_rng(index)
        n = (self.rows * (index + 1)) // self.partitions - (self.rows * index) // self.partitions
        columns = {label: rng.integers(0, g, n, dtype="int64") for label, g in self.keys}
        columns["v"] = rng.random(n)
        columns["w"] = rng.random(n, dtype="float32")
        return frames.DataFrame(columns)

    def write(self, index: int, folder: Path) -> None:
        """A partition as a Parquet file."""
        path = folder / f"{index:04d}.parquet"
        # several row groups: a reader may cut a file
        groups = {} if self.engine == HOST else {"row_group_size_rows": 2_500_000}
        self.draw(index).to_parquet(path, compression="snappy", index=False, **groups)


def libraries(engine: str) -> tuple[Any, Any]:
    """NumPy and pandas, or CuPy and cuDF."""
    if engine == HOST:
        return np, pd
    import cudf
    import cupy

    return cupy, cudf


def probes(groups: int) -> list[int]:
    """Keys whose groups are compared one by one."""
    return sorted({0, 1 % groups, groups // 2, groups - 1})


def seen_in(indices: Sequence[int], rows: Rows, key: str) -> dict[str, Any]:
    """Contribution of some partitions to the expected answer: totals as :func:`summary` has them.

    ``seen`` has a bit for each key, and ``rows`` are those of the probed keys, for pandas.
    """
    (xp, _), groups = libraries(rows.engine), dict(rows.keys)[key]
    seen, totals, probed = xp.zeros(groups, dtype=bool), [], []
    for index in indices:
        frame = rows.draw(index)
        seen[frame[key].values] = True
        of_probes = frame[frame[key].isin(probes(groups))][[key, "v", "w"]]
        probed.append(of_probes if rows.engine == HOST else of_probes.to_pandas())
        part = {f"v_{name}": float(getattr(frame["v"], name)()) for name in ("sum", "min", "max")}
        part |= {"v_count": len(frame), "w_sum": float(frame["w"].astype("float64").sum())}
        totals.append({"groups": 0, "probes": {}} | part)
    packed = xp.packbits(seen)
    packed = packed if rows.engine == HOST else packed.get()
    return {"seen": packed, "totals": together(totals), "rows": pd.concat(probed)}


def expected(found: Iterable[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """The expected answer in the form of :func:`summary`, with the probed groups of all queries."""
    parts = list(found)
    seen = np.bitwise_or.reduce([part["seen"] for part in parts])
    probed = pd.concat([part["rows"] for part in parts])
    answers = pd.DataFrame(index=sorted(probed[key].unique()))
    for query in QUERIES.values():
        for column, function in query.aggregations:
            values = probed.groupby(key)[column]
            answers[f"{column}_{function}"] = values.agg(function).astype("float64")
    return together(part["totals"] for part in parts) | {
        "groups": int(np.bitwise_count(seen).sum()),
        "probes": {int(k): row for k, row in answers.to_dict("index").items()},
    }


def summary(result: Any, query: Query, key: str, wanted: Sequence[int]) -> dict[str, Any]:
    """Summarize an answer, or a partition of it: groups, totals, the groups of wanted keys."""
    frame = result.to_frame() if result.ndim == 1 else result.copy(deep=False)
    frame.columns = query.labels
    frame = frame.reset_index()
    found: dict[str, Any] = {"groups": len(frame)}
    for label in query.labels:
        if len(frame) and label.partition("_")[2] in ("sum", "count", "min", "max"):
            function = label.partition("_")[2].replace("count", "sum")
            found[label] = float(getattr(frame[label], function)())
    if len(frame) and "w_mean" in query.labels:
        found["w_sum"] = float((frame["w_mean"].astype("float64") * frame["v_count"]).sum())
    of_probes = frame[frame[key].isin(wanted)]
    if not isinstance(of_probes, pd.DataFrame):
        of_probes = of_probes.to_pandas()
    rows = of_probes.to_dict("records")
    found["probes"] = {int(row.pop(key)): row for row in rows}
    return found


def together(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Summaries of the partitions of one answer as one."""
    ways = {"v_min": min, "v_max": max}
    found: dict[str, Any] = {"groups": 0, "probes": {}}
    for part in parts:
        found["groups"] += part["groups"]
        found["probes"] |= part["probes"]
        for label in part.keys() - {"groups", "probes"}:
            way = ways.get(label, lambda values: sum(values))
            found[label] = way([found[label], part[label]]) if label in found else part[label]
    return found


def judge(found: Mapping[str, Any], right: Mapping[str, Any], query: Query) -> dict[str, Any]:
    """Compare an answer with the expected one."""
    problems: list[str] = []

    def compare(what: str, label: str, one: float, other: float) -> None:
        column, _, function = label.partition("_")
        if function in ("count", "min", "max"):
            difference, allowed = float(one != other), 0.0
        else:
            difference, allowed = abs(one - other) / max(abs(other), 1e-300), TOLERANCE[column]
        if not difference <= allowed:
            problems.append(f"{what}{label} is {one!r} instead of {other!r}")

    if found["groups"] != right["groups"]:
        problems.append(f"{found['groups']:,} groups instead of {right['groups']:,}")
    for label in found.keys() - {"groups", "probes"}:
        compare("over all groups ", label, found[label], right[label])
    if found["probes"].keys() != right["probes"].keys():
        problems.append(f"keys {sorted(found['probes'])} instead of {sorted(right['probes'])}")
    for key in found["probes"].keys() & right["probes"].keys():
        for label in query.labels:
            one, other = found["probes"][key][label], right["probes"][key][label]
            compare(f"of key {key} ", label, one, other)
    return {"right": not problems, "problems": problems[:10]}


# ---- the cluster ---------------------------------------------------------------------------------

SETTLE_S = 10.0
"""A task that was given up may run on for so long before the cluster is made anew."""


class Stopped(Exception):
    """A run took longer than it may."""


class Failed(Exception):
    """A run failed. Only the text is kept: the exception's frames would hold on to results."""


def message_of(error: BaseException) -> str:
    """Type and first line of an exception."""
    return str(error) if isinstance(error, Failed) else describe_error(error)


def without_frames(error: Exception) -> Stopped | Failed:
    """Drop the frames of an exception, whose variables are results.

    The client keeps a task's exception as long as there are futures of the task, and it would
    keep the futures.
    """
    error.__traceback__ = None
    return Stopped(str(error)) if isinstance(error, Stopped) else Failed(message_of(error))


@dataclass(frozen=True, slots=True)
class Run:
    """One run: seconds, of which steps took how many, and a summary of the answer if asked for."""

    seconds: float
    steps: dict[str, float]
    found: dict[str, Any] | None = None


@dataclass(slots=True)
class Session:
    """A cluster that is made anew where it is stuck."""

    engine: str
    workers: int
    protocol: str
    pool: str
    plugin: bool = True
    starts: int = 0
    client: Any = None
    _cluster: Any = None
    _at_rest: int = 0

    def __enter__(self) -> Session:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Make the cluster."""
        from distributed import Client

        self.starts += 1
        self._at_rest = 0
        # the scheduler warns of the start and the end of every shuffle
        logging.getLogger("distributed.shuffle._scheduler_plugin").setLevel(logging.ERROR)
        self._cluster = self._new_cluster()
        self.client = Client(self._cluster)
        self.client.wait_for_workers(self.workers, timeout=120)
        if self.engine == DEVICE and self.plugin:
            import dask_gpuagg

            self.client.register_plugin(dask_gpuagg.GpuWorker())
            self._wait(120, lambda: not any(self.client.run(_warming).values()))

    def _new_cluster(self) -> Any:
        if self.engine == HOST:
            from distributed import LocalCluster

            return LocalCluster(
                n_workers=self.workers,
                threads_per_worker=1,
                processes=True,
                protocol=self.protocol,
                dashboard_address=None,
                silence_logs=logging.ERROR,
            )
        from dask_cuda import LocalCUDACluster

        return LocalCUDACluster(
            n_workers=self.workers,
            protocol=self.protocol,
            rmm_pool_size=self.pool,
            dashboard_address=None,
        )

    def close(self) -> None:
        """Close it; errors of a broken cluster are of no interest then."""
        for closing in (self.client, self._cluster):
            if closing is not None:
                with contextlib.suppress(Exception):
                    closing.close(timeout=20)
        self.client = self._cluster = None

    def rest(self) -> None:
        """Take what the scheduler knows of now for what it keeps."""
        self._at_rest = self.client.run_on_scheduler(_tasks)

    def settle(self) -> bool:
        """Wait until the last query is forgotten: an identical one finds its result otherwise."""
        gc.collect()
        return self._wait(SETTLE_S, self._settled)

    def _settled(self) -> bool:
        if self.client.run_on_scheduler(_tasks) > self._at_rest:
            return False
        return not any(self.client.run(_active).values())

    @staticmethod
    def _wait(seconds: float, done: Callable[[], bool]) -> bool:
        end, pause = time.perf_counter() + seconds, 0.005
        while not done():
            if time.perf_counter() > end:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        return True

    def recover(self) -> None:
        """After a run that failed: wait, and where that does not help, make the cluster anew."""
        try:
            healthy = len(self.addresses()) == self.workers and self.settle()
        except Exception as error:
            # whatever a broken cluster answers, a new one is the remedy
            logging.getLogger(__name__).warning("a new cluster after %r", error)
            healthy = False
        if not healthy:
            self.close()
            self.start()

    def addresses(self) -> list[str]:
        """Addresses of the workers."""
        return list(self.client.scheduler_info(n_workers=-1)["workers"])

    def summary(self, result: Any, query: Query, key: str, groups: int) -> dict[str, Any]:
        """Summarize a persisted answer on the workers."""
        from distributed import futures_of

        calls = [
            self.client.submit(summary, part, query, key, probes(groups), pure=False)
            for part in futures_of(result)
        ]
        return together(self.client.gather(calls))

    def expected(self, rows: Rows, key: str) -> dict[str, Any]:
        """The right answer, from the rows drawn again."""
        step = max(1, rows.partitions // (4 * self.workers))
        chunks = [range(rows.partitions)[i : i + step] for i in range(0, rows.partitions, step)]
        calls = [self.client.submit(seen_in, chunk, rows, key, pure=False) for chunk in chunks]
        return expected(self.client.gather(calls), key)


class Persisted:
    """Rows in the memory of the workers."""

    def __init__(self, session: Session, rows: Rows) -> None:
        self.session, self.rows = session, rows
        self._frame: Any = None
        self._start = 0

    def frame(self) -> Any:
        """The collection; drawn again after the cluster was lost."""
        if self._frame is None or self._start != self.session.starts:
            import dask.dataframe as dd
            from distributed import wait

            self._frame = None
            self.session.settle()
            numbers = range(self.rows.partitions)
            meta = Rows(2, 1, self.rows.keys, self.rows.engine).draw(0).head(0)
            frame = dd.from_map(self.rows.draw, numbers, meta=meta, label="rows").persist()
            wait(frame, timeout=300)
            self._frame, self._start = frame, self.session.starts
            self.session.rest()
        return self._frame

    def ready(self) -> None:
        """The rows are there before the clock starts."""
        self.frame()

    def close(self) -> None:
        """Let go of the rows."""
        self._frame = None
        self.session._at_rest = 0
        self.session.settle()


class Files:
    """Rows in Parquet files that the workers write, in a folder of their own below another.

    Files that are there already, whole, are used.
    """

    def __init__(self, session: Session, rows: Rows, below: Path, keep: bool = False) -> None:
        self.session, self.rows, self.keep = session, rows, keep
        groups = "-".join(str(count) for _, count in rows.keys)
        name = f"dask-gpuagg-{rows.engine}-{rows.rows}-{rows.partitions}-{groups}"
        self.folder = below.absolute() / name
        if not self.folder.exists():
            client, numbers = session.client, range(rows.partitions)
            with machine.example("data").whole(self.folder) as unfinished:
                client.gather(client.map(rows.write, numbers, folder=unfinished, pure=False))
        self.paths = sorted(str(path) for path in self.folder.glob("*.parquet"))

    def frame(self) -> Any:
        """A collection that reads the files: made anew, as each query of a user does."""
        if self.session.engine == HOST:
            import dask.dataframe as dd

            return dd.read_parquet(self.paths)
        import dask_cudf

        return dask_cudf.read_parquet(self.paths)

    def ready(self) -> None:
        """Reading is timed."""

    def close(self) -> None:
        """Delete the folder unless it is to be kept."""
        if not self.keep:
            shutil.rmtree(self.folder)


def timed(
    session: Session,
    build: Callable[[], Any],
    limit: float,
    look: Callable[[Any], dict[str, Any]] | None = None,
) -> Run:
    """Build a query, persist its answer in the cluster, and wait for it.

    The steps are those of ``persist()``, one by one: ``build`` the collection, ``optimize`` (the
    plan, lowering and fusing), ``submit`` (graph and transfer to the scheduler), ``run``.
    """
    from distributed import futures_of, wait

    gc.collect()
    start = time.perf_counter()
    query = build()
    built = time.perf_counter()
    plan = query.optimize(fuse=True)
    optimized = time.perf_counter()
    (result,) = dask.persist(plan, traverse=False)
    submitted = time.perf_counter()
    try:
        wait(result, timeout=limit)
    except TimeoutError:
        session.client.cancel(futures_of(result))
        raise Stopped(f"more than {limit:.0f} s") from None
    end = time.perf_counter()
    for future in futures_of(result):
        if future.status != "finished":
            raise future.exception() or RuntimeError(f"an output is {future.status}")
    found = None if look is None else look(result)
    steps = {
        "build": built - start,
        "optimize": optimized - built,
        "submit": submitted - optimized,
        "run": end - submitted,
    }
    return Run(end - start, steps, found)


def _tasks(dask_scheduler: Any) -> int:
    return len(dask_scheduler.tasks)


def _active(dask_worker: Any) -> int:
    """Tasks in the worker's threads, those that were given up included."""
    return len(dask_worker.active_threads)


def _warming(dask_worker: Any) -> bool:
    """Whether ``GpuWorker`` is making kernels ready."""
    report = dask_worker.metrics["dask_gpuagg"](dask_worker)
    return bool(report.get("kernels") == "being made ready")
