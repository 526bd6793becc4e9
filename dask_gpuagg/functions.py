"""Reading the functions that users write in an ``.agg`` specification."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dask_gpuagg.plan import CustomFunctions, Unsupported

# NumPy functions whose own name differs from the aggregation's; np.sum, np.mean, the builtins
# sum, min, max and list, and pandas' methods already carry the right name
_KNOWN_FUNCTIONS: dict[Any, str] = {
    np.min: "min",
    np.max: "max",
    np.median: "median",
    np.std: "std",
    np.var: "var",
}


def read_function(function: Any) -> tuple[str, tuple[tuple[str, Any], ...], CustomFunctions | None]:
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
        For positional arguments in a partial, and lambdas.
    """
    parameters: tuple[tuple[str, Any], ...] = ()
    if all(hasattr(function, part) for part in ("chunk", "agg", "finalize", "__name__")):
        functions = CustomFunctions(
            function.__name__, function.chunk, function.agg, function.finalize
        )
        return "custom", (), functions
    if isinstance(function, partial):
        if function.args:
            raise Unsupported(f"positional arguments {function.args} of a partial function")
        parameters = tuple(sorted(function.keywords.items()))
        function = function.func
    if isinstance(function, str):
        return function, parameters, None
    try:
        known = _KNOWN_FUNCTIONS.get(function)
    except TypeError:  # an unhashable callable is none of NumPy's
        known = None
    name = known or getattr(function, "__name__", None) or getattr(function, "method", None)
    if not isinstance(name, str):
        raise Unsupported(f"{function!r} is not an aggregation")
    return name, parameters, None
