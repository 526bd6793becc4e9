"""A page of group-bys in Dask's own dashboard, made by Bokeh as Dask's pages are.

Workers report with each heartbeat what they have done (``reporting.runs.activity``). The page reads
it on the scheduler, whose plugin adds it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from distributed import Client, SchedulerPlugin, get_client

from dask_gpuagg.reporting.runs import STEPS
from dask_gpuagg.reporting.text import escaped, html_table, page, time_text
from dask_gpuagg.tasks.reading import ACTIVITY

# the address of the page, and its name in the bar of pages
PAGE = "group-by"
_ENGINES = ("host", "device")
# of the steps
_COLOURS = (
    *("#1f77b4", "#4b9fd6", "#8c564b", "#ff7f0e", "#2ca02c", "#17becf", "#e377c2"),
    *("#d62728", "#f7b6d2", "#9edae5", "#9467bd", "#7f7f7f", "#bcbd22"),
)
_INTERVAL_MS = 500
# on a narrow screen plots lie below each other, and wide tables scroll
_WRAPPED = {"flex-wrap": "wrap"}
_SCROLLED = {"overflow-x": "auto", "max-width": "100%"}
_PLOT_WIDTH, _PLOT_HEIGHT = 340, 260
# over which rows per second are counted: tasks end now and then
_WINDOW_S = 10.0


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
        Without a client, or with an asynchronous one.
    RuntimeError
        Where the scheduler has no dashboard: it is switched off, or Bokeh is missing there.
    """
    client = client or get_client()
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
    """Plots, and tables of HTML: Bokeh's own do not show every change of their source."""

    def __init__(self, scheduler: Any) -> None:
        from bokeh.layouts import column, row
        from bokeh.models import ColumnDataSource, Div

        self.scheduler = scheduler
        # times and rows of each worker's latest reports
        self._reported: dict[str, deque[tuple[float, int]]] = {}
        self.bars = ColumnDataSource(bars_of({}, {}), name="bars")
        tables = [
            Div(name=name, sizing_mode="stretch_width", styles=_SCROLLED)
            for name in ("steps", "kernels")
        ]
        self.steps, self.kernels = tables
        self._time, self._steps = _time_plot(self.bars)
        self._rates = _rate_plot(self.bars)
        plots = row(self._time, self._rates, sizing_mode="stretch_width", styles=_WRAPPED)
        self.root = column(plots, *tables, sizing_mode="stretch_width", name="group_by")

    def update(self) -> None:
        """Read what the workers reported; called by Bokeh."""
        reports = {
            str(ws.name): ws.metrics[ACTIVITY]
            for ws in self.scheduler.workers.values()
            if ACTIVITY in ws.metrics
        }
        bars = bars_of(reports, self._rates_of(reports))
        upwards = bars["worker"][::-1]  # in the order of the tables, downwards
        if upwards != list(self._time.y_range.factors):
            self._time.y_range.factors = self._rates.y_range.factors = upwards
        self.bars.data.update(bars)
        for step, item in self._steps.items():
            item.visible = any(any(bars[f"{step} {engine}"]) for engine in _ENGINES)
        tables = ((self.steps, steps_of(reports)), (self.kernels, kernels_of(reports)))
        for shown, text in tables:
            if shown.text != text:
                shown.text = text

    def _rates_of(self, reports: dict[str, Any]) -> dict[str, float]:
        """Rows per second of each worker, over its reports of the latest seconds."""
        for name, report in reports.items():
            latest = self._reported.setdefault(name, deque())
            if latest and report["rows"] < latest[-1][1]:  # the worker was started again
                latest.clear()
            if not latest or report["time"] > latest[-1][0]:
                latest.append((report["time"], report["rows"]))
            while latest[-1][0] - latest[0][0] > _WINDOW_S:
                latest.popleft()
        return {name: rate_of(self._reported[name]) for name in reports}


def rate_of(reported: Sequence[tuple[float, int]]) -> float:
    """Rows per second from times and rows, the oldest first."""
    (start, before), (end, after) = reported[0], reported[-1]
    return (after - before) / (end - start) if end > start else 0.0


def bars_of(reports: dict[str, Any], rates: dict[str, float]) -> dict[str, list[Any]]:
    """Columns of ``worker``, ``rate``, and the seconds of each ``<step> <engine>``.

    Reports, as ``reporting.runs.activity`` gives them, and rates are by worker.
    """
    seconds: Counter[tuple[str, str, str]] = Counter()
    for name, report in reports.items():
        for step, engine, kernel, _, taken, *_ in report["steps"]:
            if not kernel:
                seconds[name, step, engine] += taken
    names = sorted(reports)
    data: dict[str, list[Any]] = {"worker": names, "rate": [rates.get(n, 0.0) for n in names]}
    for engine in _ENGINES:
        for step in STEPS:
            data[f"{step} {engine}"] = [seconds[name, step, engine] for name in names]
    return data


def steps_of(reports: dict[str, Any]) -> str:
    """The table of tasks, as HTML."""
    head = "worker, step, engine, tasks, time, rows in, rows out, rows/s"
    rows = [
        [name, step, engine, n, time_text(seconds), rows, groups, int(rows / max(seconds, 1e-9))]
        for name, (step, engine, kernel, n, seconds, rows, groups, *_) in _entries(reports)
        if not kernel
    ]
    return _table("Tasks by worker, step and engine", head, rows)


def kernels_of(reports: dict[str, Any]) -> str:
    """The table of kernels, as HTML; nothing where none were called."""
    head = "worker, step, kernel, calls, time, rows, groups expected, groups found, rows spilled"
    rows = [
        [name, step, kernel, n, time_text(seconds), rows, expected, groups, spilled]
        for name, (step, _, kernel, n, seconds, rows, groups, expected, spilled) in _entries(
            reports
        )
        if kernel
    ]
    return _table("Calls of kernels on the device", head, rows)


def _entries(reports: dict[str, Any]) -> list[tuple[str, list[Any]]]:
    return [(name, entry) for name in sorted(reports) for entry in sorted(reports[name]["steps"])]


def _table(title: str, head: str, rows: list[list[Any]]) -> str:
    if not rows:
        return ""
    cells = [[f"{c:,}" if isinstance(c, int) else escaped(c) for c in row] for row in rows]
    return page(f"<h4>{escaped(title)}</h4>", html_table(head.split(", "), cells))


def _figure(name: str, title: str, tooltips: str) -> Any:
    """A plot for a bar of each worker."""
    from bokeh.plotting import figure

    size = {"min_width": _PLOT_WIDTH, "height": _PLOT_HEIGHT, "sizing_mode": "stretch_width"}
    plot = figure(name=name, title=title, y_range=[], tools="hover", tooltips=tooltips, **size)
    plot.x_range.start = 0
    return plot


def _time_plot(source: Any) -> tuple[Any, dict[str, Any]]:
    """The plot, and its legend by step."""
    from bokeh.models import Legend, LegendItem

    plot = _figure(
        "group_by_time",
        "Seconds in tasks, by step (hatched: on the device)",
        "$name: @$name{0.00} s on worker @worker",
    )
    bars = plot.hbar_stack(
        [f"{step} {engine}" for engine in _ENGINES for step in STEPS],
        y="worker",
        height=0.8,
        color=[*_COLOURS, *_COLOURS],
        hatch_pattern=[" "] * len(STEPS) + ["/"] * len(STEPS),
        line_width=0,
        source=source,
    )
    # of both engines' bars, the host's stand in the legend
    items = {s: LegendItem(label=s, renderers=[b]) for s, b in zip(STEPS, bars, strict=False)}
    plot.add_layout(Legend(items=[*items.values()], label_text_font_size="8pt"), "right")
    return plot, items


def _rate_plot(source: Any) -> Any:
    from bokeh.models import NumeralTickFormatter

    plot = _figure(
        "group_by_rate",
        f"Rows grouped per second, over {_WINDOW_S:.0f} s",
        "@rate{0,0} rows/s on worker @worker",
    )
    plot.hbar(y="worker", right="rate", height=0.8, color=_COLOURS[0], source=source)
    plot.xaxis.formatter = NumeralTickFormatter(format="0.0 a")
    return plot
