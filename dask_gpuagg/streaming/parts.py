"""Parts of the groups by key hash: how many, and which of them one load takes.

After MP-EGA (section 4.2 of Wang and Shen, EGA, 2025): groups are balls, parts are bins, and the
bound on the fullest bin says how many parts there have to be. Small parts are loaded together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# Of some part exceeding the capacity.
_RISK = 1e-6
_MOST_PARTS = 256


def parts_of(groups: int, capacity: int, risk: float = _RISK) -> int:
    """How many parts make it unlikely that any of them has more groups than fit.

    Parameters
    ----------
    groups : int
        Balls ``n``.
    capacity : int
        Groups that fit, ``k``.
    risk : float
        The probability ``p`` that some part exceeds it.

    Returns
    -------
    int
        At most ``_MOST_PARTS``.

    Notes
    -----
    Some of ``m`` bins has ``k`` balls with a probability of at most ``m (n e / (k m))**k``. That is
    ``p`` for ``m = exp((k ln(n e / k) - ln p) / (k - 1))``. Of large ``k`` that is ``e n / k``.
    """
    if groups <= capacity:
        return 1
    k = max(capacity, 2)
    wanted = math.exp(min((k * math.log(groups * math.e / k) - math.log(risk)) / (k - 1), 99.0))
    return min(math.ceil(wanted), _MOST_PARTS)


def loads(rows: Sequence[int], capacity: int) -> list[list[int]]:
    """Parts in loads, greedily: as many as fit together, a larger one alone.

    Parameters
    ----------
    rows : sequence of int
        Of each part; those without any are in no load.
    capacity : int

    Returns
    -------
    list of list of int
        Numbers of parts.
    """
    found: list[list[int]] = []
    size = 0
    for part, n in enumerate(rows):
        if not n:
            continue
        if not found or size + n > capacity:
            found.append([])
            size = 0
        found[-1].append(part)
        size += n
    return found
