"""Expressions below a group-by as data: here pandas computes them, in tests/device a kernel."""

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.cuda.query.instantiations import deriving
from dask_gpuagg.cuda.runtime import compiler
from dask_gpuagg.expressions import OPERATIONS, Derived, Read, Step, text_of
from dask_gpuagg.frontend import merges
from dask_gpuagg.planning import filters
from dask_gpuagg.planning.chunks import GroupByQuery
from dask_gpuagg.planning.derived import derived_at_once
from tests.comparison import same

ROWS = 1_000

Query = Callable[[Any], Any]


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    times = pd.Timestamp("1969-12-25") + pd.to_timedelta(rng.integers(0, 10**6, ROWS), unit="s")
    return pd.DataFrame({
        "k": rng.integers(0, 20, ROWS),
        "i": rng.integers(-9, 9, ROWS).astype("int32"),
        "v": np.where(rng.random(ROWS) < 0.1, np.nan, rng.normal(size=ROWS)),
        "w": rng.random(ROWS).astype("float32"),
        "b": rng.random(ROWS) < 0.5,
        "t": times.astype("datetime64[ms]"),
        "s": pd.array(rng.choice(["a", "b"], ROWS), dtype="string[pyarrow]"),
    })  # fmt: skip


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Derived | None]]:
    """What is read of each query, as it is for partitions of a GPU."""
    reads: list[Derived | None] = []

    def read(query: GroupByQuery) -> GroupByQuery:
        result = derived_at_once(query)
        reads.append(None if result is query else result.frame.operand("derived"))
        return result

    monkeypatch.setattr(merges, "with_derived", read)
    # cuDF has no objects that would make steps fail
    monkeypatch.setattr(filters, "_blanked", lambda column, *_: column)
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "raise", "scheduler": "sync"}):
        yield reads


READ: dict[str, Query] = {
    "filter": lambda d: d[d.w > 0.5].groupby("k").v.sum(),
    "float32": lambda d: d[d.w <= 0.95].groupby("k").v.agg(["sum", "mean", "count"]),
    "product": lambda d: d.assign(z=d.v * (1 - d.w)).groupby("k").z.sum(),
    "filtered product": lambda d: (
        d[d.w < 0.9].assign(z=lambda e: e.v * (1 - e.w)).groupby("k").agg({"z": "sum", "v": "mean"})
    ),
    "two filters": lambda d: d[d.w < 0.9].pipe(lambda e: e[e.v > 0]).groupby("k").v.mean(),
    "logic": lambda d: d[(d.i > 0) & ~d.b | (d.w > 0.9)].groupby("k").size(),
    "xor": lambda d: d[(d.i > 0) ^ d.b].groupby("k").size(),
    "between": lambda d: d[d.i.between(-3, 4, inclusive="left")].groupby("k").size(),
    "no null": lambda d: d[d.v.notnull()].groupby("k").v.mean(),
    "null": lambda d: d[d.v.isna()].groupby("k").i.sum(),
    "filled": lambda d: d.assign(z=d.v.fillna(0)).groupby("k").z.mean(),
    "where": lambda d: d.assign(z=d.v.where(d.w > 0.9, 0)).groupby("k").z.sum(),
    "mask": lambda d: d.assign(z=d.v.mask(d.b, 1.5)).groupby("k").z.sum(),
    "remainder": lambda d: d.groupby(d.i % 4).v.sum(),
    "quotient": lambda d: d.assign(q=-d.i // 3).groupby("q").v.sum(),
    "absolute": lambda d: d.assign(z=abs(d.i) / 2).groupby("k").z.sum(),
    "day": lambda d: d.assign(day=d.t.dt.floor("D")).groupby("day").v.sum(),
    "since": lambda d: d[d.t >= pd.Timestamp("1970-01-01")].groupby("k").v.sum(),
    "median": lambda d: d[d.w > 0.5].groupby("k").v.median(),
    "null keys": lambda d: d[d.w > 0.5].groupby("v", dropna=False).size(),
    "text": lambda d: d[d.w > 0.5].groupby(["s", "k"]).v.sum(),
}


@pytest.mark.parametrize("name", READ)
def test_answers_are_pandas(derived: list[Derived | None], name: str) -> None:
    query = READ[name](dd.from_pandas(frame(), npartitions=3, sort=False))
    got, expected = query.compute(), READ[name](frame())
    (read,) = derived
    assert read is not None
    got = got.sort_index()
    same(got, expected.sort_index().astype(got.dtypes if got.ndim == 2 else got.dtype))
    # NVRTC needs no GPU
    assert compiler.compile_source(deriving(text_of(read)), "sm_90").code


def chained(frame: Any, levels: int) -> Any:
    """A column that is made of itself again and again, between two filters."""
    frame = frame[frame.w < 0.9]
    for _ in range(levels):
        frame = frame.assign(v=frame.v * 0.5 + frame.w - frame.v)
    return frame[frame.v < 10]


LEFT: dict[str, Query] = {
    "a column made of itself": lambda d: chained(d, 16).groupby("k").v.sum(),
    "an end that is no number": lambda d: d[d.w.between(np.nan, 0.5)].groupby("k").w.sum(),
    "nothing computed": lambda d: d.groupby("k").v.sum(),
    "text": lambda d: d[d.s == "a"].groupby("k").v.sum(),
    "list": lambda d: d[d.i.isin([1, 2])].groupby("k").v.sum(),
    "labels": lambda d: d[d.w > 0.5].groupby("k").v.idxmax(),
    "of integers and float32": lambda d: d.assign(z=d.i * d.w).groupby("k").z.sum(),
    "a scalar of another task": lambda d: d[d.w > d.w.mean()].groupby("k").v.sum(),
    "users' functions": lambda d: (
        d.assign(z=d.v.map(abs, **_META if isinstance(d, dd.DataFrame) else {}))
        .groupby("k")
        .z.sum()
    ),
}
_META = {"meta": ("z", "float64")}


@pytest.mark.parametrize("name", LEFT)
def test_the_rest_is_left_to_dask(derived: list[Derived | None], name: str) -> None:
    got = LEFT[name](dd.from_pandas(frame(), npartitions=3, sort=False)).compute()
    assert derived == [None]
    same(got.sort_index(), LEFT[name](frame()).sort_index().astype(got.dtype))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_compiles(operation: str) -> None:
    numbers, other = Read("a", "float64"), Read("b", "float64")
    operands: dict[str, tuple[Any, ...]] = {
        **dict.fromkeys(("neg", "abs", "isna", "notnull"), (numbers,)),
        **dict.fromkeys(("and", "or", "xor"), (Read("x", "bool"), Read("y", "bool"))),
        **dict.fromkeys(("mod", "floordiv"), (Read("i", "int16"), 7)),
        **dict.fromkeys(("where", "mask"), (numbers, Read("x", "bool"), -0.5)),
        "invert": (Read("x", "bool"),),
        "floor": (Read("t", "datetime64[ms]"), "h"),
    }
    bools = {"and", "or", "xor", "invert", "isna", "notnull", "lt", "le", "gt", "ge", "eq", "ne"}
    own = operands.get(operation, (numbers, other))
    dtype = "bool" if operation in bools else next(op.dtype for op in own if isinstance(op, Read))
    step = Step(operation, dtype, own)
    text = text_of(Derived((("z", step),), Step("lt", "bool", (numbers, 0.95)), None))
    assert compiler.compile_source(deriving(text), "sm_80").code
