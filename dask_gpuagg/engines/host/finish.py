"""Outputs from merged states: values, dtypes, labels, index and order on the host."""

import decimal
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dask_gpuagg import exact_sums
from dask_gpuagg.aggregations import REGISTRY, Kind
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.host.compiled import Fields, Reducer
from dask_gpuagg.engines.host.dtypes import (
    DECIMAL_DIGITS,
    categories_of,
    conform,
    holds_objects,
    list_dtype,
    natural_dtype,
    series_of,
)
from dask_gpuagg.engines.host.grouping import group, is_dictionary, lists_of
from dask_gpuagg.engines.host.stacking import MANY_COLUMNS, States, join
from dask_gpuagg.plan import Output, Plan

Floats = npt.NDArray[np.float64]
Parameters = dict[str, Any]


def finish_groups(
    keys: list[Any],
    states: States,
    from_table: Callable[[int, Output], Any] | None,
    plan: Plan,
    meta: Any,
) -> Any:
    """One row per group, one column per output.

    ``states`` are merged; ``from_table`` makes an output of distinct pairs, of a sketch or of whole
    rows, by its position.
    """
    index = make_index(keys, meta.index.names)
    dtypes = [meta.dtype] if meta.ndim == 1 else list(meta.dtypes)
    # stock Dask gives pandas whole groups then, of which pandas makes Arrow's lists
    in_whole_groups = any(output.aggregation == "median" for output in plan.outputs)
    columns: dict[int, Any] = {}
    taken: set[int] = set()
    for i, (output, promised) in enumerate(zip(plan.outputs, dtypes, strict=True)):
        dtype = promised
        if from_table is None or output.kind is Kind.MERGEABLE:
            values = _from_states(output, [states[s] for s in output.states], index)
        else:
            values = from_table(i, output)
        if output.column in plan.deviating:
            of_column = plan.columns[output.column].dtype
            # partitions without any text or number hold NaN alone, others nulls of the dtype
            of_floats = isinstance(of_column, np.dtype) and of_column.kind == "f"
            has_nulls = isinstance(promised, pd.api.extensions.ExtensionDtype)
            if of_floats and has_nulls and pd.isna(values).all():
                values = pd.array([None] * len(values), dtype=promised)
            else:
                dtype = natural_dtype(output, of_column, promised)
        if output.aggregation == "list" and output.column is not None and in_whole_groups:
            dtype = list_dtype(plan.columns[output.column].dtype)
        column = conform(values, dtype, output)
        if isinstance(column, np.ndarray) and meta.ndim == 2 and column.dtype == promised:
            # a user may write to a column: not to what pandas shows read-only, nor to two at once
            start = column.__array_interface__["data"][0]
            own = column.flags.writeable and start not in taken
            columns[i] = column if own else column.copy()
            taken.add(start)
            continue
        if dtype_class(promised) == "category" != dtype_class(column.dtype):
            column = categories_of(column, promised)  # or outputs could not be concatenated
        # Python objects stay objects, also where all are strings or times
        columns[i] = pd.Series(column, index, dtype=object if holds_objects(column) else None)
    if meta.ndim == 1:
        result: Any = columns[0].rename(meta.name)
    else:
        many = len(columns) >= MANY_COLUMNS
        result = join(columns, index) if many else pd.DataFrame(columns, index, copy=False)
        if list(result.columns) != list(columns):
            result = result[list(columns)]
        # a user may name them: those of the metadata stay as they are
        result.columns = meta.columns.view()
    return result.take(sort_order(keys)) if plan.sort else result


def finish_values(keys: list[Any], states: States, plan: Plan, meta: Any) -> pd.Series:
    """``value_counts``: one row per group and distinct value, frequent values first."""
    counts = states[0]["n"]
    if isinstance(keys[-1], pd.Categorical):
        keys, counts = _every_category(keys, counts)
    else:  # categories of some partition may have been null
        valid = ~pd.isna(keys[-1])
        keys, counts = [k[valid] for k in keys], counts[valid]
    of_keys = ranks(keys[:-1]) if plan.sort else [pd.factorize(k)[0] for k in keys[:-1]]
    order = np.lexsort((-counts, *reversed(of_keys)))
    index = make_index([k.take(order) for k in keys], meta.index.names)
    dtype = meta.dtype if meta.dtype.kind in "iu" else np.dtype("int64")
    # Dask's metadata of counted categories has lost the name
    name = "count" if meta.name is None else meta.name
    return pd.Series(counts[order], index=index, name=name).astype(dtype)


def _every_category(
    keys: list[Any], counts: npt.NDArray[np.int64]
) -> tuple[list[Any], npt.NDArray[np.int64]]:
    """Every group with every category of the values, as pandas counts categorical values."""
    groups = group([pd.Series(k) for k in keys[:-1]], dropna=False)
    size = len(keys[-1].categories)
    dense = np.zeros(groups.n * size, np.int64)
    some = keys[-1].codes >= 0  # a null value only shows that the group exists
    places = groups.codes.astype(np.int64) * size + keys[-1].codes
    dense[places[some]] = counts[some]
    values = pd.Categorical.from_codes(np.tile(np.arange(size), groups.n), dtype=keys[-1].dtype)
    return [*(k.take(np.repeat(np.arange(groups.n), size)) for k in groups.keys), values], dense


def finish_matrix(keys: list[Any], states: States, plan: Plan, meta: Any) -> pd.DataFrame:
    """``cov`` and ``corr``: one row per group and column, one column per column."""
    n, m = len(keys[0]), len(plan.columns)
    cube = np.empty((n, m, m))
    for i, use in enumerate(plan.states):
        state = {name: np.asarray(states[i][name]) for name in ("n", "cxx", "cxy", "cyy")}
        a, b = use.columns
        cube[:, a, b] = cube[:, b, a] = _matrix_values(plan.outputs[0], state)
    order = sort_order(keys) if plan.sort else np.arange(n)
    repeated = [k.take(np.repeat(order, m)) for k in keys]
    labels = np.tile(np.arange(m), n)
    index = make_index([*repeated, meta.columns.take(labels)], meta.index.names)
    return pd.DataFrame(cube[order].reshape(n * m, m), index=index, columns=meta.columns.view())


def make_index(keys: list[Any], names: Any) -> pd.Index:
    """Index of the groups; a MultiIndex for several keys. Nothing writes to the keys any more."""
    if len(keys) == 1:
        return pd.Index(keys[0], name=names[0], copy=False)
    coded = {i: key.dtype for i, key in enumerate(keys) if is_dictionary(key.dtype)}
    index = pd.MultiIndex.from_arrays([_as_level(key) for key in keys], names=names)
    for i, dtype in coded.items():
        index = index.set_levels(index.levels[i].astype(dtype), level=i)
    return index


def _as_level(key: Any) -> Any:
    """A key of which pandas can make a level of a MultiIndex."""
    if is_dictionary(key.dtype):  # pandas writes out the text, and fails where it is null
        return key.astype(pd.ArrowDtype(key.dtype.pyarrow_dtype.value_type))
    if isinstance(key.dtype, pd.ArrowDtype) and dtype_class(key.dtype) == "float":
        return (key + 0.0).astype(key.dtype)  # pandas makes a value of either zero, and fails
    return key


def sort_order(keys: list[Any]) -> npt.NDArray[np.int64]:
    """Positions that sort distinct groups by key, nulls last, categories in their order."""
    columns = ranks(keys)
    return np.argsort(columns[0]) if len(columns) == 1 else np.lexsort(columns[::-1])


def ranks(keys: list[Any]) -> list[npt.NDArray[Any]]:
    """Rank the values of each key: numbers in the order of the values, nulls last."""
    result: list[npt.NDArray[Any]] = []
    for key in keys:
        if isinstance(key.dtype, np.dtype) and key.dtype.kind in "biufmM":
            # NumPy has NaN and NaT last
            result.append(np.asarray(key))
            continue
        if isinstance(key, pd.Categorical):
            codes, size = key.codes.astype(np.int64), len(key.categories)
        else:
            # the order pandas gives groups, mixed Python objects included
            plain = isinstance(key, pd.arrays.NumpyExtensionArray)
            codes, uniques = pd.factorize(key.to_numpy() if plain else key, sort=True)
            size = len(uniques)
        result.append(np.where(codes < 0, size, codes))
    return result


# Outputs of states.


def _from_states(output: Output, states: list[Fields], index: pd.Index) -> Any:
    if output.custom is not None:
        columns = [pd.Series(v, index=index) for v in states[0].values()]
        if output.custom.finalize is None:
            return columns[0].array
        return output.custom.finalize(*columns).array
    merged = {name: values for state in states for name, values in state.items()}
    finish = _FINISH.get(output.aggregation)
    if finish is None:  # the state is the output
        (values,) = merged.values()
        return values
    return finish(merged, dict(output.parameters))


def _sum(state: Fields, parameters: Parameters) -> Any:
    if "sum" not in state:
        return exact_sums.total(state, np)
    if isinstance(state["sum"], np.ndarray) and state["sum"].dtype.kind in "biufc":
        return state["sum"]
    sums = series_of(state["sum"])
    nothing = _OF_NOTHING.get(dtype_class(sums.dtype))
    return (sums if nothing is None else sums.where(sums.notna(), nothing)).array


# the sum of no values, by the class of one that is null
_OF_NOTHING: dict[str, Any] = {"object": 0, "string": "", "timedelta": pd.Timedelta(0)}


def _mean(state: Fields, parameters: Parameters) -> Any:
    n = state["n"]
    if "hi" in state:
        # the sum is exact; one rounding to float64 and truncation give pandas' result
        ticks = state["hi"].astype(np.float64) * 2.0**32 + state["lo"]
        means = (ticks / np.maximum(n, 1)).astype(np.int64)
        return np.where(n == 0, np.iinfo(np.int64).min, means)  # the pattern of NaT
    sums = state["sum"] if "sum" in state else exact_sums.total(state, np)
    if not isinstance(sums, np.ndarray):
        return _mean_of_decimals(sums, n)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Floats = sums / np.where(n == 0, np.nan, n)
    return mean


def _mean_of_decimals(sums: Any, n: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
    """Exact quotients as Python decimals; ``conform`` rounds them to the result's scale."""
    means = np.empty(len(n), dtype=object)
    with decimal.localcontext(prec=DECIMAL_DIGITS):
        for i, (total, count) in enumerate(zip(sums, n, strict=True)):
            means[i] = total / int(count) if count else None
    return means


def _spread(state: Fields, parameters: Parameters, power: int) -> Floats:
    """Variance, standard deviation or standard error, by ``Aggregation.power``."""
    freedom = state["n"] - parameters.get("ddof", 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance: Floats = np.where(freedom > 0, state["m2"] / freedom, np.nan)
        # in pandas' order of operations: whole errors of durations are not cut to less
        variance = variance / state["n"] if power == 2 else variance
        return np.sqrt(variance) if power else variance


def _label(state: Fields, parameters: Parameters, name: str) -> Any:
    skipna = parameters.get("skipna", True)
    if skipna and pd.isna(state["value"]).any():
        raise ValueError(f"{name} with skipna=True encountered all NA values in a group.")
    if not skipna and (np.asarray(state["nulls"]) > 0).any():
        raise ValueError(f"{name} with skipna=False encountered an NA value.")
    return state["label"]


_FINISH: dict[str, Callable[[Fields, Parameters], Any]] = {
    "sum": _sum,
    "mean": _mean,
    **{a.name: partial(_spread, power=a.power) for a in REGISTRY.values() if a.power is not None},
    "idxmin": partial(_label, name="idxmin"),
    "idxmax": partial(_label, name="idxmax"),
}


def _matrix_values(output: Output, state: Fields) -> Floats:
    """The covariance or correlation of two columns in each group."""
    with np.errstate(invalid="ignore", divide="ignore"):
        if output.aggregation == "cov":
            freedom = state["n"] - dict(output.parameters).get("ddof", 1)
            return np.where(freedom > 0, state["cxy"] / freedom, np.nan)
        corr: Floats = np.clip(state["cxy"] / np.sqrt(state["cxx"] * state["cyy"]), -1.0, 1.0)
    return corr


# Outputs of distinct pairs and of whole rows.


def _unique(reducer: Reducer, values: pd.Series, parameters: Parameters) -> Any:
    if isinstance(values.dtype, pd.StringDtype):
        # Dask makes text Arrow's, whose nulls are NA; pandas' own text has NaN
        values = values.astype("str")
    # pandas gives no groups the dtype of the values
    return reducer.by(values).unique().astype(object).array


def _median(reducer: Reducer, values: pd.Series, parameters: Parameters) -> Any:
    medians = reducer.medians(values)
    return reducer.by(values).median().array if medians is None else medians


def _list(reducer: Reducer, values: pd.Series, parameters: Parameters) -> Any:
    ordered = values.astype(object).to_numpy()[np.argsort(reducer.codes, kind="stable")]
    return lists_of(list(ordered), reducer.size)


# by the groups of a table's rows, the column of values, and the output's parameters
WHOLE: dict[str, Callable[[Reducer, pd.Series, Parameters], Any]] = {
    "nunique": lambda reducer, values, _: reducer.count(values.notna().to_numpy()),
    "unique": _unique,
    "median": _median,
    "quantile": lambda reducer, values, how: reducer.by(values).quantile(**how).array,
    "list": _list,
}
