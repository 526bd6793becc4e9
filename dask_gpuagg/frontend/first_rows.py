"""``head`` and ``tail`` of groups: rows of the input, in their order, as pandas has them.

Stock Dask calls Python once for each group of each partition, and gives the rows group by group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from dask.dataframe.dask_expr import _groupby as G
from dask.dataframe.dask_expr._collection import new_collection
from dask.dataframe.dask_expr._expr import Expr

from dask_gpuagg.cluster.preflight import cluster_problem
from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.fallback import Refusal, Stock
from dask_gpuagg.frontend.patches import acting
from dask_gpuagg.frontend.specification import on_own_labels
from dask_gpuagg.plan import Plan, StateUse, Unsupported
from dask_gpuagg.planning.first_rows import rows_of_groups
from dask_gpuagg.planning.query import GroupByQuery
from dask_gpuagg.planning.route import Route, Routing
from dask_gpuagg.reporting.events import Planned, Refused, emit, is_dry_run
from dask_gpuagg.reporting.fallbacks import UnsupportedGroupBy, note_fallback


class RowsOfGroups(Expr, G.GroupByBase):
    """The first or last rows of each group; the last operands are the keys.

    ``stock`` is Dask's own expression for it, ``refusal`` its error where it has none.
    """

    _parameters = ["frame", "n", "last", "dropna", "columns", "split_every", "stock", "refusal"]

    @functools.cached_property
    def _meta(self) -> Any:
        columns = self.operand("columns")
        return self.frame._meta if columns is None else self.frame._meta[columns]

    def _divisions(self) -> tuple[None, None]:
        return (None, None)

    def _simplify_down(self) -> Any:
        columns = self.operand("columns")
        if columns is None or self.frame.ndim == 1:
            return None
        needed = {*(columns if isinstance(columns, list) else [columns]), *self._by_columns}
        kept = [c for c in self.frame.columns if c in needed]
        if kept == list(self.frame.columns):
            return None
        return type(self)(self.frame[kept], *self.operands[1:])

    @property
    def what(self) -> str:
        """The call."""
        return f".{'tail' if self.last else 'head'}({self.n})"

    def _query(self, frame: Expr) -> GroupByQuery:
        keys = tuple(logical.key_column(by, self.frame._meta) for by in self.by)
        plan = Plan(keys, (), (StateUse("size", ()),), (), dropna=self.dropna is not False)
        return GroupByQuery(plan, frame, list(self.by), self._meta, self.split_every, None)

    def _planned(self, query: GroupByQuery) -> Expr:
        return rows_of_groups(query, self.n, self.last, self.operand("columns"))

    def _lower(self) -> Any:
        try:
            problem = None if is_dry_run() else cluster_problem()
            if not acting():
                problem = "the plugin is off"
            if problem is not None:
                raise Unsupported(problem)
            query = self._query(self.frame)
        except Unsupported as refusal:
            emit(Refused(self, refusal.reason))
            if self.stock is None:
                raise UnsupportedGroupBy(
                    f"group-by {self.what} cannot run: {refusal.reason}; "
                    f"stock Dask refuses it: {self.refusal.text}"
                ) from refusal
            if acting():
                note_fallback(self._name, self.what, refusal.reason)
            return self.stock.lowered(1, 1)
        # Dask lowers the inputs later, and reads narrow files several at a time
        lowered = self._query(self.frame.lower_completely())
        reason = f"a group has at most {self.n:,} rows in each of them"
        routing = Routing(Route.TREE, 1, reason)
        emit(Planned(self, lowered, routing, self._planned(lowered)))
        return self._planned(query)


# Of head and tail, which are ours where they are made: why stock Dask has them.
NOT_OURS = "made with the plugin off, with a negative n, or with several outputs"


def call_of(node: RowsOfGroups | G.Head) -> str:
    """The call that made a node of ours, or of Dask's."""
    return node.what if isinstance(node, RowsOfGroups) else f".{type(node).__name__.lower()}()"


def rows(
    name: str,
    original: Callable[..., Any],
    self: Any,
    n: int = 5,
    split_every: Any = None,
    split_out: Any = None,
) -> Any:
    """``head`` and ``tail`` of group-bys: our node, with Dask's as a fallback."""
    self = on_own_labels(self)
    # all but the last rows of a group are not known to a partition
    if n < 0 or split_out not in (None, 1):
        return original(self, n, split_every=split_every, split_out=split_out)
    stock, refused = None, None
    try:
        stock = Stock(original(self, n, split_every=split_every, split_out=split_out).expr)
    except Exception as error:  # it fails on several keys with dropna=False, and on cuDF
        refused = Refusal(error)
    columns = self._slice if self.obj.ndim == 2 else None
    given = (n, name == "tail", self.dropna, columns, split_every, stock, refused)
    return new_collection(RowsOfGroups(self.obj.expr, *given, *self.by))


# methods that are wrapped
ROWS = ("head", "tail")
