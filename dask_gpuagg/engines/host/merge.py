"""Merge of every state of the registry: rows of states of one group, in their order, to one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dask_gpuagg import exact_sums
from dask_gpuagg.dtypes import NUMERIC, dtype_class, is_complex
from dask_gpuagg.engines.host.reducer import Fields, Reducer
from dask_gpuagg.engines.host.update import UPDATES, extreme, products
from dask_gpuagg.states import STATES, State

Merge = Callable[[Reducer, dict[str, pd.Series]], Fields]


def merge(reducer: Reducer, state: str, fields: dict[str, pd.Series]) -> Fields:
    """Merge several rows of one state per group, in row order.

    Parameters
    ----------
    reducer : Reducer
    state : str
        A name of ``states.STATES`` other than ``custom``.
    fields : dict of str to Series
        The state's fields, of the reducer's rows.

    Returns
    -------
    dict of str to array of shape (n,)
    """
    return _MERGES[state](reducer, fields)


def expect(reducer: Reducer, state: str, fields: dict[str, pd.Series]) -> None:
    """Announce a merge, so that fields of several states are merged together."""
    if state in ("min", "max"):
        reducer.expect(state, fields[state])
    elif state == "moments":
        reducer.expect("isum", fields["n"])
    elif STATES[state].merge == "sum":
        for field in fields.values():
            reducer.expect("isum", field)


def _sums(reducer: Reducer, values: pd.Series) -> Any:
    numbers = dtype_class(values.dtype) in NUMERIC
    if not (numbers or is_complex(values.dtype)):
        # sums of decimals beside sums of floats
        values = pd.Series(values.to_numpy(dtype=np.float64, na_value=np.nan))
    # an inf - inf of a partition is NaN and has to stay NaN: partial sums are never skipped
    return reducer.sum(values, skipna=False)


def _merge_prod(reducer: Reducer, fields: dict[str, pd.Series]) -> Fields:
    return {"prod": products(reducer, fields["prod"], skipna=False)}


def _merge_like_update(state: State) -> Merge:
    (field,) = state.fields
    return lambda reducer, fields: UPDATES[state.name](reducer, fields[field])


def _weighted_mean(
    reducer: Reducer, n: npt.NDArray[Any], means: npt.NDArray[Any], total: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Means of means, relative to each group's first one so that equal means stay equal."""
    filled = n > 0
    first = reducer.first_row(np.flatnonzero(filled))
    reference = np.full(reducer.n, np.nan)
    reference[first >= 0] = means[first[first >= 0]]
    shift = np.where(filled, n * (means - reference[reducer.codes]), 0.0)
    mean: npt.NDArray[np.float64] = reference + np.bincount(reducer.codes, shift, reducer.n) / total
    return mean


def _merge_moments(reducer: Reducer, fields: dict[str, pd.Series]) -> Fields:
    # Chan, Golub, LeVeque 1979, equation 1.5b, for any number of parts at once
    n, means, m2 = (fields[name].to_numpy() for name in ("n", "mean", "m2"))
    total = np.asarray(_sums(reducer, fields["n"]))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = _weighted_mean(reducer, n, means, total)
        spread = n * (means - mean[reducer.codes]) ** 2
    merged = m2 + np.where(n > 0, spread, 0.0)
    return {"n": total, "mean": mean, "m2": np.bincount(reducer.codes, merged, reducer.n)}


def _merge_comoments(reducer: Reducer, fields: dict[str, pd.Series]) -> Fields:
    n = fields["n"].to_numpy()
    total = np.asarray(_sums(reducer, fields["n"]))
    with np.errstate(invalid="ignore", divide="ignore"):
        mx = _weighted_mean(reducer, n, fields["mx"].to_numpy(), total)
        my = _weighted_mean(reducer, n, fields["my"].to_numpy(), total)
        dx = fields["mx"].to_numpy() - mx[reducer.codes]
        dy = fields["my"].to_numpy() - my[reducer.codes]
    result: Fields = {"n": total, "mx": mx, "my": my}
    for name, product in (("cxx", dx * dx), ("cxy", dx * dy), ("cyy", dy * dy)):
        part = fields[name].to_numpy() + np.where(n > 0, n * product, 0.0)
        result[name] = np.bincount(reducer.codes, part, reducer.n)
    return result


def _merge_exact(reducer: Reducer, fields: dict[str, pd.Series]) -> Fields:
    sums = {name: np.asarray(reducer.sum(values)) for name, values in fields.items()}
    return exact_sums.settled(sums, np)


def _merge_extreme(state: str) -> Merge:
    def merge_extreme(reducer: Reducer, fields: dict[str, pd.Series]) -> Fields:
        nulls = _sums(reducer, fields["nulls"])
        return extreme(reducer, state, fields["value"], fields["label"], nulls)

    return merge_extreme


def _merge_of(state: State) -> Merge:
    """The merge of a state whose fields merge one by one."""
    if state.binned:
        return _merge_exact
    if state.merge == "sum":
        return lambda reducer, fields: {f: _sums(reducer, fields[f]) for f in state.fields}
    if state.merge == "prod":
        return _merge_prod
    return _merge_like_update(state)


_MERGES: dict[str, Merge] = {
    **{state.name: _merge_of(state) for state in STATES.values() if state.merge},
    "osum": _merge_like_update(STATES["osum"]),
    "moments": _merge_moments,
    "idxmin": _merge_extreme("idxmin"),
    "idxmax": _merge_extreme("idxmax"),
    "comoments": _merge_comoments,
}
