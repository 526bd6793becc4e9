"""Machine code of common queries that the wheel brings, so that their first call compiles nothing.

Of each architecture there is an index, and archives of code that is alike and compressed together,
to a thirtieth. ``dask-gpuagg warm --pack`` writes them.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from dask_gpuagg.cuda.runtime.driver import driver_version

FOLDER = Path(__file__).parents[2] / "cubins"


class _Index(NamedTuple):
    """The version of CUDA that a driver needs at least; archive, begin and end of each entry."""

    cuda: int
    entries: dict[str, tuple[int, int, int]]


def read(architecture: str, name_of: Callable[[str], str]) -> bytes | None:
    """Read an entry, by its name for an architecture; None where the wheel has none that runs.

    Code for the first architecture of a generation runs on all of it.
    """
    for built in dict.fromkeys((architecture, f"{architecture[:-1]}0")):
        index = _index(built)
        if index is None or index.cuda > driver_version():
            continue
        place = index.entries.get(name_of(built))
        if place is not None:
            archive, begin, end = place
            return _archive(built, archive)[begin:end]
    return None


def write(
    folder: Path, architecture: str, cuda: int, archives: Iterable[Iterable[tuple[str, bytes]]]
) -> None:
    """Write archives of named entries, and their index."""
    folder.mkdir(parents=True, exist_ok=True)
    entries: dict[str, tuple[int, int, int]] = {}
    for number, archive in enumerate(archives):
        content = bytearray()
        for name, entry in archive:
            entries[name] = (number, len(content), len(content) + len(entry))
            content += entry
        compressed = lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)
        (folder / f"{architecture}-{number}.xz").write_bytes(compressed)
    index = json.dumps(_Index(cuda, entries)._asdict())
    (folder / f"{architecture}.json").write_text(index, encoding="utf-8")


@cache
def _index(architecture: str) -> _Index | None:
    path = FOLDER / f"{architecture}.json"
    return _Index(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


@lru_cache(maxsize=2)
def _archive(architecture: str, number: int) -> bytes:
    return lzma.decompress((FOLDER / f"{architecture}-{number}.xz").read_bytes())


def forget() -> None:
    """Look for archives again."""
    _index.cache_clear()
    _archive.cache_clear()
