"""Tables of the documentation: what each aggregation takes, and what it gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.dtypes import DTYPE_CLASSES


def support_table() -> str:
    """Markdown table of every aggregation against every dtype class.

    Returns
    -------
    str
        One row per aggregation, one mark per dtype class: ``✓`` where our plan runs it.
    """
    rows = [
        [f"`{agg.name}`", *("✓" if cls in agg.accepts else "" for cls in DTYPE_CLASSES)]
        for agg in REGISTRY.values()
    ]
    return markdown(["aggregation", *DTYPE_CLASSES], rows)


def meaning_table() -> str:
    """Markdown table of what every aggregation gives.

    Returns
    -------
    str
        One row per aggregation: what it is, what happens to nulls, how partials are combined, and
        where it may be written.
    """
    rows = []
    for agg in REGISTRY.values():
        where = "yes" if agg.in_agg else "method only"
        if agg.in_agg and not agg.stock_agg:
            where = "yes (stock Dask refuses it)"
        rows.append([f"`{agg.name}`", agg.summary, agg.null_rule, agg.kind.value, where])
    return markdown(["aggregation", "gives", "nulls", "combined by", "in `.agg`"], rows)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of cells."""
    rule = "|" + " --- |" * len(head)
    body = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([body[0], rule, *body[1:]])
