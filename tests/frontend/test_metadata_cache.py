"""Inputs of metadata, which is made once for equal ones."""

import sys
from types import SimpleNamespace
from typing import Any, ClassVar

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.dask_expr import _groupby as G

import dask_gpuagg
from dask_gpuagg.cache import Cache
from dask_gpuagg.frontend import metadata
from dask_gpuagg.frontend.metadata import NamedByBytes, remembered


def expr(**dtypes: str) -> Any:
    frame = pd.DataFrame({name: pd.Series([], dtype=dtype) for name, dtype in dtypes.items()})
    return dd.from_pandas(frame, npartitions=1).expr


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "_results", Cache(512))


def calls_for(*inputs: Any) -> int:
    """How many times metadata is made for inputs, each asked for twice."""
    calls: list[Any] = []
    for depends_on in [*inputs, *inputs]:
        assert (
            remembered(depends_on, lambda one=depends_on: calls.append(one) or "metadata")
            == "metadata"
        )
    return len(calls)


@pytest.mark.parametrize(
    "other",
    [
        (expr(k="int64", v="float32"), "k"),
        (expr(v="float64", k="int64"), "k"),
        (expr(k="int64", w="float64"), "k"),
        (expr(k="int64", v="float64"), "v"),
        (expr(k="int64", v="float64"), ["k"]),
    ],
    ids=["dtype", "order", "label", "key", "list"],
)
def test_what_differs_is_made_apart(other: Any) -> None:
    assert calls_for((expr(k="int64", v="float64"), "k"), other) == 2


def test_labels_of_equal_value_and_other_type_are_made_apart() -> None:
    assert calls_for((1,), (True,), (1.0,)) == 3


def test_what_cannot_be_compared_is_made_each_time() -> None:
    categories = expr(c="category")
    assert calls_for((categories,)) == 2
    assert calls_for((np.zeros(2),)) == 2


def test_indexes_and_series_as_keys_have_a_schema() -> None:
    ddf = dd.from_pandas(pd.DataFrame({"k": [1], "c": pd.Categorical(["a"])}), npartitions=1)
    assert calls_for((ddf.index.expr,), (ddf.k.expr,), (ddf.expr, ddf.index.expr)) == 4
    assert calls_for((ddf.index.expr,), (ddf.index.expr,)) == 0
    assert calls_for((ddf.k.sum().expr,)) == 2  # no frame


def test_labels_given_to_what_was_remembered_stay_with_the_caller() -> None:
    meta = pd.Series([], dtype="int64", name="v")
    first = remembered(("a", "query"), lambda: meta)
    first.name = "other"
    assert remembered(("a", "query"), lambda: None).name == "v"


class OfDevice:
    """Stands for metadata of cuDF."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self.pickles = 0

    def __reduce__(self) -> tuple[Any, ...]:
        self.pickles += 1
        return OfDevice, (self.columns,)


OfDevice.__module__ = "cudf.core.dataframe"


class Node(NamedByBytes):
    _parameters: ClassVar = ["frame", "_meta", "kwargs"]


def test_nodes_are_named_by_kept_bytes_of_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(OfDevice=OfDevice)
    monkeypatch.setitem(sys.modules, "cudf", SimpleNamespace(core=module))
    monkeypatch.setitem(sys.modules, "cudf.core", module)
    monkeypatch.setitem(sys.modules, "cudf.core.dataframe", module)
    frame, meta = expr(k="int64"), OfDevice(("a", "b"))
    nodes = [Node(frame, meta, {"meta": meta, "n": n}) for n in range(3)]
    assert len({node._name for node in nodes}) == 3
    assert meta.pickles == 1
    assert Node(frame, OfDevice(("a", "b")), {"meta": meta, "n": 0})._name == nodes[0]._name
    assert Node(frame, OfDevice(("a", "c")), {"meta": meta, "n": 0})._name != nodes[0]._name


def test_metadata_of_a_group_by_is_made_once_for_all_its_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Any] = []
    chunk = G.Sum.chunk

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return chunk(*args, **kwargs)

    with dask_gpuagg.enabled():
        query = dd.from_pandas(pd.DataFrame({"k": [1], "v": [2.0]}), npartitions=1).groupby("k")
        assert query.v.sum().compute().tolist() == [2.0]
        monkeypatch.setattr(G.Sum, "chunk", counted)
        assert query.v.sum().compute().tolist() == [2.0]
    assert not calls
