"""The kernels that are compiled, in the background, ahead of the calls that will launch them.

libcudf has grouped the rows meanwhile, so the number of groups is known. The decision is made for
so many keys, once side by side and once far apart: which of both they are, the sample of the next
call says.
"""

from itertools import chain

from dask_gpuagg.cuda.algorithms import pgb, tables
from dask_gpuagg.cuda.choice import choose, summary
from dask_gpuagg.cuda.choice.costs import known
from dask_gpuagg.cuda.choice.decision import Decision, Direct, Partitioned
from dask_gpuagg.cuda.keys.words import representations_of
from dask_gpuagg.cuda.query.instantiations import CORE, first_units, unit_of
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.runtime.driver import Device, current_device
from dask_gpuagg.cuda.runtime.kernels import kernels_of

# However many the groups are: the sample, and what shows and makes a representation of the keys.
_ALWAYS = (CORE, "sample", "bytes", "ranges", "codes")
# What else a call may launch, whatever was decided.
_SOMETIMES = ("words", "count", "lphga", "absorb")

# Queries, with units of their kernels.
Units = list[tuple[Query, str]]


def compile_ahead(query: Query, rows: int, groups: int | None = None) -> None:
    """Let the kernels be compiled that another such call is likely to launch.

    Where the number of groups is not known yet, only what is needed however many they are.
    """
    device = current_device()
    for requested, unit in likely(query, rows, groups, device):
        kernels_of(requested, device).begin(unit)


def begin(query: Query, device: Device, decision: Decision) -> None:
    """Let all kernels of a decision be compiled, of which a call has launched some at most."""
    for requested, unit in units_of(query, device, decision):
        if unit in requested.units:
            kernels_of(requested, device).begin(unit)


def likely(query: Query, rows: int, groups: int | None, device: Device) -> Units:
    """Queries with units of theirs that a call is likely to need, what it needs surely in front."""
    if rows < summary.SAMPLED_FROM:
        return [(query, unit) for unit in first_units(query.units, sampled=False)]
    # a sample usually finds the first of the narrower representations of the keys, if there are any
    requested = representations_of(query)[:2]
    surely = [(form, unit) for unit in _ALWAYS for form in requested]
    decided = [_decided(form, rows, groups, device) for form in requested]
    sometimes: Units = []
    if groups is not None:
        sometimes = [(form, unit) for unit in _SOMETIMES for form in requested]
    pairs = dict.fromkeys([*surely, *chain(*decided), *sometimes])
    return [(form, unit) for form, unit in pairs if unit in form.units]


def _decided(query: Query, rows: int, groups: int | None, device: Device) -> Units:
    """Kernels that the decision for so many groups launches."""
    if not groups:
        return []
    costs, units = known(device).costs, []
    for bounds in ((0, groups - 1), summary.ANY_WORD):
        estimate = summary.KeySummary(
            groups, groups, 0.0, 1 / groups, collision_probability=1 / groups, bounds=bounds
        )
        decision = choose.decide(query, rows, estimate, device, costs=costs)
        units += units_of(query, device, decision)
    return units


def units_of(query: Query, device: Device, decision: Decision) -> Units:
    """The units of the kernels that a decision launches, what takes longest to compile in front."""
    if isinstance(decision, Partitioned):
        of_partitions = decision.partition_query(query)
        kernels = pgb.kernels_of_decision(of_partitions, device, decision)
        return [(of_partitions, unit_of(kernel)) for kernel in kernels]
    if isinstance(decision, Direct):
        return [(query, unit_of(tables.kernel_of_decision(decision)))]
    # tables and sorted keys: units are named as kernels are
    return [(query, decision.kernel)]
