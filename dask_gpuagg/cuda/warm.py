"""Compile the common shapes of queries into the kernel cache: ``dask-gpuagg warm``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from dask_gpuagg.cuda.dictionary import units_of_dictionary
from dask_gpuagg.cuda.keys.words import representations_of
from dask_gpuagg.cuda.query.canonical import canonical
from dask_gpuagg.cuda.query.instantiations import TranslationUnit, first_units, selecting, sorting
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KernelOutput, KernelState, KeyPart, ValuePart
from dask_gpuagg.cuda.runtime import driver
from dask_gpuagg.cuda.runtime.compiler import CompileError, cubins, kept, supported_architectures
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


def common(keys: str) -> Iterator[tuple[Query, bool]]:
    """The queries of all ``AGGREGATIONS`` by a key of ``KEYS``, and whether they are of rows.

    Of rows in one pass, of rows to partials, of partials merged and finished; and those that number
    the rows' groups.
    """
    parts = KEYS[keys]
    for aggregations in AGGREGATIONS.values():
        yield _query(parts, aggregations, merged=False, finished=True), True
        yield _query(parts, aggregations, merged=False, finished=False), True
        yield _query(parts, aggregations, merged=True, finished=False), False
        yield _query(parts, aggregations, merged=True, finished=True), False
    for keep_nulls in (False, True):
        yield _Pass().query(parts, keep_nulls), True


# An aggregation or a state, its column and the type of that.
Use = tuple[str, str, str]
# The states of aggregations that are none themselves.
_STATES = {"mean": ("fsum", "count"), "std": ("moments",)}
_MOMENTS = {"MomentRows": "i64", "MomentMean": "f64", "MomentM2": "f64", "MomentLoss": "f64"}


class _Pass:
    """Collects the parts of a query."""

    def __init__(self) -> None:
        self._inputs: dict[str, ValuePart] = {}
        self._states: list[KernelState] = []
        self._outputs: list[KernelOutput] = []

    def query(self, keys: tuple[KeyPart, ...], keep_nulls: bool) -> Query:
        inputs, states = tuple(self._inputs.values()), tuple(self._states)
        return canonical(Query(keys, keep_nulls, inputs, states, tuple(self._outputs))).query

    def _state(self, policy: str, *columns: tuple[str, str], of_type: str | None = None) -> int:
        """The number of a state of some columns, which are names and types."""
        for name, ctype in columns:
            self._inputs.setdefault(name, ValuePart(ctype, False))
        places = tuple(list(self._inputs).index(name) for name, _ in columns)
        state = KernelState(policy, places, of_type)
        if state not in self._states:
            self._states.append(state)
        return self._states.index(state)

    def state(self, use: Use, merged: bool) -> int:
        """The number of a state over rows, or over the fields of partials."""
        name, column, ctype = use
        columns = [(column, ctype)]
        if merged:
            fields = {"moments": ("i64", "f64", "f64"), "count": ("i64",), "fsum": ("f64",)}
            types = fields.get(name, (ctype,))
            columns = [(f"{name} {column} {i}", field) for i, field in enumerate(types)]
        match name:
            case "moments":
                return self._state("MergedMoments" if merged else "Moments", *columns)
            case "min" | "max":
                return self._state(name.capitalize(), *columns, of_type=ctype)
            case "count" if not merged:
                return self._state("Size")
        return self._state("FloatSum" if name == "fsum" else "IntegerSum", *columns)

    def output(
        self,
        policy: str,
        states: Sequence[int],
        ctype: str,
        nullable: bool = False,
        constants: tuple[int, ...] = (),
    ) -> None:
        self._outputs.append(KernelOutput(policy, tuple(states), ctype, nullable, constants))

    def fields(self, use: Use, merged: bool) -> None:
        """The outputs that are a state's fields."""
        name, _, ctype = use
        states = [self.state(use, merged)]
        match name:
            case "moments":
                for policy, field in _MOMENTS.items():
                    self.output(policy, states, field)
            case "min" | "max":
                self.output("Extreme", states, ctype)
            case _:
                self.output("Field", states, "f64" if name == "fsum" else "i64")

    def result(self, use: Use, merged: bool) -> None:
        """The output of an aggregation."""
        uses = _uses([use])
        match use[0]:
            case "mean":
                states = [self.state(part, merged) for part in uses]
                self.output("Mean", states, "f64", nullable=merged)
            case "std":
                states = [self.state(uses[0], merged)]
                self.output("Spread", states, "f64", True, constants=(1, 1))
                self.output("MomentLoss", states, "f64")
            case _:
                self.fields(uses[0], merged)


def _uses(aggregations: Sequence[Use]) -> list[Use]:
    """The states that partials have, without repetition."""
    uses = [(s, column, t) for name, column, t in aggregations for s in _STATES.get(name, (name,))]
    # a sum of floats is a state of its mean too
    named = [("fsum" if s == "sum" and t[0] == "f" else s, column, t) for s, column, t in uses]
    return list(dict.fromkeys(named))


def _query(
    keys: tuple[KeyPart, ...], aggregations: Sequence[Use], merged: bool, finished: bool
) -> Query:
    """The query of rows or of partials, to results or to partials."""
    query = _Pass()
    if finished:
        for use in aggregations:
            query.result(use, merged)
    else:
        for use in _uses(aggregations):
            query.fields(use, merged)
    return query.query(keys, keep_nulls=merged)


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
        help="also the kernels for many groups, which takes much longer",
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
    return max(warm(architecture, options.all) for architecture in architectures)


def warm(architecture: str, everything: bool = False) -> int:
    """Compile what is not in the cache, and print what was done; 1 if a unit failed.

    Kernels for many groups are compiled where ``everything`` is.
    """
    failures = 0
    started = time.perf_counter()
    for name, units in work(everything).items():
        begun = time.perf_counter()
        missing = [unit for unit in units if kept(unit, architecture) is None]
        compiled = cubins([(unit, architecture) for unit in missing])
        errors = [error for error in compiled if isinstance(error, CompileError)]
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


def work(everything: bool) -> dict[str, list[TranslationUnit]]:
    """The translation units to compile, by what they are for."""
    units = {f"by {keys}": units_of(keys, everything) for keys in KEYS}
    return units | {"sorting and selecting": [sorting(), selecting("f64")]}


def units_of(keys: str, everything: bool) -> list[TranslationUnit]:
    """The different translation units of the common queries by a key."""
    sources: dict[tuple[str, ...], TranslationUnit] = {}
    for requested, of_rows in common(keys):
        queries = (
            units_of_dictionary(requested, everything) if of_rows and requested.outputs else []
        )
        for query in representations_of(requested):
            likely = first_units(query.units, of_rows, everything)
            if not query.outputs:
                likely += tuple(unit for unit in _NUMBERING if unit in query.units)
            queries.append((query, query.units if everything else likely))
        for query, units in queries:
            for source in map(query.source, units):
                sources.setdefault((source.source, *source.kernels.values()), source)
    return list(sources.values())


def _failed(reason: str) -> int:
    print(f"dask-gpuagg warm: {reason}", file=sys.stderr)
    return 1
