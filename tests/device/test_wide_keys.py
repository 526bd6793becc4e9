"""Keys wider than a word: two words, hashes, and words that collide."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.cuda.keys import ranges as forms
from dask_gpuagg.cuda.sampling import repeat
from tests.device.test_kernels import (
    KERNELS,
    WANTED,
    check,
    columns_of,
    frame_of,
    in_sample,
    on_host,
    values,
)

ROWS = 1_500_000
GOLDEN = 0x9E3779B97F4A7C15
MASK = 2**64 - 1


def mix(x: int, multiplier: int) -> int:
    """``mix`` and ``mix_high`` of the kernels."""
    return (x ^ x >> 32) * multiplier & MASK


def unmix(word: int) -> int:
    """``unmix`` of kernels/core/types.cuh."""
    x = word * pow(GOLDEN, -1, 2**64) & MASK
    return x ^ x >> 32


def random_texts(count: int, low: int, high: int, rng: np.random.Generator) -> list[str]:
    """Letters that differ in more bits than a word has, of ``low`` to below ``high`` bytes."""
    letters = rng.integers(ord("0"), ord("z"), (count, high), dtype=np.uint8)
    lengths = rng.integers(low, high, count)
    texts = [row.tobytes()[:n].decode() for row, n in zip(letters, lengths, strict=True)]
    return texts


def keys_of(kind: str, groups: int, rng: np.random.Generator) -> dict[str, Any]:
    codes = rng.integers(0, groups, ROWS)
    if kind == "two words":
        return {"a": codes % 997 - 400, "b": (codes // 997) * 2**40}
    if kind == "three of 32 bits":
        a, b, c = codes % 97, codes // 97 % 89, codes // 97 // 89
        return {"a": a.astype("int32"), "b": b.astype("int32"), "c": c.astype("int32")}
    if kind == "three words":
        return {"a": codes % 97, "b": codes // 97 % 89, "c": codes // 97 // 89}
    if kind == "four words":
        # more bits than one word has, in as many columns as two have not
        a, b, c = codes % 97 * 2**24, codes // 97 % 89 * 2**20 - 5, codes // 97 // 89 * 2**22
        return {"a": a, "b": b, "c": c, "d": -(codes % 7)}
    names = pd.Series(np.arange(groups)).astype(str)
    if kind == "long strings":
        names = names.str.pad(37, fillchar="ä")
    elif kind != "strings":
        low, high = (9, 16) if kind == "short texts" else (16, 44)
        names = pd.Series(random_texts(groups, low, high, rng))
    return {"a": names.to_numpy(object)[codes]}


def with_nulls(keys: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Key columns of which a twentieth is null."""
    nullable = {}
    for name, key in keys.items():
        column = pd.Series(key)
        if column.dtype.kind == "i":
            column = column.astype(str(column.dtype).capitalize())
        nullable[name] = column.mask(rng.random(ROWS) < 0.05)
    return nullable


TEXTS = ["strings", "long strings", "short texts", "texts"]
KINDS = ["two words", "three of 32 bits", "three words", "four words", *TEXTS]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("groups", [1, 1_000, 100_000, 700_000])
@pytest.mark.parametrize("kind", KINDS)
def test_cardinalities(kind: str, groups: int, kernel: str) -> None:
    rng = np.random.default_rng(groups)
    keys = keys_of(kind, groups, rng)
    frame = pd.DataFrame(keys | values(rng, ROWS))
    run = check(frame, list(keys), WANTED, kernel)
    # only keys of one word are sorted, they may lie in a wide range, and one group is not folded
    if kernel not in ("auto", "sgb", "direct") and (kernel, groups) != ("pgb_fold", 1):
        assert run.decision.kernel.startswith(kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("keep_nulls", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_nulls(kind: str, keep_nulls: bool, kernel: str) -> None:
    rng = np.random.default_rng(2)
    keys = with_nulls(keys_of(kind, 3_000, rng), rng)
    check(frame_of(keys), list(keys), WANTED, kernel, keep_nulls)


@pytest.mark.parametrize("wanted", [WANTED, {"i": ["sum", "mean", "min", "count"]}])
@pytest.mark.parametrize("kernel", KERNELS)
def test_words_of_two_keys_with_one_value(kernel: str, wanted: dict[str, list[str]]) -> None:
    """Keys of two words whose first words are equal: the witnesses differ."""
    rng = np.random.default_rng(3)
    high = rng.integers(0, 2**62, 300).tolist()
    low = [unmix((7 - mix(h, 0x6A09E667F3BCC909)) & MASK) for h in high]
    codes = rng.integers(0, 300, ROWS)
    keys = {
        "a": np.array(high, dtype=np.uint64)[codes],
        "b": np.array(low, dtype=np.uint64)[codes],
    }
    frame = pd.DataFrame(keys | values(rng, ROWS))
    run = check(frame, ["a", "b"], wanted, kernel)
    assert run.groups == 300


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("groups", [2_000, 400_000])
@pytest.mark.parametrize("beyond", [-(2**60), 2**60])
def test_values_beyond_the_bits_of_two_words(groups: int, kernel: str, beyond: int) -> None:
    rng = np.random.default_rng(7)
    keys = keys_of("four words", groups, rng)
    known = len(pd.DataFrame(keys).drop_duplicates())
    keys["c"][np.flatnonzero(~in_sample(ROWS))[3_000]] = beyond
    frame = pd.DataFrame(keys | values(rng, ROWS))
    by = list(keys)
    # the second time it is known that values lie outside
    for _ in range(2):
        run = check(frame, by, WANTED, kernel)
        assert run.groups in (known, known + 1)


FILLING = {
    "two of 64 bits": {"a": (256, -10, "int64"), "b": (200, 10**12, "int64")},
    "with nulls": {"a": (300, 0, "Int64"), "b": (150, -(10**15), "Int64")},
    "three": {"a": (50, 5, "int32"), "b": (45, 0, "int32"), "c": (40, -(2**31), "int32")},
    "two of 32 bits": {"a": (256, 0, "int32"), "b": (250, -7, "int32")},
    "of one word, with nulls": {"a": (300, -(2**15), "Int16"), "b": (200, 0, "UInt8")},
    "few": {"a": (60, 0, "int64"), "b": (40, 2**62, "uint64")},
}


@pytest.mark.parametrize("keep_nulls", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", FILLING)
def test_keys_that_fill_their_ranges(kind: str, kernel: str, keep_nulls: bool) -> None:
    """They are numbers of a narrow range, with slots of their own."""
    rng = np.random.default_rng(31)
    columns = {}
    for name, (groups, least, dtype) in FILLING[kind].items():
        column = pd.Series(rng.integers(0, groups, ROWS) + least).astype(dtype)
        columns[name] = column.mask(rng.random(ROWS) < 0.01) if dtype[0] in "IU" else column
    keys = list(columns)
    frame = pd.DataFrame(columns | values(rng, ROWS))
    for wanted in ({"i": ["sum", "mean", "min", "count"]}, WANTED):
        run = check(frame, keys, wanted, kernel, keep_nulls)
    if kernel in ("direct", "pgb"):
        assert run.decision.kernel == kernel
        assert run.decision.base is not None
        assert kernel != "pgb" or run.decision.window > 0


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("kernel", ["auto", "direct", "pgb"])
def test_values_beyond_near_ranges_are_grouped_all_the_same(kernel: str, dtype: str) -> None:
    """They cost another try, and then ranges are wider, or keys of a word are not numbered."""
    rng = np.random.default_rng(32)
    rows = 1 << 21
    a, b = rng.integers(0, 256, rows), rng.integers(0, 256, rows)
    between = np.flatnonzero(~in_sample(rows))
    a[between[::50_000]] = 400
    b[between[7::50_000]] = -300
    frame = pd.DataFrame({"a": a.astype(dtype), "b": b.astype(dtype)} | values(rng, rows))
    for _ in range(2):
        run = check(frame, ["a", "b"], WANTED, kernel)
        assert len(forms._out_of_range.keys()) == 1
    assert run.groups > 65_536


@pytest.mark.parametrize("kernel", ["auto", "direct", "pgb", "pgb_fold"])
@pytest.mark.parametrize("wanted", [{"i": ["sum"]}, {"i": ["sum", "mean", "min", "count"]}, WANTED])
def test_numbered_keys_as_for_rows_before(wanted: dict[str, list[str]], kernel: str) -> None:
    """The ranges are those of the rows before, unless the device sees that they do not do."""
    rng = np.random.default_rng(33)
    rows = 1 << 21

    def run_of(a: int, b: int, least: int, stray: bool = False) -> Any:
        # after a refusal the next guess would be left out
        repeat._refused.clear()
        columns = {"a": rng.integers(0, a, rows), "b": rng.integers(0, b, rows) + least}
        if stray:
            columns["a"][np.flatnonzero(~in_sample(rows))[5::90_000]] = 600
        frame = pd.DataFrame({n: c.astype("int32") for n, c in columns.items()})
        frame = frame.assign(**values(rng, rows))
        run = check(frame, ["a", "b"], wanted, kernel)
        return run

    first, again = run_of(256, 256, 0), run_of(256, 256, 0)
    assert first.decision.base is not None
    assert "as for rows before" not in first.decision.why
    assert again.decision.why == f"{first.decision.why}; as for rows before"
    for other in ((256, 256, 30), (300, 220, 0), (256, 256, -500)):
        assert "as for rows before" not in run_of(*other).decision.why
    run_of(256, 256, -500)
    assert len(forms._out_of_range.keys()) == 0
    # as is the sample, but not all rows
    assert "as for rows before" not in run_of(256, 256, -500, stray=True).decision.why
    assert len(forms._out_of_range.keys()) == 1


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int8", "datetime64[ns]"])
def test_ranges_of_types(dtype: str) -> None:
    """Values at the ends of a type, and none at all in one column's sample."""
    rng = np.random.default_rng(7)
    info = np.iinfo("int64" if dtype.startswith("date") else dtype)
    low = rng.integers(0, 100, ROWS)
    ends = np.array([info.min + 1, 0, info.max], dtype=info.dtype)
    frame = pd.DataFrame(
        {
            "a": (info.max - low.astype(info.dtype)).astype(dtype),
            "b": pd.Series(rng.integers(0, 5, ROWS)).astype("Int64").where(low == 200),
            "c": ends[rng.integers(0, 3, ROWS)].astype(dtype),
            "d": rng.integers(0, 2**40, ROWS) // 2**36,
        }
        | values(rng, ROWS)
    )
    for keys in (["a", "d"], ["a", "b", "d"], ["c", "d"]):
        check(frame, keys, WANTED, keep_nulls=True)


@pytest.mark.parametrize("kind", ["strings", "short texts", "texts"])
def test_slices_of_columns(kind: str) -> None:
    """Rows that begin anywhere in their columns, of which some are null."""
    import pylibcudf as plc

    from dask_gpuagg.engines.device.aggregator import Aggregator

    rng = np.random.default_rng(8)
    texts = pd.Series(keys_of(kind, 5_000, rng)["a"]).mask(rng.random(ROWS) < 0.1)
    frame = pd.DataFrame({"k": texts, "v": rng.integers(0, 99, ROWS)})
    whole = columns_of(frame, ["k", "v"])
    for first, last in ((0, 1_200_001), (133_333, ROWS), (1, ROWS - 1)):
        key, value = (plc.copying.slice(column, [first, last])[0] for column in whole)
        for keep_nulls in (False, True):
            aggregator = Aggregator([key], keep_nulls)
            aggregator.sum(value)
            (keys,), (sums,), _ = aggregator.run()
            ours = pd.Series(on_host(sums).to_numpy(), index=on_host(keys)).sort_index()
            part = frame.iloc[first:last].groupby("k", dropna=not keep_nulls)
            theirs = part["v"].sum().sort_index()
            assert ours.index.isna().sum() == int(keep_nulls)
            assert list(ours.index.dropna()) == list(theirs.index.dropna())
            assert list(ours) == list(theirs)
