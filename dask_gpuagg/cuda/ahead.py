"""The kernels that are compiled, in the background, ahead of the calls that will launch them.

libcudf has grouped the rows meanwhile, so the number of groups is known. The decision is made for
so many keys, once side by side and once far apart: which of both they are, the sample of the next
call says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from dask_gpuagg.cuda.algorithms import direct, pgb
from dask_gpuagg.cuda.call.inputs import prepared
from dask_gpuagg.cuda.choice import choose, summary
from dask_gpuagg.cuda.choice.costs import known
from dask_gpuagg.cuda.choice.decision import Decision, Direct, Partitioned
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.dictionary import may_serve, numbered
from dask_gpuagg.cuda.keys.words import representations_of
from dask_gpuagg.cuda.query.instantiations import CORE, DICTIONARY, first_units, unit_of
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.runtime.driver import Device, current_device

# However many the groups are: the sample, and what shows and makes a representation of the keys.
_ALWAYS = (CORE, "sample", "bytes", "ranges", "codes")
# What else a call may launch, whatever was decided.
_SOMETIMES = ("words", "verify", "count", "lphga", "absorb")

# A query, with units of its kernels.
Wanted = list[tuple[Query, str]]


def compile_ahead(query: Query, rows: int, groups: int | None = None) -> None:
    """Let the kernels be compiled that another such call is likely to launch.

    Parameters
    ----------
    query : Query
    rows : int
        Of the call that was.
    groups : int, optional
        None where they are not known yet: then only what is needed however many they are.
    """
    device = current_device()
    for asked, unit in likely(query, rows, groups, device):
        prepared(asked, device)[1].begin(unit)


def begin(query: Query, device: Device, decision: Decision) -> None:
    """Let all kernels of a decision be compiled, of which a call has launched some at most."""
    for asked, unit in units_of(query, device, decision):
        if unit in asked.units:
            prepared(asked, device)[1].begin(unit)


def likely(query: Query, rows: int, groups: int | None, device: Device) -> Wanted:
    """What a call is likely to need, what it needs surely in front.

    Parameters
    ----------
    query : Query
    rows : int
    groups : int, optional
        None where they are not known.
    device : Device

    Returns
    -------
    list of (Query, str)
        Each with a unit that it has.
    """
    if rows < summary.SAMPLED_FROM:
        return [(query, unit) for unit in first_units(query.units, sampled=False)]
    # a sample usually finds the first of the narrower representations of the keys, if there are any
    asked = representations_of(query)[:2]
    texts = may_serve(query, rows, groups)
    surely = [[(each, unit) for unit in _ALWAYS] for each in asked]
    decided = [_decided(each, rows, groups, device) for each in asked]
    if texts:
        numbers = numbered(query)
        surely.append([(numbers, CORE), (numbers, "sample")])
        surely.append([(query.texts, unit) for unit in ("sample", *DICTIONARY)])
        decided.append(_decided(numbers, rows, groups, device))
        # their numbers are grouped instead
        decided.sort(key=lambda found: bool(found) and found[0][0].family == "Hashed")
    others = [] if groups is None else [[(each, unit) for unit in _SOMETIMES] for each in asked]
    found = [*_in_turns(surely), *_in_turns(decided), *_in_turns(others)]
    return list(dict.fromkeys(one for one in found if one[1] in one[0].units))


def _decided(query: Query, rows: int, groups: int | None, device: Device) -> Wanted:
    """What the decision for so many groups launches."""
    if not groups:
        return []
    costs, found = known(device).costs, []
    for bounds in ((0, groups - 1), summary.ANY_WORD):
        estimate = KeySummary(groups, groups, 0.0, 1 / groups, alike=1 / groups, bounds=bounds)
        decision = choose.decide(query, rows, estimate, device, costs=costs)
        found += units_of(query, device, decision)
    return found


def units_of(query: Query, device: Device, decision: Decision) -> Wanted:
    """The units of the kernels that a decision launches, what takes longest to compile in front."""
    if isinstance(decision, Partitioned):
        of_partitions = decision.partition_query(query)
        kernels = pgb.kernels_of_decision(of_partitions, device, decision)
        return [(of_partitions, unit_of(kernel)) for kernel in kernels]
    if isinstance(decision, Direct):
        return [(query, unit_of(direct.kernel_of_decision(decision)))]
    # tables and sorted keys: units are named as kernels are
    return [(query, decision.kernel)]


def _in_turns(parts: Sequence[Wanted]) -> Iterator[tuple[Query, str]]:
    for turn in zip_longest(*parts):
        yield from (one for one in turn if one is not None)
