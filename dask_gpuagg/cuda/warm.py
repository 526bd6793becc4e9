"""Compile the common shapes of queries into the kernel cache: ``dask-gpuagg warm``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dask_gpuagg.cuda.dictionary import units_of_dictionary
from dask_gpuagg.cuda.keys.words import representations_of
from dask_gpuagg.cuda.query.canonical import canonical
from dask_gpuagg.cuda.query.instantiations import TranslationUnit, first_units, selecting, sorting
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KernelOutput, KernelState, KeyPart, ValuePart
from dask_gpuagg.cuda.runtime import driver
from dask_gpuagg.cuda.runtime.compiler import (
    CompileError,
    cubins,
    is_cached,
    supported_architectures,
)
from dask_gpuagg.cuda.runtime.disk_cache import cache_directory

# ---- queries that are common ---------------------------------------------------------------------

# As the device engine makes them of columns without nulls: inputs, states and outputs are those
# that ``engines/device`` asks its ``Aggregator`` for. They are compiled where there may be no cuDF,
# as in the build of an image; ``tests/device/test_warm.py`` compares.

# As readers of files give them: strings have 32-bit offsets.
KEYS: dict[str, tuple[KeyPart, ...]] = {
    "int64": (KeyPart("i64", False),),
    "int32": (KeyPart("i32", False),),
    "string": (KeyPart("i32", False, string=True),),
    "two int64": (KeyPart("i64", False), KeyPart("i64", False)),
}
# Each an aggregation with its column, a letter and its type.
AGGREGATIONS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "sum of float64": (("sum", "a", "f64"),),
    "sum of int64": (("sum", "a", "i64"),),
    "mean of float64": (("mean", "a", "f64"),),
    "mean and std of float64": (("mean", "a", "f64"), ("std", "a", "f64")),
    "five": (
        *(("sum", "a", "f64"), ("count", "a", "f64"), ("min", "a", "f64"), ("max", "a", "f64")),
        ("mean", "c", "f32"),
    ),
}
# Of outputs of whole groups the kernels number the groups first.
WHOLE = "median of float64"


class Common(NamedTuple):
    """A query, and whether it is of rows, which may be many, or of partials."""

    query: Query
    of_rows: bool


def common(keys: str) -> Iterator[Common]:
    """The queries of all ``AGGREGATIONS`` by a key of ``KEYS``.

    Each of rows in one pass, of rows to partials, and of partials merged and finished.
    """
    parts = KEYS[keys]
    for aggregations in AGGREGATIONS.values():
        yield Common(_in_one_pass(parts, aggregations), True)
        yield Common(_to_partials(parts, aggregations), True)
        yield Common(_merged(parts, aggregations), False)
        yield Common(_finished(parts, aggregations), False)
    for keep_nulls in (False, True):
        yield Common(_Pass(parts, keep_nulls).query, True)


class _Pass:
    def __init__(self, keys: tuple[KeyPart, ...], keep_nulls: bool) -> None:
        self._keys, self._keep_nulls = keys, keep_nulls
        self._inputs: dict[str, ValuePart] = {}
        self._states: list[KernelState] = []
        self._outputs: list[KernelOutput] = []

    @property
    def query(self) -> Query:
        inputs, states = tuple(self._inputs.values()), tuple(self._states)
        asked = Query(self._keys, self._keep_nulls, inputs, states, tuple(self._outputs))
        return canonical(asked).query

    def state(self, policy: str, *columns: tuple[str, str], of_type: str | None = None) -> int:
        """The number of a state of some columns, each by its name and type."""
        for name, ctype in columns:
            self._inputs.setdefault(name, ValuePart(ctype, False))
        places = tuple(list(self._inputs).index(name) for name, _ in columns)
        state = KernelState(policy, places, of_type)
        if state not in self._states:
            self._states.append(state)
        return self._states.index(state)

    def add(
        self,
        policy: str,
        states: int | tuple[int, ...],
        ctype: str,
        nullable: bool = False,
        constants: tuple[int, ...] = (),
    ) -> None:
        states = states if isinstance(states, tuple) else (states,)
        self._outputs.append(KernelOutput(policy, states, ctype, nullable, constants))

    def sum(self, column: tuple[str, str], in_floats: bool = False) -> None:
        floats = in_floats or column[1] in ("f32", "f64")
        policy, ctype = ("FloatSum", "f64") if floats else ("IntegerSum", "i64")
        self.add("Field", self.state(policy, column), ctype)

    def extreme(self, name: str, column: tuple[str, str]) -> None:
        state = self.state(name.capitalize(), column, of_type=column[1])
        self.add("Extreme", state, column[1])

    def moments(self, state: int) -> None:
        self.add("MomentRows", state, "i64")
        self.add("MomentMean", state, "f64")
        self.add("MomentM2", state, "f64")
        self.add("MomentLoss", state, "f64")

    def spread(self, state: int) -> None:
        """The standard deviation."""
        self.add("Spread", state, "f64", True, constants=(1, 1))
        self.add("MomentLoss", state, "f64")


Wanted = Sequence[tuple[str, str, str]]
_STATES = {"mean": ("fsum", "count"), "std": ("moments",)}


def _uses(aggregations: Wanted) -> list[tuple[str, str, str]]:
    """The states that partials have: each once, with its column."""
    uses = [(s, column, t) for name, column, t in aggregations for s in _STATES.get(name, (name,))]
    # a sum of floats is a state of its mean too
    named = [("fsum" if s == "sum" and t[0] == "f" else s, column, t) for s, column, t in uses]
    return list(dict.fromkeys(named))


def _fields(use: tuple[str, str, str]) -> list[tuple[str, str]]:
    """The columns of a state in partials, each by its name and type."""
    state, column, ctype = use
    types = {
        "fsum": ("f64",), "sum": ("i64",), "count": ("i64",), "min": (ctype,), "max": (ctype,),
        "moments": ("i64", "f64", "f64"),
    }[state]  # fmt: skip
    return [(f"{state} {column} {i}", t) for i, t in enumerate(types)]


def _in_one_pass(keys: tuple[KeyPart, ...], aggregations: Wanted) -> Query:
    query = _Pass(keys, False)
    for name, column, ctype in aggregations:
        of = (column, ctype)
        match name:
            case "mean":
                query.add("Mean", (query.state("FloatSum", of), query.state("Size")), "f64")
            case "std":
                query.spread(query.state("Moments", of))
            case _:
                _update(query, name, of)
    return query.query


def _update(query: _Pass, state: str, of: tuple[str, str]) -> None:
    match state:
        case "sum" | "fsum":
            query.sum(of, state == "fsum")
        case "count":
            query.add("Field", query.state("Size"), "i64")
        case "moments":
            query.moments(query.state("Moments", of))
        case _:
            query.extreme(state, of)


def _to_partials(keys: tuple[KeyPart, ...], aggregations: Wanted) -> Query:
    query = _Pass(keys, False)
    for state, column, ctype in _uses(aggregations):
        _update(query, state, (column, ctype))
    return query.query


def _merged(keys: tuple[KeyPart, ...], aggregations: Wanted) -> Query:
    query = _Pass(keys, True)
    for use in _uses(aggregations):
        _merge(query, use)
    return query.query


def _merge(query: _Pass, use: tuple[str, str, str]) -> None:
    state, fields = use[0], _fields(use)
    match state:
        case "moments":
            query.moments(query.state("MergedMoments", *fields))
        case "min" | "max":
            query.extreme(state, fields[0])
        case _:
            query.sum(fields[0])


def _finished(keys: tuple[KeyPart, ...], aggregations: Wanted) -> Query:
    query = _Pass(keys, True)
    for name, column, ctype in aggregations:
        uses = _uses([(name, column, ctype)])
        match name:
            case "mean":
                total, count = (_fields(use)[0] for use in uses)
                states = query.state("FloatSum", total), query.state("IntegerSum", count)
                query.add("Mean", states, "f64", True)
            case "std":
                query.spread(query.state("MergedMoments", *_fields(uses[0])))
            case _:
                _merge(query, uses[0])
    return query.query


# ---- compiling them ------------------------------------------------------------------------------

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
        supported = supported_architectures()
    except CompileError as error:
        return _failed(str(error))
    architectures = options.architecture or _present()
    if not architectures:
        return _failed(f"{driver.unavailable()}; name an --architecture")
    for architecture in architectures:
        if architecture not in supported:
            return _failed(f"NVRTC compiles for {', '.join(supported)}, not for {architecture}")
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
        compiled = cubins([(unit, architecture) for unit in missing])
        errors = [one for one in compiled if isinstance(one, CompileError)]
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
        queries = units_of_dictionary(asked, everything) if of_rows and asked.outputs else []
        for query in representations_of(asked):
            likely = first_units(query.units, of_rows, everything)
            if not query.outputs:
                likely += tuple(unit for unit in _NUMBERING if unit in query.units)
            queries.append((query, query.units if everything else likely))
        for query, units in queries:
            for unit in units:
                source = query.source(unit)
                text = (source.source, *source.kernels.values())
                if text not in seen:
                    seen.add(text)
                    yield source


def _of_values() -> list[TranslationUnit]:
    return [sorting(), selecting("f64")]


def _present() -> list[str]:
    return [] if driver.unavailable() else [driver.current_device().architecture]


def _failed(reason: str) -> int:
    print(f"dask-gpuagg warm: {reason}", file=sys.stderr)
    return 1
