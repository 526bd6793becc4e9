"""The mergeable states: one frozen record for each, read by the planner and the engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dask_gpuagg.dtypes import DEVICE_CLASSES, NUMERIC, TEMPORAL, TEXT


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
    summary : str
        What the fields hold.
    order_sensitive : bool
        Whether partials have to be merged in the order of their partitions.
    merge : str
        The reduction by which each field of several partials becomes one: ``sum``, ``prod``,
        ``min``, ``max``, ``first``, ``last``, ``any``, ``all`` or ``concat``. Empty where an engine
        merges the fields together.
    kernels : tuple of str
        The dtype classes of which the device kernels make it.
    libcudf : tuple of str
        The dtype classes of which libcudf makes it on the device.
    by_partition : bool
        Whether its update takes the rows of one partition, with their labels: partitions are not
        stacked before, and it cannot be made of rows that have been exchanged.
    words : str
        What a user calls it; empty where that is its name.
    binned : bool
        Whether a partial has further fields of integers, by what the values are, that merge as
        ``exact_sums`` says; those that a partial lacks are 0 there.
    """

    name: str
    fields: tuple[str, ...]
    identity: tuple[int | float | None, ...]
    summary: str
    order_sensitive: bool = False
    merge: str = ""
    kernels: tuple[str, ...] = ()
    libcudf: tuple[str, ...] = ()
    by_partition: bool = False
    words: str = ""
    binned: bool = False

    def fields_in(self, names: Iterable[str], prefix: str) -> list[str]:
        """The fields that a partial has, by the names of its columns, which begin with a prefix."""
        if not self.binned:
            return list(self.fields)
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def _extreme(name: str, summary: str) -> State:
    # kernels have no atomic that orders decimal128
    kernels = (*NUMERIC, *TEMPORAL, "decimal", "category")
    libcudf = (*TEXT, "decimal")
    return State(name, (name,), (None,), summary, merge=name, kernels=kernels, libcudf=libcudf)


def _one_value(name: str, summary: str) -> State:
    return State(name, (name,), (None,), summary, True, merge=name, kernels=DEVICE_CLASSES)


def _truth(name: str, identity: int, summary: str) -> State:
    return State(name, (name,), (identity,), summary, merge=name, kernels=(*NUMERIC, *TEXT))


def _labelled(name: str, summary: str) -> State:
    fields, classes = ("value", "label", "nulls"), (*NUMERIC, *TEMPORAL)
    return State(name, fields, (None, None, 0), summary, True, libcudf=classes, by_partition=True)


def _states() -> tuple[State, ...]:
    every, modulo = DEVICE_CLASSES, "modulo 2**64 in int64 or uint64"
    own, moments = ("timedelta", "decimal"), (*NUMERIC, "decimal")
    return (
        State("size", ("n",), (0,), "number of rows", merge="sum", kernels=every),
        State("count", ("n",), (0,), "number of non-null values", merge="sum", kernels=every),
        State("isum", ("sum",), (0,), f"sum {modulo}", merge="sum", kernels=NUMERIC, words="sum"),
        State(
            "fsum", ("sum",), (0.0,), "sum in float64", merge="sum", kernels=NUMERIC, words="sum"
        ),
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
        State(
            "osum",
            ("sum",),
            (None,),
            "sum in the column's own dtype",
            merge="sum",
            kernels=own,
            words="sum",
        ),
        State(
            name="concat",
            fields=("sum",),
            identity=(None,),
            summary="values joined in row order",
            order_sensitive=True,
            merge="concat",
            libcudf=TEXT,
            words="sum",
        ),
        State(
            "iprod",
            ("prod",),
            (1,),
            f"product {modulo}",
            merge="prod",
            kernels=NUMERIC,
            words="prod",
        ),
        State(
            "fprod",
            ("prod",),
            (1.0,),
            "product in float64",
            merge="prod",
            kernels=NUMERIC,
            words="prod",
        ),
        _extreme("min", "smallest non-null value"),
        _extreme("max", "largest non-null value"),
        _one_value("first", "first non-null value"),
        _one_value("last", "last non-null value"),
        _truth("any", 0, "whether any non-null value is true"),
        _truth("all", 1, "whether every non-null value is true"),
        State(
            name="moments",
            fields=("n", "mean", "m2"),
            identity=(0, None, 0.0),
            summary="count, mean and sum of squared deviations from the mean",
            kernels=moments,
            words="mean and variance",
        ),
        State(
            name="limbs",
            fields=("hi", "lo"),
            identity=(0, 0),
            summary="sum of a 64-bit integer in two exact halves",
            merge="sum",
            kernels=TEMPORAL,
            words="sum",
        ),
        _labelled("idxmin", "smallest value, index label of its first row, number of nulls"),
        _labelled("idxmax", "largest value, index label of its first row, number of nulls"),
        State(
            name="comoments",
            fields=("n", "mx", "my", "cxx", "cxy", "cyy"),
            identity=(0, None, None, 0.0, 0.0, 0.0),
            summary="pairwise complete count, means and centred second moments of two columns",
            libcudf=NUMERIC,
            words="covariance",
        ),
        State(
            name="custom",
            fields=(),
            identity=(),
            summary="whatever a dd.Aggregation's chunk returns",
            order_sensitive=True,
            libcudf=every,
            by_partition=True,
        ),
    )


STATES: Mapping[str, State] = MappingProxyType({state.name: state for state in _states()})
