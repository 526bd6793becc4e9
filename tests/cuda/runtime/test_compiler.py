"""Every specialisation compiles for every architecture, and the cache of what was compiled."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import dask
import pytest

from dask_gpuagg.cuda.algorithms import select, sgb
from dask_gpuagg.cuda.query.instantiations import UNITS, TranslationUnit, unit_of
from dask_gpuagg.cuda.query.types import STATE_BYTES, TYPE_BYTES
from dask_gpuagg.cuda.runtime import compiler
from dask_gpuagg.cuda.runtime.compiler import (
    ARCHITECTURES,
    KERNELS,
    Compiled,
    CompileError,
    compile_source,
    cubin,
    headers,
)
from tests.cuda.specialisations import COVERING, ORDERED, TABLE

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's bindings are not installed")

TINY = TranslationUnit(
    '#include "core/types.cuh"\nnamespace gpuagg {\n__global__ void tiny() {}\n}\n',
    {"tiny": "gpuagg::tiny"},
)
# Together they have every unit: keys of one word and of two, hashed strings, and codes.
PORTABLE = (
    "20 aggregations by int64",
    "20 aggregations by two words",
    "keys large string with nulls, nulls dropped",
    "codes of strings and integers, nulls kept",
)


def other(unit: TranslationUnit) -> TranslationUnit:
    """The same kernels from another source."""
    return unit._replace(source=unit.source + "//\n")


def compiled(unit: TranslationUnit, architecture: str, *more: str) -> None:
    code, names = compile_source(unit, architecture, *more)
    assert code.startswith(b"\x7fELF")
    assert list(names) == list(unit.kernels)
    assert len(set(names.values())) == len(names)
    for name in names.values():
        assert f".text.{name}\0".encode() in code


@pytest.mark.parametrize("name", [name for name in TABLE if name not in COVERING])
def test_compiles(name: str) -> None:
    """Hardly optimised: in less than half the time, and an error is one all the same."""
    compiled(TABLE[name].source(), "sm_90", "--Ofast-compile=max")


@pytest.mark.parametrize("name", COVERING)
def test_compiles_as_users_have_it(name: str) -> None:
    compiled(TABLE[name].source(), "sm_90")


@pytest.mark.parametrize("architecture", [a for a in ARCHITECTURES if a != "sm_90"])
@pytest.mark.parametrize("name", PORTABLE)
def test_every_unit_compiles_for_every_architecture(name: str, architecture: str) -> None:
    """No header asks for the architecture, so only the instructions of a kernel may be missing.

    Those depend on the kernel and on what holds its keys. Types of values and the number of
    aggregations change none of them; ``test_compiles_as_users_have_it`` has these.
    """
    compiled(TABLE[name].source(), architecture)


def test_portable_specialisations_have_every_unit() -> None:
    assert not [name for name, text in headers().items() if b"__CUDA_ARCH__" in text]
    assert {unit for name in PORTABLE for unit in TABLE[name].units} == set(UNITS)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sorting_compiles(architecture: str) -> None:
    unit = sgb.Sorting().source()
    compiled(unit, architecture)
    of_types = {f"{k}_{t}" for k in ("words", "quantiles") for t in ORDERED}
    of_words = {f"{k}_{w}" for k in ("count_digits", "count_distinct") for w in (4, 8)}
    passes = {f"pass_{w}_{m}" for w in (4, 8) for m in (4, 8)}
    plain = {"scan_digits", "numbers", "mark_starts", "fill_starts", "ticks"}
    assert set(unit.kernels) == of_types | of_words | passes | plain


@pytest.mark.parametrize(
    ("ctype", "ticks", "architecture"),
    [
        *((ctype, False, "sm_90") for ctype in ORDERED),
        *(("f64", False, architecture) for architecture in ARCHITECTURES),
        *(("i64", True, architecture) for architecture in ARCHITECTURES),
    ],
)
def test_selecting_compiles(ctype: str, ticks: bool, architecture: str) -> None:
    unit = select.Selecting(ctype, ticks).source()
    assert len(unit.kernels) == 16
    compiled(unit, architecture)


def test_every_kernel_is_instantiated() -> None:
    units = [*UNITS.values(), sgb.Sorting().source(), select.Selecting("f64").source()]
    named = {e.partition("<")[0] for unit in units for e in unit.kernels.values()}
    kernel = re.compile(r"__global__ void __launch_bounds__\([^)]*\)\s+(\w+)\(")
    texts = [text.decode() for text in headers().values()]
    defined = [name for text in texts for name in kernel.findall(text)]
    assert len(defined) == sum(text.count("__global__") for text in texts)
    assert set(defined) == named


def test_specialisations_have_every_type_and_policy() -> None:
    """A type or a policy that no specialisation has would be compiled by no test."""
    states = {s.policy for q in TABLE.values() for s in q.kept}
    text = (KERNELS / "aggregate" / "states.cuh").read_text()
    policies = set(re.findall(r"struct (\w+) : (?:Replicated|OneCopy)<", text))
    policies |= set(re.findall(r"using (\w+) = MomentsOf<", text)) | {"WideSum"}
    assert states == policies == set(STATE_BYTES) | {"Min", "Max"}

    outputs = {o.code.partition("<")[0] for q in TABLE.values() for o in q.outputs}
    text = (KERNELS / "output" / "outputs.cuh").read_text()
    assert outputs == set(re.findall(r"struct (\w+) : (?:Output|NullOfNone)<", text)) - {
        "NullOfNone"
    }

    for masked, keep_nulls in itertools.product((False, True), repeat=2):
        keys = {
            k.ctype
            for q in TABLE.values()
            for k in q.keys
            if k.masked == masked and q.keep_nulls == keep_nulls and len(q.keys) == 1
        }
        assert keys == set(TYPE_BYTES)
    for policy in ("Min", "Max"):
        ordered = {s.ctype for q in TABLE.values() for s in q.states if s.policy == policy}
        assert ordered == set(ORDERED)
    assert {q.threads for q in TABLE.values()} == {512, 1024}
    assert {q.unroll for q in TABLE.values()} == {2, 4}


@pytest.mark.parametrize("name", ["5 aggregations by int64", "5 aggregations by strings"])
def test_a_unit_compiles_only_its_kernels(name: str) -> None:
    query = TABLE[name]
    for unit in query.units:
        code, names = compile_source(query.source(unit), "sm_90", "--Ofast-compile=max")
        # kernels have parameters in constant memory, functions that they call have none
        found = set(re.findall(rb"\.nv\.constant0\.(\w+)\0", code))
        assert found == {name.encode() for name in names.values()}
        assert {unit_of(kernel) for kernel in names} == {unit}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_probes_are_counted_only_where_asked(architecture: str) -> None:
    usual = TABLE["1 aggregation by int64"]
    counting = replace(usual, counting=True)
    assert b"gpuagg_looks" in compile_source(counting.source("core"), architecture).code
    assert b"gpuagg_looks" not in compile_source(usual.source("core"), architecture).code


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
    error: type[Exception], cache: Path, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise error("libnvrtc.so.13: cannot open shared object file")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", missing)
    for call in (cubin, compile_source):
        with pytest.raises(CompileError, match=r"NVRTC cannot be loaded: libnvrtc\.so"):
            call(TINY, "sm_90")


# ---- the cache ---------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The calls of NVRTC."""
    made = []

    def counted(unit: TranslationUnit, architecture: str) -> Compiled:
        made.append((unit.source, architecture))
        return compile_source(unit, architecture)

    monkeypatch.setattr(compiler, "compile_source", counted)
    return made


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing remembered of the files of ``kernels/``, of NVRTC or of warnings given."""
    remembered = (
        *(headers, compiler.sources_hash),
        *(compiler._nvrtc_version, compiler._warn_cache),
    )
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_second_call_reads_the_cache(cache: Path, calls: list[Any]) -> None:
    first = cubin(TINY, "sm_90")
    assert cubin(TINY, "sm_90") == first == compile_source(TINY, "sm_90")
    assert len(calls) == 1
    (entry,) = entries(cache)
    assert entry.suffix == ".cubin"


def test_entries_differ_by_source_and_architecture(cache: Path, calls: list[Any]) -> None:
    for unit, architecture in itertools.product((TINY, other(TINY)), ("sm_80", "sm_90")):
        cubin(unit, architecture)
    assert len(calls) == len(entries(cache)) == 4


@pytest.fixture
def copied(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of ``kernels/`` that is compiled instead."""
    folder = tmp_path / "headers"
    shutil.copytree(KERNELS, folder)
    monkeypatch.setattr(compiler, "KERNELS", folder)
    return folder


def forget_headers() -> None:
    """As a new process begins."""
    headers.cache_clear()
    compiler.sources_hash.cache_clear()


@pytest.mark.parametrize("change", ["content", "name", "new file"])
def test_entries_differ_by_headers(
    change: str, cache: Path, calls: list[Any], copied: Path
) -> None:
    cubin(TINY, "sm_90")
    forget_headers()
    cubin(TINY, "sm_90")
    assert len(calls) == 1
    path = copied / "hgb" / "hgb.cuh"
    if change == "content":
        path.write_text(path.read_text() + "\n")
    elif change == "name":
        path.rename(copied / "hgb" / "other.cuh")
    else:
        (copied / "hgb" / "more.cuh").write_text("")
    forget_headers()
    cubin(TINY, "sm_90")
    assert len(calls) == len(entries(cache)) == 2


def test_headers_are_read_once(cache: Path, calls: list[Any], copied: Path) -> None:
    """Where a file changes under a running process, its entries are those of the old file."""
    path = copied / "core" / "types.cuh"
    before = path.read_text()
    code = cubin(TINY, "sm_90")
    path.write_text("#error changed")
    assert cubin(other(TINY), "sm_90").names == code.names
    path.write_text(before)
    forget_headers()
    cubin(other(TINY), "sm_90")
    assert len(calls) == len(entries(cache)) == 2
    path.write_text("#error changed")
    forget_headers()
    with pytest.raises(CompileError, match="changed"):
        cubin(TINY, "sm_90")


def test_entries_differ_by_compiler_version(
    cache: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cubin(TINY, "sm_90")
    monkeypatch.setattr(compiler, "_nvrtc_version", lambda: "0.0")
    cubin(TINY, "sm_90")
    assert len(calls) == len(entries(cache)) == 2


DAMAGES = {
    "empty": lambda entry: b"",
    "short": lambda entry: entry[: len(entry) // 2],
    "one byte short": lambda entry: entry[:-1],
    "changed": lambda entry: entry[:100] + bytes([entry[100] ^ 1]) + entry[101:],
    "something else": lambda entry: b"no machine code",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entry_is_replaced(damage: str, cache: Path, calls: list[Any]) -> None:
    code = cubin(TINY, "sm_90")
    (entry,) = entries(cache)
    whole = entry.read_bytes()
    entry.write_bytes(DAMAGES[damage](whole))
    assert cubin(TINY, "sm_90") == code
    assert entry.read_bytes() == whole
    assert cubin(TINY, "sm_90") == code
    assert len(calls) == 2


def test_failed_compilation_leaves_no_entry(cache: Path) -> None:
    with pytest.raises(CompileError):
        cubin(TranslationUnit("no code", {}), "sm_90")
    assert not cache.exists()


def warned(directory: Path | str) -> list[str]:
    """The warnings of two sources, each compiled twice."""
    with (
        dask.config.set({"gpuagg.kernel-cache": str(directory)}),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        for unit in (TINY, TINY, other(TINY), other(TINY)):
            assert cubin(unit, "sm_90").code.startswith(b"\x7fELF")
    return [str(w.message) for w in caught]


def test_read_only_directory_warns_once(fresh: None, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("this user may write everywhere")
    (message,) = warned(tmp_path)
    assert str(tmp_path) in message
    assert "gpuagg.kernel-cache" in message


def test_directory_that_rejects_files_warns_once(
    fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a read-only one does, for users whom permissions do not bind as well."""
    names = itertools.count()

    def refuse(**where: Any) -> Any:
        raise PermissionError(13, "Permission denied", f"{where['dir']}/tmp{next(names)}")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    (message,) = warned(tmp_path)
    assert f"{tmp_path} cannot be written (Permission denied)" in message


def test_impossible_directory_warns_once(fresh: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (message,) = warned(tmp_path / "file" / "below")
    assert "Not a directory" in message


def test_unfinished_entry_is_removed(
    fresh: None, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    (message,) = warned(cache)
    assert "No space left on device" in message
    assert entries(cache) == []


def test_user_without_home_has_no_cache(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with (
        dask.config.set({"gpuagg.kernel-cache": None}),
        pytest.warns(UserWarning, match="home directory"),
    ):
        assert cubin(TINY, "sm_90").code.startswith(b"\x7fELF")


def test_the_default_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with dask.config.set({"gpuagg.kernel-cache": None}):
        cubin(TINY, "sm_90")
    assert len(entries(tmp_path / "dask_gpuagg")) == 1


def in_a_process(folder: str) -> bytes:
    with dask.config.set({"gpuagg.kernel-cache": folder}):
        return cubin(TINY, "sm_90").code


def test_processes_share_a_cache(cache: Path, calls: list[Any]) -> None:
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        codes = set(pool.map(in_a_process, [str(cache)] * 8))
    (entry,) = entries(cache)
    assert codes == {cubin(TINY, "sm_90").code}
    assert calls == []
    assert entry.read_bytes().startswith(codes.pop())
