"""Constants of a device from the times of kernels that ran on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
import numpy.typing as npt

from dask_gpuagg.cuda.choice.cost_model import expected_kernel_ms
from dask_gpuagg.cuda.choice.costs import Costs
from dask_gpuagg.cuda.choice.decision import Decision
from dask_gpuagg.cuda.query.query import Query

# Resolution of the stopwatch, milliseconds.
_RESOLUTION = 0.01
# Weight of a constant's distance from its start: small, so that it matters only for constants that
# the measurements do not determine.
_INERTIA = 0.02
_STEPS = 100


# Variants of a kernel, which the model gives the same constants.
_PLAIN = ("direct", "hgb", "scatter", "aggregate", "fold")


def plain(kernel: str) -> str:
    """The model's name of a kernel, which its variants share.

    Parameters
    ----------
    kernel : str

    Returns
    -------
    str
    """
    first = kernel.partition("_")[0]
    return first if first in _PLAIN else kernel


@dataclass(frozen=True)
class Observation:
    """One run: what was decided, and the milliseconds of its kernels, named as in the model."""

    query: Query
    rows: int
    decision: Decision
    multiprocessors: int
    tile: int
    kernel_ms: dict[str, float]

    def expected(self, costs: Costs) -> dict[str, float]:
        """The milliseconds that the model gives the same kernels."""
        made = expected_kernel_ms(
            costs, self.query, self.rows, self.decision, self.multiprocessors, self.tile
        )
        return {name: made[name] for name in self.kernel_ms if name in made}


def fit(observations: Sequence[Observation], start: Costs) -> Costs:
    """Fit the constants of the model to measured times.

    Parameters
    ----------
    observations : sequence of Observation
    start : Costs
        Constants that the times do not depend on keep these values. So does the size of the L2
        cache, which the device reports.

    Returns
    -------
    Costs

    Notes
    -----
    Least squares of the logarithms of expected over measured time, and so of relative errors, by
    Levenberg's and Marquardt's method in the logarithms of the constants.
    """
    names = [f.name for f in fields(Costs) if f.name != "l2_megabytes"]
    first = np.log([getattr(start, name) for name in names])

    def costs(x: npt.NDArray[np.float64]) -> Costs:
        found = dict(zip(names, np.exp(x).tolist(), strict=True))
        return Costs(**(asdict(start) | found))

    def residuals(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        tried, errors = costs(x), []
        for seen in observations:
            for name, ms in seen.expected(tried).items():
                errors.append(np.log((ms + _RESOLUTION) / (seen.kernel_ms[name] + _RESOLUTION)))
        return np.concatenate([np.array(errors), _INERTIA * (x - first)])

    x, damping = first, 1e-2
    errors = residuals(x)
    for _ in range(_STEPS):
        step = 1e-4
        slopes = np.stack(
            [(residuals(x + step * unit) - errors) / step for unit in np.eye(len(x))], axis=1
        )
        normal = slopes.T @ slopes
        move = np.linalg.solve(
            normal + damping * np.diag(np.diag(normal)), -slopes.T @ errors
        ).clip(-1, 1)
        tried = residuals(x + move)
        if tried @ tried < errors @ errors:
            done = errors @ errors - tried @ tried < 1e-9 * (errors @ errors)
            x, errors, damping = x + move, tried, damping / 3
            if done:
                break
        else:
            damping *= 4
            if damping > 1e8:
                break
    return costs(x)


def error_of(observations: Sequence[Observation], costs: Costs) -> float:
    """The median relative error of the kernels that take more than the stopwatch's resolution."""
    errors = [
        abs(ms / seen.kernel_ms[name] - 1)
        for seen in observations
        for name, ms in seen.expected(costs).items()
        if seen.kernel_ms[name] > 5 * _RESOLUTION
    ]
    return float(np.median(errors)) if errors else 0.0
