"""``explain`` and ``why_not``: what would run, also as a picture, and why the rest would not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask._expr import Expr, _ExprSequence, optimize_until
from dask.dataframe.dask_expr._groupby import GroupBy

from dask_gpuagg.cluster import cluster_problem
from dask_gpuagg.engines import HOST
from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.activation import as_if_enabled, is_enabled
from dask_gpuagg.plan import Plan, Unsupported
from dask_gpuagg.planning.chunks import Route, Routing, where_it_runs
from dask_gpuagg.planning.lower import Physical, described
from dask_gpuagg.profiling import last_runs
from dask_gpuagg.reporting.events import Planned, Refused
from dask_gpuagg.reporting.fallbacks import Reason
from dask_gpuagg.reporting.text import (
    Lines,
    count_text,
    escaped,
    html_table,
    page,
    size_text,
    time_text,
)
from dask_gpuagg.settings import switch

if TYPE_CHECKING:
    from dask_gpuagg.cuda.aggregate import Run

# boxes that a stage has at most; the last of more stands for the rest
_BOXES = 6
_WIDTH, _HEIGHT, _STEP = 64, 18, 26
_LEFT, _APART, _TOP, _BOTTOM = 43, 176, 34, 24


@dataclass(frozen=True)
class Stage:
    """Boxes above each other, so many of something, with a text above and one below.

    ``every`` says whether each is reached from each of the stage before.
    """

    number: int
    title: str
    under: str = ""
    every: bool = False

    @property
    def boxes(self) -> int:
        """Number of boxes that are drawn."""
        return max(1, min(self.number, _BOXES))


def stages_of(physical: Physical, groups: str) -> list[Stage]:
    """The stages of a plan's picture; ``groups`` says how many are expected, or nothing."""
    inputs, number, outputs = physical.partitions, physical.partials, physical.outputs
    partitions = Stage(inputs, count_text(inputs, "partition"))
    joined = 0 < number < inputs
    under = f"of {inputs / number:.3g} partitions each" if joined else "one of each partition"
    partials = Stage(number, count_text(number, "partial"), under)
    every = True
    match physical.route:
        case Route.DIRECT:
            middle = [Stage(1, "one task", "groups and finishes", True)]
        case Route.NARROWED:
            middle = [Stage(1, "narrowed", "quantiles; rows stay", True)]
        case Route.TREE:
            combines = dict(physical.tasks).get("combine", 0)
            under = f"{combines:,} combine, then finalize" if combines else "finalize"
            middle = [partials, Stage(1, "tree", under, True)]
        case Route.EXCHANGE:
            title = f"exchange into {physical.pieces:,}"
            middle = [partials, Stage(physical.pieces, title, "by key hash, then finalize", True)]
            every = physical.pieces != outputs
        case Route.ALIGNED:
            middle = [partials, Stage(number, "aligned", "nothing is exchanged")]
            every = number != outputs
    expected = f"{groups} groups" if groups else ""
    return [partitions, *middle, Stage(outputs, count_text(outputs, "output"), expected, every)]


def drawn(stages: Sequence[Stage]) -> str:
    """Columns as an SVG image, connected from left to right."""
    rows = max(stage.boxes for stage in stages)
    width, height = _APART * (len(stages) - 1) + 150, _TOP + _STEP * rows + _BOTTOM
    # the middle of each box: stages are centred
    middles = [
        [_TOP + _STEP * ((rows - stage.boxes + 1) / 2 + i) for i in range(stage.boxes)]
        for stage in stages
    ]
    shapes = []
    for place, after in enumerate(stages[1:]):
        x1, x2 = _LEFT + place * _APART + _WIDTH, _LEFT + (place + 1) * _APART
        links = itertools.product(middles[place], middles[place + 1])
        shapes += [
            f'<line x1="{x1}" y1="{y1:g}" x2="{x2}" y2="{y2:g}" '
            'stroke="currentColor" stroke-opacity=".35"/>'
            for y1, y2 in (links if after.every else _aligned(*middles[place : place + 2]))
        ]
    for place, stage in enumerate(stages):
        x = _LEFT + place * _APART
        shapes += [
            f'<rect x="{x}" y="{y - _HEIGHT / 2:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="3" '
            'fill="#3b82c4" fill-opacity=".25" stroke="#3b82c4"/>'
            for y in middles[place]
        ]
        rest = stage.number - stage.boxes + 1
        texts = [(14.0, stage.title, ' font-weight="600"'), (height - 6, stage.under, "")]
        texts += [(middles[place][-1] + 4, f"{rest:,} more", "")] if rest > 1 else []
        shapes += [
            f'<text x="{x + _WIDTH / 2:g}" y="{y:g}" text-anchor="middle"{weight}>'
            f"{escaped(text)}</text>"
            for y, text, weight in texts
        ]
    label = " to ".join(stage.title for stage in stages)
    return (
        f'<svg role="img" aria-label="{escaped(label)}" viewBox="0 0 {width} {height}" '
        f'style="width:{width}px;max-width:100%;height:auto" font-family="system-ui,sans-serif" '
        f'font-size="11" fill="currentColor">{"".join(shapes)}</svg>'
    )


def _aligned(before: Sequence[float], after: Sequence[float]) -> list[tuple[float, float]]:
    """Pairs of boxes at the same share of their stages."""
    links = max(len(before), len(after))
    return [
        (before[k * len(before) // links], after[k * len(after) // links]) for k in range(links)
    ]


# runs that are shown of a query: calls of kernels in the text, and all in the picture
_SHOWN, _BELOW_PICTURE = 20, 5


@dataclass(frozen=True, slots=True)
class Explained:
    """One group-by of a query."""

    #: the call, abbreviated
    what: str
    #: ``host``, ``device`` or ``stock Dask``, which has none of what follows but reasons
    engine: str
    plan: Plan | None
    #: tree or exchange, the number of outputs, and why
    decision: Routing | None
    #: why stock Dask runs it, or single aggregations beside the plan
    reasons: tuple[Reason, ...] = ()
    #: the route that runs, its tasks and bytes
    physical: Physical | None = None
    #: what ran last for the same plan, the oldest first (see ``last_runs``)
    runs: tuple[Run, ...] = ()

    @property
    def groups(self) -> str:
        """Expected number of groups as text; empty if unknown."""
        decision = self.decision
        if decision is None or decision.groups is None:
            return ""
        return f"{'at most' if decision.bound else 'about'} {decision.groups:,}"

    def lines(self) -> list[tuple[str, str]]:
        """Titles and texts."""
        lines = [("engine", self.engine)]
        physical = self.physical
        if self.plan is None or self.decision is None or physical is None:
            return lines + [("because", str(reason)) for reason in self.reasons]
        for line in str(self.plan).splitlines():
            title, _, text = line.partition(" ")
            lines.append((title, text.strip()))
        nbytes = physical.nbytes
        tasks = ", ".join(f"{n:,} {step}" for step, n in physical.tasks)
        more = {
            "where": physical.predicate,
            "groups": self.groups or "not estimated",
            "chunks": physical.chunks,
            "reduced": "; ".join(reversed(physical.joins)),
            "merge": f"{physical}: {physical.reason or self.decision.reason}",
            "tasks": tasks,
            "bytes": "" if nbytes is None else f"at most about {size_text(nbytes)} of partials",
        }
        lines += [(title, text) for title, text in more.items() if text]
        return lines + [("stock", f"{reason}: joined with the rest") for reason in self.reasons]

    def ran(self) -> list[str]:
        """Texts of the runs: steps on the host, the latest calls of kernels on the device."""
        texts, calls = [], []
        steps: dict[str, list[Run]] = {}
        for run in self.runs:
            if run.decision.kernel == HOST:
                steps.setdefault(run.step, []).append(run)
            else:
                calls.append(str(run))
        for step, runs in steps.items():
            rows, groups = sum(run.rows for run in runs), sum(run.groups for run in runs)
            seconds = time_text(sum(run.seconds for run in runs))
            tasks = count_text(len(runs), "task")
            texts.append(f"{step}, {HOST}: {tasks} from {rows:,} rows to {groups:,}, {seconds}")
        if len(calls) > _SHOWN:
            texts.append(f"{len(calls) - _SHOWN:,} earlier, then")
        return [*texts, *calls[-_SHOWN:]]

    def __str__(self) -> str:
        lines = [f"group-by {self.what}"]
        lines += [f"{title:<8} {text}" for title, text in self.lines()]
        lines += [f"ran      {text}" for text in self.ran()]
        return "\n  ".join(lines)

    def _html(self) -> str:
        picture = "" if self.physical is None else drawn(stages_of(self.physical, self.groups))
        lines = [*self.lines(), *(("ran", text) for text in self.ran()[-_BELOW_PICTURE:])]
        table = html_table(("", ""), [[*map(escaped, line)] for line in lines], text=True)
        return f"<h4>group-by {escaped(self.what)}</h4>{picture}{table}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every group-by of a query; prints as text, and as a picture in a notebook.

    ``off`` says why nothing of it would run here and now; it is empty where the plugin is on.
    """

    groupbys: tuple[Explained, ...]
    off: str = ""

    def __str__(self) -> str:
        if not self.groupbys:
            return "no group-by aggregation"
        return "\n".join([*([self.off] if self.off else []), *map(str, self.groupbys)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self.groupbys:
            return page(f"<p>{self}</p>")
        off = f'<p class="off">{escaped(self.off)}</p>' if self.off else ""
        return page(off, *(groupby._html() for groupby in self.groupbys))


def explain(query: Any) -> Explanation:
    """Explain how the plugin would run a query.

    Parameters
    ----------
    query : dask.dataframe collection or expression, or a list or tuple of them
        Made while the plugin was on, where it uses aggregations that stock Dask refuses. Several
        are explained as ``dask.compute`` runs them together.

    Returns
    -------
    Explanation
        For each group-by aggregation the engine, the states and outputs, the expected number
        of groups, the way partials are merged and why, the number of tasks and the bytes of
        partials; and what ran for the same plan. Nothing is computed except the sample that the
        planner would take.

    Raises
    ------
    TypeError
        For anything else.
    """
    if isinstance(query, list | tuple) and not query:
        return Explanation((), _off())
    several = isinstance(query, list | tuple)
    expr = _ExprSequence(*map(_expression, query)) if several else _expression(query)
    events: dict[str, Planned | Refused] = {}

    def note(event: Any) -> None:
        if isinstance(event, Planned | Refused):
            events[event.node._name] = event

    with as_if_enabled(note):
        problem = cluster_problem()
        tuned = optimize_until(expr, "tuned-logical")
        # from the inputs on, and several queries in their order
        walked = {n._name: n for n in reversed([*tuned.walk()])}
        nodes = [n for n in walked.values() if logical.is_aggregation(n) or logical.left_to_dask(n)]
        # without a plan and a refusal Dask has merged a group-by into another node
        why = "Dask lowers it as a part of another expression"
        if not problem and any(logical.is_aggregation(node) for node in nodes):
            try:
                tuned.lower_completely()
            except Exception as error:
                # the query itself raises the same
                why = f"the query cannot be lowered: {error!r}"
        groupbys = [
            _explained(events.get(node._name, Refused(node, why)), problem) for node in nodes
        ]
    # timers of an event loop that the planner has asked keep this context, and ``note``
    events.clear()
    return Explanation(tuple(groupbys), _off())


def _expression(query: Any) -> Expr:
    if isinstance(query, GroupBy):
        raise TypeError(
            "explain() takes a query, and this group-by has no aggregation yet: "
            "add one, such as .sum(), or ask why_not(groupby, spec)"
        )
    expr = query if isinstance(query, Expr) else getattr(query, "expr", None)
    if not isinstance(expr, Expr):
        kind = type(query)
        raise TypeError(
            "explain() takes a collection or expression of dask.dataframe, or a list or tuple of "
            f"them, not {kind.__module__.partition('.')[0]}.{kind.__qualname__}"
        )
    return expr


def _off() -> str:
    if is_enabled():
        return ""
    if switch() is False:
        return "the plugin is OFF, by the setting gpuagg.enabled; if it were on:"
    return "the plugin is OFF (dask_gpuagg.enable() switches it on); if it were on:"


def _explained(event: Planned | Refused, problem: str | None) -> Explained:
    """A group-by as it is lowered: its plan, or the reasons why it has none."""
    call, left = logical.call_text(event.node), logical.left_to_dask(event.node)
    refusals = [left] if left is not None else [Unsupported(problem)] if problem else []
    refusals = refusals or logical.refusals(event.node)
    if isinstance(event, Refused):
        refusals = refusals or [Unsupported(event.reason)]
        return Explained(call, "stock Dask", None, None, tuple(map(Reason.of, refusals)))
    query = event.query
    engine = where_it_runs(query) or "stock Dask"
    physical = described(query, event.decision, event.nodes)
    runs = tuple(last_runs(query.plan))
    reasons = tuple(map(Reason.of, refusals))
    return Explained(call, engine, query.plan, event.decision, reasons, physical, runs)


def why_not(query: Any, spec: Any = None) -> Lines[Reason]:
    """Why aggregations would fall back to stock Dask.

    Parameters
    ----------
    query : dask.dataframe collection or expression, several in a list, or a GroupBy with ``spec``
        A GroupBy is what ``ddf.groupby(...)`` returns, before ``.agg``.
    spec : str, callable, list or dict, optional
        With a GroupBy: what would be passed to ``.agg``.

    Returns
    -------
    list of Reason
        One per aggregation that would fall back, or be refused, and per other group-by of the
        query, which Dask runs always; empty when there is none. It prints one reason a line.

    Raises
    ------
    TypeError
        For what is no query.
    """
    if isinstance(query, GroupBy):
        return _why_not_spec(query, spec)
    return Lines(reason for groupby in explain(query).groupbys for reason in groupby.reasons)


def _why_not_spec(groupby: GroupBy, spec: Any) -> Lines[Reason]:
    """Ask of each aggregation alone: Dask refuses a specification at its first fault."""
    reasons: Lines[Reason] = Lines()
    for column, functions in spec.items() if isinstance(spec, dict) else [(None, spec)]:
        chosen = groupby if column is None else groupby[column]
        for function in functions if isinstance(functions, list | tuple) else [functions]:
            with as_if_enabled():
                try:
                    query = chosen.agg(function)
                except Exception as error:
                    # the error of pandas, Dask or our planner is the reason
                    text = "; ".join([str(error), *getattr(error, "__notes__", [])])
                    reasons.append(Reason(str(function), column, text))
                    continue
            reasons += why_not(query)
    return reasons
