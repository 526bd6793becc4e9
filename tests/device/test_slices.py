"""Partitions that are slices of others, and outputs brought together by keys with nulls."""

from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

from tests.device.frames import on_device

pytestmark = pytest.mark.usefixtures("raising")

ROWS = 400


def categories(values: Any, ordered: bool = False) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    pdf = pd.DataFrame(
        {
            "c": pd.Categorical(rng.choice(values, ROWS), categories=values, ordered=ordered),
            "k": rng.integers(0, 5, ROWS),
            "x": rng.normal(0.0, 1.0, ROWS),
        }
    )
    pdf.loc[rng.random(ROWS) < 0.3, "c"] = np.nan
    return pdf


def as_dict(result: Any, levels: int) -> dict[Any, Any]:
    table = result.rename("value").reset_index()
    table.columns = [f"k{i}" for i in range(levels)] + ["value"]
    pdf = table.to_pandas() if hasattr(table, "to_pandas") else table
    keys = zip(*(pdf[f"k{i}"].astype("object") for i in range(levels)), strict=True)
    labels = [tuple(None if pd.isna(part) else part for part in key) for key in keys]
    assert len(set(labels)) == len(labels)
    return dict(zip(labels, pdf["value"], strict=True))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("keys", [["c"], ["c", "k"], ["k", "c"]], ids="+".join)
@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("name", ["sum", "median", "nunique", "list"])
def test_null_categories_are_exchanged(
    name: str, dropna: bool, keys: list[str], ordered: bool
) -> None:
    pdf = categories(["x", "y", "z"], ordered)
    ddf = on_device(pdf, 7)
    ours = ddf.groupby(keys, dropna=dropna).agg({"x": name}, split_out=3).compute()["x"]
    theirs = pdf.groupby(keys, dropna=dropna, observed=True)["x"].agg(
        list if name == "list" else name
    )
    ours_of, theirs_of = as_dict(ours, len(keys)), as_dict(theirs, len(keys))
    assert ours_of.keys() == theirs_of.keys()
    for key, value in theirs_of.items():
        np.testing.assert_allclose(ours_of[key], value, rtol=1e-9)


@pytest.mark.parametrize("split_out", [1, 3])
@pytest.mark.parametrize("name", ["list", "nunique", "first", "count"])
def test_null_categories_as_values(name: str, split_out: int) -> None:
    pdf = categories(["x", "y", "z"])
    ddf = on_device(pdf, 7)
    ours = as_dict(ddf.groupby("k").agg({"c": name}, split_out=split_out).compute()["c"], 1)
    texts = pdf.assign(c=pdf["c"].astype("object"))
    theirs = as_dict(texts.groupby("k")["c"].agg(list if name == "list" else name), 1)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        if name == "list":
            assert [None if pd.isna(v) else v for v in ours[key]] == [
                None if pd.isna(v) else v for v in value
            ]
        else:
            assert ours[key] == value


TIMES = [
    ["2026-01-01", None], [None, "2026-01-01"], ["2026-01-01", None, "2026-01-02"],
    ["2026-01-01", "2026-01-02", "2026-01-03", None], ["2026-02-28", None],
]  # fmt: skip


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
@pytest.mark.parametrize("times", TIMES, ids=str)
@pytest.mark.parametrize("form", ["frame", "series"])
def test_outputs_by_few_datetimes_and_a_null(form: str, times: list[Any], unit: str) -> None:
    """cuDF looks for a frequency in what it concatenates, and meets nothing but nulls."""
    import cudf

    from dask_gpuagg.decomposition import make_plan
    from dask_gpuagg.engines.device import engine
    from dask_gpuagg.plan import Column, Requested

    columns = [Column("t", np.dtype(f"M8[{unit}]")), Column("x", np.dtype("int64"))]
    for sort in (False, True):
        plan = make_plan(columns[:1], columns, [Requested("x", "sum", "x")],
                         dropna=False, observed=True, sort=sort)  # fmt: skip
        outputs = []
        for i, time in enumerate(times):
            index = cudf.Index(
                cudf.Series(pd.Series([time], dtype=f"datetime64[{unit}]")), name="t"
            )
            output = cudf.DataFrame({"x": [i]}, index=index)
            outputs.append(output if form == "frame" else output["x"])
        outputs.append(outputs[0].iloc[:0])
        made = engine.concatenated_outputs(outputs, plan, outputs[0].iloc[:0])
        assert type(made) is type(outputs[0])
        assert isinstance(made.index, cudf.DatetimeIndex)
        assert made.index.dtype == f"datetime64[{unit}]"
        assert made.index.name == "t"
        values = made["x"] if form == "frame" else made
        order = list(range(len(times)))
        if sort:
            order.sort(key=lambda i: (times[i] is None, times[i]) if times[i] else (True, ""))
        assert values.to_arrow().to_pylist() == order


@pytest.mark.parametrize("keys", [["t"], ["t", "k"]], ids="+".join)
@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize("name", ["sum", "median"])
def test_queries_by_datetimes_of_which_one_is_null(name: str, sort: bool, keys: list[str]) -> None:
    rng = np.random.default_rng(6)
    pdf = pd.DataFrame({"k": rng.integers(0, 2, 40), "x": rng.integers(0, 9, 40)})
    pdf["t"] = pd.to_datetime(np.where(rng.random(40) < 0.5, "2026-01-01", None))
    # outputs of medians are concatenated by cuDF, which fails at two keys of which one is null; of
    # one partition there is one output
    parts = 1 if name == "median" else 5
    ddf = on_device(pdf, parts)
    ours = getattr(ddf.groupby(keys, dropna=False, sort=sort)["x"], name)().compute()
    theirs = getattr(pdf.groupby(keys, dropna=False, sort=sort)["x"], name)()
    assert as_dict(ours, len(keys)) == as_dict(theirs, len(keys))
    if sort:
        assert list(as_dict(ours, len(keys))) == list(as_dict(theirs, len(keys)))


def test_a_key_hashes_alike_whatever_its_dtype() -> None:
    import cudf

    from dask_gpuagg.engines.device.tables import bucket_of

    numbers = [0, 1, -3, 7, 2**40, None]
    instants = ["2026-01-01 00:00:07", "1969-12-31 23:59:58", None]
    kinds: list[list[Any]] = [
        [cudf.Series(numbers, dtype=d) for d in ("int64", "float64", "Int64")],
        [cudf.Series(numbers[:4], dtype=d) for d in ("int8", "int32", "float32")],
        [cudf.Series([True, False, None], dtype="bool"), cudf.Series([1, 0, None], dtype="int8")],
        [
            cudf.Series(pd.Series(instants, dtype="datetime64[s]")).astype(f"M8[{unit}]")
            for unit in ("s", "ms", "us", "ns")
        ],
        [
            cudf.Series([-7, 3, None], dtype="int64").astype("m8[s]").astype(f"m8[{unit}]")
            for unit in ("s", "ms", "us", "ns")
        ],
        [
            cudf.Series(["a", "", None, "é"]),
            cudf.Series(["a", "", None, "é"], dtype="object"),
            cudf.Series(["a", "", None, "é"], dtype="category"),
            cudf.Series(["z", "a", "", None, "é"], dtype="category").iloc[1:],
        ],
    ]  # fmt: skip
    for alike in kinds:
        buckets = [bucket_of([key], 64).tolist() for key in alike]
        assert all(b == buckets[0] for b in buckets)
    # what else a partition holds is no matter: not even whether there are nulls
    for key in (cudf.Series([5, 6]), cudf.Series(["x", "y"]), cudf.Series([True, False])):
        alone = bucket_of([key], 64).tolist()
        beside = bucket_of([cudf.concat([key, cudf.Series([None], dtype=key.dtype)])], 64)
        assert beside.tolist()[:2] == alone


@pytest.mark.parametrize("outputs", [2, 3, 16, 32, 100])
def test_keys_of_one_output_are_divided_again_into_even_parts(outputs: int) -> None:
    import cudf

    from dask_gpuagg.engines.device.tables import bucket_of

    key = cudf.Series(range(3_200 * outputs))
    of_one = key[bucket_of([key], outputs) == 1].reset_index(drop=True)
    counts = np.bincount(bucket_of([of_one], 16, True).get(), minlength=16)
    assert len(counts) == 16
    assert counts.min() > 100
    assert counts.max() < 400


def test_pieces_keep_no_other_rows_in_memory() -> None:
    import cudf

    from dask_gpuagg.decomposition import make_plan
    from dask_gpuagg.engines.device import engine
    from dask_gpuagg.plan import Column, Requested

    frame = cudf.DataFrame({"k": cudf.Series(range(10_000)), "x": cudf.Series(range(10_000))})
    columns = [Column("k", np.dtype("int64")), Column("x", np.dtype("int64"))]
    plan = make_plan(columns[:1], columns, [Requested("x", "sum", "x")],
                     dropna=True, observed=True, sort=False)  # fmt: skip
    with dask.config.set({"scheduler": "synchronous"}):
        whole = engine.partial([frame.k], [frame.x], frame.index, plan)
        pieces = engine.split(whole, plan, 8)
    for piece in pieces:
        for column in piece["groups"]._columns:
            assert column.offset == 0
            assert column.data.size == len(column) * 8
    assert sum(len(piece["groups"]) for piece in pieces) == 10_000


@pytest.mark.parametrize("by", [["k"], ["f"], ["s"], ["s", "f"]], ids="+".join)
def test_numbers_of_rows_are_looked_up_slice_by_slice(
    by: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import cudf

    from dask_gpuagg.engines.device import groups

    rng = np.random.default_rng(3)
    pdf = pd.DataFrame({"k": rng.integers(0, 60, ROWS), "f": rng.integers(0, 60, ROWS) / 2})
    pdf["s"] = pdf["k"].astype("str").mask(pdf["k"] == 7)
    pdf.loc[pdf["f"] == 3.0, "f"] = np.nan
    frame = cudf.from_pandas(pdf)
    keys = [frame[name] for name in by]
    # rows of some keys are of no group
    of_groups = frame[by].drop_duplicates().iloc[9:]

    def numbers() -> Any:
        numbering = groups.Numbering.of_keys(keys, [of_groups[name] for name in by])
        return numbering.of_rows(ROWS).get()

    expected = numbers()
    monkeypatch.setattr(groups, "_ROWS_OF_A_JOIN", len(of_groups) + 1)
    np.testing.assert_array_equal(numbers(), expected)
    assert len(np.unique(expected)) == len(of_groups) + 1
