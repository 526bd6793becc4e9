"""The two arms, the data as each scheduler gets it, and one run of one query."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd

from benchmarks.queries import Query

STOCK, PLUGIN = "stock", "plugin"
ARMS = (STOCK, PLUGIN)
AGAIN = "stock again"
"""Stock Dask under another name: what it differs from ``STOCK`` by is noise."""


def prepare(names: Sequence[str]) -> None:
    """Import the plugin if an arm needs it, and switch it off whatever the configuration says.

    ``DASK_GPUAGG__ENABLED`` may be set where the benchmark runs; the stock arm must not see it.
    A process that runs stock arms alone never imports the plugin.
    """
    if PLUGIN in names:
        import dask_gpuagg

        dask_gpuagg.disable()


@contextlib.contextmanager
def arm(name: str) -> Iterator[None]:
    """Switch to an arm for the duration of a ``with`` block."""
    if name in (STOCK, AGAIN):
        yield
        return
    if name != PLUGIN:
        raise ValueError(f"no arm named {name!r}; there are {', '.join(ARMS)}")
    import dask_gpuagg

    with dask_gpuagg.enabled():
        yield


def load_local(folder: Path, partitions: int, rows: int | None = None) -> dd.DataFrame:
    """Return the data in this process's memory, cut into partitions.

    Persisted, because ``from_pandas`` would otherwise convert its string columns to Dask's string
    dtype in every run of every query.
    """
    files = sorted(folder.glob("*.parquet"))
    if rows is not None:
        files = files[:1]
    frame = pd.concat([pd.read_parquet(path) for path in files], ignore_index=True)
    if rows is not None:
        frame = frame.iloc[:rows]
    local: dd.DataFrame = dd.from_pandas(frame, npartitions=partitions, sort=False).persist()
    return local


def load_on_workers(folder: Path) -> dd.DataFrame:
    """Return the data in the memory of the cluster's workers, one partition per file."""
    from distributed import wait

    frame: dd.DataFrame = dd.read_parquet(folder).persist()
    wait(frame)
    return frame


@dataclass(frozen=True, slots=True)
class Run:
    """One run: seconds by the wall clock and on all cores, and the result; or the error alone."""

    seconds: float | None
    result: Any
    error: str | None
    cpu: float | None = None


def run(query: Query, frame: dd.DataFrame, name: str) -> Run:
    """Build and compute a query once in an arm, timed.

    A failure is a result too ("completed or not"), so it is returned, not raised.
    """
    gc.collect()
    with arm(name):
        start, busy = time.perf_counter(), time.process_time()
        try:
            result = query.build(frame).compute()
        except Exception as error:
            return Run(None, None, describe_error(error))
        return Run(time.perf_counter() - start, result, None, time.process_time() - busy)


def describe_error(error: BaseException) -> str:
    """Return the type and the first line of an exception."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def report(query: Query, frame: dd.DataFrame) -> dict[str, Any]:
    """What the plugin says of a query; ``by_plan``: whether it runs every group-by, if known."""
    import dask_gpuagg

    try:
        with arm(PLUGIN), dask.config.set({"gpuagg.fallback": "silent"}):
            explanation = dask_gpuagg.explain(query.build(frame))
    except Exception as error:
        return {"by_plan": None, "fallback": [], "plan": [], "error": describe_error(error)}
    reasons = [str(reason) for found in explanation.groupbys for reason in found.reasons]
    return {
        "by_plan": bool(explanation.groupbys) and not reasons,
        "fallback": reasons,
        "plan": str(explanation).splitlines(),
        "error": None,
    }
