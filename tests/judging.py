"""Stock Dask, the plugin and pandas on one query of one set of partitions, and the rule.

Where stock Dask answers, the plugin answers. Its values are pandas', or stock Dask's where pandas
has no answer. Where stock Dask's values are right, the dtypes are stock Dask's too, but for the
exceptions of ``wrong_dtypes``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import dask
import numpy as np
import pandas as pd
from dask.dataframe.methods import concat
from hypothesis import currently_in_test_context, note
from pandas.api.types import union_categoricals

import dask_gpuagg
from tests.comparison import assert_same

# of sums, in a few operations on numbers below ten
TOLERANCES = {"rtol": 1e-9, "atol": 1e-9}
SINGLE = {"rtol": 1e-5, "atol": 1e-5}


def judge(
    query: Callable[..., Any],
    collection: Callable[[], Any],
    pieces: Sequence[pd.DataFrame],
    options: dict[str, Any] | None = None,
    ordered: bool = False,
) -> None:
    """Assert the rule.

    Parameters
    ----------
    query : callable
        Of a frame, Dask's or pandas', and of ``options``, which are Dask's alone.
    collection : callable
        Makes the Dask frame anew.
    pieces : sequence of DataFrame
        What its partitions are.
    options : dict, optional
        ``split_out`` and the like.
    ordered : bool
        Whether the groups have to come as pandas has them.
    """
    options = options or {}
    assert not dask_gpuagg.is_enabled()
    stock = outcome(lambda: query(collection(), **options).compute())
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "silent"}):
        ours = outcome(lambda: query(collection(), **options).compute())
    truth = outcome(lambda: query(together(pieces)))
    if currently_in_test_context():
        note(f"stock Dask:\n{stock!r}\npandas:\n{truth!r}\nplugin:\n{ours!r}")
    if not answers(ours):
        if answers(stock):
            raise AssertionError(f"stock Dask answers, the plugin does not: {ours!r}") from ours
        return
    single = any("float32" in map(str, piece.dtypes) for piece in pieces)
    if answers(truth):
        problem = difference(ours, truth, single, ordered)
        if problem is not None and answers(stock) and difference(ours, stock, single) is None:
            return  # no better than stock Dask, and no worse
        assert problem is None, f"not pandas' answer: {problem}"
        if not answers(stock) or difference(stock, truth, single) is not None:
            return
    elif answers(stock):
        problem = difference(ours, stock, single)
        assert problem is None, f"not stock Dask's answer, and pandas has none: {problem}"
    else:
        return
    wrong = wrong_dtypes(pieces, ours, stock, truth, query(collection(), **options)._meta)
    assert not wrong, f"dtypes: {'; '.join(wrong)}"


def together(pieces: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """All rows in one frame, as Dask's ``compute`` gives it, or pandas where Dask cannot."""
    try:
        # categories are united
        return concat([piece.copy() for piece in pieces])
    except (TypeError, ValueError, AttributeError):
        whole = pd.concat(pieces)
        for name in whole.columns:
            parts = [piece[name] for piece in pieces]
            if all(isinstance(part.dtype, pd.CategoricalDtype) for part in parts):
                whole[name] = union_categoricals(parts)
        return whole


def outcome(query: Callable[[], Any]) -> Any:
    """A query's answer, or its error."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return query()
    except Exception as error:
        return error


def answers(result: Any) -> bool:
    """Whether an outcome is no error."""
    return not isinstance(result, Exception)


def difference(got: Any, want: Any, single: bool, ordered: bool = False) -> str | None:
    """How two answers differ, in groups, values or order; ``None`` where they do not."""
    try:
        got, want = _one_null_of_each(got), _one_null_of_each(want)
        assert_same(got, want, ordered=ordered, **(SINGLE if single else TOLERANCES))
    except AssertionError as error:
        return str(error)
    return None


def _one_null_of_each(result: Any) -> Any:
    """``unique`` with one null per group: objects in one frame may have None beside NaN."""
    if result.ndim == 2 or result.dtype != object:
        return result
    arrays = len(result) > 0 and isinstance(result.iloc[0], np.ndarray)
    return result.map(_one_null) if arrays else result


def _one_null(values: Any) -> list[Any]:
    return list(dict.fromkeys(None if pd.isna(v) else v for v in values))


def dtypes(result: Any) -> dict[Any, str]:
    """The dtypes of columns and index levels, by position and the column that they come from."""
    frame = result.to_frame() if result.ndim == 1 else result
    labels = [label[0] if isinstance(label, tuple) else label for label in frame.columns]
    levels = [result.index.get_level_values(i) for i in range(result.index.nlevels)]
    parts = [frame.iloc[:, i] for i in range(frame.shape[1])] + levels
    names = [*labels, *result.index.names]
    return {(i, names[i]): _written(part.dtype) for i, part in enumerate(parts)}


def _written(dtype: Any) -> str:
    if isinstance(dtype, pd.CategoricalDtype):
        return f"category, ordered={dtype.ordered}"
    return repr(dtype) if isinstance(dtype, pd.StringDtype) else str(dtype)


# Whose dtype serves as well as stock Dask's, and for which columns. Stock Dask's own depends on
# the plan where partitions have several dtypes: it concatenates partials by eights, or what a
# shuffle left together.
EXCEPTIONS: dict[str, Callable[[list[pd.Series]], bool]] = {
    # the dtype for all rows in one frame
    "pandas": lambda column: True,
    # the dtype that a lazy result says of itself
    "promised": lambda column: (
        any(_written(part.dtype).startswith("category") for part in column)
        or len({_written(part.dtype) for part in column}) > 1
        or not any(part.notna().any() for part in column)
    ),
}


# kinds that may stand where pandas makes Python objects of them
_NUMBERS = ("int", "float", "bool", "complex")


def _held_as(have: str, column: Sequence[pd.Series], theirs: Any) -> bool:
    """Of several dtypes: the same kind in another width, unit or layout, or objects of that kind.

    Which of them stock Dask and pandas return depends on partitions without a row or a value, and
    on the order in which they are concatenated. Their sizes of Arrow's columns are Arrow's.
    """
    if any(isinstance(part.dtype, pd.ArrowDtype) for part in column) and have == "int64":
        return "int64[pyarrow]" in theirs
    if len({_written(part.dtype) for part in column}) == 1:
        return False
    kinds = {_kind(dtype) for dtype in theirs}
    return _kind(have) in kinds or (_kind(have) in _NUMBERS and "object" in kinds)


def _kind(dtype: str) -> str:
    plain = dtype.lower().removesuffix("[pyarrow]")
    return re.sub(r"\d+.*", "", plain.replace("boolean", "bool"))


def wrong_dtypes(
    pieces: Sequence[pd.DataFrame], ours: Any, stock: Any, truth: Any, promised: Any
) -> list[str]:
    """Dtypes that are neither stock Dask's nor an exception's, in words; none without rows."""
    if not len(ours):
        return []
    others = {"stock Dask": stock, "pandas": truth, "promised": promised}
    allowed = {who: dtypes(result) for who, result in others.items() if answers(result)}
    found = []
    for place, have in dtypes(ours).items():
        column = [piece[place[1]] for piece in pieces if place[1] in piece]
        theirs = {
            who: kinds[place]
            for who, kinds in allowed.items()
            if place in kinds and (who not in EXCEPTIONS or EXCEPTIONS[who](column))
        }
        if _held_as(have, column, theirs.values()):
            continue
        # a promised category stays one, so that outputs of one query agree
        if have.startswith("category") and have == allowed["promised"].get(place):
            continue
        if have not in theirs.values():
            found.append(f"{place[1]!r} is {have}, {theirs}")
    return found
