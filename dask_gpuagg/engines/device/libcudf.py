"""The outputs of a query by libcudf's own group-by, where kernels cannot run, or not yet.

It takes several times as long and as much memory, and gives the same answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache

import pylibcudf as plc

from dask_gpuagg.cuda.call import Run
from dask_gpuagg.cuda.choice.decision import Decision
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.runtime.compiler import KernelsUnavailable
from dask_gpuagg.engines.device.libcudf_groups import KERNEL, REDUCED, Hashed, InOrder
from dask_gpuagg.reporting.events import Fallback, FellBack, emit
from dask_gpuagg.reporting.fallbacks import warn_user
from dask_gpuagg.settings import task_settings


def aggregate(
    query: Query,
    keys: Sequence[plc.Column],
    inputs: Sequence[plc.Column],
    why: str,
) -> tuple[list[plc.Column], list[plc.Column], Run]:
    """Group rows and reduce every group; see ``dask_gpuagg.cuda.aggregate.aggregate``.

    Parameters
    ----------
    query : Query
    keys, inputs : sequence of pylibcudf.Column
        As the query describes them.
    why : str
        Why the kernels do not do it.

    Returns
    -------
    keys, outputs : list of pylibcudf.Column
        Outputs as the plain numbers that the kernels would write.
    run : Run
    """
    started = time.perf_counter()
    groups = (Hashed if hashes(query) else InOrder)(query, keys, inputs)
    outputs = [groups.output(output) for output in query.outputs]
    rows, found = keys[0].size(), groups.keys.num_rows()
    run = Run(
        Decision(kernel=KERNEL, why=why),
        rows,
        found,
        bytes_read=query.row_bytes * rows,
        seconds=time.perf_counter() - started,
    )
    return list(groups.keys.columns()), outputs, run


def hashes(query: Query) -> bool:
    """Whether one group-by of libcudf makes all states; for the others rows are sorted first."""
    return all(state.policy in REDUCED for state in query.states)


def cause_of(error: KernelsUnavailable) -> str:
    """The line that says what is wrong, of a message that may be a compiler's log.

    Under ``gpuagg.fallback: raise`` the error is raised; under ``warn`` each cause is a warning,
    once in each process.
    """
    policy = task_settings().fallback
    if policy == "raise":
        raise error
    lines = str(error).splitlines() or [type(error).__name__]
    cause = next((line for line in lines if "error" in line), lines[0])
    emit(FellBack(Fallback("a group-by on the device", f"runs by {KERNEL}", cause)))
    if policy == "warn":
        _warn(cause)
    return cause


@lru_cache(1000)
def _warn(cause: str) -> None:
    warn_user(
        f"group-bys on the device run by {KERNEL}, which is slower, because the kernels of this "
        f"package cannot run: {cause}"
    )
