"""SIGKILL of a worker in each step of a query, again and again: the right answer each time.

Once in each step of each route, or as often as ``GPUAGG_KILLS`` says: ``make test-faults`` says 20.
"""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client

from dask_gpuagg.engines.host import engine
from dask_gpuagg.planning import lower
from dask_gpuagg.planning.nodes import GroupByChunks, GroupByGather, GroupByMerge, GroupByTree
from tests.cluster.test_faults import PATIENCE, Once, _two_workers, client, expected, frame, held
from tests.comparison import assert_same

__all__ = ["_two_workers", "client"]

KILLS = int(os.environ.get("GPUAGG_KILLS", "1"))

# the function of the host engine that makes a step
STEPS = {
    "partial": "partial",
    "combine": "combine",
    "exchange": "split",
    "finalize": "finalize",
    "gather": "concatenated_outputs",
}


def total(ddf: Any, **options: Any) -> Any:
    return ddf.groupby("k").v.sum(**options)


# how the query is made, the node that it must have, and the steps that it has
ROUTES: dict[str, tuple[Callable[[Any], Any], type, tuple[str, ...]]] = {
    "tree": (lambda d: total(d, split_every=2), GroupByTree, ("partial", "combine")),
    "exchange": (lambda d: total(d, split_out=3), GroupByChunks, ("exchange", "finalize")),
    "p2p": (lambda d: total(d, split_out=3, shuffle_method="p2p"), GroupByMerge, ("exchange",)),
    "gather": (lambda d: d.groupby("k", sort=True).v.agg("median"), GroupByGather, ("gather",)),
}


def kill_once(engine: str, function: str, marker: str) -> None:
    """On a worker: the first of them that comes to a function of an engine kills itself."""
    module = importlib.import_module(f"dask_gpuagg.engines.{engine}.engine")
    original = getattr(module, function)
    original = getattr(original, "original", original)
    once = Once(Path(marker))
    once.client = -1

    def dying(*args: Any, **kwargs: Any) -> Any:
        once()
        return original(*args, **kwargs)

    dying.original = original  # type: ignore[attr-defined]
    setattr(module, function, dying)


def kill_no_more(function: str) -> None:
    """On a worker: undo ``kill_once``, in a process that has lived through it."""
    patched = getattr(engine, function)
    setattr(engine, function, getattr(patched, "original", patched))


@pytest.mark.parametrize("attempt", range(KILLS))
@pytest.mark.parametrize(
    ("route", "step"), [(route, step) for route, (_, _, steps) in ROUTES.items() for step in steps]
)
def test_a_worker_is_killed_in_a_step(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    route: str,
    step: str,
    attempt: int,
) -> None:
    make, node, _ = ROUTES[route]
    if route != "p2p":
        # what is exchanged by our own tasks elsewhere: among GPUs, and threads
        monkeypatch.setattr(lower, "get_default_shuffle_method", lambda: "tasks")
    with dask.config.set({"gpuagg.chunk": 4}):
        query = make(held()).optimize(fuse=False)
    assert list(query.expr.find_operations(node))
    marker = tmp_path / "died"
    client.run(kill_once, "host", STEPS[step], str(marker))
    result = client.compute(query).result(timeout=PATIENCE)
    assert marker.exists()
    client.run(kill_no_more, STEPS[step])
    assert_same(result, frame().groupby("k").v.median() if route == "gather" else expected())
