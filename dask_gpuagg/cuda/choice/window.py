"""The range of the keys in a sample: slots by distance instead of by hash."""

from __future__ import annotations

from dask_gpuagg.cuda.choice.summary import ANY_WORD, BEYOND, KeySummary
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import TYPE_BYTES

_WORD = 1 << 64
# The word that core/types.cuh mixes to that of an empty slot.
EMPTY_PLAIN = 0x0E217C1E68E9F0DD


def window(query: Query, estimate: KeySummary | None) -> tuple[int, int] | None:
    """The least word and the number of words of a window around all keys.

    Parameters
    ----------
    query : Query
    estimate : KeySummary, optional

    Returns
    -------
    tuple of int, or None
        None where nothing is known of the keys' range, or where they have no word of their own.
    """
    if estimate is None or query.family not in ("Packed", "Coded", "Ranged") or null_slot(query):
        return None
    least, greatest = estimate.bounds
    if estimate.bounds == ANY_WORD or least > greatest:
        return None
    span = greatest - least + 1
    beyond = span // BEYOND + 16
    base, slots = least - beyond, span + 2 * beyond
    slots += slots % 2
    return None if (EMPTY_PLAIN - base) % _WORD < slots else (base, slots)


def null_slot(query: Query) -> bool:
    """Whether the null key has no word, but an extra slot behind the table."""
    nullable = query.family == "Packed" and query.keep_nulls and query.keys[0].nullable
    return nullable and TYPE_BYTES[query.keys[0].ctype] == 8
