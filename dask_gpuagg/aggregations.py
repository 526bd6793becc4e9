"""The registry: one frozen record per aggregation.

Everything that has to know which aggregations exist reads this table and that of their states
(``states.STATES``, to be had from here too): the planner, ``why_not()``, the support table of
the documentation, the parameters of the tests and the list of update policies of the device
kernels. Nothing else in the package spells out a list of aggregation names.

An aggregation belongs to one of four kinds (Gray et al. 1997 call them distributive or
algebraic, and holistic; the second one is holistic but reducible):

``MERGEABLE``
    partitions are reduced to a fixed number of state fields per group, and states merge;
``DISTINCT``
    partitions are reduced to their distinct (key, value) pairs, and pairs merge;
``WHOLE``
    no fixed number of fields suffices: the answer depends on all rows of a group;
``SKETCH``
    partitions are reduced to a bounded number of entries per group, and these merge: the largest
    values, or an approximation of an aggregation of one of the two kinds above.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dask_gpuagg.dtypes import DTYPE_CLASSES, INTEGRAL, NUMERIC, TEMPORAL
from dask_gpuagg.states import STATES, State

__all__ = [
    "REGISTRY",
    "STATES",
    "Aggregation",
    "Kind",
    "State",
]


class Kind(enum.Enum):
    """How the partial results of an aggregation are combined."""

    MERGEABLE = "mergeable states"
    DISTINCT = "distinct (key, value) pairs"
    WHOLE = "whole groups"
    SKETCH = "bounded entries"


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
    of_no_rows : object
        What cuDF gives for a group without rows, which ``observed=False`` asks for; ``None`` is
        null.
    power : int, optional
        For what is made of second moments: 0 is the variance, 1 the standard deviation, 2 the
        standard error of the mean.
    kernels : tuple of str
        For the other kinds: the dtype classes of which the device kernels make it of rows.
    exact : str
        The aggregation that it approximates, if it does.
    shapes : tuple of str
        For ``SKETCH``: the parameters by which entries are kept, and not only read.
    reproducible : mapping of str to tuple of str
        By dtype class, the states that do not depend on the order of additions, where ``states``
        has others.
    rounds : tuple of str
        The dtype classes of which the result depends on the order in which partials are made and
        merged, and no state does not.
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
    of_no_rows: Any = None
    power: int | None = None
    kernels: tuple[str, ...] = ()
    exact: str = ""
    shapes: tuple[str, ...] = ()
    reproducible: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rounds: tuple[str, ...] = ()
    accepts: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "states", MappingProxyType(dict(self.states)))
        object.__setattr__(self, "reproducible", MappingProxyType(dict(self.reproducible)))
        object.__setattr__(self, "accepts", frozenset(self.states))

    def states_of(self, cls: str, deterministic: bool) -> tuple[str, ...] | None:
        """The states to keep of a dtype class; None of one that is not accepted."""
        known = self.states.get(cls)
        return self.reproducible.get(cls, known) if deterministic else known

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _lookup, (self.name,)


def _lookup(name: str) -> Aggregation:
    return REGISTRY[name]


_SKIPS = "nulls are skipped; a group without values gives null"
_NUMBERS_AND_TIMES = (*NUMERIC, *TEMPORAL)


def _by_class(*pairs: tuple[tuple[str, ...], tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {cls: states for classes, states in pairs for cls in classes}


def _same(state: str, *classes: str) -> dict[str, tuple[str, ...]]:
    return _by_class((classes, (state,)))


def _counted(name: str, null_rule: str, summary: str) -> Aggregation:
    states = _same(name, *DTYPE_CLASSES)
    return Aggregation(name, Kind.MERGEABLE, states, "count", null_rule, summary, of_no_rows=0)


def _one_value(name: str, summary: str, order_sensitive: bool = False) -> Aggregation:
    states = _same(name, *DTYPE_CLASSES)
    return Aggregation(name, Kind.MERGEABLE, states, "same", _SKIPS, summary, order_sensitive)


def _spread(name: str, power: int, summary: str, stock_agg: bool = True) -> Aggregation:
    return Aggregation(
        name,
        Kind.MERGEABLE,
        _same("moments", *NUMERIC, "decimal"),
        "float",
        "nulls are skipped; ddof or fewer values give null",
        summary,
        parameters=("ddof",),
        stock_agg=stock_agg,
        power=power,
        rounds=(*NUMERIC, "decimal"),
    )


def _truth(name: str, of_no_rows: bool, summary: str) -> Aggregation:
    return Aggregation(
        name,
        Kind.MERGEABLE,
        _same(name, *NUMERIC, "string", "object"),
        "bool",
        f"nulls are skipped; a group without values gives {of_no_rows}",
        summary,
        stock_agg=False,
        of_no_rows=of_no_rows,
    )


def _label(name: str, summary: str) -> Aggregation:
    return Aggregation(
        name,
        Kind.MERGEABLE,
        _same(name, *_NUMBERS_AND_TIMES),
        "label",
        "nulls are skipped; a group without values is an error, as in pandas",
        summary,
        order_sensitive=True,
        parameters=("skipna",),
        stock_agg=False,
    )


def _quantile(
    name: str, summary: str, parameters: tuple[str, ...] = (), stock_agg: bool = True
) -> Aggregation:
    return Aggregation(
        name,
        Kind.WHOLE,
        _by_class((_NUMBERS_AND_TIMES, ())),
        "float",
        _SKIPS,
        summary,
        parameters=parameters,
        stock_agg=stock_agg,
        kernels=_NUMBERS_AND_TIMES,
    )


def _sketch(
    name: str,
    exact: str,
    classes: tuple[str, ...],
    result: str,
    null_rule: str,
    summary: str,
    parameters: tuple[str, ...] = (),
    rounds: tuple[str, ...] = (),
) -> Aggregation:
    return Aggregation(
        name,
        Kind.SKETCH,
        _by_class((classes, ())),
        result,
        null_rule,
        summary,
        parameters=parameters,
        stock_agg=False,
        exact=exact,
        rounds=rounds,
    )


def _top(name: str, summary: str) -> Aggregation:
    return Aggregation(
        name,
        Kind.SKETCH,
        _by_class((("int", "uint", "float"), ())),
        "object",
        "nulls are skipped; a group without values gives an empty list",
        summary,
        parameters=("n",),
        stock_agg=False,
        shapes=("n",),
    )


def _matrix(name: str, summary: str, parameters: tuple[str, ...] = ()) -> Aggregation:
    return Aggregation(
        name,
        Kind.MERGEABLE,
        _same("comoments", *NUMERIC),
        "float",
        "pairs with a null are skipped",
        summary,
        parameters=parameters,
        in_agg=False,
        stock_agg=False,
        rounds=NUMERIC,
    )


def _aggregations() -> tuple[Aggregation, ...]:
    every = _by_class((DTYPE_CLASSES, ()))
    return (
        Aggregation(
            "sum",
            Kind.MERGEABLE,
            _by_class(
                (INTEGRAL, ("isum",)),
                (("float",), ("fsum",)),
                (("timedelta", "decimal"), ("osum",)),
                (("string", "object"), ("concat",)),
            ),
            "sum",
            "nulls are skipped; a group without values gives 0",
            "sum; integers wrap modulo 2**64, float32 accumulates in float64",
            reproducible=_same("xsum", "float"),
            rounds=("object",),
        ),
        Aggregation(
            "prod",
            Kind.MERGEABLE,
            _by_class((INTEGRAL, ("iprod",)), (("float",), ("fprod",))),
            "sum",
            "nulls are skipped; a group without values gives 1",
            "product; integers wrap modulo 2**64",
            rounds=("float",),
        ),
        _counted("count", "nulls are not counted", "number of non-null values"),
        _counted("size", "nulls are counted", "number of rows"),
        _one_value("min", "smallest value"),
        _one_value("max", "largest value"),
        Aggregation(
            "mean",
            Kind.MERGEABLE,
            _by_class(
                (NUMERIC, ("fsum", "count")),
                (TEMPORAL, ("limbs", "count")),
                (("decimal",), ("osum", "count")),
            ),
            "float",
            _SKIPS,
            "arithmetic mean, summed in float64 (datetimes exactly, in two integer halves)",
            reproducible=_same("xsum", *NUMERIC),
        ),
        _spread("var", 0, "variance from centred second moments (Chan, Golub, LeVeque 1979)"),
        _spread("std", 1, "standard deviation, from the same states as var"),
        _spread("sem", 2, "standard error of the mean, from the same states as var", False),
        _one_value("first", "first non-null value in row order", order_sensitive=True),
        _one_value("last", "last non-null value in row order", order_sensitive=True),
        _truth("any", False, "whether any value is true"),
        _truth("all", True, "whether every value is true"),
        Aggregation(
            "nunique",
            Kind.DISTINCT,
            every,
            "count",
            "nulls are not counted",
            "number of distinct values",
            stock_agg=False,
            of_no_rows=0,
            kernels=_NUMBERS_AND_TIMES,
        ),
        Aggregation(
            "unique",
            Kind.DISTINCT,
            every,
            "object",
            "null is a value",
            "distinct values in order of appearance",
            order_sensitive=True,
            in_agg=False,
            stock_agg=False,
        ),
        _label("idxmin", "index label of the first smallest value"),
        _label("idxmax", "index label of the first largest value"),
        _quantile("median", "median; needs all rows of a group"),
        _quantile(
            "quantile",
            "one quantile (0.5 unless q is given); needs all rows of a group",
            parameters=("q", "interpolation"),
            stock_agg=False,
        ),
        Aggregation(
            "list",
            Kind.WHOLE,
            every,
            "object",
            "nulls are kept",
            "the group's values in row order",
            order_sensitive=True,
        ),
        _sketch(
            "nunique_approx",
            "nunique",
            (*_NUMBERS_AND_TIMES, "string", "category", "date", "time", "binary"),
            "count",
            "nulls are not counted",
            "number of distinct values, with a standard error of 1.6 % (HyperLogLog)",
        ),
        _sketch(
            "quantile_approx",
            "quantile",
            ("int", "uint", "float"),
            "float",
            _SKIPS,
            "one quantile (0.5 unless q is given) of a rank within 1 % (compacted samples)",
            parameters=("q",),
            rounds=("int", "uint", "float"),
        ),
        _top("nlargest", "list of the n largest values (5 unless n is given), the largest first"),
        _top("nsmallest", "list of the n smallest values, the smallest first"),
        _matrix(
            "cov",
            "covariance matrix of each group, from pairwise co-moments",
            parameters=("ddof",),
        ),
        _matrix("corr", "correlation matrix of each group, from pairwise co-moments"),
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


REGISTRY: Mapping[str, Aggregation] = MappingProxyType({a.name: a for a in _aggregations()})
