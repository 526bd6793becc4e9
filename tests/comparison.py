"""Comparing a computed group-by with pandas: groups in any order, values, dtypes and labels."""

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pandas.api.types import is_float_dtype, is_numeric_dtype

PANDAS_3_0 = pd.__version__.startswith("3.0.")


def pandas_answers(cls: str, name: str) -> bool:
    """Whether the installed pandas has the right answer for an aggregation of a dtype class.

    Release 3.0 refuses lists of categories and the spread of decimals (all but ``var``, whose
    dtype depends on the values), and rounds means of decimals to the scale of the column.
    """
    if not PANDAS_3_0:
        return True
    if cls == "category":
        return name != "list"
    return cls != "decimal" or name not in ("mean", "var", "std", "sem")


def compare(
    query: Callable[..., Any],
    ddf: Any,
    *,
    options: dict[str, Any] | None = None,
    reference: Callable[[Any], Any] | None = None,
    dtypes: bool = True,
    ordered: bool = False,
    refusable: bool = False,
    rtol: float = 1e-12,
    atol: float = 0.0,
) -> Any:
    """Run a query on a Dask collection and on the same data in pandas; assert the same answer.

    ``query`` is called with Dask's frame and the options, which Dask alone understands, and with
    pandas' frame, which has ``reference`` where that is written differently. With ``dtypes`` they
    are equal wherever Dask's metadata says the same. A ``refusable`` query may be refused by
    pandas: then by the same type of error, and None is returned.
    """
    try:
        want = (reference or query)(ddf.compute(scheduler="synchronous"))
    except (TypeError, ValueError, NotImplementedError) as error:
        if not refusable:
            raise
        with pytest.raises(type(error)):
            query(ddf, **(options or {})).compute()
        return None
    lazy = query(ddf, **(options or {}))
    got = lazy.compute()
    meta = lazy._meta if dtypes else None
    assert_same(got, want, meta=meta, ordered=ordered, rtol=rtol, atol=atol)
    return got


def assert_same(
    got: Any,
    want: Any,
    *,
    meta: Any = None,
    ordered: bool = False,
    rtol: float = 1e-12,
    atol: Any = 0.0,
) -> None:
    """Assert that two results have the same groups and the same values.

    With ``meta``, Dask's metadata of ``got``, dtypes are compared wherever it agrees with ``want``.
    ``atol`` may be a frame: one for each group (a row) and column (by number).
    """
    assert type(got) is type(want), f"{type(got).__name__} instead of {type(want).__name__}"
    if got.ndim == 1:
        assert got.name == want.name
        got, want = got.to_frame("value"), want.to_frame("value")
        meta = None if meta is None else meta.to_frame("value")
    assert list(got.columns) == list(want.columns)
    assert list(got.index.names) == list(want.index.names)
    have, expected = keys_of(got.index), keys_of(want.index)
    assert len(set(have)) == len(have), f"duplicate groups in {have}"
    assert len(set(expected)) == len(expected), f"duplicate groups in pandas' {expected}"
    if ordered:
        assert have == expected
    else:
        missing, extra = set(expected) - set(have), set(have) - set(expected)
        assert missing | extra == set(), f"groups missing {missing}, too many {extra}"
        place = {key: i for i, key in enumerate(have)}
        got = got.take([place[key] for key in expected])
    for i, label in enumerate(want.columns):
        bound = np.asarray(atol[i]) if isinstance(atol, pd.DataFrame) else atol
        assert_column(got.iloc[:, i], want.iloc[:, i], label, rtol, bound)
    if meta is not None:
        _assert_dtypes(got, want, meta)


def equal(got: Any, expected: Any, **tolerances: Any) -> None:
    """Assert equal frames or Series, row by row."""
    check = pd.testing.assert_frame_equal if got.ndim == 2 else pd.testing.assert_series_equal
    check(got, expected, **tolerances)


def same(got: Any, expected: Any, **tolerances: Any) -> None:
    """Assert equal frames or Series, in whatever order their groups are."""
    equal(got.sort_index(), expected.sort_index(), **tolerances)


def keys_of(index: pd.Index) -> list[tuple[Hashable, ...]]:
    """The groups as tuples that compare: nulls of every kind are ``None``, -0.0 is 0.0."""
    levels = [index.get_level_values(i) for i in range(index.nlevels)]
    return list(zip(*([_plain(v) for v in level.astype(object)] for level in levels), strict=True))


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple | np.ndarray | pd.api.extensions.ExtensionArray):
        return tuple(_plain(v) for v in value)
    if pd.isna(value):
        return None
    return value + 0.0 if isinstance(value, float) else value


def assert_column(got: Any, want: Any, label: Any, rtol: float, atol: Any) -> None:
    """Assert equal nulls and values: floats within the tolerances, durations within ``atol``."""
    have_null, expected_null = got.isna().to_numpy(), want.isna().to_numpy()

    def text() -> str:  # of two columns that are equal it would cost more than to compare them
        return f"column {label!r}:\n{got}\ninstead of\n{want}"

    assert (have_null == expected_null).all(), text()
    valid = ~expected_null
    if any(map(is_float_dtype, (got, want))) and all(map(is_numeric_dtype, (got, want))):
        a = got[valid].to_numpy(dtype=np.float64)
        b = want[valid].to_numpy(dtype=np.float64)
        bound = np.broadcast_to(atol, valid.shape)[valid]
        with np.errstate(invalid="ignore"):
            close = (a == b) | (np.abs(a - b) <= rtol * np.abs(b) + bound)
        assert close.all(), text()
        return
    if all(pd.api.types.is_timedelta64_dtype(values.dtype) for values in (got, want)):
        ticks = (got[valid].to_numpy() - want[valid].to_numpy()).view("int64")
        assert (np.abs(ticks) <= np.broadcast_to(atol, valid.shape)[valid]).all(), text()
        return
    assert _values(got[valid]) == _values(want[valid]), text()


def _values(column: pd.Series) -> list[Any]:
    arrow = getattr(column.dtype, "pyarrow_dtype", None)
    if arrow is not None and pa.types.is_nested(arrow):
        # pandas' own conversion to objects loses the time zone of nested values
        return [_plain(v) for v in pa.array(column).to_pylist()]
    return [_plain(v) for v in column.astype(object)]


def _assert_dtypes(got: pd.DataFrame, want: pd.DataFrame, meta: pd.DataFrame) -> None:
    triples = zip(got.dtypes, want.dtypes, meta.dtypes, strict=True)
    for label, (have, expected, promised) in zip(want.columns, triples, strict=True):
        if _is_category(have, expected):
            assert set(have.categories) == set(expected.categories)
            assert have.ordered == expected.ordered
        elif expected == promised:
            assert have == expected, f"column {label!r} is {have} instead of {expected}"
    for i in range(want.index.nlevels):
        have, expected, promised = (f.index.get_level_values(i).dtype for f in (got, want, meta))
        if _is_category(have, expected):
            assert have.ordered == expected.ordered
        elif expected == promised:
            assert have == expected, f"key {i} is {have} instead of {expected}"


def _is_category(*dtypes: Any) -> bool:
    return all(isinstance(d, pd.CategoricalDtype) for d in dtypes)
