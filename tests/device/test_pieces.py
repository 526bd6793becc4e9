"""Columns in pieces, for which kernels are launched in turn: the groups of whole columns."""

import math
from collections.abc import Callable
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.frontend import logical
from dask_gpuagg.tasks.partials import finished_of, inputs_of, partials_of
from tests.device.frames import on_device

SIZES = (300_000, 1, 0, 700_001, 250_000)
KERNELS = ("auto", "hgb", "direct", "pgb", "pgb_fold", "pgb_ur", "sgb", "sp_ega", "lphga")
Keys = Callable[[Any, int], dict[str, Any]]

KEYS: dict[str, Keys] = {
    "few": lambda rng, n: {"k": rng.integers(0, 50, n)},
    "many": lambda rng, n: {"k": rng.integers(0, 200_000, n)},
    "far apart": lambda rng, n: {"k": rng.integers(0, 3_000, n) * 2**40 - 2**50},
    "skewed": lambda rng, n: {"k": (rng.zipf(1.3, n) % 2**40) * 7919},
    "floats": lambda rng, n: {"k": rng.integers(0, 900, n) / 4},
    "two of 32 bits": lambda rng, n: {
        "k": rng.integers(0, 40, n).astype("int32"),
        "l": rng.integers(0, 90, n).astype("int32"),
    },
    "two of 64 bits": lambda rng, n: {
        "k": rng.integers(-(2**62), 2**62, n) // 2**55,
        "l": rng.integers(0, 90, n),
    },
}


def frames(keys: Keys, nulls: bool) -> list[Any]:
    """Slices of larger frames; only some have nulls, of keys and of values."""
    import cudf

    made = []
    for i, n in enumerate(SIZES):
        rng = np.random.default_rng(i)
        frame = cudf.DataFrame(keys(rng, n + 5))
        frame["v"] = rng.normal(5, 1, n + 5)
        frame["w"] = rng.integers(-100, 100, n + 5).astype("int32")
        if nulls and i == 3:
            frame["k"] = frame["k"].mask(cudf.Series(rng.random(n + 5) < 0.1))
            frame["v"] = frame["v"].mask(cudf.Series(rng.random(n + 5) < 0.2))
        made.append(frame.iloc[3:-2])
    return made


def grouped(keys: list[Any], v: Any, w: Any, kernel: str, keep_nulls: bool) -> tuple[Any, Any]:
    """The groups as pandas has them, in the order of their keys, and the run."""
    import cudf

    from dask_gpuagg.engines.device.aggregator import Aggregator

    aggregator = Aggregator(keys, keep_nulls)
    aggregator.sum(v)
    aggregator.count(v)
    aggregator.max(v)
    aggregator.mean(w)
    aggregator.spread(1, 0, v)
    aggregator.sum(w)
    aggregator.size()
    made, outputs, run = aggregator.run(kernel)
    columns = [cudf.Series.from_pylibcudf(c) for c in (*made, *outputs)]
    table = cudf.DataFrame(dict(enumerate(columns))).to_pandas()
    return table.sort_values(list(range(len(keys)))).reset_index(drop=True), run


def check_pieces(parts: list[Any], kernel: str, keep_nulls: bool) -> Any:
    """Compare the groups of the parts with those of whole columns; return the run."""
    import cudf

    from dask_gpuagg.engines.device.columns import Pieces, view

    labels = [label for label in parts[0].columns if label in "kl"]
    whole = cudf.concat(parts, ignore_index=True)

    def of(label: str) -> Pieces:
        return Pieces([view(part[label]) for part in parts], whole[label].dtype)

    expected, _ = grouped(
        [view(whole[k]) for k in labels], view(whole["v"]), view(whole["w"]), "auto", keep_nulls
    )
    result, run = grouped([of(k) for k in labels], of("v"), of("w"), kernel, keep_nulls)
    assert run.rows == sum(SIZES)
    pd.testing.assert_frame_equal(result, expected, rtol=1e-9)
    return run


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("keys", KEYS)
def test_like_whole_columns(keys: str, nulls: bool, kernel: str) -> None:
    for keep_nulls in (False, True):
        check_pieces(frames(KEYS[keys], nulls), kernel, keep_nulls)


@pytest.fixture
def unstacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of few rows are grouped as they are."""
    from dask_gpuagg.engines.device import columns

    monkeypatch.setattr(columns, "_ROWS_OF_A_PIECE", 1)


def planned(parts: list[Any], spec: dict[str, Any]) -> tuple[list[Any], Any, Any]:
    """The inputs of the parts, grouped by ``k``, their plan and the metadata of the result."""
    from dask_gpuagg import enabled

    with enabled():
        query = logical.read(on_device(parts[0].head(3), 1).groupby("k").agg(spec).expr)
    assert query is not None
    return [inputs_of(part, ["k"], query.plan) for part in parts], query.plan, query.meta


def test_rows_that_find_no_place_are_looked_up_in_every_piece() -> None:
    """The table in shared memory is full after a few rows; the others are listed by number."""
    from dask_gpuagg.engines.device.columns import Pieces, view

    parts = frames(KEYS["many"], False)
    whole = [Pieces([view(p[label]) for p in parts], parts[0][label].dtype) for label in "kvw"]
    _, run = grouped([whole[0]], whole[1], whole[2], "hgb", False)
    assert run.spilled > 0


def test_one_call_for_all_pieces(unstacked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole queries, from partitions to results: nothing is stacked where kernels take pieces."""
    import cudf

    from dask_gpuagg import last_runs
    from dask_gpuagg.engines.device import columns, tables

    stacked: list[int] = []
    copies = columns.concatenated
    for module in (columns, tables):
        monkeypatch.setattr(module, "concatenated", lambda c: stacked.append(len(c)) or copies(c))
    parts = [p for p in frames(KEYS["few"], True) if len(p)]
    whole = cudf.concat(parts, ignore_index=True)
    specs: list[tuple[dict[str, Any], bool]] = [
        ({"v": ["sum", "count", "max"], "w": ["mean"]}, False),
        ({"v": ["var", "std"]}, False),
        ({"w": ["first", "last"]}, True),
    ]
    for spec, stacks in specs:
        inputs, plan, meta = planned(parts, spec)
        stacked.clear()
        result = finished_of(inputs, plan, meta).sort_index().to_pandas()
        assert last_runs()[-1].rows == len(whole)
        assert bool(stacked) == stacks
        expected = whole.groupby("k").agg(spec).sort_index().to_pandas()
        pd.testing.assert_frame_equal(result, expected, rtol=1e-9, check_dtype=False)
        assert len(partials_of(inputs, plan)) == 1


def test_lost_digits_are_restored_from_pieces(unstacked: None) -> None:
    """The first value is an outlier, so the pivot of the variance is a bad one."""
    import cudf

    values = np.random.default_rng(5).normal(0, 1, 60_000)
    values[::20_000] = 1e12
    whole = pd.DataFrame({"k": 1, "v": values})
    whole.loc[30_000:, "k"] = 2
    parts = [cudf.DataFrame(whole.iloc[i : i + 20_000]) for i in range(0, 60_000, 20_000)]
    result = finished_of(*planned(parts, {"v": ["var"]})).sort_index().to_pandas()
    pd.testing.assert_frame_equal(result, whole.groupby("k").agg({"v": ["var"]}), rtol=1e-9)


def test_exact_sums_of_values_of_any_size_from_pieces(unstacked: None) -> None:
    """Such values are read again, as integers of columns that lie together."""
    import cudf

    rng = np.random.default_rng(6)
    values = rng.normal(0, 1, 30_000) * 10.0 ** rng.integers(-200, 200, 30_000)
    whole = pd.DataFrame({"k": np.arange(30_000) % 3, "v": values})
    parts = [cudf.DataFrame(whole.iloc[i : i + 10_000]) for i in range(0, 30_000, 10_000)]
    with dask.config.set({"gpuagg.deterministic": True}):
        query = planned(parts, {"v": "sum"})
    expected = [math.fsum(whole["v"][whole["k"] == k]) for k in range(3)]
    assert finished_of(*query).sort_index().to_pandas()["v"].tolist() == expected
