"""``explain`` and ``why_not``: what would run, and why the rest would not."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask._expr import Expr, optimize_until
from dask.dataframe.dask_expr._groupby import GroupBy

from dask_gpuagg.cluster.preflight import cluster_problem, current_client
from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.activation import looking_on
from dask_gpuagg.plan import Plan, Unsupported
from dask_gpuagg.planning.lower import chunks_of, route
from dask_gpuagg.planning.route import Routing
from dask_gpuagg.profiling import last_runs
from dask_gpuagg.reporting.fallbacks import Reason

if TYPE_CHECKING:
    from dask_gpuagg.cuda.aggregate import Run

# runs that the text shows of a query
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Explained:
    """One group-by of a query.

    Attributes
    ----------
    what : str
        The call, abbreviated.
    engine : str
        ``host``, ``device`` or ``stock Dask``.
    plan : Plan, optional
        ``None`` for stock Dask.
    decision : Routing, optional
        ``None`` for stock Dask.
    reasons : tuple of Reason
        Why stock Dask runs it; empty otherwise.
    chunks : str
        How many partitions a task takes; empty where each has a task of its own.
    transfer : str
        How partials get from GPU to GPU, if there are several and the transport is slow.
    runs : tuple of Run
        The latest kernel runs of this process for the same plan, one for each partition and merge,
        the oldest first.
    """

    what: str
    engine: str
    plan: Plan | None
    decision: Routing | None
    reasons: tuple[Reason, ...] = ()
    chunks: str = ""
    transfer: str = ""
    runs: tuple[Run, ...] = ()

    def __str__(self) -> str:
        lines = [f"group-by {self.what}", f"engine   {self.engine}"]
        if self.plan is not None and self.decision is not None:
            groups = self.decision.groups
            lines += str(self.plan).splitlines()
            lines.append(f"groups   {'not estimated' if groups is None else f'{groups:,}'}")
            if self.chunks:
                lines.append(f"chunks   {self.chunks}")
            lines.append(f"merge    {self.decision}")
            if self.transfer:
                lines.append(f"transfer {self.transfer}")
        lines += [f"because  {reason}" for reason in self.reasons]
        if len(self.runs) > _SHOWN:
            lines.append(f"ran      {len(self.runs) - _SHOWN:,} earlier, then")
        lines += [f"ran      {run}" for run in self.runs[-_SHOWN:]]
        return "\n  ".join(lines)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every group-by of a query; prints as text.

    Attributes
    ----------
    groupbys : tuple of Explained
    """

    groupbys: tuple[Explained, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.groupbys)) or "no group-by aggregation"

    __repr__ = __str__


def explain(query: Any) -> Explanation:
    """Explain how the plugin would run a query.

    Parameters
    ----------
    query : dask.dataframe collection or expression
        Made while the plugin was on, where it uses aggregations that stock Dask refuses.

    Returns
    -------
    Explanation
        For each group-by aggregation the engine, the states and outputs, the expected number
        of groups, and whether partials merge in a tree or through an exchange, and why; and the
        kernel runs of this process for the same plan.
        Nothing is computed except the sample that the planner would take.
    """
    expr = query if isinstance(query, Expr) else query.expr
    with looking_on():
        problem = cluster_problem()
        tuned = optimize_until(expr, "tuned-logical")
        nodes = {n._name: n for n in tuned.walk() if logical.is_aggregation(n)}
        return Explanation(tuple(_explained(node, problem) for node in nodes.values()))


def _explained(node: Any, problem: str | None) -> Explained:
    what = logical.describe(node)
    refusals = [Unsupported(problem)] if problem else logical.refusals(node)
    if refusals:
        return Explained(what, "stock Dask", None, None, tuple(map(Reason.of, refusals)))
    query = logical.read(node)
    engine = engine_name(query.meta) or "stock Dask"
    decision = route(query, node)
    chunks = chunks_of(query)
    described = "" if chunks is None else str(chunks)
    several = engine == DEVICE and chunks is not None and chunks.workers > 1
    transfer = _transfer() if several else ""
    runs = last_runs(query.plan)
    return Explained(what, engine, query.plan, decision, (), described, transfer, runs)


def _transfer() -> str:
    """A note on the transport between the workers of the current cluster, if it is slow."""
    client = current_client()
    protocol = "" if client is None else client.scheduler.address.partition("://")[0]
    if protocol not in ("tcp", "tls"):
        return ""
    return (
        f"partials go from GPU to GPU through host memory ({protocol}); a cluster that is started "
        'with protocol="ucx" moves them directly'
    )


def why_not(query: Any, spec: Any = None) -> list[Reason]:
    """Why aggregations would fall back to stock Dask.

    Parameters
    ----------
    query : dask.dataframe collection or expression, or a GroupBy with ``spec``
        A GroupBy is what ``ddf.groupby(...)`` returns, before ``.agg``.
    spec : str, callable, list or dict, optional
        With a GroupBy: what would be passed to ``.agg``.

    Returns
    -------
    list of Reason
        One per aggregation that would fall back, or be refused; empty when there is none.
    """
    if isinstance(query, GroupBy):
        return _why_not_spec(query, spec)
    return [reason for found in explain(query).groupbys for reason in found.reasons]


def _why_not_spec(groupby: GroupBy, spec: Any) -> list[Reason]:
    found: list[Reason] = []
    for column, functions in _columns_of(groupby, spec):
        for function in functions if isinstance(functions, list | tuple) else [functions]:
            chosen = groupby if column is None else groupby[column]
            with looking_on():
                try:
                    query = chosen.agg(function)
                except Exception as error:
                    # the error of pandas, Dask or our planner is the reason
                    notes = getattr(error, "__notes__", [])
                    text = "; ".join([str(error), *notes])
                    found.append(Reason(str(function), column, text))
                    continue
            found += why_not(query)
    return found


def _columns_of(groupby: GroupBy, spec: Any) -> Sequence[tuple[Hashable, Any]]:
    if isinstance(spec, dict):
        return list(spec.items())
    if not isinstance(spec, list | tuple):
        return [(None, spec)]
    return [(None, function) for function in spec]
