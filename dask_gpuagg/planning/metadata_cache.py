"""Metadata of group-bys, remembered by what it depends on.

Dask makes the metadata of a group-by by running it on made-up rows: that costs milliseconds, and
the same again for each of the nodes that one query goes through on its way to a task graph. It
depends on the dtypes of the input and on what was asked for alone.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any

from dask._expr import Expr
from dask.dataframe.utils import is_dataframe_like, is_index_like, is_series_like

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines import HOST, engine_name

# what does not change a result's metadata
_IRRELEVANT = ("split_every", "split_out", "shuffle_method")

_known: OrderedDict[Hashable, Any] = OrderedDict()
_bytes: OrderedDict[int, tuple[Any, bytes]] = OrderedDict()
_REMEMBERED = 512
_lock = Lock()


def known_meta(original: Callable[[Any], Any], self: Any) -> Any:
    """The metadata of a group-by node, which Dask makes unless it is known.

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
    """What a function makes, or made before of the same.

    Parameters
    ----------
    depends_on : object
        Tuples, lists and dictionaries of expressions, whose schema counts, and of values. What
        cannot be compared is made each time.
    make : callable
    """
    try:
        key = _frozen(depends_on)
        hash(key)
    except TypeError:
        return make()
    with _lock:
        if key in _known:
            _known.move_to_end(key)
            return _own(_known[key])
    made = make()
    with _lock:
        _known[key] = made
        while len(_known) > _REMEMBERED:
            _known.popitem(last=False)
    return _own(made)


def _own(made: Any) -> Any:
    """What is remembered, as an object that the caller may give other labels."""
    if isinstance(made, tuple):
        return tuple(map(_own, made))
    # cuDF's copies cost as much as what is saved, and Dask gives its metadata no labels
    return made.copy(deep=False) if engine_name(made) == HOST else made


def pickled(meta: Any) -> bytes:
    """Metadata as bytes, which are remembered as long as the metadata is asked for again."""
    with _lock:
        # kept with its bytes, so that its identity is not given away again
        known = _bytes.get(id(meta))
    if known is not None:
        return known[1]
    made = pickle.dumps(meta, protocol=pickle.HIGHEST_PROTOCOL)
    with _lock:
        _bytes[id(meta)] = meta, made
        while len(_bytes) > _REMEMBERED:
            _bytes.popitem(last=False)
    return made


def _frozen(operand: Any) -> Hashable:
    """An operand as a value that can be compared; raises TypeError if there is none."""
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
    elif is_dataframe_like(meta):
        columns, names = list(meta.dtypes.items()), tuple(meta.columns.names)
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
