"""The compiled loop of sums alone, of one column or several; see ``loops.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_gpuagg.engines.host.loops import COUNT, LOST, SUM, Array, compiled


@compiled
def sum_columns(
    codes: Array, columns: Any, acc: Array, lanes: int, skipna: bool, counts: bool
) -> None:
    """Sum a tuple of columns, and count their values, as ``reduce_floats`` does each.

    Memory answers the reads of several columns at a time, and an addition to one does not wait for
    those to the others. Without a branch additions to several groups overlap as well. ``acc`` has
    shape (groups * lanes, columns, 3).
    """
    for i in range(len(codes)):
        g = np.uint64(codes[i] * lanes + (i & (lanes - 1)))
        for j in range(len(columns)):
            x = columns[j][i]
            valid = not (skipna and x != x)
            if counts:
                acc[g, j, COUNT] += 1.0 if valid else 0.0
            before, gone = acc[g, j, SUM], acc[g, j, LOST]
            y = x - gone
            after = before + y
            lost = after - before - y
            lost = lost if lost - lost == 0.0 else 0.0
            acc[g, j, SUM] = after if valid else before
            acc[g, j, LOST] = lost if valid else gone
