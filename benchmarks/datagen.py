"""The group-by data of db-benchmark, drawn with NumPy, in memory or as Parquet.

The columns and their ranges are those of db-benchmark's ``groupby-datagen.R``
(https://github.com/duckdblabs/db-benchmark); the random numbers are not R's, so that suite's
published checksums do not apply.

Every file and column has a generator with a seed of its own.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from benchmarks.machine import number
from benchmarks.report import whole

GENERATOR_VERSION = 3
"""In the name of every cached folder: raise it when the data of equal parameters change."""

SEED = 108
STRING_KEYS = {"id1": "id%03d", "id2": "id%03d", "id3": "id%010d"}
INTEGER_KEYS = ("id4", "id5", "id6")
INTEGER_VALUES = {"v1": 5, "v2": 15}
_STREAMS = (*STRING_KEYS, *INTEGER_KEYS, *INTEGER_VALUES, "v3")


@dataclass(frozen=True, slots=True)
class Parameters:
    """What determines the data: db-benchmark's N and K.

    K are the distinct values of ``id1 id2 id4 id5``; ``id3 id6`` have N/K.
    """

    rows: int
    groups: int = 100

    def cardinality(self, column: str) -> int:
        """How many distinct values a key column is drawn from."""
        return self.groups if column not in ("id3", "id6") else max(self.rows // self.groups, 1)


def draw(parameters: Parameters, number: int, count: int) -> pd.DataFrame:
    """Draw one of ``count`` files, whose rows are consecutive."""
    start, stop = (n * parameters.rows // count for n in (number, number + 1))
    columns = {
        column: _column(parameters, column, stop - start, [SEED, number, stream])
        for stream, column in enumerate(_STREAMS)
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(start, stop))


def _column(parameters: Parameters, column: str, rows: int, seed: list[int]) -> Any:
    rng, cardinality = np.random.default_rng(seed), parameters.cardinality(column)
    if column in INTEGER_VALUES:
        return rng.integers(1, INTEGER_VALUES[column], rows, endpoint=True)
    if column == "v3":
        return np.round(rng.random(rows) * 100, 6)
    codes = rng.integers(0, cardinality, rows)
    if column in INTEGER_KEYS:
        return codes + 1
    words = [STRING_KEYS[column] % number for number in range(1, cardinality + 1)]
    # A take from the distinct strings: the rows never exist as Python objects.
    return pa.array(words, pa.large_string()).take(pa.array(codes)).to_pandas()


def write_parquet(parameters: Parameters, count: int, cache: Path) -> Path:
    """Write the data set once, one Parquet file per partition, and return its folder."""
    name = f"db-benchmark-{parameters.rows}-{parameters.groups}-{count}-{GENERATOR_VERSION}"
    folder = cache / name
    if not folder.exists():
        with whole(folder) as unfinished:
            (cache / ".gitignore").write_text("*\n")
            for number in range(count):
                part = draw(parameters, number, count)
                part.to_parquet(unfinished / f"part-{number:05d}.parquet", index=False)
    return folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that make up :class:`Parameters`, and where and how data are stored."""
    parser.add_argument("--rows", type=number, default=10_000_000, help="N; 1e7 is understood")
    parser.add_argument("--groups", type=number, default=100, help="K")
    parser.add_argument("--partitions", type=number, default=16)
    parser.add_argument("--data", type=Path, default=Path("data"), help="where Parquet is kept")
