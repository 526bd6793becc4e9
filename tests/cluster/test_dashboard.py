"""The page of group-bys in Dask's dashboard, opened as a browser opens it."""

import time
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client

import dask_gpuagg
from tests.test_dashboard import cells
from tests.workers import cluster_of

ROWS = 300_000
FRAME = pd.DataFrame({"k": np.arange(ROWS) % 50, "v": np.arange(ROWS) / 7})


@pytest.fixture(scope="module")
def shown() -> Iterator[Client]:
    """A cluster of two processes with a dashboard."""
    pytest.importorskip("bokeh")
    with cluster_of(2, ":0") as client:
        yield client


def fetched(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def eventually(read: Callable[[], Any], enough: Callable[[Any], bool]) -> Any:
    """Read until it is enough, as heartbeats take their time."""
    until = time.monotonic() + 30
    while True:
        rows = read()
        if enough(rows) or time.monotonic() > until:
            return rows
        time.sleep(0.2)


def test_the_page_shows_what_workers_did(shown: Client) -> None:
    from bokeh.client import pull_session

    address = dask_gpuagg.group_by_page(shown)
    assert dask_gpuagg.group_by_page(shown) == address  # and there is one page
    assert address.endswith("/group-by")
    # it is in the bar of all pages, once
    for page in ("group-by", "status"):
        assert fetched(address.replace("group-by", page)).count('href="group-by"') == 1

    rows = dd.from_pandas(FRAME, npartitions=6)
    rows.groupby("k").v.mean().compute()

    def model(name: str) -> Any:
        with pull_session(url=address) as session:
            return session.document.get_model_by_name(name)

    def rows_of(step: str) -> list[list[str]]:
        return [row for row in cells(model("steps").text) if row[1] == step]

    def rows_in(steps: list[list[str]]) -> int:
        return sum(int(row[5].replace(",", "")) for row in steps)

    steps = eventually(lambda: rows_of("partial"), lambda rows: rows_in(rows) >= ROWS)
    assert rows_in(steps) == ROWS
    assert sum(int(row[3]) for row in steps) == 6
    assert {row[2] for row in steps} == {"host"}
    assert eventually(lambda: rows_of("finalize"), bool)

    assert model("kernels").text == ""


def test_without_a_dashboard_there_is_no_page(client: Client) -> None:
    with pytest.raises(RuntimeError, match=r"without a dashboard|needs Bokeh"):
        dask_gpuagg.group_by_page(client)


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        (SimpleNamespace(status="running", asynchronous=True), "asynchronous"),
        (SimpleNamespace(status="closed"), "the client is closed"),
    ],
)
def test_clients_that_cannot_add_a_page_are_refused(client: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        dask_gpuagg.group_by_page(client)
