"""The columns that the page of group-bys shows, from what workers and clients report."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from dask_gpuagg import dashboard
from dask_gpuagg.reporting.events import Fallback, FellBack
from dask_gpuagg.tasks.reading import ACTIVITY

REPORTS = {
    "b": {
        "time": 10.0,
        "rows": 900,
        "steps": [
            ["partial", "device", "", 2, 0.5, 900, 30, 0, 0],
            ["partial", "device", "pgb", 2, 0.4, 900, 30, 28, 5],
        ],
    },
    "a": {
        "time": 10.0,
        "rows": 100,
        "steps": [["partial", "host", "", 1, 0.25, 100, 10, 0, 0]],
    },
}


def cells(table: str) -> list[list[str]]:
    """The rows of a table of HTML, without its head."""
    rows = re.findall(r"<tr>(.*?)</tr>", table)[1:]
    return [re.findall(r"<td>(.*?)</td>", row) for row in rows]


def test_tables_tell_tasks_and_kernels_apart() -> None:
    assert cells(dashboard.steps_of(REPORTS)) == [
        ["a", "partial", "host", "1", "250.0 ms", "100", "10", "400"],
        ["b", "partial", "device", "2", "500.0 ms", "900", "30", "1,800"],
    ]
    kernels = dashboard.kernels_of(REPORTS)
    assert cells(kernels) == [["b", "partial", "pgb", "2", "400.0 ms", "900", "28", "30", "5"]]
    assert kernels.index("groups expected") < kernels.index("groups found")


def test_equal_fallbacks_are_one_row() -> None:
    often, once = Fallback("a", "runs", "<because>", "x.py:1"), Fallback("b", "runs", "so", "")
    table = dashboard.fallbacks_of([each._asdict() for each in (once, often, often)])
    assert cells(table) == [["a", "&lt;because&gt;", "x.py:1", "2"], ["b", "so", "", "1"]]


def test_the_legend_has_the_steps_that_ran() -> None:
    pytest.importorskip("bokeh")
    workers = {
        name: SimpleNamespace(name=name, metrics={ACTIVITY: report})
        for name, report in REPORTS.items()
    }
    page = dashboard._Page(SimpleNamespace(workers=workers, get_events=lambda topic: ()))
    page.update()
    assert [step for step, item in page._steps.items() if item.visible] == ["partial"]


def test_each_fallback_of_a_query_is_sent_once() -> None:
    sent: list[Fallback] = []
    loop = SimpleNamespace(add_callback=lambda send, fallback: sent.append(fallback))
    reporter = dashboard._Reporter(SimpleNamespace(status="running", loop=loop))
    fallback = Fallback("a", "runs", "because")
    for name in ("q", "q", "r", ""):
        reporter(FellBack(fallback, name))
    assert sent == [fallback, fallback]


def test_rates_are_those_of_the_reports_shown() -> None:
    assert dashboard.rate_of([(10.0, 100)]) == 0
    assert dashboard.rate_of([(10.0, 100), (11.0, 100), (14.0, 500)]) == 100
