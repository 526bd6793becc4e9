"""The group-by data of db-benchmark, drawn with NumPy, in memory or as Parquet.

The columns and their ranges are those of db-benchmark's ``groupby-datagen.R``
(https://github.com/duckdblabs/db-benchmark); the random numbers are not R's, so that suite's
published checksums do not apply. One column is ours: ``skew``, an integer key whose frequencies
follow a bounded Zipf law, because every key of db-benchmark is uniform.

Rows come in blocks of fixed size with a generator seeded per block and column. The data therefore
depend on the parameters alone, never on how many partitions they are cut into, and any range of
rows can be made without the rows before it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

BLOCK_ROWS = 1_000_000
"""Rows drawn from one seed; part of the definition of the data, so not an option."""

GENERATOR_VERSION = 1
"""In the name of every cached folder: raise it when the data of equal parameters change."""

SEED, ZIPF = 108, 1.1
STRING_KEYS = {"id1": "id%03d", "id2": "id%03d", "id3": "id%010d"}
INTEGER_KEYS = ("id4", "id5", "id6")
INTEGER_VALUES = {"v1": 5, "v2": 15}
_STREAMS = (*STRING_KEYS, *INTEGER_KEYS, *INTEGER_VALUES, "v3", "skew")


@dataclass(frozen=True, slots=True)
class Parameters:
    """What determines the data: db-benchmark's N and K.

    K are the distinct values of ``id1 id2 id4 id5``; ``id3 id6`` and at most ``skew`` have N/K.
    """

    rows: int
    groups: int = 100

    @property
    def name(self) -> str:
        """db-benchmark's name of the data set, such as ``G1_1e7_1e2_0_0``."""
        return f"G1_{_short(self.rows)}_{_short(self.groups)}_0_0"

    def cardinality(self, column: str) -> int:
        """How many distinct values a key column is drawn from."""
        few = column not in ("id3", "id6", "skew")
        return self.groups if few else max(self.rows // self.groups, 1)


def _short(number: int) -> str:
    """Return 10000000 as ``1e7`` and 25000 as ``25000``."""
    digits = str(number)
    head = digits.rstrip("0")
    return f"{head}e{len(digits) - 1}" if len(head) == 1 else digits


class _Blocks:
    """Blocks of rows, and what they share: the strings, the Zipf distribution."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.words = {
            column: pa.array(
                [pattern % number for number in range(1, parameters.cardinality(column) + 1)],
                type=pa.large_string(),
            )
            for column, pattern in STRING_KEYS.items()
        }
        ranks = np.arange(1, parameters.cardinality("skew") + 1, dtype=np.float64)
        weight = np.cumsum(ranks**-ZIPF)
        self.skew_steps = weight / weight[-1]

    def block(self, number: int) -> pd.DataFrame:
        """Return one block of rows; every column has a generator of its own."""
        rows = min(BLOCK_ROWS, self.parameters.rows - number * BLOCK_ROWS)
        return pd.DataFrame(
            {
                column: self._column(column, rows, np.random.default_rng([SEED, number, stream]))
                for stream, column in enumerate(_STREAMS)
            }
        )

    def _column(self, column: str, rows: int, rng: np.random.Generator) -> Any:
        if column in INTEGER_VALUES:
            return rng.integers(1, INTEGER_VALUES[column], rows, endpoint=True)
        if column == "v3":
            return np.round(rng.random(rows) * 100, 6)
        if column == "skew":
            return np.searchsorted(self.skew_steps, rng.random(rows)) + 1
        codes = rng.integers(0, self.parameters.cardinality(column), rows)
        if column in INTEGER_KEYS:
            return codes + 1
        # A take from the distinct strings: the rows never exist as Python objects.
        return self.words[column].take(pa.array(codes)).to_pandas()


def partitions(parameters: Parameters, count: int) -> Iterator[pd.DataFrame]:
    """Yield the data set in ``count`` consecutive parts whose lengths differ by at most one.

    No more than one part and one block are held at a time.
    """
    bounds = [number * parameters.rows // count for number in range(count + 1)]
    blocks = _Blocks(parameters)
    held, number = blocks.block(0), 0
    for start, stop in itertools.pairwise(bounds):
        pieces = []
        position = start
        while position < stop:
            if position // BLOCK_ROWS != number:
                number = position // BLOCK_ROWS
                held = blocks.block(number)
            first = position - number * BLOCK_ROWS
            last = min(stop - number * BLOCK_ROWS, BLOCK_ROWS)
            pieces.append(held.iloc[first:last])
            position += last - first
        part = pd.concat(pieces) if pieces else held.iloc[:0]
        yield part.set_axis(pd.RangeIndex(start, stop), axis=0)


def write_parquet(parameters: Parameters, count: int, cache: Path) -> Path:
    """Write the data set once, one Parquet file per partition, and return its folder.

    A folder that is there is complete: it is written under another name and moved into place.
    """
    name = f"{parameters.name}_seed{SEED}_zipf{ZIPF:g}_p{count}_g{GENERATOR_VERSION}"
    folder = cache / name
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    (cache / ".gitignore").write_text("*\n")
    unfinished = cache / f".{folder.name}.{os.getpid()}"
    unfinished.mkdir()
    try:
        for number, part in enumerate(partitions(parameters, count)):
            part.to_parquet(unfinished / f"part-{number:05d}.parquet", index=False)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that make up :class:`Parameters`, and where and how data are stored."""
    parser.add_argument("--rows", type=_count, default=10_000_000, help="N; 1e7 is understood")
    parser.add_argument("--groups", type=_count, default=100, help="K")
    parser.add_argument("--partitions", type=_count, default=16)
    parser.add_argument("--data", type=Path, default=Path("data"), help="where Parquet is kept")


def _count(text: str) -> int:
    value = float(text)
    if value < 1 or not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(value)
