"""Entries of the kernel cache: each is whole and of its own source, and is compiled once."""

import itertools
import multiprocessing
import shutil
import threading
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import dask
import pytest

from dask_gpuagg.cuda.query.instantiations import TranslationUnit
from dask_gpuagg.cuda.runtime import compiler, disk_cache
from dask_gpuagg.cuda.runtime.compiler import (
    KERNEL_DIR,
    Compiled,
    CompileError,
    compile_source,
    cubin,
    headers,
)
from tests.cuda.runtime.caching import TINY, entries, other

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's bindings are not installed")


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
    shutil.copytree(KERNEL_DIR, folder)
    monkeypatch.setattr(compiler, "KERNEL_DIR", folder)
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
    monkeypatch.setattr(compiler, "compiler_version", lambda: "0.0")
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
    assert entries(cache) == []


def in_a_process(folder: str) -> bytes:
    with dask.config.set({"gpuagg.kernel-cache": folder}):
        return cubin(TINY, "sm_90").code


def test_processes_share_a_cache(cache: Path, calls: list[Any]) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        codes = set(pool.map(in_a_process, [str(cache)] * 4))
    (entry,) = entries(cache)
    assert codes == {cubin(TINY, "sm_90").code}
    assert calls == []
    assert entry.read_bytes().startswith(codes.pop())


# ---- one compiles, others wait -----------------------------------------------------------------


def test_threads_that_want_one_entry_compile_it_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def slow(unit: TranslationUnit, architecture: str) -> Compiled:
        made.append(unit)
        time.sleep(0.2)
        return compile_source(unit, architecture)

    monkeypatch.setattr(compiler, "compile_source", slow)
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda _: cubin(TINY, "sm_90").code, range(4)))
    assert len(made) == 1
    assert len(set(codes)) == 1
    assert [path.suffix for path in entries(cache)] == [".cubin"]


def test_a_lock_is_not_waited_for_for_ever(
    cache: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a process that was stopped while it compiled."""
    monkeypatch.setattr(disk_cache, "WAIT_AT_MOST", 0.1)
    begun, end = threading.Event(), threading.Event()

    def hold() -> None:
        with disk_cache.one_at_a_time(compiler._key(TINY, "sm_90", compiler.compiler_version())):
            begun.set()
            end.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert begun.wait(30)
        assert cubin(TINY, "sm_90").code
    finally:
        end.set()
        holder.join()
    assert len(calls) == 1


def forked(to: Any, go_on: Any) -> None:
    to.send("here")
    go_on.wait(30)


def test_a_fork_does_not_keep_the_lock(
    cache: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which it inherits: whoever waits goes on when this process is done, not when the fork is."""
    monkeypatch.setattr(disk_cache, "WAIT_AT_MOST", 60)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    go_on = context.Event()
    waiting = threading.Thread(target=cubin, args=(TINY, "sm_90"))
    with disk_cache.one_at_a_time(compiler._key(TINY, "sm_90", compiler.compiler_version())):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forks beside threads
            child = context.Process(target=forked, args=(there, go_on))
            child.start()
        assert here.recv() == "here"
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join(15)
    went_on = not waiting.is_alive()
    go_on.set()
    child.join()
    waiting.join()
    assert went_on
    assert len(calls) == 1
