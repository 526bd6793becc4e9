"""Second moments made again where a pivot far from the mean cost them digits.

The kernels sum distances from a pivot, the first value of a group that they meet. Of ``n`` rows
near each other and a pivot at a distance ``d``, the sum of squares is near ``n * d * d`` and the
second moment that remains of it near ``d * d``: log10(n) digits are lost. Distances from the mean
that the first pass gave lose none, since that mean is nearer than the spread.
"""

from __future__ import annotations

from typing import Any

# Losses of more than four of sixteen digits are repaired.
LOSS_AT_MOST = 1e4


def centred(
    xp: Any, codes: Any, groups: int, weights: Any, means: Any, m2: Any, near: Any
) -> tuple[Any, Any]:
    """Means and second moments of groups from parts, which may be single values.

    Parameters
    ----------
    xp : module
        NumPy or CuPy.
    codes : array of int
        The group of every part.
    groups : int
    weights, means, m2 : array of float64
        Of every part: number of values, mean, sum of squared distances from it.
    near : array of float64
        A value near the mean of each group.

    Returns
    -------
    means, m2 : array of float64
        NaN for groups without parts.
    """

    def sums(values: Any) -> Any:
        if len(codes) == 0:
            return xp.zeros(groups)
        return xp.bincount(codes, weights=values, minlength=groups)

    off = means - near[codes]
    total = sums(weights)
    filled = total > 0
    total = xp.where(filled, total, xp.nan)
    shift = sums(weights * off) / total
    squares = sums(m2 + weights * off * off)
    return near + shift, xp.maximum(squares - total * shift * shift, 0.0)
