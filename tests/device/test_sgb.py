"""Encoding, sorting and what is read from sorted groups, against NumPy, pandas and cuDF."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.cuda.algorithms import sgb
from tests.device.test_kernels import columns_of, on_host

ROWS = 300_000


def encoded(
    frame: pd.DataFrame, keys: list[str], keep_nulls: bool = False, kernel: str = "auto"
) -> tuple[pd.DataFrame, Any]:
    """The keys of the groups, and the codes of the rows."""
    from dask_gpuagg.engines.device.aggregator import Aggregator

    aggregator = Aggregator(columns_of(frame, keys), keep_nulls)
    aggregator.encode()
    made, _, _ = aggregator.run(kernel)
    return pd.DataFrame(dict(zip(keys, map(on_host, made), strict=True))), aggregator.codes


# ---- codes -------------------------------------------------------------------------------------

KEYS = [["i"], ["n"], ["f"], ["s"], ["n", "b"], ["s", "n"], ["i", "f"]]


def key_frame(rows: int, groups: int) -> pd.DataFrame:
    rng = np.random.default_rng(rows + groups)
    k = rng.integers(0, groups, rows)
    texts = np.array([f"{x:x}" * (1 + x % 3) for x in range(min(groups, 5_000))], object)
    return pd.DataFrame(
        {
            "i": k * 7 - 3 * groups,
            "n": pd.Series(k - groups // 2).astype("Int32").mask(rng.random(rows) < 0.05),
            "f": pd.Series(k / 8 - 1).mask(rng.random(rows) < 0.05),
            "b": k % 2 == 0,
            "s": pd.Series(texts[k % len(texts)]).mask(rng.random(rows) < 0.05),
        }
    )


@pytest.mark.parametrize("kernel", ["auto", "hgb", "pgb", "lphga"])
@pytest.mark.parametrize("keep_nulls", [False, True])
@pytest.mark.parametrize("groups", [1, 1_000, 200_000])
@pytest.mark.parametrize("keys", KEYS, ids="+".join)
def test_codes_name_the_groups(keys: list[str], groups: int, keep_nulls: bool, kernel: str) -> None:
    frame = key_frame(ROWS, groups)
    found, codes = encoded(frame, keys, keep_nulls, kernel=kernel)
    code = on_host(codes).to_numpy()
    dropped = np.zeros(ROWS, bool) if keep_nulls else frame[keys].isna().any(axis=1).to_numpy()
    assert ((code == -1) == dropped).all()
    assert (np.unique(code[~dropped]) == np.arange(len(found))).all()
    for key in keys:
        ours = found[key].to_numpy(object)[code[~dropped]]
        theirs = frame[key].to_numpy(object)[~dropped]
        null = pd.isna(theirs)
        assert (pd.isna(ours) == null).all()
        assert (ours[~null] == theirs[~null]).all()


NARROW: dict[str, Any] = {
    "int64": lambda k: {"a": k * 3 - 10**15},
    "uint64": lambda k: {"a": k.astype("uint64") + 2**63},
    "int32 with nulls": lambda k: {"a": pd.Series(k - 50_000, dtype="Int32").mask(k % 11 == 0)},
    "two columns": lambda k: {"a": (k // 200).astype("int16"), "b": (k % 200).astype("uint8")},
}


@pytest.mark.parametrize("shape", NARROW)
def test_keys_of_a_narrow_range_need_no_table(shape: str) -> None:
    from dask_gpuagg.engines.device.aggregator import Aggregator

    k = np.random.default_rng(7).integers(0, 60_000, 1_000_000)
    frame = pd.DataFrame(NARROW[shape](k))
    keys = list(frame)
    aggregator = Aggregator(columns_of(frame, keys), False)
    aggregator.encode()
    made, _, run = aggregator.run()
    assert run.decision.kernel == "range"
    grouped = frame.groupby(keys)
    assert (on_host(aggregator.codes).to_numpy() == grouped.ngroup().fillna(-1).to_numpy()).all()
    assert run.groups == grouped.ngroups
    ours = pd.DataFrame({key: on_host(c) for key, c in zip(keys, made, strict=True)})
    theirs = grouped.size().reset_index()[keys]
    assert (ours.to_numpy(int) == theirs.to_numpy(int)).all()


def test_keys_of_a_wide_range_are_looked_up() -> None:
    from dask_gpuagg.engines.device.aggregator import Aggregator

    rng = np.random.default_rng(8)
    frame = pd.DataFrame(
        {"k": rng.integers(-(2**62), 2**62, 60_000)[rng.integers(0, 60_000, 10**6)]}
    )
    aggregator = Aggregator(columns_of(frame, ["k"]), False)
    aggregator.encode()
    (made,), _, run = aggregator.run()
    assert run.decision.kernel == "lphga"
    assert run.groups == frame["k"].nunique()
    assert (on_host(made).to_numpy()[on_host(aggregator.codes)] == frame["k"]).all()


def test_codes_of_no_rows() -> None:
    groups, codes = encoded(key_frame(0, 5), ["i"])
    assert len(groups) == codes.size() == 0


# ---- the sort ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 31, 33, 6_143, 6_144, 6_145, 100_000, 3_000_001])
@pytest.mark.parametrize("moved", ["uint32", "uint64"])
@pytest.mark.parametrize(("dtype", "bits"), [("uint32", 5), ("uint32", 20), ("uint64", 64)])
def test_radix_sort(dtype: str, bits: int, moved: str, rows: int) -> None:
    import rmm
    from pylibcudf.utils import _get_stream

    rng = np.random.default_rng(rows)
    words = rng.integers(0, 2**bits, rows, dtype=dtype, endpoint=False)
    # digits that all rows share in between, and one digit of nearly all rows
    words &= np.array(~(0xFF << 8) % 2**bits, dtype)
    words[rng.random(rows) < 0.3] &= np.array(1, dtype)
    beside = np.arange(rows, dtype=moved)
    order = np.argsort(words, kind="stable")
    on = sgb.launcher(_get_stream())
    arrays = [
        sgb.Words(rmm.DeviceBuffer.to_device(a.tobytes() or b"\0"), a.itemsize)
        for a in (words, beside)
    ]
    made = sgb.radix_sort(on, *arrays, rows, bits)
    for ours, theirs in zip(made, (words[order], beside[order]), strict=True):
        assert ours.buffer.tobytes()[: theirs.nbytes] == theirs.tobytes()


# ---- quantiles ---------------------------------------------------------------------------------

BETWEEN = ["linear", "lower", "higher", "midpoint", "nearest"]


def values_of(dtype: str, rows: int, share: float, rng: np.random.Generator) -> pd.Series:
    if dtype.startswith("Float"):
        v = pd.Series(rng.normal(0, 100, rows).round(1))
    else:
        v = pd.Series(rng.integers(0 if dtype[0] == "U" else -100, 100, rows))
    return v.astype(dtype).mask(rng.random(rows) < share)


def keys_of(shape: str, groups: int, rows: int, rng: np.random.Generator) -> Any:
    if shape == "sorted":
        return np.sort(rng.integers(0, groups, rows))
    return rng.zipf(1.3, rows) % groups if shape == "zipf" else rng.integers(0, groups, rows)


def compare(ours: Any, keys: pd.Series, theirs: pd.Series) -> None:
    made = on_host(ours).set_axis(pd.Index(keys)).sort_index()
    assert len(made) == len(theirs)
    np.testing.assert_allclose(
        made.to_numpy(float, na_value=np.nan), theirs.to_numpy(float, na_value=np.nan), rtol=1e-12
    )


# ---- lists -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["Int8", "Float64", "string", "bool"])
@pytest.mark.parametrize("groups", [1, 1_000, 100_000])
def test_lists(groups: int, dtype: str) -> None:
    from dask_gpuagg.engines.device.groups import SortedRows

    rng = np.random.default_rng(groups)
    frame = pd.DataFrame({"k": pd.Series(rng.integers(0, groups, ROWS)).astype("Int32")})
    frame["k"] = frame["k"].mask(rng.random(ROWS) < 0.1)
    if dtype == "string":
        frame["v"] = pd.Series(rng.choice(["", "a", "bcd", None], ROWS))
    elif dtype == "bool":
        frame["v"] = rng.random(ROWS) < 0.5
    else:
        frame["v"] = values_of(dtype, ROWS, 0.2, rng)
    keys, codes = encoded(frame, ["k"])
    (column,) = columns_of(frame, ["v"])
    made = SortedRows(codes, len(keys)).list(column).to_arrow().to_pylist()
    ours = pd.Series(made, index=pd.Index(keys["k"])).sort_index()
    theirs = frame.dropna(subset=["k"]).groupby("k").v.agg(list)
    assert (ours.index.to_numpy() == theirs.index.to_numpy(int)).all()
    for a, b in zip(ours, theirs, strict=True):
        assert [None if pd.isna(x) else x for x in b] == a
