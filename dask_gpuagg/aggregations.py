"""The registry: one frozen record per aggregation.

Everything that has to know which aggregations exist reads this table and that of their states
(``states.STATES``, to be had from here too): the planner, ``why_not()``, the support table of
the documentation, the parameters of the tests and the list of update policies of the device
kernels. Nothing else in the package spells out a list of aggregation names.

An aggregation belongs to one of three kinds (Gray et al. 1997 call them distributive or
algebraic, and holistic; the middle one is holistic but reducible):

``MERGEABLE``
    partitions are reduced to a fixed number of state fields per group, and states merge;
``DISTINCT``
    partitions are reduced to their distinct (key, value) pairs, and pairs merge;
``WHOLE``
    the rows of a group have to be brought together before anything can be computed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dask_gpuagg.states import STATES, State

__all__ = [
    "DEVICE_CLASSES", "DTYPE_CLASSES", "REGISTRY", "STATES", "Aggregation", "Kind", "State",
    "support_table",
]  # fmt: skip

# of columns that cuDF has too
DEVICE_CLASSES: tuple[str, ...] = (
    "bool",
    "int",
    "uint",
    "float",
    "datetime",
    "timedelta",
    "string",
    "category",
    "decimal",
    "object",
)
DTYPE_CLASSES: tuple[str, ...] = (*DEVICE_CLASSES, "date", "time", "period", "binary")

_INTEGRAL = ("bool", "int", "uint")
_NUMERIC = (*_INTEGRAL, "float")
_TEMPORAL = ("datetime", "timedelta")


class Kind(enum.Enum):
    """How the partial results of an aggregation can be brought together."""

    MERGEABLE = "mergeable states"
    DISTINCT = "distinct (key, value) pairs"
    WHOLE = "whole groups"


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One aggregation: what it needs, what it gives.

    Attributes
    ----------
    name : str
        The name users write.
    kind : Kind
        How partial results merge.
    states : mapping of str to tuple of str
        For ``MERGEABLE``: by dtype class of the input, the states to keep. The keys are the
        accepted dtype classes. For the other kinds every value is empty.
    result : str
        Rule for the result's dtype: ``same`` as the input, ``sum`` (64 bit, narrowed to the
        input's width where every value fits, as pandas does), ``float``, ``count``, ``bool``,
        ``label`` (the index's dtype), ``object`` or ``key`` (the values join the index).
    null_rule : str
        What happens to nulls, in words, for the documentation.
    summary : str
        One line for the documentation.
    order_sensitive : bool
        Whether the result depends on the order of rows.
    parameters : tuple of str
        Keyword arguments that are understood (``functools.partial(np.var, ddof=0)``).
    in_agg : bool
        Whether ``.agg`` accepts the name (the others are methods only).
    stock_agg : bool
        Whether stock Dask accepts the name in ``.agg``.
    """

    name: str
    kind: Kind
    states: Mapping[str, tuple[str, ...]]
    result: str
    null_rule: str
    summary: str
    order_sensitive: bool = False
    parameters: tuple[str, ...] = ()
    in_agg: bool = True
    stock_agg: bool = True
    accepts: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "states", MappingProxyType(dict(self.states)))
        object.__setattr__(self, "accepts", frozenset(self.states))

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _lookup, (self.name,)


def _lookup(name: str) -> Aggregation:
    return REGISTRY[name]


def _by_class(*pairs: tuple[tuple[str, ...], tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {cls: states for classes, states in pairs for cls in classes}


_SKIPS = "nulls are skipped; a group without values gives null"
_EVERY = _by_class((DTYPE_CLASSES, ()))


def _same(state: str, *classes: str) -> dict[str, tuple[str, ...]]:
    return _by_class((classes, (state,)))


_MOMENTS = _by_class((_NUMERIC, ("moments",)), (("decimal",), ("moments",)))

REGISTRY: Mapping[str, Aggregation] = MappingProxyType(
    {
        a.name: a
        for a in (
            Aggregation(
                "sum",
                Kind.MERGEABLE,
                _by_class(
                    (_INTEGRAL, ("isum",)),
                    (("float",), ("fsum",)),
                    (("timedelta", "decimal"), ("osum",)),
                    (("string", "object"), ("concat",)),
                ),
                "sum",
                "nulls are skipped; a group without values gives 0",
                "sum; integers wrap modulo 2**64, float32 accumulates in float64",
            ),
            Aggregation(
                "prod",
                Kind.MERGEABLE,
                _by_class((_INTEGRAL, ("iprod",)), (("float",), ("fprod",))),
                "sum",
                "nulls are skipped; a group without values gives 1",
                "product; integers wrap modulo 2**64",
            ),
            Aggregation(
                "count",
                Kind.MERGEABLE,
                _same("count", *DTYPE_CLASSES),
                "count",
                "nulls are not counted",
                "number of non-null values",
            ),
            Aggregation(
                "size",
                Kind.MERGEABLE,
                _same("size", *DTYPE_CLASSES),
                "count",
                "nulls are counted",
                "number of rows",
            ),
            Aggregation(
                "min",
                Kind.MERGEABLE,
                _same("min", *DTYPE_CLASSES),
                "same",
                _SKIPS,
                "smallest value",
            ),
            Aggregation(
                "max", Kind.MERGEABLE, _same("max", *DTYPE_CLASSES), "same", _SKIPS, "largest value"
            ),
            Aggregation(
                "mean",
                Kind.MERGEABLE,
                _by_class(
                    (_NUMERIC, ("fsum", "count")),
                    (_TEMPORAL, ("limbs", "count")),
                    (("decimal",), ("osum", "count")),
                ),
                "float",
                _SKIPS,
                "arithmetic mean, summed in float64 (datetimes exactly, in two integer halves)",
            ),
            Aggregation(
                "var",
                Kind.MERGEABLE,
                _MOMENTS,
                "float",
                "nulls are skipped; ddof or fewer values give null",
                "variance from centred second moments (Chan, Golub, LeVeque 1979)",
                parameters=("ddof",),
            ),
            Aggregation(
                "std",
                Kind.MERGEABLE,
                _MOMENTS,
                "float",
                "nulls are skipped; ddof or fewer values give null",
                "standard deviation, from the same states as var",
                parameters=("ddof",),
            ),
            Aggregation(
                "sem",
                Kind.MERGEABLE,
                _MOMENTS,
                "float",
                "nulls are skipped; ddof or fewer values give null",
                "standard error of the mean, from the same states as var",
                parameters=("ddof",),
                stock_agg=False,
            ),
            Aggregation(
                "first",
                Kind.MERGEABLE,
                _same("first", *DTYPE_CLASSES),
                "same",
                _SKIPS,
                "first non-null value in row order",
                order_sensitive=True,
            ),
            Aggregation(
                "last",
                Kind.MERGEABLE,
                _same("last", *DTYPE_CLASSES),
                "same",
                _SKIPS,
                "last non-null value in row order",
                order_sensitive=True,
            ),
            Aggregation(
                "any",
                Kind.MERGEABLE,
                _same("any", *_NUMERIC, "string", "object"),
                "bool",
                "nulls are skipped; a group without values gives False",
                "whether any value is true",
                stock_agg=False,
            ),
            Aggregation(
                "all",
                Kind.MERGEABLE,
                _same("all", *_NUMERIC, "string", "object"),
                "bool",
                "nulls are skipped; a group without values gives True",
                "whether every value is true",
                stock_agg=False,
            ),
            Aggregation(
                "nunique",
                Kind.DISTINCT,
                _EVERY,
                "count",
                "nulls are not counted",
                "number of distinct values",
                stock_agg=False,
            ),
            Aggregation(
                "unique",
                Kind.DISTINCT,
                _EVERY,
                "object",
                "null is a value",
                "distinct values in order of appearance",
                order_sensitive=True,
                in_agg=False,
                stock_agg=False,
            ),
            Aggregation(
                "idxmin",
                Kind.MERGEABLE,
                _same("idxmin", *_NUMERIC, *_TEMPORAL),
                "label",
                "nulls are skipped; a group without values is an error, as in pandas",
                "index label of the first smallest value",
                order_sensitive=True,
                parameters=("skipna",),
                stock_agg=False,
            ),
            Aggregation(
                "idxmax",
                Kind.MERGEABLE,
                _same("idxmax", *_NUMERIC, *_TEMPORAL),
                "label",
                "nulls are skipped; a group without values is an error, as in pandas",
                "index label of the first largest value",
                order_sensitive=True,
                parameters=("skipna",),
                stock_agg=False,
            ),
            Aggregation(
                "median",
                Kind.WHOLE,
                _by_class(((*_NUMERIC, *_TEMPORAL), ())),
                "float",
                _SKIPS,
                "median; whole groups are brought together",
            ),
            Aggregation(
                "quantile",
                Kind.WHOLE,
                _by_class(((*_NUMERIC, *_TEMPORAL), ())),
                "float",
                _SKIPS,
                "one quantile (0.5 unless q is given); whole groups are brought together",
                parameters=("q", "interpolation"),
                stock_agg=False,
            ),
            Aggregation(
                "list",
                Kind.WHOLE,
                _EVERY,
                "object",
                "nulls are kept",
                "the group's values in row order",
                order_sensitive=True,
            ),
            Aggregation(
                "cov",
                Kind.MERGEABLE,
                _by_class((_NUMERIC, ("comoments",))),
                "float",
                "pairs with a null are skipped",
                "covariance matrix of each group, from pairwise co-moments",
                parameters=("ddof",),
                in_agg=False,
                stock_agg=False,
            ),
            Aggregation(
                "corr",
                Kind.MERGEABLE,
                _by_class((_NUMERIC, ("comoments",))),
                "float",
                "pairs with a null are skipped",
                "correlation matrix of each group, from pairwise co-moments",
                in_agg=False,
                stock_agg=False,
            ),
            Aggregation(
                "value_counts",
                Kind.MERGEABLE,
                _same("size", *DTYPE_CLASSES),
                "key",
                "nulls are not counted",
                "number of rows of each distinct value; the value joins the index",
                in_agg=False,
                stock_agg=False,
            ),
        )
    }
)


def support_table() -> str:
    """Markdown table of every aggregation against every dtype class.

    Returns
    -------
    str
        One row per aggregation: name, kind, where it may be written, one mark per dtype
        class (``yes`` where our plan runs it), and what happens to nulls.
    """
    head = ["aggregation", "brought together by", "in `.agg`", *DTYPE_CLASSES, "nulls"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for agg in REGISTRY.values():
        where = "yes" if agg.in_agg else "method only"
        if agg.in_agg and not agg.stock_agg:
            where = "yes (stock Dask refuses it)"
        marks = ["yes" if cls in agg.accepts else "" for cls in DTYPE_CLASSES]
        cells = [f"`{agg.name}`", agg.kind.value, where, *marks, agg.null_rule]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
