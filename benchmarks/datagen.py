"""The group-by data of db-benchmark, drawn with NumPy, in memory or as Parquet.

The columns, their ranges and the two rules for missing values are those of db-benchmark's
``groupby-datagen.R`` (https://github.com/duckdblabs/db-benchmark); the random numbers are not R's,
so that suite's published checksums do not apply. One column is ours: ``skew``, an integer key
whose frequencies follow a bounded Zipf law, because every key of db-benchmark is uniform.

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
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

BLOCK_ROWS = 1_000_000
"""Rows drawn from one seed; part of the definition of the data, so not an option."""

GENERATOR_VERSION = 1
"""In the name of every cached folder: raise it when the data of equal parameters change."""

STRING_KEYS = ("id1", "id2", "id3")
INTEGER_KEYS = ("id4", "id5", "id6")
INTEGER_VALUES = {"v1": 5, "v2": 15}

_STREAMS = ("id1", "id2", "id3", "id4", "id5", "id6", "v1", "v2", "v3", "skew")
_NULL_STREAM = 1000


@dataclass(frozen=True, slots=True)
class Parameters:
    """What determines the data.

    Parameters
    ----------
    rows : int
        Number of rows, db-benchmark's N.
    groups : int
        db-benchmark's K: distinct values of ``id1 id2 id4 id5``; ``id3 id6`` have ``rows / K``.
    nas : int
        Per cent of missing values, 0 to 100. Of each key column that share of the *distinct
        values* is missing wherever it occurs; of each value column that share of the rows.
    sort : bool
        Whether the rows are sorted by ``id1`` to ``id6`` (missing keys last).
    seed : int
        Seed of everything random.
    zipf : float
        Exponent of the frequencies of the ``skew`` column; 0 leaves the column out.
    """

    rows: int
    groups: int = 100
    nas: int = 0
    sort: bool = False
    seed: int = 108
    zipf: float = 1.1

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        if self.rows < 1 or self.groups < 1:
            raise ValueError(f"rows and groups must be positive, not {self.rows}, {self.groups}")
        if not 0 <= self.nas <= 100:
            raise ValueError(f"nas is a percentage, not {self.nas}")
        if self.zipf < 0:
            raise ValueError(f"zipf must not be negative, not {self.zipf}")

    @property
    def small_groups(self) -> int:
        """Distinct values of ``id3``, ``id6`` and, at most, ``skew``: N / K, at least one."""
        return max(self.rows // self.groups, 1)

    @property
    def name(self) -> str:
        """db-benchmark's name of the data set, such as ``G1_1e7_1e2_0_0``."""
        return f"G1_{_short(self.rows)}_{_short(self.groups)}_{self.nas}_{int(self.sort)}"

    def cardinality(self, column: str) -> int:
        """Return how many distinct values a key column is drawn from."""
        return self.small_groups if column in ("id3", "id6", "skew") else self.groups


def _short(number: int) -> str:
    """Return 10000000 as ``1e7`` and 25000 as ``25000``."""
    digits = str(number)
    head = digits.rstrip("0")
    return f"{head}e{len(digits) - 1}" if len(head) == 1 else digits


def _rng(parameters: Parameters, *stream: int) -> np.random.Generator:
    return np.random.default_rng([parameters.seed, *stream])


class _Columns:
    """Everything that blocks share: the strings, the missing codes, the Zipf distribution."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.words = {
            "id1": _words("id%03d", parameters.groups),
            "id2": _words("id%03d", parameters.groups),
            "id3": _words("id%010d", parameters.small_groups),
        }
        self.null_codes = {
            column: self._draw_null_codes(column) for column in STRING_KEYS + INTEGER_KEYS
        }
        self.skew_steps: npt.NDArray[np.float64] | None = None
        if parameters.zipf > 0:
            ranks = np.arange(1, parameters.small_groups + 1, dtype=np.float64)
            weight = np.cumsum(ranks**-parameters.zipf)
            self.skew_steps = weight / weight[-1]

    def _draw_null_codes(self, column: str) -> npt.NDArray[np.bool_] | None:
        """Return, per code of a key column, whether that value is missing everywhere."""
        if not self.parameters.nas:
            return None
        distinct = self.parameters.cardinality(column)
        missing = np.zeros(distinct, dtype=np.bool_)
        rng = _rng(self.parameters, _NULL_STREAM, _STREAMS.index(column))
        count = round(distinct * self.parameters.nas / 100)
        missing[rng.choice(distinct, count, replace=False)] = True
        return missing

    def block(self, number: int) -> pd.DataFrame:
        """Return one block of rows; every column has a generator of its own."""
        rows = min(BLOCK_ROWS, self.parameters.rows - number * BLOCK_ROWS)
        columns: dict[str, Any] = {}
        for stream, column in enumerate(_STREAMS):
            rng = _rng(self.parameters, number, stream)
            if column in STRING_KEYS or column in INTEGER_KEYS:
                columns[column] = self._key(column, rng, rows)
            elif column in INTEGER_VALUES:
                values = rng.integers(1, INTEGER_VALUES[column], rows, endpoint=True)
                columns[column] = _integers(values, self._missing_rows(rng, rows))
            elif column == "v3":
                columns[column] = self._v3(rng, rows)
            elif self.skew_steps is not None:
                columns[column] = np.searchsorted(self.skew_steps, rng.random(rows)) + 1
        return pd.DataFrame(columns)

    def _key(self, column: str, rng: np.random.Generator, rows: int) -> Any:
        codes = rng.integers(0, self.parameters.cardinality(column), rows)
        null_codes = self.null_codes[column]
        missing = None if null_codes is None else null_codes[codes]
        if column in INTEGER_KEYS:
            return _integers(codes + 1, missing)
        # A take from the distinct strings: the rows never exist as Python objects.
        return self.words[column].take(pa.array(codes, mask=missing)).to_pandas()

    def _v3(self, rng: np.random.Generator, rows: int) -> npt.NDArray[np.float64]:
        values = np.round(rng.random(rows) * 100, 6)
        missing = self._missing_rows(rng, rows)
        if missing is not None:
            values[missing] = np.nan
        return values

    def _missing_rows(self, rng: np.random.Generator, rows: int) -> npt.NDArray[np.bool_] | None:
        if not self.parameters.nas:
            return None
        missing = np.zeros(rows, dtype=np.bool_)
        count = round(rows * self.parameters.nas / 100)
        missing[rng.choice(rows, count, replace=False)] = True
        return missing


def _words(pattern: str, count: int) -> pa.Array:
    return pa.array([pattern % number for number in range(1, count + 1)], type=pa.large_string())


def _integers(values: npt.NDArray[np.int64], missing: npt.NDArray[np.bool_] | None) -> Any:
    """Return plain int64, or pandas' nullable Int64 where values may be missing."""
    return values if missing is None else pd.arrays.IntegerArray(values, missing)


def generate(parameters: Parameters) -> pd.DataFrame:
    """Return the whole data set."""
    columns = _Columns(parameters)
    blocks = -(-parameters.rows // BLOCK_ROWS)
    frame = pd.concat([columns.block(number) for number in range(blocks)], ignore_index=True)
    if parameters.sort:
        frame = frame.sort_values([*STRING_KEYS, *INTEGER_KEYS], ignore_index=True)
    return frame


def partitions(parameters: Parameters, count: int) -> Iterator[pd.DataFrame]:
    """Yield the data set in ``count`` consecutive parts whose lengths differ by at most one.

    Unless the data are sorted, no more than one part and one block are held at a time.
    """
    bounds = [number * parameters.rows // count for number in range(count + 1)]
    if parameters.sort:
        whole = generate(parameters)
        for start, stop in itertools.pairwise(bounds):
            yield whole.iloc[start:stop]
        return
    columns = _Columns(parameters)
    held, number = columns.block(0), 0
    for start, stop in itertools.pairwise(bounds):
        pieces = []
        position = start
        while position < stop:
            if position // BLOCK_ROWS != number:
                number = position // BLOCK_ROWS
                held = columns.block(number)
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
    folder = cache / (
        f"{parameters.name}_seed{parameters.seed}_zipf{parameters.zipf:g}"
        f"_p{count}_g{GENERATOR_VERSION}"
    )
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
    parser.add_argument("--nas", type=int, default=0, help="per cent of missing values")
    parser.add_argument("--sort", action="store_true", help="rows sorted by id1..id6")
    parser.add_argument("--seed", type=int, default=108)
    parser.add_argument("--zipf", type=float, default=1.1, help="exponent of the skewed key")
    parser.add_argument("--partitions", type=_count, default=16)
    parser.add_argument("--data", type=Path, default=Path("data"), help="where Parquet is kept")


def from_arguments(arguments: argparse.Namespace) -> Parameters:
    """Return the parameters that the options of :func:`add_arguments` say."""
    return Parameters(
        rows=arguments.rows,
        groups=arguments.groups,
        nas=arguments.nas,
        sort=arguments.sort,
        seed=arguments.seed,
        zipf=arguments.zipf,
    )


def _count(text: str) -> int:
    value = float(text)
    if value < 1 or not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(value)


def main() -> None:
    """Write one data set and print how many files of what size it has."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.datagen", description=__doc__)
    add_arguments(parser)
    arguments = parser.parse_args()
    folder = write_parquet(from_arguments(arguments), arguments.partitions, arguments.data)
    sizes = [path.stat().st_size for path in folder.glob("*.parquet")]
    print(f"{folder}: {len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
