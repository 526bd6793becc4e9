"""The mergeable states: one frozen record for each, read by the planner and the engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class State:
    """One mergeable state of one group.

    Attributes
    ----------
    name : str
        Name under which the engines implement ``update`` and ``merge``.
    fields : tuple of str
        The columns that hold the state, one row per group.
    identity : tuple
        The value of each field for a group without any rows; merging it changes nothing.
        ``None`` means null.
    order_sensitive : bool
        Whether partials have to be merged in the order of their partitions.
    summary : str
        What the fields hold.
    """

    name: str
    fields: tuple[str, ...]
    identity: tuple[int | float | None, ...]
    summary: str
    order_sensitive: bool = False


STATES: Mapping[str, State] = MappingProxyType(
    {
        s.name: s
        for s in (
            State("size", ("n",), (0,), "number of rows"),
            State("count", ("n",), (0,), "number of non-null values"),
            State("isum", ("sum",), (0,), "sum modulo 2**64 in int64 or uint64"),
            State("fsum", ("sum",), (0.0,), "sum in float64"),
            State("osum", ("sum",), (None,), "sum in the column's own dtype"),
            State("concat", ("sum",), (None,), "values joined in row order", order_sensitive=True),
            State("iprod", ("prod",), (1,), "product modulo 2**64 in int64 or uint64"),
            State("fprod", ("prod",), (1.0,), "product in float64"),
            State("min", ("min",), (None,), "smallest non-null value"),
            State("max", ("max",), (None,), "largest non-null value"),
            State("first", ("first",), (None,), "first non-null value", order_sensitive=True),
            State("last", ("last",), (None,), "last non-null value", order_sensitive=True),
            State("any", ("any",), (0,), "whether any non-null value is true"),
            State("all", ("all",), (1,), "whether every non-null value is true"),
            State(
                "moments",
                ("n", "mean", "m2"),
                (0, None, 0.0),
                "count, mean and sum of squared deviations from the mean",
            ),
            State("limbs", ("hi", "lo"), (0, 0), "sum of a 64-bit integer in two exact halves"),
            State(
                "idxmin",
                ("value", "label", "nulls"),
                (None, None, 0),
                "smallest value, index label of its first row, number of nulls",
                order_sensitive=True,
            ),
            State(
                "idxmax",
                ("value", "label", "nulls"),
                (None, None, 0),
                "largest value, index label of its first row, number of nulls",
                order_sensitive=True,
            ),
            State(
                "comoments",
                ("n", "mx", "my", "cxx", "cxy", "cyy"),
                (0, None, None, 0.0, 0.0, 0.0),
                "pairwise complete count, means and centred second moments of two columns",
            ),
            State("custom", (), (), "whatever a dd.Aggregation's chunk returns", True),
        )
    }
)
