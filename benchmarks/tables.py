"""Any key, any table: the device engine against cuDF's group-by, DataFrames in and out.

``python -m benchmarks.tables --rows 5e7`` alternates both arms in one process on one RMM pool.
Its inputs are families of keys as users have them; of each family some members were used for
tuning (``tuned``), and the summary is of the others. ``--fill i/n`` runs the i-th of n parts of
the cells once, so that n processes side by side compile their kernels into the cache.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.grid import numbers
from benchmarks.kernels import engine_arm, prepare, prepare_to_fill, report_head, timed
from benchmarks.report import write

QUERIES: dict[str, dict[str, list[str]]] = {
    "sum": {"v": ["sum"]},
    "five": {"v": ["sum", "count", "min", "max"], "w": ["mean"]},
    "ten": {c: ["sum", "count", "min", "max", "mean"] for c in "vx"},
    "nunique": {"x": ["nunique"]},
    "median": {"v": ["median"]},
}
PLAIN = ("sum", "five", "ten")
WHOLE = ("nunique", "median")

Columns = dict[str, Any]


@dataclass(frozen=True)
class Member:
    """One input: a family of keys, what is special about this one, and how its keys are made.

    Attributes
    ----------
    family, name : str
    keys : callable
        Takes rows and a random generator, returns the key columns.
    tuned : bool
        Whether it may be used for tuning.
    queries : sequence of str
    """

    family: str
    name: str
    keys: Callable[[int, Any], Columns]
    tuned: bool
    queries: Sequence[str] = PLAIN


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


def _zipf(groups: int, exponent: float, rows: int, rng: Any) -> Columns:
    return {"k0": numbers(rows, groups, exponent, rng)}


def _strided(groups: int, stride: int, rows: int, rng: Any) -> Columns:
    return {"k0": rng.integers(0, groups, rows, dtype="int64") * stride}


def _random_words(groups: int, rows: int, rng: Any) -> Columns:
    bits = rng.integers(-(2**63), 2**63 - 1, groups, dtype="int64")
    return {"k0": bits[rng.integers(0, groups, rows, dtype="int64")]}


def _floats(groups: int, dtype: str, rows: int, rng: Any) -> Columns:
    return {"k0": (rng.integers(0, groups, rows, dtype="int64") / 100).astype(dtype)}


def _with_nulls(groups: int, rows: int, rng: Any) -> Columns:
    import cudf

    keys = cudf.Series(rng.integers(0, groups, rows, dtype="int64"))
    return {"k0": keys.mask(cudf.Series(rng.random(rows) < 0.1))}


def _times(groups: int, unit: str, rows: int, rng: Any) -> Columns:
    import cudf

    keys = cudf.Series(rng.integers(0, groups, rows, dtype="int64") + 19_000 * 86_400)
    return {"k0": keys.astype(f"datetime64[{unit}]")}


def _drawn(texts: Any, rows: int, rng: Any) -> Any:
    codes = rng.integers(0, len(texts), rows, dtype="int32")
    return texts.take(codes).reset_index(drop=True)


def _names(groups: int, longest: int) -> Any:
    """As many texts whose lengths lie between 3 and ``longest``, most of them short."""
    import cudf
    import numpy as np

    rng = np.random.default_rng(3)
    lengths = np.minimum(longest, 3 + rng.geometric(0.12, groups))
    letters = rng.integers(97, 123, (groups, longest), dtype=np.uint8)
    rows = [bytes(row[:n]).decode() for row, n in zip(letters, lengths, strict=True)]
    return cudf.Series([f"{text}{i}" for i, text in enumerate(rows)])


def _uneven(groups: int, longest: int, rows: int, rng: Any) -> Columns:
    return {"k0": _drawn(_names(groups, longest), rows, rng)}


def _uuids(groups: int, rows: int, rng: Any) -> Columns:
    import uuid

    import cudf
    import numpy as np

    drawn = np.random.default_rng(4)
    return {
        "k0": _drawn(
            cudf.Series([str(uuid.UUID(bytes=drawn.bytes(16))) for _ in range(groups)]), rows, rng
        )
    }


def _text_and(dtype: str, texts: int, width: int, others: int, rows: int, rng: Any) -> Columns:
    import cudf
    import cupy as cp

    names = cudf.Series(cp.arange(texts)).astype("str").str.zfill(width)
    return {
        "k0": _drawn(names, rows, rng),
        "k1": rng.integers(0, others, rows, dtype="int64").astype(dtype),
    }


def _categories(sizes: Sequence[int], rows: int, rng: Any) -> Columns:
    import cudf
    import cupy as cp

    columns = {}
    for i, size in enumerate(sizes):
        names = ("category " + cudf.Series(cp.arange(size)).astype("str")).astype("category")
        columns[f"k{i}"] = _drawn(names, rows, rng)
    return columns


def _mixed(categories: int, rows: int, rng: Any) -> Columns:
    return {
        "k0": rng.random(rows) < 0.5,
        "k1": rng.integers(0, 7, rows, dtype="int64").astype("int8"),
        "k2": _categories([categories], rows, rng)["k0"],
    }


def members() -> Iterator[Member]:
    """All inputs."""

    def made(family: str, *each: tuple[str, Callable[..., Any]], **more: Any) -> Iterator[Member]:
        # every second one is left out of tuning
        for number, (name, keys) in enumerate(each):
            yield Member(family, name, keys, number % 2 == 0, **more)

    yield from made(
        "nearly unique, several integers",
        ("six", partial(_uniform, ("int32",) * 6, (100, 100, 10**5, 100, 100, 10**5))),
        ("five of 64 bits", partial(_uniform, ("int64",) * 5, (200, 10**6, 50, 10**6, 300))),
        ("four of 64 bits", partial(_uniform, ("int64",) * 4, (10**9,) * 4)),
        ("three", partial(_uniform, ("int64", "int32", "int32"), (10**9, 10**6, 1000))),
    )
    yield from made(
        "two integers, ordered by the first",
        ("1,500 x 1,000", partial(_ordered, ("int64", "int64"), 1500, 1000)),
        ("365 x 200", partial(_ordered, ("int32", "int16"), 365, 200)),
        ("100,000 x 24", partial(_ordered, ("int64", "int32"), 100_000, 24)),
        ("20 x 100,000", partial(_ordered, ("int32", "int64"), 20, 100_000)),
    )
    yield from made(
        "string beside a number",
        ("10 bytes, int64", partial(_text_and, "int64", 1000, 10, 1000)),
        ("4 bytes, int32", partial(_text_and, "int32", 300, 4, 50)),
        ("20 bytes, int64", partial(_text_and, "int64", 10_000, 20, 12)),
        ("6 bytes, int16", partial(_text_and, "int16", 20_000, 6, 366)),
    )
    yield from made(
        "strings of uneven length",
        ("200", partial(_uneven, 200, 30)),
        ("20,000", partial(_uneven, 20_000, 30)),
        ("1,000, up to 60", partial(_uneven, 1000, 60)),
        ("50, up to 16", partial(_uneven, 50, 16)),
        ("300,000", partial(_uneven, 300_000, 40)),
        ("5,000, up to 20", partial(_uneven, 5000, 20)),
    )
    yield from made(
        "uuid strings",
        ("1M", partial(_uuids, 1_000_000)),
        ("100,000", partial(_uuids, 100_000)),
        ("3,000", partial(_uuids, 3000)),
        ("300,000", partial(_uuids, 300_000)),
    )
    yield from made(
        "categories",
        ("bool, int8, 10 categories", partial(_mixed, 10)),
        ("one of 50", partial(_categories, [50])),
        ("one of 5,000", partial(_categories, [5000])),
        ("20 by 30", partial(_categories, [20, 30])),
    )
    yield from made(
        "floats",
        ("float64, 100,000", partial(_floats, 100_000, "float64")),
        ("float32, 2,000", partial(_floats, 2000, "float32")),
        ("float64, 300", partial(_floats, 300, "float64")),
        ("float64, 2M", partial(_floats, 2_000_000, "float64")),
    )
    yield from made(
        "Zipf",
        ("0.9 of 1M", partial(_zipf, 1_000_000, 0.9)),
        ("0.8 of 300,000", partial(_zipf, 300_000, 0.8)),
        ("1.1 of 100,000", partial(_zipf, 100_000, 1.1)),
        ("1.2 of 3M", partial(_zipf, 3_000_000, 1.2)),
    )
    yield from made(
        "strided",
        ("10,000 by 2^20", partial(_strided, 10_000, 2**20)),
        ("50,000 by 1,000", partial(_strided, 50_000, 1000)),
        ("500,000 by 2^32", partial(_strided, 500_000, 2**32)),
        ("2,000 by 10^9", partial(_strided, 2000, 10**9)),
    )
    yield from made(
        "random words",
        ("5,000", partial(_random_words, 5000)),
        ("300", partial(_random_words, 300)),
        ("3M", partial(_random_words, 3_000_000)),
        ("100,000", partial(_random_words, 100_000)),
    )
    yield from made(
        "times",
        ("a week of seconds", partial(_times, 7 * 86_400, "ns")),
        ("an hour of seconds", partial(_times, 3600, "s")),
    )
    yield from made(
        "integers with nulls",
        ("1,000", partial(_with_nulls, 1000)),
        ("200,000", partial(_with_nulls, 200_000)),
        ("5M", partial(_with_nulls, 5_000_000)),
        ("30", partial(_with_nulls, 30)),
    )
    yield from made(
        "nunique and median",
        ("10,000", partial(_uniform, ("int64",), (10_000,))),
        ("500", partial(_uniform, ("int32",), (500,))),
        ("40,000 random words", partial(_random_words, 40_000)),
        ("20 categories", partial(_categories, [20])),
        queries=WHOLE,
    )


def frame_of(member: Member, rows: int) -> Any:
    """The input of a member."""
    import cudf
    import cupy as cp

    rng = cp.random.default_rng(1)
    values = {
        "v": rng.random(rows),
        "w": rng.random(rows, dtype="float32"),
        "x": rng.integers(-1000, 1000, rows, dtype="int64"),
    }
    return cudf.DataFrame(member.keys(rows, rng) | values)


def arms(frame: Any, query: str) -> dict[str, Callable[[], Any]]:
    """Ours and cuDF's."""
    keys = [label for label in frame.columns if label[0] == "k"]
    spec = QUERIES[query]

    def cudf() -> Any:
        return frame.groupby(keys, observed=True).agg(spec)

    return {"ours": engine_arm(frame, spec, keys), "cudf": cudf}


def measured(member: Member, query: str, frame: Any, repeats: int) -> dict[str, Any]:
    """Medians and their ratio, the decision, and whether the groups are as many."""
    from dask_gpuagg import last_runs

    calls = arms(frame, query)
    groups = {name: len(call()) for name, call in calls.items()}
    if groups["ours"] != groups["cudf"]:
        raise AssertionError(f"{member.family}, {member.name}, {query}: groups {groups}")
    times = timed(calls, repeats)
    run = last_runs()[-1]
    median = {name: statistics.median(t) for name, t in times.items()}
    return {
        "family": member.family,
        "member": member.name,
        "query": query,
        "tuned": member.tuned,
        "groups": groups["ours"],
        "kernel": run.decision.kernel,
        "why": run.decision.why,
        "call_ms": run.seconds * 1e3,
        "median_ms": median,
        "ratio": median["cudf"] / median["ours"],
    }


def summary(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means and least ratios: of members left out of tuning, of all, and by family."""

    def of(chosen: list[float]) -> dict[str, float]:
        return {"geometric_mean": statistics.geometric_mean(chosen), "least": min(chosen)}

    families: dict[str, Any] = {}
    for cell in cells:
        families.setdefault(f"{cell['family']}: {cell['query']}", []).append(cell["ratio"])
    unseen = [cell["ratio"] for cell in cells if not cell["tuned"]]
    return {
        "unseen": of(unseen) if unseen else {},
        "all": of([cell["ratio"] for cell in cells]),
        "families": {name: of(ratios) for name, ratios in families.items()},
    }


def main() -> None:
    """Run the cells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=5e7)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--families", help="only families whose name contains this")
    parser.add_argument("--fill", help="i/n: run the i-th of n parts once, and measure nothing")
    parser.add_argument("--commit", help="where the tree is no git checkout")
    parser.add_argument("--out", type=Path, default=Path("tables.json"))
    args = parser.parse_args()
    chosen = [m for m in members() if not args.families or args.families in m.family]
    rows = int(args.rows)
    if args.fill:
        prepare_to_fill()
        part, parts = map(int, args.fill.split("/"))
        for member in chosen[part::parts]:
            frame = frame_of(member, rows)
            for query in member.queries:
                arms(frame, query)["ours"]()
        return
    prepare()
    cells: list[dict[str, Any]] = []
    for member in chosen:
        frame = frame_of(member, rows)
        for query in member.queries:
            cell = measured(member, query, frame, args.repeats)
            cells.append(cell)
            ours, cudf = cell["median_ms"].values()
            print(
                f"{member.family:>34} {member.name:>26} {query:>7} {cell['groups']:>10,} "
                f"{cell['kernel']:>10} {ours:8.2f} {cudf:8.2f} {cell['ratio']:6.2f} "
                f"call {cell['call_ms']:.2f}",
                flush=True,
            )
            head = report_head(args.commit) | {"rows": rows, "summary": summary(cells)}
            write(head | {"cells": cells}, args.out)
        del frame
    unseen = summary(cells)["unseen"]
    ratios = [math.log(cell["ratio"]) for cell in cells]
    print(f"geometric mean {math.exp(statistics.fmean(ratios)):.2f}, unseen {unseen}")


if __name__ == "__main__":
    main()
