"""Reading the functions that users write in an ``.agg`` specification."""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from dask.utils import methodcaller
from pandas.core.groupby import DataFrameGroupBy, SeriesGroupBy

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.plan import CustomFunctions, Unsupported

Parameters = tuple[tuple[str, Any], ...]

# before release 3 pandas replaced NumPy's functions by its own methods
_CALLED_AS_WRITTEN = int(pd.__version__.partition(".")[0]) >= 3

# functions whose name is not that of the aggregation, or that mean something else than pandas'
# method of that name: NumPy divides a sum of squares by n, and its median of a NaN is NaN
_KNOWN_FUNCTIONS: dict[Any, tuple[str, dict[str, Any]]] = {
    np.min: ("min", {}),
    np.max: ("max", {}),
    np.amin: ("min", {}),
    np.amax: ("max", {}),
    np.nansum: ("sum", {}),
    np.nanprod: ("prod", {}),
    np.nanmin: ("min", {}),
    np.nanmax: ("max", {}),
    np.nanmean: ("mean", {}),
    np.nanmedian: ("median", {}),
    np.nanquantile: ("quantile", {}),
    np.quantile: ("quantile", {"skipna": False}),
    np.median: ("median", {"skipna": False} if _CALLED_AS_WRITTEN else {}),
    **dict.fromkeys((np.std, np.nanstd), ("std", {"ddof": 0} if _CALLED_AS_WRITTEN else {})),
    **dict.fromkeys((np.var, np.nanvar), ("var", {"ddof": 0} if _CALLED_AS_WRITTEN else {})),
    len: ("size", {}),
}


@dataclass(frozen=True, slots=True)
class WithArguments:
    """A function of a named aggregation, with the arguments that ``pd.NamedAgg`` gives it.

    ``functools.partial`` does not take names.
    """

    function: Any
    arguments: Parameters


def read_function(function: Any) -> tuple[str, Parameters, CustomFunctions | None]:
    """Name, keyword arguments and user-defined functions of one entry of an ``.agg`` spec.

    Parameters
    ----------
    function : str, callable, functools.partial or dd.Aggregation

    Returns
    -------
    name : str
        ``custom`` for a ``dd.Aggregation``.
    parameters : tuple of (str, object)
    custom : CustomFunctions or None

    Raises
    ------
    Unsupported
        For positional arguments in a partial, and functions of the user's own.
    """
    if all(hasattr(function, part) for part in ("chunk", "agg", "finalize", "__name__")):
        functions = CustomFunctions(
            function.__name__, function.chunk, function.agg, function.finalize
        )
        return "custom", (), functions
    arguments: dict[str, Any] = {}
    if isinstance(function, WithArguments):
        arguments, function = dict(function.arguments), function.function
    if isinstance(function, partial):
        if function.args:
            raise Unsupported(f"positional arguments {function.args} of a partial function")
        arguments = function.keywords | arguments
        function = function.func
    if isinstance(function, str):
        return function, _sorted(arguments), None
    name, meant = _library_function(function)
    return name, _sorted(meant | arguments), None


def refuse_several(name: str, parameters: dict[str, Any]) -> None:
    """Raise ``Unsupported`` for several quantiles at once."""
    q = parameters.get("q", 0.5)
    if name in ("quantile", "quantile_approx") and not isinstance(q, int | float):
        raise Unsupported(f"several quantiles at once, q={q!r}: a group has one row", name)


def label_of(function: Any) -> str:
    """The column label that pandas gives to the result of a function.

    Parameters
    ----------
    function : str, callable, functools.partial or dd.Aggregation

    Returns
    -------
    str
    """
    while isinstance(function, partial | WithArguments):
        function = function.func if isinstance(function, partial) else function.function
    if isinstance(function, str):
        return function
    return str(getattr(function, "__name__", None) or read_function(function)[0])


def _sorted(arguments: dict[str, Any]) -> Parameters:
    return tuple(sorted(arguments.items()))


def _library_function(function: Any) -> tuple[str, dict[str, Any]]:
    """The aggregation that a function of pandas, NumPy or Python stands for."""
    if isinstance(function, methodcaller):  # dask.utils.M.sum
        return function.method, {}
    if isinstance(function, Hashable):
        try:
            known = _KNOWN_FUNCTIONS.get(function)
        except TypeError:  # the members of a tuple may not be hashable
            known = None
        if known is not None:
            return known
    name = getattr(function, "__name__", None)
    if not callable(function) or not isinstance(name, str):
        raise Unsupported(f"{function!r} is not an aggregation")
    if name not in REGISTRY:
        raise Unsupported(f"the aggregation {name!r} is not supported in .agg", name)
    # a user's function may have the same name
    if not any(getattr(owner, name, None) is function for owner in _owners()):
        raise Unsupported(f"{name} is a function of your own, and not pandas'", name)
    return name, {}


def _owners() -> list[Any]:
    """Modules whose functions are named like the aggregation they stand for."""
    owners = [builtins, np, pd.Series, pd.DataFrame, SeriesGroupBy, DataFrameGroupBy]
    cudf = importlib.import_module("cudf") if "cudf" in sys.modules else None
    return owners if cudf is None else [*owners, cudf.Series, cudf.DataFrame]
