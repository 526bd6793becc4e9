"""Whether two arms gave the same answer: same rows in any order, floats within a tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

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


def compare(left: Any, right: Any, relative: float = 1e-6) -> Comparison:
    """Compare two results of one query, computed by two arms; floats may differ by so much.

    Keys lie in the index, or where it has no name in the columns that are no floats. Row order is
    not compared: Dask leaves it unspecified unless sorting is asked for.
    """
    one, other = _frame(left), _frame(right)
    pairs = zip(one.reset_index().dtypes.items(), other.reset_index().dtypes, strict=False)
    dtypes = tuple(f"{label}: {a!r} and {b!r}" for (label, a), b in pairs if a != b)
    detail = f"{type(left).__name__} and {type(right).__name__}"
    if type(left) is type(right):
        try:
            _check(one, other, relative)
            detail = ""
        except AssertionError as error:
            detail = " ".join(str(error).split())[:200]
    return Comparison(not detail, detail, dtypes)


def _frame(result: Any) -> pd.DataFrame:
    if isinstance(result, pd.Series):
        return result.to_frame("value")
    if not isinstance(result, pd.DataFrame):
        return pd.DataFrame({"value": [result]})
    keys = [name for name in result if not pd.api.types.is_float_dtype(result[name].dtype)]
    return result.set_index(keys) if list(result.index.names) == [None] and keys else result


def _check(one: pd.DataFrame, other: pd.DataFrame, relative: float) -> None:
    """Raise an ``AssertionError`` that says what differs first."""
    assert one.index.names == other.index.names, f"keys {one.index.names}, {other.index.names}"
    assert list(one) == list(other), f"columns {list(one)}, {list(other)}"
    assert len(one) == len(other), f"{len(one)} and {len(other)} rows"
    (keys, values), (other_keys, others) = _sorted(one), _sorted(other)
    pd.testing.assert_frame_equal(keys, other_keys, check_exact=True)
    for position, label in enumerate(values):
        a, b = (_plain(frame.iloc[:, position], "float64") for frame in (values, others))
        finite = b[np.isfinite(b)] if pd.api.types.is_numeric_dtype(b.dtype) else b[:0]
        scale = OF_COLUMN * (abs(finite).max() if len(finite) else 0.0)
        name = f"column {label}"
        pd.testing.assert_series_equal(a, b, check_index=False, rtol=relative, atol=scale, obj=name)


def _sorted(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Keys, and values in their order.

    Sorting by a hash of the row is many times faster than sorting by six keys, and with 64 bits
    equal hashes of different rows are too rare to matter.
    """
    keys = frame.index.to_frame(index=False).set_axis(range(frame.index.nlevels), axis=1)
    keys = keys.apply(_plain)
    order = np.argsort(pd.util.hash_pandas_object(keys, index=False).to_numpy(), kind="stable")
    return keys.take(order).reset_index(drop=True), frame.take(order)


def _plain(values: pd.Series, number: str = "Int64") -> pd.Series:
    """Values in one dtype per kind: integers in that of ``number``, other numbers, the rest."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(values.cat.categories.dtype)
    if pd.api.types.is_integer_dtype(values.dtype) or pd.api.types.is_bool_dtype(values.dtype):
        return values.astype(number)
    return values.astype("float64" if pd.api.types.is_numeric_dtype(values.dtype) else "str")
