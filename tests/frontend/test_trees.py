"""Walks through Dask's expressions, and nodes on other inputs."""

from __future__ import annotations

import dask.dataframe as dd
import pandas as pd

from dask_gpuagg.frontend.trees import inputs, reached, with_inputs

COLUMN = dd.from_pandas(pd.DataFrame({"k": [1, 2], "v": [3, 4]}), npartitions=2).v


def test_each_node_is_reached_once() -> None:
    sums = COLUMN
    for _ in range(40):  # as many as 2**40 paths lead to the column
        sums = sums + sums
    names = [node._name for node in reached(sums.expr, lambda node: True)]
    assert names[0] == sums.expr._name
    assert len(names) == len(set(names)) == 40 + len(list(COLUMN.expr.walk()))


def test_nothing_is_reached_below_a_node_that_stops() -> None:
    root = (COLUMN + 1).expr
    assert [node._name for node in reached(root, lambda node: False)] == [root._name]


def test_a_node_on_other_inputs() -> None:
    root = (COLUMN + COLUMN * 2).expr
    first, second = inputs(root)
    made = with_inputs(root, [second], lambda frame: frame + 1)
    assert [each._name for each in inputs(made)] == [first._name, (second + 1)._name]
    assert type(made) is type(root)
