"""Whether two arms gave the same answer: same rows in any order, floats within a tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

RELATIVE = 1e-6
"""Largest relative difference that counts as equal."""

OF_COLUMN = 1e-9
"""Differences below this share of a column's largest value count as equal: values near zero that
are differences of large ones have no relative accuracy to compare."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether the answers are equal, what differs first, and dtypes that differ.

    Dtypes that differ do not make answers unequal.
    """

    equal: bool
    detail: str
    dtypes: tuple[str, ...]


def compare(left: Any, right: Any) -> Comparison:
    """Compare two results of one query, computed by two arms.

    Keys lie in the index, or where it has no name in the columns that are no floats. Row order is
    not compared: Dask leaves it unspecified unless sorting is asked for.
    """
    one, other = _frame(left), _frame(right)
    detail = f"{type(left).__name__} and {type(right).__name__}"
    if type(left) is type(right):
        detail = _shape_difference(one, other) or _value_difference(_sorted(one), _sorted(other))
    pairs = zip(one.reset_index().dtypes.items(), other.reset_index().dtypes, strict=False)
    dtypes = tuple(f"{label}: {a!r} and {b!r}" for (label, a), b in pairs if a != b)
    return Comparison(not detail, detail, dtypes)


def _frame(result: Any) -> pd.DataFrame:
    if isinstance(result, pd.Series):
        return result.to_frame("value")
    if not isinstance(result, pd.DataFrame):
        return pd.DataFrame({"value": [result]})
    keys = [name for name in result if not pd.api.types.is_float_dtype(result[name].dtype)]
    return result.set_index(keys) if list(result.index.names) == [None] and keys else result


def _shape_difference(one: pd.DataFrame, other: pd.DataFrame) -> str:
    if list(one.columns) != list(other.columns) or one.index.names != other.index.names:
        return f"columns {list(one)} by {one.index.names}, {list(other)} by {other.index.names}"
    return f"{len(one)} and {len(other)} rows" if len(one) != len(other) else ""


def _sorted(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Keys, and values in their order.

    Sorting by a hash of the row is many times faster than sorting by six keys, and with 64 bits
    equal hashes of different rows are too rare to matter.
    """
    keys = frame.index.to_frame(index=False).set_axis(range(frame.index.nlevels), axis=1)
    keys = keys.apply(_plain)
    order = np.argsort(pd.util.hash_pandas_object(keys, index=False).to_numpy(), kind="stable")
    return keys.take(order).reset_index(drop=True), frame.take(order)


def _plain(key: pd.Series) -> pd.Series:
    """A key in one dtype per kind of keys."""
    if isinstance(key.dtype, pd.CategoricalDtype):
        key = key.astype(key.cat.categories.dtype)
    if pd.api.types.is_integer_dtype(key.dtype) or pd.api.types.is_bool_dtype(key.dtype):
        return key.astype("Int64")
    return key.astype("str") if pd.api.types.is_string_dtype(key.dtype) else key


def _value_difference(
    left: tuple[pd.DataFrame, pd.DataFrame], right: tuple[pd.DataFrame, pd.DataFrame]
) -> str:
    (keys, values), (other_keys, others) = left, right
    for level in keys.columns:
        if not keys[level].equals(other_keys[level]):
            return f"key level {level} differs"
    for position, label in enumerate(values.columns):
        one, other = values.iloc[:, position], others.iloc[:, position]
        if not pd.api.types.is_numeric_dtype(one.dtype):
            if one.astype("str").tolist() != other.astype("str").tolist():
                return f"column {label} differs"
            continue
        a, b = _floats(one), _floats(other)
        scale = OF_COLUMN * np.abs(b[np.isfinite(b)]).max(initial=0.0)
        if not np.allclose(a, b, rtol=RELATIVE, atol=scale, equal_nan=True):
            return f"column {label} differs by up to {np.nanmax(np.abs(a - b)):.2g}"
    return ""


def _floats(column: pd.Series) -> npt.NDArray[np.float64]:
    floats: npt.NDArray[np.float64] = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return floats
