"""The mergeable states: one frozen record for each, read by the planner and the engines."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from dask_gpuagg.dtypes import DEVICE_CLASSES, NUMERIC, TEMPORAL, TEXT


@dataclass(frozen=True, slots=True)
class State:
    """One mergeable state of one group."""

    #: name under which the engines implement ``update`` and ``merge``
    name: str
    #: the columns that hold the state, one row per group
    fields: tuple[str, ...]
    #: the value of each field for a group without any rows; merging it changes nothing. ``None``
    #: means null
    identity: tuple[int | float | None, ...]
    #: what the fields hold
    summary: str
    #: whether partials have to be merged in the order of their partitions
    order_sensitive: bool = False
    #: the reduction by which each field of several partials becomes one: ``sum``, ``prod``,
    #: ``min``, ``max``, ``first``, ``last``, ``any``, ``all`` or ``concat``. Empty where an engine
    #: merges the fields together
    merge: str = ""
    #: the dtype classes of which the device kernels make it
    kernels: tuple[str, ...] = ()
    #: the dtype classes of which libcudf makes it on the device
    libcudf: tuple[str, ...] = ()
    #: whether its update takes the rows of one partition, with their labels: partitions are not
    #: stacked before, and it cannot be made of rows that have been exchanged
    by_partition: bool = False
    #: what a user calls it; empty where that is its name
    words: str = ""
    #: whether a partial has further fields of integers, by what the values are, that merge as
    #: ``exact_sums`` says; those that a partial lacks are 0 there
    binned: bool = False

    def fields_in(self, names: Iterable[str], prefix: str) -> list[str]:
        """The fields that a partial has, by the names of its columns, which begin with a prefix."""
        if not self.binned:
            return list(self.fields)
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


_MODULO = "modulo 2**64 in int64 or uint64"

# kernels have no atomic that orders decimal128
_extreme = partial(
    State,
    identity=(None,),
    kernels=(*NUMERIC, *TEMPORAL, "decimal", "category"),
    libcudf=(*TEXT, "decimal"),
)
_ordered = partial(State, identity=(None,), order_sensitive=True, kernels=DEVICE_CLASSES)
_sum = partial(State, merge="sum", words="sum")
_product = partial(State, merge="prod", words="prod", kernels=NUMERIC)
_truth = partial(State, kernels=(*NUMERIC, *TEXT))
_label = partial(
    State,
    fields=("value", "label", "nulls"),
    identity=(None, None, 0),
    order_sensitive=True,
    libcudf=(*NUMERIC, *TEMPORAL),
    by_partition=True,
)

_RECORDS = (
    State("size", ("n",), (0,), "number of rows", merge="sum", kernels=DEVICE_CLASSES),
    State("count", ("n",), (0,), "number of non-null values", merge="sum", kernels=DEVICE_CLASSES),
    _sum("isum", ("sum",), (0,), f"sum {_MODULO}", kernels=NUMERIC),
    _sum("fsum", ("sum",), (0.0,), "sum in float64", kernels=NUMERIC),
    State(
        "xsum",
        ("n",),
        (0,),
        "number of values, and their sum without rounding, in bins",
        merge="sum",
        kernels=NUMERIC,
        words="exact sum",
        binned=True,
    ),
    _sum(
        *("osum", ("sum",), (None,), "sum in the column's own dtype"),
        kernels=("timedelta", "decimal"),
    ),
    State(
        "concat",
        ("sum",),
        (None,),
        "values joined in row order",
        order_sensitive=True,
        merge="concat",
        libcudf=TEXT,
        words="sum",
    ),
    _product("iprod", ("prod",), (1,), f"product {_MODULO}"),
    _product("fprod", ("prod",), (1.0,), "product in float64"),
    _extreme("min", ("min",), summary="smallest non-null value", merge="min"),
    _extreme("max", ("max",), summary="largest non-null value", merge="max"),
    _ordered("first", ("first",), summary="first non-null value", merge="first"),
    _ordered("last", ("last",), summary="last non-null value", merge="last"),
    _truth("any", ("any",), (0,), "whether any non-null value is true", merge="any"),
    _truth("all", ("all",), (1,), "whether every non-null value is true", merge="all"),
    State(
        "moments",
        ("n", "mean", "m2"),
        (0, None, 0.0),
        "count, mean and sum of squared deviations from the mean",
        kernels=(*NUMERIC, "decimal"),
        words="mean and variance",
    ),
    _sum(
        *("limbs", ("hi", "lo"), (0, 0), "sum of a 64-bit integer in two exact halves"),
        kernels=TEMPORAL,
    ),
    _label("idxmin", summary="smallest value, index label of its first row, number of nulls"),
    _label("idxmax", summary="largest value, index label of its first row, number of nulls"),
    State(
        "comoments",
        ("n", "mx", "my", "cxx", "cxy", "cyy"),
        (0, None, None, 0.0, 0.0, 0.0),
        "pairwise complete count, means and centred second moments of two columns",
        libcudf=NUMERIC,
        words="covariance",
    ),
    State(
        "custom",
        (),
        (),
        "whatever a dd.Aggregation's chunk returns",
        order_sensitive=True,
        libcudf=DEVICE_CLASSES,
        by_partition=True,
    ),
)

STATES: Mapping[str, State] = MappingProxyType({state.name: state for state in _RECORDS})
