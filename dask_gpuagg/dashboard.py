"""A page of group-bys in Dask's own dashboard, made by Bokeh as Dask's pages are.

Workers report with each heartbeat what they have done (``reporting.runs.activity``). The page reads
it on the scheduler, whose plugin adds it.
"""

from typing import Any

from distributed import Client, SchedulerPlugin, get_client

from dask_gpuagg.reporting.text import bar, escaped, html_table, page, time_text
from dask_gpuagg.tasks.reading import ACTIVITY

# the address of the page, and its name in the bar of pages
PAGE = "group-by"
_INTERVAL_MS = 500


def group_by_page(client: Client | None = None) -> str:
    """Add the page "Group-By" to the dashboard of a cluster.

    Parameters
    ----------
    client : distributed.Client, optional
        By default the current one.

    Returns
    -------
    str
        The address of the page.

    Raises
    ------
    ValueError
        Without a client, or with one that is closed or asynchronous.
    RuntimeError
        Where the scheduler has no dashboard: it is switched off, or Bokeh is missing there.
    """
    client = client or get_client()
    if client.status != "running":
        raise ValueError(f"the client is {client.status}")
    if client.asynchronous:
        raise ValueError("the page cannot be added by an asynchronous client")
    client.register_plugin(GroupByPage())
    head, _, _ = client.dashboard_link.rpartition("/")
    return f"{head}/{PAGE}"


class GroupByPage(SchedulerPlugin):
    """Adds the page to the scheduler's dashboard."""

    name = "dask-gpuagg-page"
    idempotent = True

    async def start(self, scheduler: Any) -> None:
        """Called by the scheduler."""
        try:
            from distributed.dashboard.core import BokehApplication
            from distributed.dashboard.scheduler import template_variables
        except ImportError as error:
            raise RuntimeError(f"the dashboard needs Bokeh on the scheduler ({error})") from error
        pages = [a for a in scheduler.http_application.applications if hasattr(a, "app_paths")]
        if not pages:
            raise RuntimeError("the scheduler was started without a dashboard")
        # one list for all pages: it is in the bar of each
        variables = template_variables(scheduler)
        if PAGE not in variables["pages"]:
            variables["pages"].insert(len(variables["pages"]) - 1, PAGE)
        prefix = pages[0].prefix.strip("/")
        application = BokehApplication(
            {f"/{PAGE}": _fill}, scheduler, prefix=prefix, template_variables=variables
        )
        scheduler.http_application.add_application(application)
        application.initialize(scheduler.loop)
        application.start()


def _fill(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """Fill a document of Bokeh, for each reader who opens the page."""
    from distributed.dashboard.components import add_periodic_callback
    from distributed.dashboard.components.scheduler import BOKEH_THEME, env

    content = _Page(scheduler)
    content.update()
    add_periodic_callback(doc, content, _INTERVAL_MS)
    doc.title = "Dask: Group-by"
    doc.add_root(content.root)
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)
    doc.theme = BOKEH_THEME


class _Page:
    """Tables of HTML: Bokeh's own do not show every change of their source."""

    def __init__(self, scheduler: Any) -> None:
        from bokeh.layouts import column
        from bokeh.models import Div

        self.scheduler = scheduler
        # on a narrow screen wide tables scroll
        look: dict[str, Any] = {
            "sizing_mode": "stretch_width",
            "styles": {"overflow-x": "auto", "max-width": "100%"},
        }
        self.steps, self.kernels = Div(name="steps", **look), Div(name="kernels", **look)
        self.root = column(self.steps, self.kernels, sizing_mode="stretch_width", name="group_by")

    def update(self) -> None:
        """Read what the workers reported; called by Bokeh."""
        reports = {
            str(worker.name): worker.metrics[ACTIVITY]
            for worker in self.scheduler.workers.values()
            if ACTIVITY in worker.metrics
        }
        for shown, text in ((self.steps, steps_of(reports)), (self.kernels, kernels_of(reports))):
            if shown.text != text:
                shown.text = text


def steps_of(reports: dict[str, list[Any]]) -> str:
    """The table of tasks, as HTML, from ``reporting.runs.activity`` of each worker."""
    entries = [entry for entry in _entries(reports) if not entry[3]]
    longest = max((entry[5] for entry in entries), default=0.0)
    rows = []
    for name, step, engine, _, calls, seconds, rows_in, groups, *_ in entries:
        rate = int(rows_in / max(seconds, 1e-9))
        cells = [name, step, engine, calls, time_text(seconds), rows_in, groups, rate]
        rows.append([*map(_cell, cells), bar(seconds / longest if longest else 0.0)])
    head = "worker, step, engine, tasks, time, rows in, rows out, rows/s, share of the time"
    return _table("Tasks by worker, step and engine", head, rows)


def kernels_of(reports: dict[str, list[Any]]) -> str:
    """The table of kernels, as HTML; nothing where none were called."""
    rows = []
    for name, step, _, kernel, calls, seconds, *counts in _entries(reports):
        if kernel:
            rows_in, groups, expected, spilled = counts
            cells = [name, step, kernel, calls, time_text(seconds), rows_in, expected]
            rows.append([*map(_cell, cells), _cell(groups), _cell(spilled)])
    head = "worker, step, kernel, calls, time, rows, groups expected, groups found, rows overflowed"
    return _table("Calls of kernels on the device", head, rows)


def _entries(reports: dict[str, list[Any]]) -> list[tuple[Any, ...]]:
    return [(name, *entry) for name in sorted(reports) for entry in sorted(reports[name])]


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else escaped(value)


def _table(title: str, head: str, rows: list[list[str]]) -> str:
    return page(f"<h4>{escaped(title)}</h4>", html_table(head.split(", "), rows)) if rows else ""
