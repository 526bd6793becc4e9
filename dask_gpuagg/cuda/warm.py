"""Compile the common shapes of queries into the kernel cache: ``dask-gpuagg warm``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from dask_gpuagg.cuda.algorithms.select import Selecting
from dask_gpuagg.cuda.algorithms.sgb import Sorting
from dask_gpuagg.cuda.dictionary import units_of_dictionary
from dask_gpuagg.cuda.keys.words import representations_of
from dask_gpuagg.cuda.query.common import AGGREGATIONS, KEYS, WHOLE, common
from dask_gpuagg.cuda.query.instantiations import TranslationUnit, first_units
from dask_gpuagg.cuda.runtime import driver
from dask_gpuagg.cuda.runtime.compiler import (
    CompileError,
    cubins,
    is_cached,
    supported_architectures,
)
from dask_gpuagg.cuda.runtime.disk_cache import cache_directory

# Units that number the rows' groups, for outputs of whole groups.
_NUMBERING = ("encode", "scan", "range")


def main(arguments: Sequence[str]) -> int:
    """The command line.

    Parameters
    ----------
    arguments : sequence of str
        What follows ``dask-gpuagg warm``.

    Returns
    -------
    int
        Exit status: 1 where nothing can be compiled or kept, or a unit failed.
    """
    parser = argparse.ArgumentParser(
        prog="dask-gpuagg warm",
        description="Compile the kernels of common queries into the kernel cache: "
        f"{', '.join(AGGREGATIONS)}, {WHOLE}, by {', '.join(KEYS)}, and merges of their partials.",
    )
    parser.add_argument(
        "--architecture",
        action="append",
        metavar="sm_90",
        help="for this one, which needs no GPU; may be repeated; default: the GPU that is here",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="also the kernels for many groups, which takes much longer",
    )
    options = parser.parse_args(arguments)
    try:
        known = supported_architectures()
    except CompileError as error:
        return _failed(str(error))
    architectures = options.architecture or _present()
    if not architectures:
        return _failed(f"{driver.unavailable()}; name an --architecture")
    for architecture in architectures:
        if architecture not in known:
            return _failed(f"NVRTC compiles for {', '.join(known)}, not for {architecture}")
    directory = cache_directory()
    if directory is None:
        return _failed("no kernel cache to keep anything in")
    print(f"kernels for {', '.join(architectures)}, kept in {directory}")
    return max(warm(architecture, options.all) for architecture in architectures)


def warm(architecture: str, everything: bool = False) -> int:
    """Compile what is not in the cache, and print what was done.

    Parameters
    ----------
    architecture : str
    everything : bool
        Whether kernels for many groups are compiled too.

    Returns
    -------
    int
        1 if a unit failed.
    """
    failures = 0
    started = time.perf_counter()
    work = {f"by {keys}": list(units_of(keys, everything)) for keys in KEYS}
    work["sorting and selecting"] = _of_values()
    for name, units in work.items():
        begun = time.perf_counter()
        missing = [unit for unit in units if not is_cached(unit, architecture)]
        made = cubins([(unit, architecture) for unit in missing])
        errors = [one for one in made if isinstance(one, CompileError)]
        took = time.perf_counter() - begun
        print(
            f"{architecture}, {name}: {len(missing) - len(errors)} units compiled in {took:.1f} s, "
            f"{len(units) - len(missing)} were there"
        )
        for error in errors:
            _failed(str(error))
        failures += len(errors)
    print(f"{architecture}: {time.perf_counter() - started:.1f} s in all")
    return min(failures, 1)


def units_of(keys: str, everything: bool) -> Iterator[TranslationUnit]:
    """The translation units of the common queries by a key, each once."""
    seen = set()
    for asked, of_rows in common(keys):
        wanted = units_of_dictionary(asked, everything) if of_rows and asked.outputs else []
        for query in representations_of(asked):
            likely = first_units(query.units, of_rows, everything)
            if not query.outputs:
                likely += tuple(unit for unit in _NUMBERING if unit in query.units)
            wanted.append((query, query.units if everything else likely))
        for query, units in wanted:
            for unit in units:
                source = query.source(unit)
                text = (source.source, *source.kernels.values())
                if text not in seen:
                    seen.add(text)
                    yield source


def _of_values() -> list[TranslationUnit]:
    return [Sorting().source(), Selecting("f64").source()]


def _present() -> list[str]:
    return [] if driver.unavailable() else [driver.current_device().architecture]


def _failed(reason: str) -> int:
    print(f"dask-gpuagg warm: {reason}", file=sys.stderr)
    return 1
