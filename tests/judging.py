"""Stock Dask, the plugin and pandas on one query of one set of partitions, and the rule.

Where stock Dask answers, the plugin answers. Its values are pandas', or stock Dask's where pandas
has no answer. Where stock Dask's values are right, the dtypes are stock Dask's too, but for the
exceptions of ``wrong_dtypes``.
"""

import functools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
    plans: Sequence[dict[str, Any]],
    ordered: bool = False,
) -> None:
    """Assert the rule of several plans, each beside stock Dask by the same plan.

    ``query`` is of a frame, Dask's or pandas', and of options, which are Dask's alone: those of
    each of the ``plans``. ``collection`` makes the Dask frame of the ``pieces``. Groups that are
    ``ordered`` have to come as pandas has them.
    """
    assert not dask_gpuagg.is_enabled()
    filled = [piece for piece in pieces if len(piece)] or pieces
    of_rows = functools.cache(lambda: outcome(lambda: query(together(filled))))
    truth = Truth(outcome(lambda: query(together(pieces))), of_rows, pieces, ordered)
    queries = [functools.partial(query, **options) for options in plans]
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "silent"}):
        outcomes = _outcomes([lambda given=given: given(collection()) for given in queries])
    for options, given, ours in zip(plans, queries, outcomes, strict=True):
        stock = Stock(given, collection)
        found = problem(ours, stock, truth)
        if found is not None:
            if currently_in_test_context():
                note(f"stock Dask:\n{stock.answer!r}\npandas:\n{truth.answer!r}\nplugin:\n{ours!r}")
            cause = None if answers(ours) else ours
            raise AssertionError(f"by the plan {options}: {found}") from cause


def _outcomes(queries: Sequence[Callable[[], Any]]) -> list[Any]:
    """The first query computed alone, as users compute one, and the others in one graph.

    That graph has the partials that several of them need once, which saves a fifth of the time.
    """
    alone = [lambda one=one: one().compute() for one in queries]
    others = outcome(lambda: dask.compute(*(one() for one in queries[1:])))
    if not answers(others):
        others = [outcome(one) for one in alone[1:]]
    return [outcome(alone[0]), *others]


class Stock:
    """Stock Dask's outcome of a query, found when it is asked for: most need not be known."""

    def __init__(self, query: Callable[..., Any], collection: Callable[[], Any]) -> None:
        self._query = query
        self._collection = collection

    @cached_property
    def lazy(self) -> Any:
        """The query before it is computed, or the error."""
        assert not dask_gpuagg.is_enabled()
        return outcome(lambda: self._query(self._collection()))

    @cached_property
    def answer(self) -> Any:
        """The answer, or the error."""
        return outcome(self.lazy.compute) if answers(self.lazy) else self.lazy

    @cached_property
    def promised(self) -> dict[str, dict[Any, str]]:
        """The dtypes that the lazy result says it has, if there is one."""
        return {"promised": dtypes(self.lazy._meta)} if answers(self.lazy) else {}


@dataclass(frozen=True)
class Truth:
    """pandas' outcome of a query, and what it is judged by, found once for all plans.

    ``answer`` may be the error. ``of_rows`` answers of the pieces that have rows: others make
    objects of pandas' column, not of Dask's.
    """

    answer: Any
    of_rows: Callable[[], Any]
    pieces: Sequence[pd.DataFrame]
    ordered: bool

    @cached_property
    def dtypes(self) -> dict[str, dict[Any, str]]:
        """Those of the answer, if there is one."""
        return {"pandas": dtypes(self.answer)} if answers(self.answer) else {}

    @cached_property
    def single(self) -> bool:
        """Whether some values have the precision of float32."""
        return any("float32" in map(str, piece.dtypes) for piece in self.pieces)


def problem(ours: Any, stock: Stock, truth: Truth) -> str | None:
    """How an outcome of the plugin breaks the rule; ``None`` where it does not."""
    want, single = truth.answer, truth.single
    if not answers(ours):
        text = f"stock Dask answers, the plugin does not: {ours!r}"
        return text if answers(stock.answer) else None
    if answers(want) and len(ours) == len(want) == 0 and _is_matrix(ours, want, stock):
        return None
    have = dtypes(ours) if len(ours) else {}  # of no rows, any
    if answers(want):
        found = difference(ours, want, single, truth.ordered)
        if found is None and not _wrong_without(stock, have, ours, truth):
            return None  # whatever stock Dask answers
        if found is not None:
            if answers(stock.answer) and difference(ours, stock.answer, single) is None:
                return None  # no better than stock Dask, and no worse
            other = truth.of_rows()
            if answers(other) and difference(ours, other, single, truth.ordered) is None:
                return None
            return f"not pandas' answer: {found}"
        if not answers(stock.answer) or difference(stock.answer, want, single) is not None:
            return None
    elif answers(stock.answer):
        found = difference(ours, stock.answer, single)
        if found is not None:
            return f"not stock Dask's answer, and pandas has none: {found}"
    else:
        return None
    others = {"stock Dask": dtypes(stock.answer)} | truth.dtypes | stock.promised
    wrong = wrong_dtypes(truth.pieces, have, ours.index.nlevels, others)
    return f"dtypes: {'; '.join(wrong)}" if wrong else None


def _is_matrix(ours: Any, truth: Any, stock: Stock) -> bool:
    """Whether an answer has the levels that Dask promises, of which pandas' has one fewer.

    pandas' matrices of several keys lack the level of columns where there is no group.
    """
    fewer = truth.index.nlevels == ours.index.nlevels - 1
    return fewer and answers(stock.lazy) and stock.lazy._meta.index.names == ours.index.names


def _wrong_without(stock: Stock, have: dict[Any, str], ours: Any, truth: Truth) -> bool:
    """Whether some dtype is only right if stock Dask's answer has it."""
    levels = ours.index.nlevels
    if not wrong_dtypes(truth.pieces, have, levels, truth.dtypes):
        return False
    return bool(wrong_dtypes(truth.pieces, have, levels, truth.dtypes | stock.promised))


def together(pieces: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """All rows in one frame, as Dask's ``compute`` gives it, or pandas where Dask cannot."""
    try:
        # categories are united
        return concat([piece.copy() for piece in pieces])
    except (TypeError, ValueError, AttributeError):
        data = pd.concat(pieces)
        for name in data.columns:
            parts = [piece[name] for piece in pieces]
            if all(isinstance(part.dtype, pd.CategoricalDtype) for part in parts):
                data[name] = union_categoricals(parts)
        return data


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
    levels = [result.index.get_level_values(i).dtype for i in range(result.index.nlevels)]
    pairs = zip([*labels, *result.index.names], [*frame.dtypes, *levels], strict=True)
    return {(i, name): _written(dtype) for i, (name, dtype) in enumerate(pairs)}


def _written(dtype: Any) -> str:
    if isinstance(dtype, pd.CategoricalDtype):
        return f"category, ordered={dtype.ordered}"
    # pandas takes the precision of decimals in lists from the values, so outputs differ in it
    text = re.sub(r"^(list<.*decimal128\()\d+", r"\1_", str(dtype))
    return repr(dtype) if isinstance(dtype, pd.StringDtype) else text


# Whose dtype serves as well as stock Dask's, and for which columns. Stock Dask's own depends on
# the plan where partitions have several dtypes: it concatenates partials by eights, or what a
# shuffle left together.
EXCEPTIONS: dict[str, Callable[[list[pd.Series]], bool]] = {
    # the dtype for all rows in one frame
    "pandas": lambda column: True,
    # the dtype that a lazy result says of itself; objects may all be of the promised kind
    "promised": lambda column: (
        all(part.dtype == object for part in column)
        or any(_written(part.dtype).startswith("category") for part in column)
        or len({_written(part.dtype) for part in column}) > 1
        or not any(part.notna().any() for part in column)
    ),
}


# kinds that may stand where pandas makes Python objects of them
_NUMBERS = ("int", "float", "bool", "complex")


def _held_as(have: str, column: Sequence[pd.Series], theirs: Any) -> bool:
    """Whether a dtype is one of several of a kind, in another width, unit or layout, or objects.

    Which of them stock Dask and pandas return depends on partitions without a row or a value, and
    on the order in which they are concatenated. Their sizes of Arrow's columns are Arrow's, and of
    nullable strings nullable.
    """
    if any(isinstance(part.dtype, pd.ArrowDtype) for part in column) and have == "int64":
        return "int64[pyarrow]" in theirs
    if any(isinstance(part.dtype, pd.StringDtype) for part in column) and have == "int64":
        return "Int64" in theirs
    if len({_written(part.dtype) for part in column}) == 1:
        return False
    kinds = {_kind(dtype) for dtype in theirs}
    # truths beside a null, of which pandas' concatenation makes floats in some frames
    if have == "object" and any(part.dtype == bool for part in column):
        return "float" in kinds
    return _kind(have) in kinds or (_kind(have) in _NUMBERS and "object" in kinds)


def _kind(dtype: str) -> str:
    if dtype.startswith("<StringDtype"):
        return "text"
    plain = dtype.lower().removesuffix("[pyarrow]")
    return re.sub(r"\d+.*", "", plain.replace("boolean", "bool"))


def _of_groups(
    key: Any, ours: Mapping[Any, str], levels: int, pieces: Sequence[pd.DataFrame]
) -> set[str]:
    """The dtypes of a key in partitions that have a group of values.

    The others do not make another dtype of these keys.
    """
    keys = [name for _, name in list(ours)[-levels:]]
    held = [piece[[k for k in keys if k in piece]] for piece in pieces]
    return {_written(h[key].dtype) for h in held if key in h and h.notna().all(axis=1).any()}


def wrong_dtypes(
    pieces: Sequence[pd.DataFrame],
    ours: Mapping[Any, str],
    levels: int,
    others: Mapping[str, Mapping[Any, str]],
) -> list[str]:
    """Dtypes that are neither stock Dask's nor an exception's, in words.

    ``ours`` and ``others`` (of pandas, stock Dask and the metadata) are as ``dtypes`` gives them;
    so many ``levels`` of them, at the end, are of the index.
    """
    wrong = []
    for place, have in ours.items():
        column = [piece[place[1]] for piece in pieces if place[1] in piece]
        theirs = {
            who: kinds[place]
            for who, kinds in others.items()
            if place in kinds and (who not in EXCEPTIONS or EXCEPTIONS[who](column))
        }
        if _held_as(have, column, theirs.values()):
            continue
        if place[0] >= len(ours) - levels and {have} == _of_groups(place[1], ours, levels, pieces):
            continue
        # a promised category stays one, so that outputs of one query agree
        promised = others.get("promised", {}).get(place)
        if have.startswith("category") and have == promised:
            continue
        if have not in theirs.values():
            wrong.append(f"{place[1]!r} is {have}, {theirs}")
    return wrong
