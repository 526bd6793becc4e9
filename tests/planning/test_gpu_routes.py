"""Tree or exchange for chunks of GPUs, with workers of pandas in their place: tasks and hops."""

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask._task_spec import convert_legacy_graph
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr import new_collection
from distributed import Client, Future

import dask_gpuagg
from dask_gpuagg import cluster
from dask_gpuagg.planning import lower, route
from dask_gpuagg.planning.bucketing import gpus
from dask_gpuagg.planning.chunks import GroupByQuery, Route
from dask_gpuagg.planning.nodes import GroupByChunks
from dask_gpuagg.tasks.tasks import ROWS_OF_A_SAMPLE
from tests.merging import decision_of, pieces_of
from tests.planning.test_chunks import PARTITIONS, held
from tests.workers import workers_of

GPU_BYTES = 64 << 20
# of 24 partitions, as Dask announces them; a tree divides its result into them
OUTPUTS = 2


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        Client(n_workers=4, threads_per_worker=1, processes=False, dashboard_address=None) as made,
        dask.config.set({"gpuagg.fallback": "raise"}),
        dask_gpuagg.enabled(),
    ):
        yield made


@pytest.fixture(autouse=True)
def _gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan as for GPUs; tasks take the engine of what they are given."""
    monkeypatch.setattr(GroupByQuery, "on_device", True)
    monkeypatch.setattr(cluster, "device_bytes", lambda: GPU_BYTES)
    route._recent.clear()


def frame(groups: int, rows: int = 240_000) -> pd.DataFrame:
    rng = np.random.default_rng(8)
    return pd.DataFrame({"k": rng.integers(0, groups, rows), "v": rng.random(rows)})


def on_all(client: Client, pdf: pd.DataFrame) -> Any:
    return held(client, pdf, list(range(len(workers_of(client)))))


def tasks_and_hops(query: Any) -> tuple[int, int]:
    """Tasks of a query's graph beside its inputs, and the most that follow each other."""
    layers = query.optimize(fuse=False).dask
    tasks = {key: task for key, task in layers.items() if not isinstance(task, Future)}
    graph = convert_legacy_graph(tasks, all_keys=layers.keys())
    depth: dict[Any, int] = {}

    def of(key: Any) -> int:
        if key not in depth:
            depth[key] = 1 + max((of(d) for d in graph[key].dependencies if d in graph), default=0)
        return depth[key]

    return len(graph), max(map(of, graph))


def right(query: Any, pdf: pd.DataFrame) -> None:
    pd.testing.assert_series_equal(query.compute().sort_index(), pdf.groupby("k").v.sum())


def test_few_groups_are_merged_by_one_task_after_the_chunks(client: Client) -> None:
    pdf = frame(100)
    query = on_all(client, pdf).groupby("k").v.sum()
    decision = decision_of(query)
    assert (decision.route, decision.outputs) == (Route.TREE, OUTPUTS)
    assert decision.groups == 100
    workers = len(client.run(int))
    assert tasks_and_hops(query) == (workers + 1 + OUTPUTS, 3)
    right(query, pdf)


def test_many_groups_are_exchanged_into_a_piece_for_each_gpu(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "MOVED_TO_ONE_GPU", 1 << 16)
    pdf = frame(100_000)
    query = on_all(client, pdf).groupby("k").v.sum()
    decision = decision_of(query)
    workers = len(client.run(int))
    assert (decision.route, decision.outputs) == (Route.EXCHANGE, OUTPUTS)
    assert decision.pieces == workers
    assert decision.groups is not None
    assert 80_000 < decision.groups < 125_000
    tasks = workers + workers * workers + workers + OUTPUTS
    assert tasks_and_hops(query) == (tasks, 4)
    right(query, pdf)


@pytest.mark.parametrize(("aggregation", "outputs"), [("sum", OUTPUTS), ("median", PARTITIONS)])
def test_a_chunk_is_as_large_as_the_columns_that_are_read(
    client: Client, aggregation: str, outputs: int
) -> None:
    pdf = frame(100).assign(t="text", **{f"c{i}": 0.0 for i in range(30)})
    ddf = held(client, pdf, [0])
    assert GPU_BYTES / 4 < pdf.memory_usage(index=False).sum() < 2 * GPU_BYTES
    query = getattr(ddf.groupby("k").v, aggregation)()
    assert tasks_and_hops(query) == (1 + outputs, 2)
    assert tasks_and_hops(ddf.groupby("t").v.sum())[0] > 1 + OUTPUTS, "of text nothing is known"
    expected = getattr(pdf.groupby("k").v, aggregation)()
    pd.testing.assert_series_equal(query.compute().sort_index(), expected)


def test_texts_that_are_not_read_count_as_their_offsets(client: Client) -> None:
    pdf = frame(100).assign(**{f"t{i}": "text" for i in range(6)})
    assert pdf.memory_usage(index=False).sum() > GPU_BYTES / 4
    query = held(client, pdf, [0]).groupby("k").v.sum()
    assert tasks_and_hops(query) == (1 + OUTPUTS, 2)
    right(query, pdf)


@pytest.mark.parametrize("method", ["tasks", "disk"])
def test_partials_stay_on_the_device_in_an_exchange_by_tasks(client: Client, method: str) -> None:
    """Dask's shuffles move pieces as bytes of the host."""
    pdf = frame(1_000)
    query = on_all(client, pdf).groupby("k").v.sum(split_out=3, shuffle_method=method)
    keys = map(str, query.optimize(fuse=False).dask)
    assert any("gpuagg_pieces" in key for key in keys) == (method == "disk")
    right(query, pdf)


def in_files(folder: Path, pdf: pd.DataFrame, **options: Any) -> Any:
    for i in range(9):
        pdf.iloc[len(pdf) * i // 9 : len(pdf) * (i + 1) // 9].to_parquet(
            folder / f"{i}.parquet", row_group_size=4_000, **options
        )
    return dd.read_parquet(folder)


class NoOp(E.Elemwise):  # type: ignore[misc]
    """As dask-cudf has around every reader."""

    _parameters = ("frame",)
    _projection_passthrough = True

    @staticmethod
    def operation(frame: Any) -> Any:
        return frame


@pytest.mark.parametrize(
    "case", ["random", "growing", "negative", "filtered", "fused", "two keys", "as dask-cudf"]
)
def test_integers_of_files_are_as_many_as_their_statistics_leave_room_for(
    client: Client, tmp_path: Path, case: str
) -> None:
    pdf = frame(600, 90_000)
    pdf = pdf.sort_values("k") if case == "growing" else pdf
    pdf = pdf.assign(k=lambda d: (d.k - 300).astype("int16")) if case == "negative" else pdf
    pdf = pdf.assign(j=pdf.k % 4)
    # Dask reads two files at a time of which half is left out
    pdf = pdf.assign(w=pdf.v) if case == "fused" else pdf
    ddf = in_files(tmp_path, pdf)
    if case in ("filtered", "fused"):
        pdf, ddf = (d[d.v > 0.5] for d in (pdf, ddf))
    if case == "as dask-cudf":
        ddf = new_collection(NoOp(ddf.expr))
    by = ["k", "j"] if case == "two keys" else "k"
    query = ddf.groupby(by).v.sum()
    decision = decision_of(query)
    assert (decision.route, decision.groups) == (Route.TREE, 2_400 if len(by) > 1 else 600)
    tasks, hops = tasks_and_hops(query)
    assert (tasks, hops) == (len(client.run(int)) + 1, 2)
    pd.testing.assert_series_equal(query.compute().sort_index(), pdf.groupby(by).v.sum())


@pytest.mark.parametrize("case", ["far apart", "float", "computed", "no statistics", "never"])
def test_files_that_do_not_tell_are_exchanged(client: Client, tmp_path: Path, case: str) -> None:
    pdf = frame(600, 90_000)
    if case == "far apart":
        pdf["k"] *= 1 << 40
    pdf = pdf.astype({"k": "float64"}) if case == "float" else pdf
    ddf = in_files(tmp_path, pdf, write_statistics=case != "no statistics")
    if case == "computed":
        pdf, ddf = (d.assign(k=d.k * 3) for d in (pdf, ddf))
    with dask.config.set({"gpuagg.sample": "never" if case == "never" else "auto"}):
        query = ddf.groupby("k").v.sum()
        decision = decision_of(query)
        assert (decision.route, decision.groups) == (Route.EXCHANGE, None)
        right(query, pdf)


def test_a_result_beyond_the_bound_is_merged_in_more_pieces(client: Client) -> None:
    pdf = frame(100_000)
    with pieces_of(100_000):
        query = on_all(client, pdf).groupby("k").v.sum()
        assert 13 <= decision_of(query).pieces <= 20
        right(query, pdf)


def test_one_gpu_merges_its_chunks_as_long_as_the_result_fits(client: Client) -> None:
    pdf = frame(50_000)
    ddf = held(client, pdf, [0])
    with dask.config.set({"gpuagg.chunk": 8}):
        query = ddf.groupby("k").v.sum()
        decision = decision_of(query)
        assert (decision.route, decision.outputs) == (Route.TREE, OUTPUTS)
        assert tasks_and_hops(query) == (PARTITIONS // 8 + 1 + OUTPUTS, 3)
        right(query, pdf)
        with pieces_of(300_000):
            query = ddf.groupby("k").v.sum()
            assert decision_of(query).pieces == 3
            right(query, pdf)


def test_chunks_are_smaller_where_all_groups_exceed_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their partials would be as large as they are."""
    pdf = frame(200_000)
    query = held(client, pdf, [0]).groupby("k").v.sum()
    with pieces_of(300_000), dask.config.set({"gpuagg.chunk": 8}):
        for memory, tasks in ((32 << 20, PARTITIONS // 8), (4 << 20, PARTITIONS)):
            monkeypatch.setattr(lower, "gpus", lambda memory=memory: (1, memory))
            (found,) = dask_gpuagg.explain(query).groupbys
            assert found.decision is not None
            assert found.decision.route is Route.EXCHANGE
            assert dict(found.physical.tasks)["chunk"] == tasks
        right(query, pdf)


def test_without_a_sample_each_gpu_merges_a_piece(client: Client) -> None:
    pdf = frame(100)
    with dask.config.set({"gpuagg.sample": "never"}):
        query = on_all(client, pdf).groupby("k").v.sum()
        decision = decision_of(query)
        assert decision.route is Route.EXCHANGE
        assert decision.reason == "a piece for each GPU; gpuagg.sample is 'never'"
        right(query, pdf)


@pytest.mark.parametrize("spec", ["nunique", ["sum", "nunique"], ["sum", "median"]], ids=str)
def test_rows_and_pairs_are_exchanged_though_groups_are_few(client: Client, spec: Any) -> None:
    pdf = frame(20, 24_000).assign(v=lambda d: d.v.round(2))
    query = on_all(client, pdf).groupby("k").v.agg(spec)
    decision = decision_of(query)
    workers = len(client.run(int))
    assert (decision.route, decision.outputs) == (Route.EXCHANGE, OUTPUTS)
    assert decision.pieces == workers
    expected = pdf.groupby("k").v.agg(spec)
    found = query.compute().sort_index()
    pd.testing.assert_frame_equal(pd.DataFrame(found), pd.DataFrame(expected))


def test_sorted_rows_show_all_their_keys(client: Client) -> None:
    pdf = frame(3000).sort_values("k", ignore_index=True)
    decision = decision_of(on_all(client, pdf).groupby("k").v.sum())
    assert decision.groups is not None
    assert 2500 < decision.groups < 3500
    assert len(pdf) // PARTITIONS < ROWS_OF_A_SAMPLE


def test_workers_without_a_gpu_count_for_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_a_gpu(dask_worker: Any) -> int:
        if dask_worker.name == 0:
            raise ModuleNotFoundError("No module named 'cupy'")
        return GPU_BYTES

    monkeypatch.setattr(cluster, "device_bytes", of_a_gpu)
    monkeypatch.setattr(cluster, "_device_memory", weakref.WeakKeyDictionary())
    workers = len(client.run(int))
    assert gpus() == (workers - 1, GPU_BYTES)
    assert gpus() == (workers - 1, GPU_BYTES)
    pdf = frame(100)
    names = [worker["name"] for _, worker in sorted(workers_of(client).items())]
    ddf = held(client, pdf, [i for i, name in enumerate(names) if name])
    query = ddf.groupby("k").v.sum()
    assert decision_of(query).route is Route.TREE
    right(query, pdf)


def test_chunks_count_the_bytes_of_columns_that_they_compute(client: Client) -> None:
    ddf = on_all(client, frame(50))
    wide = ddf.assign(**{f"z{i}": ddf.v * (i + 1) for i in range(60)})
    for data, number in ((ddf[["k", "v"]], 4), (wide, 8)):
        query = data.groupby("k").agg(dict.fromkeys(data.columns[1:], "sum"))
        (node,) = (
            n for n in query.optimize(fuse=False).expr.walk() if isinstance(n, GroupByChunks)
        )
        assert len(node.chunks) == number
