"""Compile the common shapes of queries into the kernel cache: ``dask-gpuagg warm``."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dask_gpuagg.cuda.keys.words import representations_of
from dask_gpuagg.cuda.query.canonical import canonical
from dask_gpuagg.cuda.query.instantiations import TranslationUnit, first_units, selecting, sorting
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KernelOutput, KernelState, KeyPart, ValuePart
from dask_gpuagg.cuda.runtime import driver
from dask_gpuagg.cuda.runtime.compiler import (
    CompileError,
    cached,
    cubin,
    pack,
    submit,
    supported_architectures,
)
from dask_gpuagg.cuda.runtime.disk_cache import cache_directory

# ---- queries that are common ---------------------------------------------------------------------

# As the device engine asks for them, of columns without nulls. They are written here because there
# may be no cuDF where they are compiled; ``tests/device/test_warm.py`` compares.

# As readers of files give them: strings have 32-bit offsets.
KEYS: dict[str, tuple[KeyPart, ...]] = {
    "int64": (KeyPart("i64", False),),
    "int32": (KeyPart("i32", False),),
    "string": (KeyPart("i32", False, string=True),),
    "two int64": (KeyPart("i64", False), KeyPart("i64", False)),
}


class _Aggregations(NamedTuple):
    """Types of inputs, states of rows with the input of each, and outputs of these states."""

    inputs: tuple[str, ...]
    states: tuple[tuple[str, int], ...]
    outputs: tuple[KernelOutput, ...]


_FLOAT_SUM = KernelOutput("Field", (0,), "f64")
_MEAN = KernelOutput("Mean", (0, 1), "f64")
_STD = KernelOutput("Spread", (2,), "f64", True, (1, 1)), KernelOutput("MomentLoss", (2,), "f64")
AGGREGATIONS = {
    "sum of float64": _Aggregations(("f64",), (("FloatSum", 0),), (_FLOAT_SUM,)),
    "sum of int64": _Aggregations(
        ("i64",), (("IntegerSum", 0),), (KernelOutput("Field", (0,), "i64"),)
    ),
    "mean of float64": _Aggregations(("f64",), (("FloatSum", 0), ("Size", 0)), (_MEAN,)),
    "mean and std of float64": _Aggregations(
        ("f64",), (("FloatSum", 0), ("Size", 0), ("Moments", 0)), (_MEAN, *_STD)
    ),
    "five": _Aggregations(
        ("f64", "f32"),
        (("FloatSum", 0), ("Size", 0), ("Min", 0), ("Max", 0), ("FloatSum", 1), ("Size", 1)),
        (
            *(_FLOAT_SUM, KernelOutput("Field", (1,), "i64")),
            *(KernelOutput("Extreme", (2,), "f64"), KernelOutput("Extreme", (3,), "f64")),
            KernelOutput("Mean", (4, 5), "f64"),
        ),
    ),
}
# Of outputs of whole groups the kernels number the groups first.
WHOLE = "median of float64"

# The state that merges partials of a state, and the outputs that are the fields of a partial.
_PARTIALS: dict[str, tuple[str, dict[str, str]]] = {
    "FloatSum": ("FloatSum", {"Field": "f64"}),
    "IntegerSum": ("IntegerSum", {"Field": "i64"}),
    "Size": ("IntegerSum", {"Field": "i64"}),
    "Min": ("Min", {"Extreme": "f64"}),
    "Max": ("Max", {"Extreme": "f64"}),
    "Moments": ("MergedMoments", {"MomentRows": "i64", "MomentMean": "f64", "MomentM2": "f64"}),
}


def common(keys: str) -> Iterator[tuple[Query, bool]]:
    """The queries of all ``AGGREGATIONS`` by a key of ``KEYS``, and whether they are of rows.

    Of rows in one pass, of rows to partials, of partials merged and finished; and those that number
    the rows' groups.
    """
    parts = KEYS[keys]
    for aggregations in AGGREGATIONS.values():
        for merged in (False, True):
            for finished in (False, True):
                yield _query(parts, aggregations, merged, finished), not merged
    for keep_nulls in (False, True):
        yield canonical(Query(parts, keep_nulls, (), (), ())).query, True


def _query(
    keys: tuple[KeyPart, ...], aggregations: _Aggregations, merged: bool, finished: bool
) -> Query:
    """The query of rows or of partials, to results or to partials."""
    inputs = [] if merged else list(aggregations.inputs)
    states: list[KernelState] = []
    places, outputs = [], []
    for policy, i in aggregations.states:
        merging, fields = _PARTIALS[policy]
        read: tuple[int, ...] = () if policy == "Size" else (i,)
        if merged:
            read = tuple(range(len(inputs), len(inputs) + len(fields)))
            inputs += fields.values()
        ctype = "f64" if policy in ("Min", "Max") else None
        state = KernelState(merging if merged else policy, read, ctype)
        if state not in states:
            states.append(state)
        place = states.index(state)
        places.append(place)
        outputs += [KernelOutput(name, (place,), ctype) for name, ctype in fields.items()]
        if policy == "Moments":
            outputs.append(KernelOutput("MomentLoss", (place,), "f64"))
    if finished:
        outputs = [output.renumbered(places) for output in aggregations.outputs]
        if merged:
            outputs = [o._replace(nullable=o.nullable or o.policy == "Mean") for o in outputs]
    parts = tuple(ValuePart(ctype, False) for ctype in inputs)
    return canonical(Query(keys, merged, parts, tuple(states), tuple(outputs))).query


# ---- compiling them ------------------------------------------------------------------------------

# Units that number the rows' groups, for outputs of whole groups.
_NUMBERING = ("encode", "scan", "range")


def main(arguments: Sequence[str]) -> int:
    """Run ``dask-gpuagg warm``; 1 where nothing can be compiled or kept, or a unit failed."""
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
        help="also the kernels for many groups, which takes several times longer",
    )
    parser.add_argument(
        "--pack",
        type=Path,
        metavar="FOLDER",
        help="also write them to archives there, as a wheel has them in dask_gpuagg/cubins",
    )
    options = parser.parse_args(arguments)
    try:
        supported = supported_architectures()
    except CompileError as error:
        return _failed(str(error))
    architectures = options.architecture
    if not architectures:
        obstacle = driver.unavailable()
        if obstacle is not None:
            return _failed(f"{obstacle}; name an --architecture")
        architectures = [driver.current_device().architecture]
    for architecture in architectures:
        if architecture not in supported:
            return _failed(f"NVRTC compiles for {', '.join(supported)}, not for {architecture}")
    directory = cache_directory()
    if directory is None:
        return _failed("no kernel cache to keep anything in")
    print(f"kernels for {', '.join(architectures)}, kept in {directory}")
    status = max(warm(architecture, options.all) for architecture in architectures)
    if options.pack and status == 0:
        for architecture in architectures:
            pack(options.pack, architecture, work(options.all).values())
    return status


def warm(architecture: str, many_groups: bool = False) -> int:
    """Compile what is not in the cache, and print what was done; 1 if a unit failed."""
    failures = 0
    started = time.perf_counter()
    for name, units in work(many_groups).items():
        begun = time.perf_counter()
        missing = [unit for unit in units if cached(unit, architecture) is None]
        failed = []
        for future in [submit(partial(cubin, unit, architecture)) for unit in missing]:
            try:
                future.result()
            except CompileError as error:
                failed.append(str(error))
        took = time.perf_counter() - begun
        print(
            f"{architecture}, {name}: {len(missing) - len(failed)} units compiled in {took:.1f} s, "
            f"{len(units) - len(missing)} were there"
        )
        for reason in failed:
            _failed(reason)
        failures += len(failed)
    print(f"{architecture}: {time.perf_counter() - started:.1f} s in all")
    return min(failures, 1)


def work(many_groups: bool) -> dict[str, list[TranslationUnit]]:
    """The translation units to compile, by what they are for."""
    few = {f"by {keys}": units_of(keys) for keys in KEYS}
    units = few | {"sorting and selecting": [sorting(), selecting("f64")]}
    if many_groups:
        for keys in KEYS:
            these = few[f"by {keys}"]
            units[f"many groups by {keys}"] = [u for u in units_of(keys, True) if u not in these]
    return units


def units_of(keys: str, many_groups: bool = False) -> list[TranslationUnit]:
    """The different translation units of the common queries by a key."""
    sources: dict[tuple[str, ...], TranslationUnit] = {}
    for requested, of_rows in common(keys):
        for query in representations_of(requested):
            units = first_units(query.units, of_rows, many_groups)
            if not query.outputs:
                units += tuple(unit for unit in _NUMBERING if unit in query.units)
            for source in map(query.source, units):
                sources.setdefault((source.source, *source.kernels.values()), source)
    return list(sources.values())


def _failed(reason: str) -> int:
    print(f"dask-gpuagg warm: {reason}", file=sys.stderr)
    return 1
