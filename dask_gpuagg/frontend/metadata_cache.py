"""A cache of the metadata of group-bys, by schema and specification.

Dask makes the metadata of a group-by by running it on made-up rows. That costs milliseconds for
each of the nodes that one query goes through on its way to a task graph, on a GPU more than the
kernels of a small frame. It depends on the dtypes of the input and on the specification alone.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable
from typing import Any

from dask._expr import Expr
from dask.base import tokenize
from dask.dataframe.utils import is_index_like, is_series_like

from dask_gpuagg.cache import Cache
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines import DEVICE, HOST, dtypes_of, engine_name

# what does not change a result's metadata
_IRRELEVANT = ("split_every", "split_out", "shuffle_method")

_LIMIT = 512
_results: Cache[Hashable, Any] = Cache(_LIMIT)
# an object is kept with its bytes: as long as it lives, no other object has its identity
_pickled: Cache[int, tuple[Any, bytes]] = Cache(_LIMIT)


def cached_meta(original: Callable[[Any], Any], self: Any) -> Any:
    """The metadata of a group-by node, from the cache or made by Dask.

    Parameters
    ----------
    original : callable
        Dask's own.
    self : Expr
    """
    if engine_name(self.frame._meta) is None:
        return original(self)
    names = [*self._parameters, *[None] * (len(self.operands) - len(self._parameters))]
    pairs = zip(names, self.operands, strict=True)
    relevant = [(name, operand) for name, operand in pairs if name not in _IRRELEVANT]
    return remembered((type(self), relevant), lambda: original(self))


def remembered(depends_on: Any, make: Callable[[], Any]) -> Any:
    """The result of a function, or that of an earlier call with equal inputs.

    Parameters
    ----------
    depends_on : object
        Tuples, lists and dictionaries of expressions, which are compared by schema, and of values.
        Where a value cannot be hashed, nothing is cached.
    make : callable
    """
    try:
        key = _frozen(depends_on)
        hash(key)
    except TypeError:
        return make()
    result = _results.get(key)
    if result is None:
        result = make()
        _results.put(key, result)
    return _copied(result)


def _copied(meta: Any) -> Any:
    """A shallow copy of what is cached, so that the caller may rename it."""
    if isinstance(meta, tuple):
        return tuple(map(_copied, meta))
    # a copy by cuDF costs as much as is saved, and dask-cudf does not rename metadata
    return meta.copy(deep=False) if engine_name(meta) == HOST else meta


class NamedByBytes(Expr):
    """A node with metadata of cuDF among its operands, which are named by bytes that are kept.

    Dask would copy them to the host and back, twice, for each node that is made.
    """

    def __dask_tokenize__(self) -> Any:
        if not self._determ_token:
            named = map(_named, self.operands)
            self._determ_token = tokenize(type(self), *named, ensure_deterministic=True)
        return self._determ_token


def _named(operand: Any) -> Any:
    if isinstance(operand, dict):
        return {name: _named(value) for name, value in operand.items()}
    if engine_name(operand) != DEVICE:
        return operand
    entry = _pickled.get(id(operand))
    if entry is None:
        entry = operand, pickle.dumps(operand, protocol=pickle.HIGHEST_PROTOCOL)
        _pickled.put(id(operand), entry)
    return ("dask_gpuagg.metadata", entry[1])


def _frozen(operand: Any) -> Hashable:
    """An operand as a hashable key; raises TypeError where there is none."""
    if isinstance(operand, Expr):
        return _schema(operand._meta)
    if isinstance(operand, list | tuple):
        return (type(operand), *map(_frozen, operand))
    if isinstance(operand, dict):
        pairs = ((_frozen(key), _frozen(value)) for key, value in operand.items())
        return (dict, *pairs)
    # equal values of several types are not the same label
    return type(operand), operand


def _schema(meta: Any) -> Hashable:
    if is_index_like(meta):
        return _levels(meta)
    if is_series_like(meta):
        columns, names = [(meta.name, meta.dtype)], ()
    # not by ``is_dataframe_like``, which asks for ``dtypes``
    elif engine_name(meta) is not None and getattr(meta, "ndim", 0) == 2:
        columns, names = dtypes_of(meta), tuple(meta.columns.names)
    else:
        raise TypeError("a value that has no schema")
    return (type(meta), names, _pairs(columns), _levels(meta.index))


def _levels(index: Any) -> Hashable:
    levels = list(index.dtypes.items()) if index.nlevels > 1 else [(index.name, index.dtype)]
    return (type(index), tuple(index.names), _pairs(levels))


def _pairs(columns: list[tuple[Any, Any]]) -> Hashable:
    if any(dtype_class(dtype) == "category" for _, dtype in columns):
        raise TypeError("comparing categories costs as much as it saves")
    return tuple((type(label), label, str(dtype), dtype) for label, dtype in columns)
