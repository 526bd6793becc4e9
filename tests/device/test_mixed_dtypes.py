"""Partitions whose dtypes differ from each other and from the metadata, by the engine itself."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest

from dask_gpuagg.decomposition import make_plan
from dask_gpuagg.plan import Column, Plan, Requested
from dask_gpuagg.tasks.partials import converted_to_plan

pytestmark = pytest.mark.usefixtures("raising")


def plan_of(keys: Sequence[Any], value: Any, names: Sequence[str], dropna: bool) -> Plan:
    columns = [Column(f"k{i}", dtype) for i, dtype in enumerate(keys)]
    wanted = [Requested(name, name, "v") for name in names]
    every = [*columns, Column("v", value)]
    return make_plan(columns, every, wanted, dropna=dropna, observed=True, sort=True)


def run(
    frames: Sequence[Any],
    names: Sequence[str],
    promised: Any,
    how: str = "finalize",
    dropna: bool = False,
) -> Any:
    """The frames as partitions: each is reduced by its own dtypes, and then brought together."""
    import cudf

    from dask_gpuagg.engines.device import engine

    keys = [c for c in frames[0].columns if c != "v"]

    def of(kinds: Sequence[Any], value: Any) -> Plan:
        return plan_of(kinds, value, names, dropna)

    plans = [of([f[k].dtype for k in keys], f.v.dtype) for f in frames]
    commons = [engine.common_dtype([f[c].dtype for f in frames]) for c in (*keys, "v")]
    common = of(commons[:-1], commons[-1])
    of_name = dict.fromkeys(("count", "nunique"), "int64") | dict.fromkeys(
        ("mean", "var"), "float64"
    )
    temporal = str(promised)[:2] in ("M8", "m8")
    meta = cudf.DataFrame(
        {
            n: cudf.Series(
                [], dtype=promised if temporal and n == "mean" else of_name.get(n, promised)
            )
            for n in names
        }
    )
    empty = {k: cudf.Series([], dtype=frames[0][k].dtype) for k in keys}
    meta.index = (
        cudf.Index(empty[keys[0]], name=keys[0])
        if len(keys) == 1
        else cudf.MultiIndex.from_frame(cudf.DataFrame(empty))
    )
    partials = [
        converted_to_plan(engine.partial([f[k] for k in keys], [f.v], f.index, p), p, common)
        for f, p in zip(frames, plans, strict=True)
    ]
    if how == "finalize":
        return engine.finalize(partials, common, meta)
    if how == "combine":
        return engine.finalize([engine.combine(partials, common)], common, meta)
    pieces = [engine.split(partial, common, 3) for partial in partials]
    outputs = [
        engine.finalize([piece[i] for piece in pieces], common, meta, (i, 3)) for i in range(3)
    ]
    return engine.concatenated_outputs(outputs, common, meta)


HOW = pytest.mark.parametrize("how", ["finalize", "combine", "exchange"])
K = [1, 2, 2, 3]


def numbers(values: list[Any], dtype: Any, keys: list[Any] = K) -> Any:
    import cudf

    return cudf.DataFrame({"k": keys, "v": cudf.Series(values, dtype=dtype)})


@HOW
@pytest.mark.parametrize(
    ("dtypes", "common"),
    [
        (("int64", "float64"), "float64"),
        (("float64", "int32"), "float64"),
        (("int32", "int64"), "int64"),
        (("int8", "int16", "int64"), "int64"),
        (("float32", "float64"), "float64"),
        (("bool", "int64"), "int64"),
        (("uint8", "int64"), "int64"),
    ],
)
def test_numbers(dtypes: tuple[str, ...], common: str, how: str) -> None:
    import cudf

    values = [[1, 0, 1, 1], [1, 1, 0, None], [0, 1, 1, 1]]
    frames = [numbers(v, d) for v, d in zip(values, dtypes, strict=False)]
    names = ["sum", "mean", "min", "max", "count", "first", "last", "var"]
    ours = run(frames, names, dtypes[0], how).sort_index()
    whole = cudf.concat([f.assign(v=f.v.astype(common)) for f in frames], ignore_index=True)
    theirs = whole.groupby("k").agg({"v": names})["v"].sort_index()
    assert list(map(str, ours.dtypes)) == list(map(str, theirs.dtypes))
    pd.testing.assert_frame_equal(ours.to_pandas(), theirs.to_pandas())


@HOW
@pytest.mark.parametrize("kind", ["M8", "m8"])
@pytest.mark.parametrize("units", [("s", "us"), ("ns", "s", "ms"), ("us", "us")], ids=str)
def test_units(units: tuple[str, ...], kind: str, how: str) -> None:
    import cudf

    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    finest = max(units, key=per_second.__getitem__)
    seconds = [[5, -7, 1_700_000_000, 2], [6, None, -9, 1_600_000_001], [1, 1, 1, 1]]
    frames, every = [], []
    for values, unit in zip(seconds, units, strict=False):
        ticks = [None if v is None else v * per_second[unit] for v in values]
        frames.append(numbers(ticks, "int64"))
        frames[-1]["v"] = frames[-1]["v"].astype(f"{kind}[{unit}]")
        every += [(k, v) for k, v in zip(K, values, strict=True) if v is not None]
    names = ["min", "max", "first", "count", "mean"] + (["sum"] if kind == "m8" else [])
    ours = run(frames, names, f"{kind}[{units[0]}]", how)
    of_key = {k: [v for at, v in every if at == k] for k in (1, 2, 3)}
    scale = per_second[finest]

    def mean(vs: list[int]) -> int:
        total = sum(vs) * scale
        return total // len(vs) if total >= 0 else -(-total // len(vs))

    functions = {
        "min": lambda vs: min(vs) * scale, "max": lambda vs: max(vs) * scale,
        "first": lambda vs: vs[0] * scale, "sum": lambda vs: sum(vs) * scale, "mean": mean,
    }  # fmt: skip
    assert ours["count"].to_arrow().to_pylist() == [len(of_key[k]) for k in (1, 2, 3)]
    for name, function in functions.items():
        if name in names:
            assert str(ours[name].dtype) == str(cudf.Series([], dtype=f"{kind}[{finest}]").dtype)
            made = ours[name].astype("int64").to_arrow().to_pylist()
            assert made == [function(of_key[k]) for k in (1, 2, 3)], name


@HOW
def test_categories_and_strings(how: str) -> None:
    frames = [
        numbers(["b", "a", None, "c"], "category"),
        numbers(["x", None, "a", "b"], None),
        numbers([None, None, "d", "c"], "category"),
    ]
    ours = run(frames, ["first", "last", "count"], frames[0].v.dtype, how)
    assert ours["first"].to_arrow().to_pylist() == ["b", "a", "c"]
    assert ours["last"].to_arrow().to_pylist() == ["x", "d", "c"]
    assert ours["count"].to_arrow().to_pylist() == [2, 3, 3]
    assert ours["first"].dtype == frames[1].v.dtype
    distinct = run(frames, ["nunique", "list"], "int64", how)
    assert distinct["nunique"].to_arrow().to_pylist() == [2, 2, 2]
    assert distinct["list"].to_arrow().to_pylist()[2] == ["c", "b", "c"]


@HOW
def test_categories_of_several_kinds(how: str) -> None:
    frames = [
        numbers(["b", "a", None, "c"], "category"),
        numbers(["z", "y", "b", None], "category"),
    ]
    ours = run(frames, ["first", "last"], frames[0].v.dtype, how)
    assert ours["first"].astype("str").to_arrow().to_pylist() == ["b", "a", "c"]
    assert ours["last"].astype("str").to_arrow().to_pylist() == ["z", "b", "c"]
    counted = [numbers([1, 2, None, 3], "category"), numbers([10**12, 2, 2, 3], "category")]
    assert run(counted, ["nunique"], "int64", how)["nunique"].to_arrow().to_pylist() == [2, 1, 1]


@HOW
def test_decimals(how: str) -> None:
    import cudf

    cents = [Decimal("1.25"), Decimal("-3.50"), None, Decimal("0.75")]
    mills = [Decimal("0.001"), Decimal("7.000"), Decimal("2.125"), None]
    frames = [numbers(K, None), numbers(K, None)]
    frames[0]["v"] = cudf.Series(cents).astype(cudf.Decimal64Dtype(12, 2))
    frames[1]["v"] = cudf.Series(mills).astype(cudf.Decimal64Dtype(15, 3))
    ours = run(frames, ["sum", "min", "count"], frames[0].v.dtype, how)
    assert ours["sum"].to_arrow().to_pylist() == [
        Decimal("1.251"), Decimal("5.625"), Decimal("0.750")
    ]  # fmt: skip
    assert ours["min"].to_arrow().to_pylist() == [
        Decimal("0.001"), Decimal("-3.500"), Decimal("0.750")
    ]  # fmt: skip
    assert ours["count"].to_arrow().to_pylist() == [2, 3, 1]


@pytest.mark.parametrize("other", ["int64", "float64", "M8[us]", "object", "category"])
def test_columns_of_nothing_but_nulls(other: str) -> None:
    """Their dtype is any: an empty column of Parquet or of JSON has one that says nothing."""
    import cudf

    from dask_gpuagg.engines.device.tables import aligned

    values: list[Any] = [3, 4, None, 5]
    if other in ("object", "category"):
        values = ["3", "4", None, "5"]
    known = numbers(values, None)
    known["v"] = known["v"].astype(other)
    for kind in ("float64", "object", "M8[ns]"):
        nothing = numbers([None] * 4, "float64")
        nothing["v"] = nothing["v"].astype(kind)
        for tables in ([nothing, known], [known, nothing]):
            made = aligned(tables)
            assert made[0].v.dtype == made[1].v.dtype == known.v.dtype
            whole = cudf.concat(made)
            assert int(whole.v.null_count) == 5


KEYS: dict[str, tuple[Any, Any]] = {
    "int, float": (([1, 2, 3], "int64"), ([1.0, None, 3.5], "float64")),
    "int32, int64": (([1, 2, 3], "int32"), ([1, 2**40, 3], "int64")),
    "s, ns": (([1, 2, 3], "M8[s]"), ([10**9, 2 * 10**9 + 1, None], "M8[ns]")),
    "category, string": ((["a", "b", None], "category"), (["b", "c", "a"], None)),
    "categories": ((["a", "b", None], "category"), (["b", "c", "a"], "category")),
    "bool, int": (([True, False, True], "bool"), ([1, 0, 7], "int64")),
    "object, string": ((["a", "b", None], "object"), (["b", "c", "a"], None)),
}


@HOW
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("name", KEYS)
def test_keys(name: str, beside: bool, how: str) -> None:
    import cudf

    frames = []
    for values, dtype in KEYS[name]:
        key = cudf.Series(values, dtype="int64" if str(dtype)[:2] == "M8" else dtype)
        frame = cudf.DataFrame({"k": key.astype(dtype) if str(dtype)[:2] == "M8" else key})
        if beside:
            frame["j"] = [0, 0, 0]
        frame["v"] = [1, 10, 100]
        frames.append(frame)
    ours = run(frames, ["sum", "nunique"], "int64", how)
    texts = {}
    for frame in frames:
        keys = frame["k"]
        if str(keys.dtype).startswith("datetime64"):
            keys = keys.astype("M8[ns]").astype("int64")
        for label, value in zip(keys.to_arrow().to_pylist(), [1, 10, 100], strict=True):
            texts.setdefault(label, []).append(value)
    made = ours.reset_index()
    keys = made["k"]
    if str(keys.dtype).startswith("datetime64"):
        assert keys.dtype == "datetime64[ns]"
        keys = keys.astype("int64")
    found = keys.to_arrow().to_pylist()
    assert len(set(found)) == len(found)
    sums = dict(zip(found, made["sum"].to_arrow().to_pylist(), strict=True))
    assert sums == {label: sum(values) for label, values in texts.items()}
    distinct = dict(zip(found, made["nunique"].to_arrow().to_pylist(), strict=True))
    assert distinct == {label: len(set(values)) for label, values in texts.items()}


def test_direct_takes_the_dtypes_of_its_plan() -> None:
    """The promise of integers is kept for nobody who has floats."""
    import cudf

    from dask_gpuagg.engines.device import engine

    frame = cudf.DataFrame({"k": [1, 1, 2], "v": [0.5, None, 2.0]})
    plan = plan_of([frame.k.dtype], frame.v.dtype, ["sum", "min", "mean"], True)
    promised = cudf.DataFrame({n: cudf.Series([], dtype="int64") for n in ("sum", "min", "mean")})
    promised.index.name = "k"
    made = engine.direct_of_columns([frame.k], [frame.v], plan, engine.shape_of(promised))
    assert made["sum"].to_arrow().to_pylist() == [0.5, 2.0]
    assert made["min"].to_arrow().to_pylist() == [0.5, 2.0]
    assert list(map(str, made.dtypes)) == ["float64"] * 3
