"""Outputs of one partial, and whose memory they have."""

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.decomposition import make_plan
from dask_gpuagg.engines.host import engine
from dask_gpuagg.engines.host.dtypes import conform
from dask_gpuagg.plan import Column, Output, Plan, Requested


@pytest.mark.parametrize("dtype", [None, np.dtype("float64")])
def test_values_of_the_promised_dtype_or_of_no_promised_one_stay_as_they_are(dtype):
    values = np.array([1.5, np.nan])
    output = Output("v", "mean", 0)
    # NumPy takes None for float64
    np.testing.assert_array_equal(np.asarray(conform(values, dtype, output)), values)


@pytest.mark.parametrize("sort", [True, False])
@pytest.mark.parametrize("key", ["int", "float", "text", "time", "zone", "kind", "two"])
def test_one_partial_is_finished_as_merged_ones_are(
    key: str, sort: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row of a partial is a group: nothing has to be grouped or merged again."""
    rng = np.random.default_rng(3)
    rows = 500
    frame = pd.DataFrame({"int": rng.integers(0, 60, rows), "x": rng.normal(size=rows)})
    frame["float"] = frame["int"].where(frame["int"] > 3).astype("float64")
    frame["text"] = frame["int"].astype("str").where(frame["int"] > 5)
    frame["time"] = pd.Timestamp("2024-03-01") + pd.to_timedelta(frame["int"], unit="h")
    frame["zone"] = frame["time"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
    frame["kind"] = frame["text"].astype("category")
    frame["d"] = pd.to_timedelta(frame["int"], unit="s").where(frame["int"] > 9)
    frame.loc[rng.random(rows) < 0.2, "x"] = np.nan
    labels = ["int", "text"] if key == "two" else [key]
    keys = [Column(label, frame[label].dtype) for label in labels]
    names = [("x", name) for name in ("sum", "mean", "var", "min", "first", "any", "count", "prod")]
    names += [("d", "sum"), ("d", "max"), ("time", "mean"), ("zone", "last")]
    names = [(column, name) for column, name in names if column not in labels]
    columns = [Column(label, frame[label].dtype) for label in dict.fromkeys(c for c, _ in names)]
    requested = [Requested((c, name), name, c) for c, name in names]
    plan = make_plan(keys, columns, requested, dropna=False, observed=True, sort=sort)
    spec = {c: [n for of, n in names if of == c] for c, _ in names}
    meta = frame.groupby(labels, dropna=False, observed=True).agg(spec).iloc[:0]
    columns_ = [frame[column.label] for column in plan.columns]
    result = engine.partial([frame[label] for label in labels], columns_, frame.index, plan)
    assert engine._is_plain(result, plan)
    alone = engine.finalize([result], plan, meta)
    monkeypatch.setattr(engine, "_is_plain", lambda *_: False)
    merged = engine.finalize([result], plan, meta)
    if not sort:
        alone, merged = alone.sort_index(), merged.sort_index()
    pd.testing.assert_frame_equal(alone, merged)


def of_plain(rows: int, names: list[str]) -> tuple[pd.DataFrame, Plan, pd.DataFrame]:
    """Rows that are all groups of their own, a plan, and the metadata of its output."""
    data = pd.DataFrame({"k": np.arange(rows), "v": np.arange(rows) / 2})
    columns = [Column(label, dtype) for label, dtype in data.dtypes.items()]
    requested = [Requested(name, name, "v") for name in names]
    plan = make_plan(columns[:1], columns, requested, dropna=True, observed=True, sort=False)
    meta = data.groupby("k").v.agg(names).iloc[:0]
    return data, plan, meta


def made_of(whole: pd.DataFrame, plan: Plan) -> dict[str, pd.DataFrame]:
    return engine.partial([whole["k"]], [whole["k"], whole["v"]], whole.index, plan)


@pytest.mark.parametrize("owned", [False, True])
def test_an_output_takes_the_memory_of_an_owned_partial_alone(owned: bool):
    data, plan, meta = of_plain(1_000, ["sum", "count"])
    partial = made_of(data, plan)
    result = engine.finalize([partial], plan, meta, owned=owned)
    expected = result.copy(deep=True)
    for column in result.columns:
        values = result[column].to_numpy()
        shared = [np.shares_memory(values, partial["groups"][f]) for f in partial["groups"]]
        assert any(shared) == owned
        result.iloc[0, result.columns.get_loc(column)] = 77
        assert result[column].iloc[0] == 77
    again = engine.finalize([partial], plan, meta)
    pd.testing.assert_frame_equal(again.iloc[1:], expected.iloc[1:])
    pd.testing.assert_frame_equal(again.iloc[:1], (result if owned else expected).iloc[:1])


def test_memory_that_cannot_be_written_to_is_copied():
    data, plan, meta = of_plain(1_000, ["sum", "count"])
    partial = made_of(data, plan)
    frozen = {}
    for name in partial["groups"]:
        frozen[name] = partial["groups"][name].to_numpy().copy()
        frozen[name].flags.writeable = False
        frozen[name] = np.frombuffer(bytes(frozen[name].data), frozen[name].dtype)
    sent = {"groups": pd.DataFrame(frozen, copy=False)}
    result = engine.finalize([sent], plan, meta, owned=True)
    result.iloc[0, 0] = 77.0
    assert result.iloc[0, 0] == 77.0
    assert sent["groups"].iloc[0, 1] != 77.0


@pytest.mark.parametrize("rows", [1, 1_000, 200_000])
def test_no_output_has_the_memory_of_the_rows(rows: int):
    """A result may be written to: the partition it was made of may be the user's frame."""
    names = ["sum", "prod", "min", "max", "mean", "var", "count", "size", "any", "first", "last"]
    data, plan, meta = of_plain(rows, names)
    result = engine.finalize([made_of(data, plan)], plan, meta, owned=True)
    columns = [result[column].to_numpy() for column in result.columns]
    for rows_of in (data["k"].to_numpy(), data["v"].to_numpy()):
        assert not any(np.shares_memory(values, rows_of) for values in columns)
        assert not np.shares_memory(result.index.to_numpy(), rows_of)


@pytest.mark.skipif(pd.__version__ < "3", reason="text is objects in pandas 2")
def test_distinct_text_is_of_pandas_own_dtype():
    frame = pd.DataFrame({"k": [1, 1, 1, 2], "s": ["a", None, "a", "b"]})
    with dask_gpuagg.enabled():
        result = dd.from_pandas(frame, npartitions=2).groupby("k").s.unique().compute()
    for values, expected in zip(result.sort_index(), frame.groupby("k").s.unique(), strict=True):
        assert values.dtype == expected.dtype
        pd.testing.assert_extension_array_equal(values, expected)
