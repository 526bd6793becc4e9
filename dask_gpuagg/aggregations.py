"""The registry: one frozen record per aggregation.

Everything that has to know which aggregations exist reads this table and that of their states
(``states.STATES``, to be had from here too): the planner, ``why_not()``, the support table of
the documentation, the parameters of the tests and the list of update policies of the device
kernels. Other modules name an aggregation only where Dask or pandas treats it differently from
others (``calls.py``, ``methods.py`` and ``transform.py`` of ``frontend/``), or to compute it.

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
    values, or an approximation of a distinct or whole one.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from dask_gpuagg.dtypes import DTYPE_CLASSES, INTEGRAL, NUMERIC, TEMPORAL, TEXT
from dask_gpuagg.states import STATES, State

__all__ = [
    "REGISTRY",
    "STATES",
    "Aggregation",
    "Kind",
    "State",
]


class Kind(enum.Enum):
    """Way in which the partials of an aggregation are combined."""

    MERGEABLE = "mergeable states"
    DISTINCT = "distinct (key, value) pairs"
    WHOLE = "whole groups"
    SKETCH = "bounded entries"


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One aggregation: what it needs, what it gives."""

    #: the name users write
    name: str
    #: by accepted dtype class of the input: for ``MERGEABLE`` the states, else nothing
    states: Mapping[str, tuple[str, ...]]
    #: rule for the result's dtype: ``same`` as the input, ``sum`` (64 bit, narrowed to the input's
    #: width where every value fits, as pandas does), ``float``, ``count``, ``bool``, ``label`` (the
    #: index's dtype), ``object`` or ``key`` (the values join the index)
    result: str
    #: what happens to nulls, in words for the documentation
    null_rule: str
    #: what it gives, in such words
    summary: str
    #: how partial results merge
    kind: Kind = Kind.MERGEABLE
    #: whether the result depends on the order of rows
    order_sensitive: bool = False
    #: keyword arguments that are understood (``functools.partial(np.var, ddof=0)``)
    parameters: tuple[str, ...] = ()
    #: whether ``.agg`` accepts the name (the others are methods only)
    in_agg: bool = True
    #: whether that of stock Dask does
    stock_agg: bool = True
    #: what cuDF gives for a group without rows, which ``observed=False`` asks for; ``None`` is null
    of_no_rows: Any = None
    #: for what is made of second moments: 0 is the variance, 1 the standard deviation, 2 the
    #: standard error of the mean
    power: int | None = None
    #: for the other kinds: the dtype classes of which the device kernels make it of rows
    kernels: tuple[str, ...] = ()
    #: the aggregation that it approximates, if it does
    exact: str = ""
    #: for ``SKETCH``: the parameters by which entries are kept, and not only read
    shapes: tuple[str, ...] = ()
    #: by dtype class, the states that do not depend on the order of additions, where ``states`` has
    #: others
    reproducible: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: the dtype classes of which the result depends on the order in which partials are made and
    #: merged, and no state does not
    rounds: tuple[str, ...] = ()
    #: whether pandas takes ``min_count``, by which groups of fewer values are null
    has_min_count: bool = False
    #: whether it takes ``skipna=False``, by which groups with a null are
    has_skipna: bool = False
    #: what a bin of ``pd.Grouper`` without rows has: a ``value``, a ``null``, or nothing where the
    #: aggregation is not supported there
    empty_bin: str = ""

    @property
    def accepts(self) -> frozenset[str]:
        """The dtype classes that it takes."""
        return frozenset(self.states)

    def states_of(self, cls: str, deterministic: bool) -> tuple[str, ...] | None:
        """The states to keep of a dtype class; None of one that is not accepted."""
        states = self.states.get(cls)
        return self.reproducible.get(cls, states) if deterministic else states


def _by_class(*pairs: tuple[Iterable[str], tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({cls: states for classes, states in pairs for cls in classes})


def _each(state: str, *classes: str) -> Mapping[str, tuple[str, ...]]:
    return _by_class((classes, (state,)))


_SKIPS = "nulls are skipped; a group without values gives null"
_ORDERED = (*NUMERIC, *TEMPORAL)
_PLAIN = ("int", "uint", "float")
_EVERY = _by_class((DTYPE_CLASSES, ()))

# records that have much in common
_count = partial(Aggregation, result="count", of_no_rows=0, empty_bin="value")
_total = partial(Aggregation, result="sum", has_min_count=True, has_skipna=True, empty_bin="value")
_value = partial(Aggregation, result="same", null_rule=_SKIPS, has_min_count=True)
_extreme = partial(_value, has_skipna=True, empty_bin="null")
_spread = partial(
    Aggregation,
    states=_each("moments", *NUMERIC, "decimal"),
    result="float",
    null_rule="nulls are skipped; ddof or fewer values give null",
    parameters=("ddof",),
    rounds=(*NUMERIC, "decimal", "timedelta"),
    has_skipna=True,
    empty_bin="null",
)
# in the units of the values, which a variance of durations is not
_deviation = partial(_spread, states=_each("moments", *NUMERIC, "decimal", "timedelta"))
_truth = partial(Aggregation, result="bool", stock_agg=False, empty_bin="value")
_label = partial(
    Aggregation,
    result="label",
    null_rule="nulls are skipped; a group without values is an error, as in pandas",
    order_sensitive=True,
    parameters=("skipna",),
    stock_agg=False,
)
_quantile = partial(
    Aggregation,
    kind=Kind.WHOLE,
    states=_by_class((_ORDERED, ())),
    result="float",
    null_rule=_SKIPS,
    kernels=_ORDERED,
    has_skipna=True,
    empty_bin="null",
)
_sketch = partial(Aggregation, kind=Kind.SKETCH, stock_agg=False)
_top = partial(
    _sketch,
    states=_by_class((_PLAIN, ())),
    result="object",
    null_rule="nulls are skipped; a group without values gives an empty list",
    parameters=("n",),
    shapes=("n",),
)
_matrix = partial(
    Aggregation,
    states=_each("comoments", *NUMERIC),
    result="float",
    null_rule="pairs with a null are skipped",
    in_agg=False,
    stock_agg=False,
    rounds=NUMERIC,
)

_RECORDS = (
    _total(
        "sum",
        states=_by_class(
            (INTEGRAL, ("isum",)),
            (("float",), ("fsum",)),
            (("timedelta", "decimal"), ("osum",)),
            (TEXT, ("concat",)),
        ),
        null_rule="nulls are skipped; a group without values gives 0",
        summary="sum; integers wrap modulo 2**64, float32 accumulates in float64",
        reproducible=_each("xsum", "float"),
        rounds=("object",),
    ),
    _total(
        "prod",
        states=_by_class((INTEGRAL, ("iprod",)), (("float",), ("fprod",))),
        null_rule="nulls are skipped; a group without values gives 1",
        summary="product; integers wrap modulo 2**64",
        rounds=("float",),
    ),
    _count(
        "count",
        states=_each("count", *DTYPE_CLASSES),
        null_rule="nulls are not counted",
        summary="number of non-null values",
    ),
    _count(
        "size",
        states=_each("size", *DTYPE_CLASSES),
        null_rule="nulls are counted",
        summary="number of rows",
    ),
    _extreme("min", states=_each("min", *DTYPE_CLASSES), summary="smallest value"),
    _extreme("max", states=_each("max", *DTYPE_CLASSES), summary="largest value"),
    Aggregation(
        "mean",
        states=_by_class(
            (NUMERIC, ("fsum", "count")),
            (TEMPORAL, ("limbs", "count")),
            (("decimal",), ("osum", "count")),
        ),
        result="float",
        null_rule=_SKIPS,
        summary="arithmetic mean, summed in float64 (datetimes exactly, in two integer halves)",
        reproducible=_each("xsum", *NUMERIC),
        has_skipna=True,
        empty_bin="null",
    ),
    _spread(
        "var", power=0, summary="variance from centred second moments (Chan, Golub, LeVeque 1979)"
    ),
    _deviation("std", power=1, summary="standard deviation, from the same states as var"),
    _deviation(
        "sem",
        power=2,
        summary="standard error of the mean, from the same states as var",
        stock_agg=False,
    ),
    _value(
        "first",
        states=_each("first", *DTYPE_CLASSES),
        summary="first non-null value in row order",
        order_sensitive=True,
    ),
    _value(
        "last",
        states=_each("last", *DTYPE_CLASSES),
        summary="last non-null value in row order",
        order_sensitive=True,
    ),
    _truth(
        "any",
        states=_each("any", *NUMERIC, *TEXT),
        null_rule="nulls are skipped; a group without values gives False",
        summary="whether any value is true",
        of_no_rows=False,
    ),
    _truth(
        "all",
        states=_each("all", *NUMERIC, *TEXT),
        null_rule="nulls are skipped; a group without values gives True",
        summary="whether every value is true",
        of_no_rows=True,
    ),
    _count(
        "nunique",
        kind=Kind.DISTINCT,
        states=_EVERY,
        null_rule="nulls are not counted",
        summary="number of distinct values",
        stock_agg=False,
        kernels=_ORDERED,
    ),
    Aggregation(
        "unique",
        kind=Kind.DISTINCT,
        states=_EVERY,
        result="object",
        null_rule="null is a value",
        summary="distinct values in order of appearance",
        order_sensitive=True,
        in_agg=False,
        stock_agg=False,
    ),
    _label(
        "idxmin",
        states=_each("idxmin", *_ORDERED),
        summary="index label of the first smallest value",
    ),
    _label(
        "idxmax",
        states=_each("idxmax", *_ORDERED),
        summary="index label of the first largest value",
    ),
    _quantile("median", summary="median; needs all rows of a group"),
    _quantile(
        "quantile",
        summary="one quantile (0.5 unless q is given); needs all rows of a group",
        parameters=("q", "interpolation"),
        stock_agg=False,
    ),
    Aggregation(
        "list",
        kind=Kind.WHOLE,
        states=_EVERY,
        result="object",
        null_rule="nulls are kept",
        summary="the group's values in row order",
        order_sensitive=True,
    ),
    _sketch(
        "nunique_approx",
        exact="nunique",
        states=_by_class(
            ((*_ORDERED, "string", "category", "date", "time", "binary"), ()),
        ),
        result="count",
        null_rule="nulls are not counted",
        summary="number of distinct values, with a standard error of 1.6 % (HyperLogLog)",
    ),
    _sketch(
        "quantile_approx",
        exact="quantile",
        states=_by_class((_PLAIN, ())),
        result="float",
        null_rule=_SKIPS,
        summary="one quantile (0.5 unless q is given) of a rank within 1 % (compacted samples)",
        parameters=("q",),
        rounds=_PLAIN,
    ),
    _top(
        "nlargest", summary="list of the n largest values (5 unless n is given), the largest first"
    ),
    _top("nsmallest", summary="list of the n smallest values, the smallest first"),
    _matrix(
        "cov",
        summary="covariance matrix of each group, from pairwise co-moments",
        parameters=("ddof",),
    ),
    _matrix("corr", summary="correlation matrix of each group, from pairwise co-moments"),
    Aggregation(
        "value_counts",
        states=_each("size", *DTYPE_CLASSES),
        result="key",
        null_rule="nulls are not counted",
        summary="number of rows of each distinct value; the value joins the index",
        in_agg=False,
        stock_agg=False,
    ),
)

REGISTRY: Mapping[str, Aggregation] = MappingProxyType({a.name: a for a in _RECORDS})
