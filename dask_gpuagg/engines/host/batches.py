"""Several columns of one dtype reduced by one call of pandas.

A call of pandas costs as much as reducing some ten thousand values. Partitions of few rows and
many columns, and the merging of their partials, would spend all of their time on such calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

# values of a batch: they are copied next to each other
_MOST_VALUES = 1 << 20


def is_batched(dtype: Any) -> bool:
    """Whether columns of this dtype are reduced together: plain integers, float32 and float64."""
    if not isinstance(dtype, np.dtype):
        return False
    return dtype.kind in "iu" or (dtype.kind == "f" and dtype.itemsize in (4, 8))


def batch_of(values: pd.Series, others: Iterable[pd.Series]) -> list[pd.Series]:
    """The column, and those of the others that are reduced along with it.

    Parameters
    ----------
    values : Series
        Of a dtype that :func:`is_batched` accepts.
    others : iterable of Series
        Of as many rows; the column may be among them.

    Returns
    -------
    list of Series
        The column first.
    """
    alike = [c for c in others if c is not values and c.dtype == values.dtype]
    most = _MOST_VALUES // max(len(values), 1)
    return [values, *alike[: max(most - 1, 0)]]


def reduce(
    columns: list[pd.Series], grouper: Any, how: str, options: dict[str, Any]
) -> npt.NDArray[Any]:
    """Reduce columns of one dtype.

    Parameters
    ----------
    columns : list of Series
    grouper : object
        What pandas groups the rows by.
    how : str
        A method of pandas' groupby.
    options : dict
        Arguments of the method.

    Returns
    -------
    ndarray of shape (columns, groups)
    """
    if len(columns) == 1:
        reduced = getattr(columns[0].groupby(grouper), how)(**options)
        return np.asarray(reduced.to_numpy())[np.newaxis]
    block = np.array([column.to_numpy() for column in columns])
    grouped = pd.DataFrame(block.T, copy=False).groupby(grouper)
    frame = getattr(grouped, how)(**options)
    return np.ascontiguousarray(frame.to_numpy().T)
