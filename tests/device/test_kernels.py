"""The kernels against pandas: every kernel, cardinality, skew and null pattern."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.cuda.choice import choose

CARDINALITIES = (1, 2, 127, 128, 129, 1_000, 10_000, 100_000, 1_000_000)
KERNELS = ("auto", *choose.KERNELS)
ROWS = 2_000_000


def columns_of(frame: pd.DataFrame, labels: list[str]) -> list[Any]:
    import cudf

    return [cudf.Series(frame[label]).to_pylibcudf()[0] for label in labels]


def on_host(column: Any) -> pd.Series:
    return pd.Series(column.to_arrow().to_pandas())


def aggregated(
    frame: pd.DataFrame,
    keys: list[str],
    wanted: dict[str, list[str]],
    kernel: str = "auto",
    keep_nulls: bool = False,
    on_device: Callable[[pd.DataFrame, list[str]], list[Any]] = columns_of,
    nulls: bool = False,
) -> tuple[pd.DataFrame, Any]:
    """Ours, as a pandas frame indexed by the keys and sorted."""
    from dask_gpuagg.engines.device.aggregator import Aggregator

    aggregator = Aggregator(on_device(frame, keys), keep_nulls)
    aggregator.nulls = nulls
    labels = []
    for label, names in wanted.items():
        (column,) = on_device(frame, [label])
        for name in names:
            if name in ("var", "std", "sem"):
                aggregator.spread(1, ("var", "std", "sem").index(name), column)
            elif name == "size":
                aggregator.size()
            else:
                getattr(aggregator, name)(column)
            labels.append(f"{label}.{name}")
    out_keys, outputs, run = aggregator.run(kernel)
    assert run.decision.kernel != "libcudf", run.decision.why
    made = pd.DataFrame(
        {k: on_host(c) for k, c in zip(keys, out_keys, strict=True)}
        | {k: on_host(c) for k, c in zip(labels, outputs, strict=True)}
    )
    return made.sort_values(keys, na_position="last").set_index(keys), run


def by_pandas(
    frame: pd.DataFrame, keys: list[str], wanted: dict[str, list[str]], keep_nulls: bool = False
) -> pd.DataFrame:
    # ours accumulates float32 in float64, which pandas does not
    narrow = [c for c, dtype in frame.dtypes.items() if str(dtype) == "Float32"]
    grouped = frame.astype(dict.fromkeys(narrow, "Float64")).groupby(keys, dropna=not keep_nulls)
    parts = {}
    for label, names in wanted.items():
        for name in names:
            # as cuDF, and unlike pandas, a sum of no values is null
            arguments = {"min_count": 1} if name in ("sum", "prod") else {}
            made = grouped.size() if name == "size" else getattr(grouped[label], name)(**arguments)
            parts[f"{label}.{name}"] = made
    result = pd.DataFrame(parts).reset_index()
    return result.sort_values(keys, na_position="last").set_index(keys)


def assert_equal(ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    assert len(ours) == len(theirs)
    for i in range(theirs.index.nlevels):
        a = ours.index.get_level_values(i).to_numpy()
        b = theirs.index.get_level_values(i).to_numpy()
        assert ((a == b) | (pd.isna(a) & pd.isna(b))).all()
    for label in theirs:
        a, b = ours[label], theirs[label]
        if b.dtype.kind in "iub" and a.dtype.kind in "iub":
            assert (a.to_numpy() == b.to_numpy()).all(), label
        else:
            np.testing.assert_allclose(
                a.to_numpy(float, na_value=np.nan),
                b.to_numpy(float, na_value=np.nan),
                rtol=1e-10,
                atol=1e-9 if label.endswith(("var", "std", "sem")) else 0.0,
                err_msg=label,
            )


def frame_of(keys: Any, seed: int = 0) -> pd.DataFrame:
    """Rows by a key column ``k``, or by several, with the columns of ``values``."""
    columns = keys if isinstance(keys, dict) else {"k": keys}
    rows = len(next(iter(columns.values())))
    return pd.DataFrame(columns | values(np.random.default_rng(seed), rows))


def check(
    frame: pd.DataFrame,
    keys: list[str],
    wanted: dict[str, list[str]],
    kernel: str = "auto",
    keep_nulls: bool = False,
    nulls: bool = False,
) -> Any:
    """Compare the groups with pandas'; return the run."""
    ours, run = aggregated(frame, keys, wanted, kernel, keep_nulls, nulls=nulls)
    assert_equal(ours, by_pandas(frame, keys, wanted, keep_nulls))
    return run


def keys_of(shape: str, groups: int, rows: int, rng: np.random.Generator) -> Any:
    if shape == "uniform":
        return rng.integers(0, groups, rows)
    if shape == "sorted":
        return np.sort(rng.integers(0, groups, rows))
    if shape == "strided":
        return rng.integers(0, groups, rows) << 40
    if shape == "zipf":
        return rng.zipf(1.3, rows) % groups
    if shape == "distinct":
        return rng.permutation(rows).astype(np.int64) - rows // 2
    raise ValueError(shape)


WANTED = {
    "i": ["sum", "min", "max", "count", "size", "mean"],
    "f": ["sum", "min", "max", "var"],
}


def values(rng: np.random.Generator, rows: int) -> dict[str, Any]:
    # a variance far from 0 is checked on its own: pandas' own rounds there
    return {"i": rng.integers(-(2**40), 2**40, rows), "f": rng.normal(1.0, 1.0, rows)}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("groups", CARDINALITIES)
def test_cardinalities(groups: int, kernel: str) -> None:
    rng = np.random.default_rng(groups)
    frame = pd.DataFrame({"k": keys_of("uniform", groups, ROWS, rng)} | values(rng, ROWS))
    run = check(frame, ["k"], WANTED, kernel)
    assert run.groups == frame.k.nunique()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", ["sorted", "strided", "zipf", "distinct"])
@pytest.mark.parametrize("groups", [1_000, 300_000])
def test_shapes(shape: str, groups: int, kernel: str) -> None:
    rng = np.random.default_rng(groups)
    frame = pd.DataFrame({"k": keys_of(shape, groups, ROWS, rng)} | values(rng, ROWS))
    check(frame, ["k"], WANTED, kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("rows", [0, 1, 31, 33, 1_000])
def test_few_rows(rows: int, kernel: str) -> None:
    rng = np.random.default_rng(rows)
    frame = pd.DataFrame({"k": rng.integers(0, 7, rows)} | values(rng, rows))
    ours, run = aggregated(frame, ["k"], WANTED, kernel)
    assert run.groups == frame.k.nunique()
    if rows:
        assert_equal(ours, by_pandas(frame, ["k"], WANTED))


def unmixed(word: int) -> int:
    """The key that a word is mixed from: the inverse of ``mix`` in kernels/core/types.cuh."""
    key = word * pow(0x9E3779B97F4A7C15, -1, 2**64) % 2**64
    return key ^ key >> 32


def in_sample(rows: int) -> Any:
    """Which rows of one piece the sample sees: as kernels/estimate/segment.cuh."""
    start = np.arange(256, dtype=np.uint64) * np.uint64(rows) // np.uint64(256)
    mixed = start ^ start >> np.uint64(33)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(33)
    start += (mixed >> np.uint64(32)) * np.uint64(max(0, rows // 256 - 256)) >> np.uint64(32)
    seen = np.zeros(rows, bool)
    seen[(start[:, None] + np.arange(256, dtype=np.uint64)).clip(max=rows - 1)] = True
    return seen


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_empty_pattern_is_a_key(kernel: str) -> None:
    rng = np.random.default_rng(5)
    special = np.array([unmixed(2**64 - 1), 0, 2**64 - 1, 1], dtype=np.uint64)
    frame = pd.DataFrame({"k": rng.choice(special, 300_000)} | values(rng, 300_000))
    check(frame, ["k"], WANTED, kernel)


@pytest.mark.parametrize("kernel", KERNELS)
def test_equal_homes(kernel: str) -> None:
    """Keys whose mixed words share their high half all want the same slot."""
    rng = np.random.default_rng(6)
    clustered = np.array([unmixed((0xABCDEF << 40) | i) for i in range(2_000)], dtype=np.uint64)
    frame = pd.DataFrame({"k": rng.choice(clustered, 300_000)} | values(rng, 300_000))
    check(frame, ["k"], WANTED, kernel)


TEXTS = np.array(["", "a", "bb", "äöü€", "x" * 40, "y" * 7 + "\0", "z" * 8], object)
KEY_MAKERS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "int8": lambda rng, n: rng.integers(-128, 128, n).astype("int8"),
    "int16": lambda rng, n: rng.integers(-500, 500, n).astype("int16"),
    "int32": lambda rng, n: rng.integers(-(2**31), 2**31, 50)[rng.integers(0, 50, n)].astype(
        "int32"
    ),
    "uint64": lambda rng, n: (
        rng.integers(0, 2**63, 60, dtype="uint64")[rng.integers(0, 60, n)] * 2 + 1
    ),
    "bool": lambda rng, n: rng.random(n) < 0.5,
    "float32": lambda rng, n: rng.integers(-4, 4, n).astype("float32") / 2,
    "float64": lambda rng, n: np.where(rng.random(n) < 0.1, -0.0, rng.integers(0, 9, n) / 3),
    "datetime": lambda rng, n: np.datetime64("2026-01-01", "ns") + rng.integers(0, 99, n),
    "string": lambda rng, n: TEXTS[rng.integers(0, 7, n)],
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("keep_nulls", [False, True])
@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("dtype", list(KEY_MAKERS))
def test_key_types(dtype: str, nulls: bool, keep_nulls: bool, kernel: str) -> None:
    rng = np.random.default_rng(7)
    rows = 300_000
    key = pd.Series(KEY_MAKERS[dtype](rng, rows))
    if nulls:
        nullable = {"datetime": None, "string": None, "bool": "boolean"}
        capital = dtype.replace("uint", "UInt").replace("int", "Int").replace("float", "Float")
        wide = nullable.get(dtype, capital)
        key = key.astype(wide) if wide else key
        key[rng.random(rows) < 0.1] = None
    frame = pd.DataFrame({"k": key} | values(rng, rows))
    check(frame, ["k"], WANTED, kernel, keep_nulls)


KEY_SETS = [key.split("+") for key in ("a+b", "a+b+c", "s+a", "wide+a", "wide+f", "s+wide+f+a")]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("keep_nulls", [False, True])
@pytest.mark.parametrize("keys", KEY_SETS, ids="+".join)
def test_several_keys(keys: list[str], keep_nulls: bool, kernel: str) -> None:
    rng = np.random.default_rng(8)
    rows = 300_000
    frame = pd.DataFrame(
        {
            "a": pd.Series(rng.integers(0, 12, rows)).astype("Int32").mask(rng.random(rows) < 0.1),
            "b": rng.integers(0, 12, rows).astype("int8"),
            "c": rng.random(rows) < 0.5,
            "s": pd.Series(rng.choice(["", "one", "fourteen bytes"], rows)).mask(
                rng.random(rows) < 0.1
            ),
            "wide": rng.integers(0, 40, rows) * 2**50,
            "f": pd.Series(rng.integers(0, 3, rows) / 7).mask(rng.random(rows) < 0.1),
        }
        | values(rng, rows)
    )
    check(frame, keys, WANTED, kernel, keep_nulls)


INTEGERS = [f"{kind}{bits}" for kind in ("Int", "UInt") for bits in (8, 16, 32, 64)]
VALUE_TYPES = [*INTEGERS, "Float32", "Float64"]
EVERY = ["sum", "count", "min", "max", "mean", "var", "std", "sem", "any", "all", "first", "last"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", VALUE_TYPES)
def test_value_types(dtype: str, share: float, kernel: str) -> None:
    rng = np.random.default_rng(9)
    rows = 300_000
    v = pd.Series(rng.integers(0, 120, rows)).astype(dtype)
    v[rng.random(rows) < share] = None
    frame = pd.DataFrame({"k": rng.integers(0, 300, rows), "v": v})
    check(frame, ["k"], {"v": EVERY}, kernel)


@pytest.mark.parametrize("kernel", KERNELS)
def test_products_and_wrapping(kernel: str) -> None:
    rng = np.random.default_rng(10)
    rows = 300_000
    frame = pd.DataFrame(
        {
            "k": rng.integers(0, 300, rows),
            "i": rng.integers(-(2**62), 2**62, rows) * 2 + 1,
            "f": rng.uniform(0.99, 1.01, rows),
        }
    )
    wanted = {"i": ["prod", "sum"], "f": ["prod"]}
    check(frame, ["k"], wanted, kernel)


@pytest.mark.parametrize("groups", [300, 90_000])
@pytest.mark.parametrize("kernel", KERNELS)
def test_decimals(kernel: str, groups: int) -> None:
    import pyarrow as pa
    import pylibcudf as plc

    from dask_gpuagg.engines.device.aggregator import Aggregator

    rng = np.random.default_rng(11)
    cents = pd.Series(rng.integers(-(10**12), 10**12, 500_000)).astype("Int64")
    cents = cents.mask(rng.random(len(cents)) < 0.5)
    k = rng.integers(0, groups, len(cents))
    for dtype in (pa.decimal64(18, 2), pa.decimal128(38, 2)):
        column = plc.Column.from_arrow(pa.array(cents).cast(pa.decimal128(38, 0)).cast(dtype))
        aggregator = Aggregator([plc.Column.from_arrow(pa.array(k))], False)
        aggregator.sum(column)
        keys, (total,), _ = aggregator.run(kernel)
        sums = [None if x is None else int(x) for x in total.to_arrow().to_pylist()]
        ours = pd.Series(sums, on_host(keys[0]), dtype="Int64").sort_index()
        theirs = cents.groupby(k).sum(min_count=1)
        pd.testing.assert_series_equal(ours, theirs, check_names=False, check_index_type=False)


@pytest.mark.parametrize("kernel", KERNELS)
def test_variance_far_from_zero(kernel: str) -> None:
    rng = np.random.default_rng(14)
    # the distances from 1e9 are exact in float64, so both frames have the same variance
    near = rng.normal(0.0, 1.0, 300_000)
    k = rng.integers(0, 300, 300_000)
    frame = pd.DataFrame({"k": k, "f": near + 1e9})
    exact = pd.DataFrame({"k": k, "f": (near + 1e9) - 1e9})
    ours, _ = aggregated(frame, ["k"], {"f": ["var"]}, kernel)
    assert_equal(ours, by_pandas(exact, ["k"], {"f": ["var"]}))


def test_a_constant_has_no_variance() -> None:
    frame = pd.DataFrame({"k": np.arange(10**6) % 17, "f": np.full(10**6, 1e9 / 3)})
    ours, _ = aggregated(frame, ["k"], {"f": ["var"]})
    assert (ours["f.var"] == 0).all()


def test_infinities() -> None:
    frame = pd.DataFrame({"k": [0, 0, 1, 1, 2, 2], "f": [-np.inf, np.inf, np.inf, 1, np.nan, 1]})
    wanted = {"f": ["sum", "min", "max", "mean"]}
    ours, _ = aggregated(frame, ["k"], wanted)
    assert np.isnan(ours["f.sum"][0])
    assert ours["f.sum"][1] == np.inf
    assert ours["f.min"][0] == -np.inf
    assert ours["f.max"][0] == np.inf
    assert ours["f.mean"][1] == np.inf
    assert ours["f.min"][2] == 1  # NaN is no null in cuDF, but never the extreme
