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
    """Outcome: the largest relative difference, None if not comparable; what differs, if it does.

    Dtypes that differ do not make answers unequal.
    """

    equal: bool
    largest: float | None
    detail: str
    dtypes: tuple[str, ...]


def compare(left: Any, right: Any) -> Comparison:
    """Compare two results of one query, computed by two arms.

    Keys lie in the index, or where it has no name in the columns that are no floats. Row order is
    not compared: Dask leaves it unspecified unless sorting is asked for.
    """
    left_frame, right_frame = _frame(left), _frame(right)
    dtypes = _dtype_differences(left_frame, right_frame)
    if type(left) is not type(right):
        return _unequal(f"{type(left).__name__} and {type(right).__name__}", dtypes)
    if list(left_frame.columns) != list(right_frame.columns):
        return _unequal(f"columns {list(left_frame)} and {list(right_frame)}", dtypes)
    if list(left_frame.index.names) != list(right_frame.index.names):
        return _unequal(f"keys {left_frame.index.names} and {right_frame.index.names}", dtypes)
    if len(left_frame) != len(right_frame):
        return _unequal(f"{len(left_frame)} and {len(right_frame)} rows", dtypes)

    left_keys, right_keys = _keys(left_frame), _keys(right_frame)
    left_order, right_order = _order(left_keys), _order(right_keys)
    for level in left_keys.columns:
        one = left_keys[level].take(left_order).reset_index(drop=True)
        other = right_keys[level].take(right_order).reset_index(drop=True)
        if not one.equals(other):
            return _unequal(f"key level {level} differs", dtypes)

    largest = 0.0
    for position in range(left_frame.shape[1]):
        one = left_frame.iloc[:, position].take(left_order)
        other = right_frame.iloc[:, position].take(right_order)
        label = left_frame.columns[position]
        if not pd.api.types.is_numeric_dtype(one.dtype):
            if one.astype("str").tolist() != other.astype("str").tolist():
                return _unequal(f"column {label} differs", dtypes)
            continue
        difference, equal = _numbers(_floats(one), _floats(other))
        if difference is None:
            return _unequal(f"column {label} is not finite in the same rows", dtypes)
        largest = max(largest, difference)
        if not equal:
            detail = f"column {label} differs by up to {difference:.2g}"
            return Comparison(False, largest, detail, dtypes)
    return Comparison(True, largest, "", dtypes)


def _unequal(detail: str, dtypes: tuple[str, ...]) -> Comparison:
    return Comparison(False, None, detail, dtypes)


def _frame(result: Any) -> pd.DataFrame:
    if isinstance(result, pd.Series):
        return result.to_frame("value")
    if not isinstance(result, pd.DataFrame):
        return pd.DataFrame({"value": [result]})
    keys = [name for name in result if not pd.api.types.is_float_dtype(result[name].dtype)]
    return result.set_index(keys) if list(result.index.names) == [None] and keys else result


def _dtype_differences(left: pd.DataFrame, right: pd.DataFrame) -> tuple[str, ...]:
    found = []
    for where, one, other in (
        ("column", left.dtypes, right.dtypes),
        ("key", left.index.to_frame().dtypes, right.index.to_frame().dtypes),
    ):
        for label, first, second in zip(one.index, one, other, strict=False):
            if first != second:
                found.append(f"{where} {label}: {first!r} and {second!r}")
    return tuple(found)


def _keys(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the index levels as columns 0, 1, ... in one dtype per kind of key."""
    keys = frame.index.to_frame(index=False)
    keys.columns = pd.RangeIndex(keys.shape[1])
    return pd.DataFrame({level: _plain(keys[level]) for level in keys.columns})


def _plain(key: pd.Series) -> pd.Series:
    if isinstance(key.dtype, pd.CategoricalDtype):
        key = key.astype(key.cat.categories.dtype)
    if pd.api.types.is_integer_dtype(key.dtype) or pd.api.types.is_bool_dtype(key.dtype):
        return key.astype("Int64")
    if pd.api.types.is_string_dtype(key.dtype):
        return key.astype("str")
    return key


def _order(keys: pd.DataFrame) -> npt.NDArray[np.intp]:
    """Return an order that depends on the keys alone.

    Sorting by a hash of the row is many times faster than sorting by six keys. Two rows with one
    hash could end up in either order; their keys would then be reported as different, and with 64
    bits that is too rare to matter.
    """
    return np.argsort(pd.util.hash_pandas_object(keys, index=False).to_numpy(), kind="stable")


def _floats(column: pd.Series) -> npt.NDArray[np.float64]:
    floats: npt.NDArray[np.float64] = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return floats


def _numbers(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> tuple[float | None, bool]:
    """Return the largest relative difference and whether all differences are tolerable.

    The first is None when the two are not finite in the same places.
    """
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    finite = np.isfinite(left) & np.isfinite(right)
    if not (same | finite).all():
        return None, False
    left, right = left[finite], right[finite]
    if not left.size:
        return 0.0, True
    size = np.maximum(np.abs(left), np.abs(right))
    difference = np.abs(left - right)
    relative = np.divide(difference, size, out=np.zeros_like(size), where=size > 0)
    # A difference that only the column's scale excuses is not reported as a relative one.
    excused = difference <= OF_COLUMN * size.max()
    largest = float(np.where(excused & (relative > RELATIVE), 0.0, relative).max())
    return largest, bool((excused | (relative <= RELATIVE)).all())
