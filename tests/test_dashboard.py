"""The tables that the page of group-bys shows, from what workers report."""

import re
from types import SimpleNamespace

import pytest

from dask_gpuagg import dashboard
from dask_gpuagg.tasks.reading import ACTIVITY

REPORTS = {
    "b": [
        ["partial", "device", "", 2, 0.5, 900, 30, 0, 0],
        ["partial", "device", "pgb", 2, 0.4, 900, 30, 28, 5],
    ],
    "a": [["partial", "host", "", 1, 0.25, 100, 10, 0, 0]],
}


def cells(table: str) -> list[list[str]]:
    """The rows of a table of HTML, without its head."""
    rows = re.findall(r"<tr>(.*?)</tr>", table)[1:]
    return [re.findall(r"<td>(.*?)</td>", row) for row in rows]


def test_tables_tell_tasks_and_kernels_apart() -> None:
    rows = cells(dashboard.steps_of(REPORTS))
    assert [row[:-1] for row in rows] == [
        ["a", "partial", "host", "1", "250.0 ms", "100", "10", "400"],
        ["b", "partial", "device", "2", "500.0 ms", "900", "30", "1,800"],
    ]
    assert ["width:5.00em" in rows[0][-1], "width:10.00em" in rows[1][-1]] == [True, True]
    kernels = dashboard.kernels_of(REPORTS)
    assert cells(kernels) == [["b", "partial", "pgb", "2", "400.0 ms", "900", "28", "30", "5"]]
    assert kernels.index("groups expected") < kernels.index("groups found")


def test_what_there_is_not_has_no_table() -> None:
    assert dashboard.kernels_of({"a": REPORTS["a"]}) == ""


def test_the_page_has_what_the_workers_reported() -> None:
    pytest.importorskip("bokeh")
    workers = {
        name: SimpleNamespace(name=name, metrics={ACTIVITY: report})
        for name, report in REPORTS.items()
    }
    page = dashboard._Page(SimpleNamespace(workers=workers))
    page.update()
    assert len(cells(page.steps.text)) == 2
    assert len(cells(page.kernels.text)) == 1
    # an open page follows the workers
    workers["b"].metrics[ACTIVITY] = []
    page.update()
    assert len(cells(page.steps.text)) == 1
    assert page.kernels.text == ""
