"""What partitions hold: copies of the values, numbers of rows, validity alone."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.cuda.call import Call
from dask_gpuagg.cuda.choice import partitions
from tests.device.test_kernels import ROWS, check, columns_of, on_host, values

PARTITIONED = ("pgb", "pgb_ur", "pgb_fold")
# Of columns without nulls, none of them has any.
WITHOUT_NULLS = {"i": ["sum", "min", "count", "mean"], "f": ["max", "mean"]}
FEW_ROWS = 1 << 19


def wide_frame(rng: np.random.Generator) -> tuple[pd.DataFrame, dict[str, list[str]]]:
    """Columns of every width, with and without nulls."""
    frame = pd.DataFrame({"k": rng.integers(0, 300_000, ROWS)})
    wanted = {}
    for name in ("int8", "int16", "int32", "int64", "float32", "float64"):
        frame[name] = rng.integers(0, 100, ROWS).astype(name)
        nullable = name.capitalize()
        frame[nullable] = pd.Series(rng.integers(0, 100, ROWS)).astype(nullable)
        frame.loc[rng.random(ROWS) < 0.8, nullable] = None
        wanted[name] = ["sum", "max"]
        wanted[nullable] = ["sum", "min", "count", "first", "last"]
    return frame, wanted


@pytest.mark.parametrize("kernel", PARTITIONED)
def test_columns_of_every_width(kernel: str) -> None:
    frame, wanted = wide_frame(np.random.default_rng(21))
    run = check(frame, ["k"], wanted, kernel)
    assert (run.decision.kernel, run.spilled) == (kernel, 0)


@pytest.mark.parametrize("groups", [2_000, 20_000])
def test_groups_of_many_rows_are_folded(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warp or a thread has each, and the end of what fits shared memory cuts some of them."""
    monkeypatch.setattr(partitions, "_FILLS", 10)
    monkeypatch.setattr(partitions, "fold_bytes", lambda device: 40_960)
    rng = np.random.default_rng(24)
    frame, wanted = wide_frame(rng)
    frame["k"] = rng.integers(0, groups, ROWS) * 2**33
    frame["var"] = rng.normal(1.0, 1.0, ROWS)
    wanted["var"] = ["var", "prod", "first"]
    run = check(frame, ["k"], wanted, "pgb_fold")
    assert (run.decision.kernel, run.spilled) == ("pgb_fold", 0)
    assert run.decision.fills > 2


@pytest.mark.parametrize("kernel", PARTITIONED)
@pytest.mark.parametrize("keys", [["s"], ["k", "j"]], ids="+".join)
def test_keys_of_made_words(keys: list[str], kernel: str) -> None:
    rng = np.random.default_rng(22)
    frame = pd.DataFrame({"k": rng.integers(0, 300_000, ROWS), "v": rng.normal(size=ROWS)})
    frame["j"] = frame["k"] * 2**40
    frame["s"] = "a name of more than 15 bytes " + frame["k"].astype(str)
    wanted = {"v": ["sum", "max", "last"]}
    run = check(frame, keys, wanted, kernel)
    assert run.decision.kernel == kernel


@pytest.mark.parametrize("kernel", ["auto", *PARTITIONED])
def test_counts_of_strings_are_partitioned(kernel: str) -> None:
    """Nothing of their columns travels but the validity."""
    from dask_gpuagg.engines.device.aggregator import Aggregator

    rng = np.random.default_rng(24)
    rows = 6_000_000
    frame = pd.DataFrame({"k": rng.integers(0, 800_000, rows)})
    frame["s"] = pd.Series(np.array(["a", "bc", ""], object)[rng.integers(0, 3, rows)])
    frame["s"] = frame["s"].mask(rng.random(rows) < 0.7)
    column: Any
    key, column = columns_of(frame, ["k", "s"])
    aggregator = Aggregator([key], False)
    aggregator.count(column)
    aggregator.first(column)
    aggregator.last(column)
    keys, outputs, run = aggregator.run(kernel)
    assert run.decision.kernel in (("pgb", "pgb_fold") if kernel == "auto" else (kernel,))
    ours = pd.DataFrame(
        dict(zip(("count", "first", "last"), map(on_host, outputs), strict=True))
    ).set_index(on_host(keys[0]))
    theirs = frame.groupby("k")["s"].agg(["count", "first", "last"])
    ours = ours.sort_index()
    assert (ours.index == theirs.index).all()
    assert (ours["count"] == theirs["count"]).all()
    for name in ("first", "last"):
        assert (ours[name].fillna("none") == theirs[name].fillna("none")).all()


@pytest.fixture
def _only_by_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions write the columns; nothing is left for the kernel that reads a table."""

    launch_over = Call.launch_over

    def launch(call: Call, name: str, *args: Any) -> None:
        assert name != "write", "groups were put into a table first"
        launch_over(call, name, *args)

    monkeypatch.setattr(Call, "launch_over", launch)


def integers_of(codes: Any, kind: str) -> dict[str, Any]:
    """Key columns that have as many values together as the codes."""
    if kind == "one word":
        return {"k0": codes * 2**33 + 5}
    if kind == "a range":
        return {"k0": codes}
    if kind == "two words":
        return {"k0": codes % 997 - 400, "k1": (codes // 997) * 2**40}
    narrow = (codes % 100, codes // 100 % 100, codes % 37, codes // 7 % 100)
    wide = (codes // 10_000 * 2**20, codes // 3 * 2**10)
    parts = (*(part.astype("int32") for part in narrow), *wide)
    return {f"k{i}": part for i, part in enumerate(parts)}


@pytest.mark.usefixtures("_only_by_partitions")
@pytest.mark.parametrize("kernel", ["pgb", "pgb_fold"])
@pytest.mark.parametrize("groups", ["each row", "nearly", "half", 30_000])
@pytest.mark.parametrize("kind", ["one word", "a range", "two words", "six columns"])
def test_columns_are_written_by_partitions(kind: str, groups: str | int, kernel: str) -> None:
    rng = np.random.default_rng(41)
    codes = rng.permutation(FEW_ROWS)
    if groups == "nearly":
        codes[::500] = codes[1::500]
    elif groups == "half":
        codes //= 2
    elif isinstance(groups, int):
        codes %= groups
    keys = integers_of(codes, kind)
    frame = pd.DataFrame(keys | values(rng, FEW_ROWS))
    run = check(frame, list(keys), WITHOUT_NULLS, kernel)
    assert (run.decision.kernel, run.spilled) == (kernel, 0)
    assert run.groups == len(np.unique(codes))


@pytest.mark.usefixtures("_only_by_partitions")
@pytest.mark.parametrize("groups", [2_000, 20_000, 40_000])
def test_keys_of_two_words_where_columns_fill_shared_memory_often(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "_FILLS", 10)
    monkeypatch.setattr(partitions, "fold_bytes", lambda device: 10_240)
    rng = np.random.default_rng(42)
    keys = integers_of(rng.permutation(FEW_ROWS) % groups, "two words")
    frame = pd.DataFrame(keys | values(rng, FEW_ROWS))
    run = check(frame, list(keys), WITHOUT_NULLS, "pgb_fold")
    assert (run.decision.kernel, run.spilled) == ("pgb_fold", 0)
    assert run.decision.fills > 2
