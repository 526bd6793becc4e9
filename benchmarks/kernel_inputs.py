"""Rows of ``benchmarks.kernels``: kinds of key columns, and values beside them.

Keys are functions of the number of rows and a random generator. CuPy and cuDF are imported where
rows are drawn: without a GPU the cells can be listed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

Columns = dict[str, Any]
Keys = Callable[[int, Any], Columns]
# dtype of a column, and the bounds of integers
Drawn = tuple[Any, ...]
Text = Callable[[int], str]

VALUES: dict[str, Drawn] = {
    "v": ("float64",),
    "w": ("float32",),
    "x": ("int64", -(2**40), 2**40),
    "y": ("int32", -1000, 1000),
}
_LONG: Drawn = VALUES["x"]
_DECIMAL: Drawn = ("decimal128", 0, 2**40)
# columns of one dtype, how they are aggregated, and the share of nulls in all of them
ALIKE: dict[str, tuple[int, Drawn, str, float]] = {
    "1 i64": (1, _LONG, "sum", 0.0),
    "4 i64": (4, _LONG, "sum", 0.0),
    "8 i64": (8, _LONG, "sum", 0.0),
    "1 dec": (1, _DECIMAL, "sum", 0.0),
    "4 dec": (4, _DECIMAL, "sum", 0.0),
    "4 i64 50%": (4, _LONG, "sum", 0.5),
    "4 i64 90%": (4, _LONG, "sum", 0.9),
    "8 max i64 90%": (8, _LONG, "max", 0.9),
    "8 max i32": (8, VALUES["y"], "max", 0.0),
}
TWO_VALUES = {label: VALUES[label] for label in "vw"}
NARROW_VALUES: dict[str, Drawn] = {**TWO_VALUES, "x": ("int64", -1000, 1000)}


@dataclass(frozen=True)
class Input:
    """Key columns and values, of which a share is null; cells of equal names share their rows."""

    name: str
    keys: Keys = field(compare=False)
    values: Mapping[str, Drawn] = field(default_factory=lambda: VALUES, compare=False)
    nulls: float = field(default=0.0, compare=False)
    values_first: bool = field(default=False, compare=False)
    # where they are fewer than those of the other inputs
    rows: int | None = None

    def draw(self, rows: int) -> Any:
        """Draw a DataFrame."""
        import cudf
        import cupy as cp

        rows = self.rows or rows
        rng = cp.random.default_rng(1)
        key_columns = {} if self.values_first else self.keys(rows, rng)
        columns = {label: drawn(value, rows, rng) for label, value in self.values.items()}
        frame = cudf.DataFrame((key_columns or self.keys(rows, rng)) | columns)
        if self.nulls:
            for name in self.values:
                frame[name] = frame[name].mask(cudf.Series(rng.random(rows) < self.nulls))
        return frame


def drawn(value: Drawn, rows: int, rng: Any) -> Any:
    """Uniform integers or decimals between bounds, or floats from 0 to 1."""
    dtype, *bounds = value
    if dtype == "decimal128":
        import cudf

        integers = cudf.Series(rng.integers(*bounds, rows, dtype="int64"))
        return integers.astype(cudf.Decimal128Dtype(38, 0))
    return rng.integers(*bounds, rows, dtype=dtype) if bounds else rng.random(rows, dtype=dtype)


def key_labels(frame: Any) -> list[str]:
    """Labels of the key columns."""
    return [label for label in frame.columns if label[0] == "k"]


def evenly(frame: Any) -> Any:
    """Draw the keys of a frame again, each as frequent as the others, beside equal values."""
    import cupy as cp

    (label,) = key_labels(frame)
    keys = frame[label].drop_duplicates()
    rows = cp.random.default_rng(2).integers(0, len(keys), len(frame))
    return frame.assign(**{label: keys.take(rows).reset_index(drop=True)})


# ---- keys of a given number of groups ------------------------------------------------------------


def grouped(key: str, groups: int, zipf: float, rows: int, rng: Any) -> Columns:
    """Columns of which every group has its own combination: dtypes, ``strN`` or ``random``."""
    import cudf
    import cupy as cp

    codes = numbers(rows, groups, zipf, rng)
    if key == "random":
        words = cp.random.default_rng(2).integers(-(2**63), 2**63 - 1, groups, dtype="int64")
        return {"k0": words[codes]}
    if key.startswith("str"):
        names = cudf.Series(cp.arange(groups)).astype("str").str.zfill(int(key[3:]))
        return {"k0": names.take(codes).reset_index(drop=True)}
    types = key.split("+")
    if len(types) == 1:
        return {"k0": codes.astype(types[0])}
    side = math.ceil(groups ** (1 / len(types)))
    columns = {}
    for i, name in enumerate(types):
        columns[f"k{i}"] = (codes % side if i + 1 < len(types) else codes).astype(name)
        codes = codes // side
    return columns


def numbers(rows: int, groups: int, zipf: float, rng: Any) -> Any:
    """Group numbers, uniform or by Zipf's law (inverted continuously), int64."""
    import cupy as cp

    if not zipf:
        return rng.integers(0, groups, rows, dtype="int64")
    u = rng.random(rows)
    if zipf == 1.0:
        ranks = cp.exp(u * math.log(groups))
    else:
        power = 1.0 - zipf
        ranks = (u * (groups**power - 1.0) + 1.0) ** (1.0 / power)
    ranks = cp.minimum(ranks.astype("int64") - 1, groups - 1)
    # the heavy keys lie anywhere
    return (ranks * 2_654_435_761) % 2**32 % (2 * groups)


# ---- keys as users have them ---------------------------------------------------------------------


def _uniform(dtypes: Sequence[str], sizes: Sequence[int], rows: int, rng: Any) -> Columns:
    return {
        f"k{i}": rng.integers(0, size, rows, dtype="int64").astype(dtype)
        for i, (dtype, size) in enumerate(zip(dtypes, sizes, strict=True))
    }


def _ordered(dtypes: Sequence[str], first: int, second: int, rows: int, rng: Any) -> Columns:
    """As a table of days by stores is kept: the first column ascends."""
    import cupy as cp

    steps = (cp.arange(rows, dtype="int64") * first // rows).astype(dtypes[0])
    return {"k0": steps, "k1": rng.integers(0, second, rows, dtype="int64").astype(dtypes[1])}


def _changed(groups: int, change: Callable[[Any], Any], rows: int, rng: Any) -> Columns:
    return {"k0": change(rng.integers(0, groups, rows, dtype="int64"))}


def _with_nulls(groups: int, rows: int, rng: Any) -> Columns:
    import cudf

    keys = cudf.Series(rng.integers(0, groups, rows, dtype="int64"))
    return {"k0": keys.mask(cudf.Series(rng.random(rows) < 0.1))}


def _times(groups: int, unit: str, rows: int, rng: Any) -> Columns:
    import cudf

    keys = cudf.Series(rng.integers(0, groups, rows, dtype="int64") + 19_000 * 86_400)
    return {"k0": keys.astype(f"datetime64[{unit}]")}


def _choice_of(texts: Any, rows: int, rng: Any) -> Any:
    codes = rng.integers(0, len(texts), rows, dtype="int32")
    return texts.take(codes).reset_index(drop=True)


def _uneven(groups: int, longest: int, rows: int, rng: Any) -> Columns:
    """Texts whose lengths lie between 3 and ``longest``, most of them short."""
    import cudf
    import numpy as np

    random = np.random.default_rng(3)
    lengths = np.minimum(longest, 3 + random.geometric(0.12, groups))
    letters = random.integers(97, 123, (groups, longest), dtype=np.uint8)
    texts = [bytes(row[:n]).decode() for row, n in zip(letters, lengths, strict=True)]
    names = cudf.Series([f"{text}{i}" for i, text in enumerate(texts)])
    return {"k0": _choice_of(names, rows, rng)}


def _uuids(groups: int, rows: int, rng: Any) -> Columns:
    import uuid

    import cudf
    import numpy as np

    random = np.random.default_rng(4)
    texts = [str(uuid.UUID(bytes=random.bytes(16))) for _ in range(groups)]
    return {"k0": _choice_of(cudf.Series(texts), rows, rng)}


def _text_and(dtype: str, texts: int, width: int, others: int) -> Keys:
    return _beside(partial(grouped, f"str{width}", texts, 0.0), _number(dtype, others))


def _number(dtype: str, size: int) -> Keys:
    return partial(_uniform, (dtype,), (size,))


def _texts(kind: str, groups: int, zipf: float = 0.0) -> Keys:
    return partial(_of_texts, kind, groups, zipf)


def _of_texts(kind: str, groups: int, zipf: float, rows: int, rng: Any) -> Columns:
    """Texts by their numbers, uniform or by Zipf's law."""
    import cudf

    texts = cudf.Series(list(map(TEXTS[kind], range(groups))))
    if not zipf:
        return {"k0": _choice_of(texts, rows, rng)}
    # the law scatters its heavy keys over twice as many numbers
    codes = numbers(rows, groups, zipf, rng) % groups
    return {"k0": texts.take(codes).reset_index(drop=True)}


def _beside(texts: Keys, others: Keys) -> Keys:
    return partial(_of_two, texts, others)


def _of_two(texts: Keys, others: Keys, rows: int, rng: Any) -> Columns:
    """Keys of two columns, each drawn by itself."""
    (first,), (second,) = texts(rows, rng).values(), others(rows, rng).values()
    return {"k0": first, "k1": second}


def _spread(i: int) -> int:
    """A number of up to seven digits that looks random."""
    return i * 7919 % 9_999_991


TEXTS: dict[str, Text] = {
    "mail": lambda i: f"user{_spread(i)}.{'x' * (i % 9)}@mail{i % 37}.example.com",
    "url": lambda i: (
        f"https://shop.example.org/{'abcdefghij'[i % 10] * (i % 40)}/item/{_spread(i)}"
    ),
    "address": lambda i: f"{_spread(i) % 223}.{_spread(i) // 223 % 251}.{i % 255}.{i // 255 % 255}",
    "name": lambda i: f"NATION {'Q' * (i % 11)}{i}",
    "page": lambda i: f"{TEXTS['url'](i)}?ref={'campaign' * (i % 12)}{i}",
}


def _categories(sizes: Sequence[int], rows: int, rng: Any) -> Columns:
    import cudf
    import cupy as cp

    columns = {}
    for i, size in enumerate(sizes):
        names = ("category " + cudf.Series(cp.arange(size)).astype("str")).astype("category")
        columns[f"k{i}"] = _choice_of(names, rows, rng)
    return columns


def _mixed(categories: int, rows: int, rng: Any) -> Columns:
    return {
        "k0": rng.random(rows) < 0.5,
        "k1": rng.integers(0, 7, rows, dtype="int64").astype("int8"),
        "k2": _categories([categories], rows, rng)["k0"],
    }


def _numbered(make: Callable[..., Columns], *groups: int) -> dict[str, Keys]:
    """Members of a family that are named by their groups."""
    names = [f"{n // 10**6}M" if n >= 10**6 else f"{n:,}" for n in groups]
    return {name: partial(make, n) for name, n in zip(names, groups, strict=True)}


def _random(groups: int, rows: int, rng: Any) -> Columns:
    return grouped("random", groups, 0.0, rows, rng)


# Families of keys and their members; every second member is left out of all tuning.
FAMILIES: dict[str, dict[str, Keys]] = {
    "nearly unique, several integers": {
        "six": partial(_uniform, ("int32",) * 6, (100, 100, 10**5, 100, 100, 10**5)),
        "five of 64 bits": partial(_uniform, ("int64",) * 5, (200, 10**6, 50, 10**6, 300)),
        "four of 64 bits": partial(_uniform, ("int64",) * 4, (10**9,) * 4),
        "three": partial(_uniform, ("int64", "int32", "int32"), (10**9, 10**6, 1000)),
    },
    "two integers, ordered by the first": {
        "1,500 x 1,000": partial(_ordered, ("int64", "int64"), 1500, 1000),
        "365 x 200": partial(_ordered, ("int32", "int16"), 365, 200),
        "100,000 x 24": partial(_ordered, ("int64", "int32"), 100_000, 24),
        "20 x 100,000": partial(_ordered, ("int32", "int64"), 20, 100_000),
    },
    "string beside a number": {
        "10 bytes, int64": _text_and("int64", 1000, 10, 1000),
        "4 bytes, int32": _text_and("int32", 300, 4, 50),
        "20 bytes, int64": _text_and("int64", 10_000, 20, 12),
        "6 bytes, int16": _text_and("int16", 20_000, 6, 366),
    },
    "strings of uneven length": {
        "200": partial(_uneven, 200, 30),
        "20,000": partial(_uneven, 20_000, 30),
        "1,000, up to 60": partial(_uneven, 1000, 60),
        "50, up to 16": partial(_uneven, 50, 16),
        "300,000": partial(_uneven, 300_000, 40),
        "5,000, up to 20": partial(_uneven, 5000, 20),
    },
    "uuid strings": _numbered(_uuids, 1_000_000, 100_000, 3000, 300_000),
    "mails, urls, addresses": {
        "2M mails": _texts("mail", 2_000_000),
        "30,000 urls": _texts("url", 30_000),
        "100,000 urls": _texts("url", 100_000),
        "5M mails": _texts("mail", 5_000_000),
        "500,000 addresses, Zipf 0.8": _texts("address", 500_000, 0.8),
        "200,000 mails, Zipf 0.6": _texts("mail", 200_000, 0.6),
    },
    "few texts, and long ones": {
        "25 nations": _texts("name", 25),
        "400 names, Zipf 1": _texts("name", 400, 1.0),
        "50,000 pages of up to 200 bytes": _texts("page", 50_000),
        "2,000 pages of up to 200 bytes": _texts("page", 2000),
    },
    "text beside another key": {
        "25 nations, 7 years": _beside(_texts("name", 25), _number("int32", 7)),
        "60 names, 40 urls": _beside(_texts("name", 60), _texts("url", 40)),
        "200 names, 50 mails": _beside(_texts("name", 200), _texts("mail", 50)),
        "100,000 mails, 20 numbers": _beside(_texts("mail", 100_000), _number("int64", 20)),
    },
    "categories": {
        "bool, int8, 10 categories": partial(_mixed, 10),
        "one of 50": partial(_categories, [50]),
        "one of 5,000": partial(_categories, [5000]),
        "20 by 30": partial(_categories, [20, 30]),
    },
    "floats": {
        "float64, 100,000": partial(_changed, 100_000, lambda k: (k / 100).astype("float64")),
        "float32, 2,000": partial(_changed, 2000, lambda k: (k / 100).astype("float32")),
        "float64, 300": partial(_changed, 300, lambda k: (k / 100).astype("float64")),
        "float64, 2M": partial(_changed, 2_000_000, lambda k: (k / 100).astype("float64")),
    },
    "Zipf": {
        "0.9 of 1M": partial(grouped, "int64", 1_000_000, 0.9),
        "0.8 of 300,000": partial(grouped, "int64", 300_000, 0.8),
        "1.1 of 100,000": partial(grouped, "int64", 100_000, 1.1),
        "1.2 of 3M": partial(grouped, "int64", 3_000_000, 1.2),
    },
    "strided": {
        "10,000 by 2^20": partial(_changed, 10_000, lambda k: k * 2**20),
        "50,000 by 1,000": partial(_changed, 50_000, lambda k: k * 1000),
        "500,000 by 2^32": partial(_changed, 500_000, lambda k: k * 2**32),
        "2,000 by 10^9": partial(_changed, 2000, lambda k: k * 10**9),
    },
    "random words": _numbered(_random, 5000, 300, 3_000_000, 100_000),
    "times": {
        "a week of seconds": partial(_times, 7 * 86_400, "ns"),
        "an hour of seconds": partial(_times, 3600, "s"),
    },
    "integers with nulls": _numbered(_with_nulls, 1000, 200_000, 5_000_000, 30),
    "nunique and median": {
        "10,000": _number("int64", 10_000),
        "500": _number("int32", 500),
        "40,000 random words": partial(_random, 40_000),
        "20 categories": partial(_categories, [20]),
        "200 names": _texts("name", 200),
    },
}
# Rows, keys and the query of frames that are small: their time is mostly the host's.
SMALL: dict[str, tuple[int, Keys, str]] = {
    "1,000 groups": (100_000, _number("int64", 1000), "five"),
    "7 texts": (1_000_000, _texts("name", 7), "mean and count"),
    "50 by 50 texts": (
        3_000_000,
        _beside(_texts("name", 50), _texts("url", 50)),
        "sum",
    ),
    "100,000 groups": (5_000_000, _number("int64", 100_000), "five"),
    "20,000 groups": (300_000, _number("int32", 20_000), "sum"),
    "300 addresses": (500_000, _texts("address", 300), "five"),
}
