"""Every specialisation compiles for every architecture, and the cache of what was compiled."""

import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dask_gpuagg.cuda.query.instantiations import (
    UNITS,
    TranslationUnit,
    deriving,
    selecting,
    sorting,
    unit_of,
)
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import STATE_BYTES, TYPE_BYTES
from dask_gpuagg.cuda.runtime import compiler
from dask_gpuagg.cuda.runtime.compiler import (
    KERNEL_DIR,
    CompileError,
    KernelsUnavailable,
    compile_source,
    compiler_version,
    cubin,
    headers,
)
from tests.cuda.runtime.caching import TINY
from tests.cuda.specialisations import ORDERED, TABLE
from tests.running import run_python

# The oldest, which lacks instructions that later ones have, and the one that is optimised for.
ARCHITECTURES = ("sm_80", "sm_90")
nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's bindings are not installed")

# Hardly optimised.
FAST = ("--Ofast-compile=max",)
# Units that read, update or write states, each in another way.
STATE_UNITS = (
    *("core", "lphga", "transfer", "hgb", "hgb_runs", "direct_shared", "direct_global"),
    *("aggregate", "aggregate_crowded", "fold", "absorb", "runs"),
)
# Together they have every unit: keys of one word and of two, hashed strings, codes, and numbers of
# strings; columns so few that they are moved one by one, and many, moved in a loop.
PORTABLE = (
    "5 aggregations by int64",
    "20 aggregations by two words",
    "keys large string with nulls, nulls dropped",
    "codes of strings and integers, nulls kept",
)
# Units that are compiled as for users: each once, and of heavy states and wide keys a few.
OPTIMISED: dict[str, tuple[str, ...]] = {
    "5 aggregations by int64": TABLE["5 aggregations by int64"].units,
    "20 aggregations by two words": ("words", "ranges"),
    "keys string, decimal128, float, int8, nulls kept": ("core", "lphga", "words"),
    "codes of strings and integers, nulls kept": ("core", "codes", "aggregate_striped"),
    "keys string, nulls kept": ("bytes",),
    "exact sums of f64": ("core", "lphga", "hgb"),
    "sum of decimal128 masked": ("core", "lphga", "aggregate"),
}


def compiled(unit: TranslationUnit, architecture: str) -> None:
    """Compile as users have it for one architecture, fast for the others."""
    code, names = compile_source(unit, architecture, *(() if architecture == "sm_90" else FAST))
    assert code.startswith(b"\x7fELF")
    assert list(names) == list(unit.kernels)
    assert len(set(names.values())) == len(names)
    for name in names.values():
        assert f".text.{name}\0".encode() in code


# By what the name of a specialisation begins with: the kernels that depend on what it has of its
# own. How partitions hold words, and which rows they take, depends on no type of values.
KEY_UNITS = ("core", "sample", "lphga", "scatter", "encode", "range", "ranges")
UNITS_OF_TYPES = {
    "key ": KEY_UNITS,
    # columns that share a word
    **dict.fromkeys(
        ("keys two of 32", "keys null flags", "keys eight", "two of a word"), KEY_UNITS
    ),
    # many columns are moved in a loop, whatever holds the keys
    "20 aggregations": (*STATE_UNITS, "scatter"),
    "nothing": ("core", "sample", "lphga", "hgb"),
    "every aggregation": (*STATE_UNITS, "scatter"),
    "exact": STATE_UNITS,
    "sum of": STATE_UNITS,
}
# Those that have no type, policy or form of keys but what others have.
REPEATED = re.compile(r"(1 aggregation|5 aggregations|the usual ones) by (int64|strings)")
# Single keys have both ways to treat nulls, which are the same for all others.
TRANSLATED = [
    name
    for name in TABLE
    if not REPEATED.fullmatch(name)
    and name not in PORTABLE
    and (name.startswith("key ") or not name.endswith("nulls dropped"))
]


def own_units(name: str) -> list[str]:
    """The units of a specialisation that no other has alike; all for forms of keys."""
    units = TABLE[name].units
    alone = STATE_UNITS if name.endswith(" alone") else units
    chosen = next((u for start, u in UNITS_OF_TYPES.items() if name.startswith(start)), alone)
    return [unit for unit in units if unit in chosen]


@pytest.mark.parametrize("name", TRANSLATED)
def test_translates(name: str) -> None:
    """Into PTX, hardly optimised: in a fifth of the time, and an error of C++ is one all the same.

    What the compiler itself wrote of other types is assembled like all else: no ``asm`` of ours and
    no array in shared memory depends on a type of values.
    """
    unit = TABLE[name].source(*own_units(name))
    options = ("--gpu-architecture=compute_90", *FAST, *compiler._OPTIONS)
    with compiler.program_of(unit, options) as program:
        _, size = nvrtc.nvrtcGetPTXSize(program)
        ptx = bytearray(size)
        nvrtc.nvrtcGetPTX(program, ptx)
        lowered = [
            nvrtc.nvrtcGetLoweredName(program, expression.encode())[1]
            for expression in unit.kernels.values()
        ]
    assert len(set(lowered)) == len(unit.kernels) > 0
    for kernel in lowered:
        assert b".entry " + kernel + b"(" in ptx


@pytest.mark.parametrize("name", OPTIMISED)
def test_compiles_as_users_have_it(name: str) -> None:
    compiled(TABLE[name].source(*OPTIMISED[name]), "sm_90")


@pytest.mark.parametrize("name", PORTABLE)
def test_every_unit_compiles_for_the_oldest_architecture(name: str) -> None:
    """No header asks for the architecture, so only the instructions of a kernel may be missing.

    Those depend on the kernel and on what holds its keys. Types of values and the number of
    aggregations change none of them. Later architectures have all instructions of the oldest.
    """
    compiled(TABLE[name].source(), "sm_80")


def test_a_unit_compiles_for_the_newest_architecture() -> None:
    compiled(TABLE[PORTABLE[0]].source("core"), "sm_120")


def test_portable_specialisations_have_every_unit() -> None:
    assert not [name for name, text in headers().items() if b"__CUDA_ARCH__" in text]
    assert {unit for name in PORTABLE for unit in TABLE[name].units} == set(UNITS)
    assert {unit for units in OPTIMISED.values() for unit in units} == set(UNITS)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sorting_compiles(architecture: str) -> None:
    unit = sorting()
    compiled(unit, architecture)
    of_types = {f"{k}_{t}" for k in ("words", "quantiles") for t in ORDERED}
    of_words = {f"{k}_{w}" for k in ("count_digits", "count_distinct") for w in (4, 8)}
    passes = {f"pass_{w}_{m}" for w in (4, 8) for m in (4, 8)}
    plain = {"scan_digits", "numbers", "mark_starts", "fill_starts", "ticks"}
    assert set(unit.kernels) == of_types | of_words | passes | plain


@pytest.mark.parametrize(
    ("ctype", "ticks", "architecture"),
    [("f64", False, "sm_90"), *(("i64", True, architecture) for architecture in ARCHITECTURES)],
)
def test_selecting_compiles(ctype: str, ticks: bool, architecture: str) -> None:
    unit = selecting(ctype, ticks)
    assert len(unit.kernels) == 16
    compiled(unit, architecture)


def test_every_kernel_is_instantiated() -> None:
    units = [*UNITS.values(), sorting(), selecting("f64"), deriving("struct Columns;")]
    named = {e.partition("<")[0] for unit in units for e in unit.kernels.values()}
    kernel = re.compile(r"__global__ void __launch_bounds__\([^)]*\)\s+(\w+)\(")
    texts = [text.decode() for text in headers().values()]
    defined = [name for text in texts for name in kernel.findall(text)]
    assert len(defined) == sum(text.count("__global__") for text in texts)
    assert set(defined) == named


OUTPUTS = ("outputs.cuh", "exact_total.cuh")


def test_specialisations_have_every_type_and_policy() -> None:
    """A type or a policy that no specialisation has would be compiled by no test."""
    states = {s.policy for q in TABLE.values() for s in q.all_states}
    text = (KERNEL_DIR / "aggregate" / "states.cuh").read_text()
    policies = set(re.findall(r"struct (\w+) : (?:Replicated|OneCopy)<", text))
    policies |= set(re.findall(r"using (\w+) = MomentsOf<", text)) | {"WideSum"}
    policies.add("ExactSum")
    assert states == policies == set(STATE_BYTES) | {"Min", "Max"}

    outputs = {o.policy for q in TABLE.values() for o in q.outputs}
    text = "".join((KERNEL_DIR / "output" / name).read_text() for name in OUTPUTS)
    assert outputs == set(re.findall(r"struct (\w+) : (?:Output|NullOfNone)<", text)) - {
        "NullOfNone"
    }

    for masked in (False, True):
        keys = {
            k.ctype
            for q in TABLE.values()
            for k in q.keys
            if k.masked == q.keep_nulls == masked and len(q.keys) == 1
        }
        assert keys == set(TYPE_BYTES)
    for policy in ("Min", "Max"):
        ordered = {s.ctype for q in TABLE.values() for s in q.states if s.policy == policy}
        assert ordered == set(ORDERED)
    assert {q.threads for q in TABLE.values()} == {512, 1024}
    assert {q.unroll for q in TABLE.values()} == {2, 4}


INTEGERS, STRINGS = TABLE[PORTABLE[0]], TABLE["5 aggregations by strings"]


@pytest.mark.parametrize(
    ("query", "units"),
    [
        (INTEGERS, ("core", "sample", "hgb", "direct_shared", "aggregate")),
        (STRINGS, ("words", "fold")),
    ],
    ids=["integers", "strings"],
)
def test_a_unit_compiles_only_its_kernels(query: Query, units: Sequence[str]) -> None:
    for unit in query.units:
        assert {unit_of(kernel) for kernel in query.source(unit).kernels} == {unit}
    # a few: which kernels a unit instantiates depends on its names alone
    for unit in units:
        code, names = compile_source(query.source(unit), "sm_90", *FAST)
        # kernels have parameters in constant memory, functions that they call have none
        found = set(re.findall(rb"\.nv\.constant0\.(\w+)\0", code))
        assert found == {name.encode() for name in names.values()}


def test_compile_error_contains_the_log() -> None:
    with pytest.raises(CompileError, match=r"error.*no_such_thing") as caught:
        compile_source(TranslationUnit("__global__ void f() { no_such_thing(); }", {}), "sm_90")
    assert "\0" not in str(caught.value)


def test_unknown_kernel_raises() -> None:
    with pytest.raises(CompileError, match="no_such_kernel"):
        compile_source(TINY._replace(kernels={"tiny": "gpuagg::no_such_kernel"}), "sm_90")


def test_wrong_slot_sizes_do_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STATE_BYTES, "FloatSum", (0, 4))
    with pytest.raises(CompileError, match="the host assumes other sizes"):
        # a copy: the query itself may have worked its sizes out before
        compile_source(replace(TABLE["1 aggregation by int64"]).source("core"), "sm_90")


@pytest.mark.parametrize("error", [RuntimeError, OSError, ImportError])
def test_missing_nvrtc_raises(
    error: type[Exception], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler_version.cache_clear()

    def missing() -> None:
        raise error("libnvrtc.so.13: cannot open shared object file")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", missing)
    for call in (cubin, compile_source):
        with pytest.raises(CompileError, match=r"NVRTC cannot be loaded: libnvrtc\.so"):
            call(TINY, "sm_90")


ENDS = """
import threading
from dask_gpuagg.cuda.runtime import compiler
from tests.cuda.specialisations import TABLE

compiled, begun = compiler._compiled, threading.Event()

def watched(*given):
    begun.set()
    compiled(*given)
    print("compiled", flush=True)

compiler._compiled = watched
unit = TABLE["5 aggregations by int64"].source("hgb")
threading.Thread(target=compiler.compile_source, args=(unit, "sm_90"), daemon=True).start()
begun.wait(60)
"""


def test_a_process_ends_after_what_it_compiles() -> None:
    """A thread inside of NVRTC corrupts the heap of a process that destroys its static objects."""
    ran = run_python("-c", ENDS)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "compiled\n", "")


def test_errors_of_the_compiler_reach_daemon_threads() -> None:
    """In those NVRTC is called by another thread."""
    found: list[object] = []

    def attempt() -> None:
        try:
            compile_source(TranslationUnit("no code", {}), "sm_90")
        except CompileError as error:
            found.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(60)
    assert len(found) == 1
    assert "no code" in str(found[0])


def test_nothing_is_compiled_in_a_process_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    # a thread that has ended, as the main one has where the interpreter waits for the others
    monkeypatch.setattr(threading, "main_thread", threading.Thread)
    refused: list[object] = []

    def attempt() -> None:
        with pytest.raises(KernelsUnavailable, match="ends") as raised:
            compile_source(TINY, "sm_90")
        refused.append(raised.value)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(60)
    assert refused
