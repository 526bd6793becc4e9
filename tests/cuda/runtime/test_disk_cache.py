"""The kernel cache: which directories are trusted, and that each entry is whole and its own."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import dask
import pytest

from dask_gpuagg.cuda.query.instantiations import TranslationUnit
from dask_gpuagg.cuda.runtime import compiler, disk_cache
from dask_gpuagg.cuda.runtime.compiler import (
    KERNELS,
    Compiled,
    CompileError,
    compile_source,
    cubin,
    cubins,
    headers,
)

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's bindings are not installed")

TINY = TranslationUnit(
    '#include "core/types.cuh"\nnamespace gpuagg {\n__global__ void tiny() {}\n}\n',
    {"tiny": "gpuagg::tiny"},
)
HOUR = 3600


def other(unit: TranslationUnit, number: int = 0) -> TranslationUnit:
    """The same kernels from another source."""
    return unit._replace(source=f"{unit.source}// {number}\n")


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
    remembered: Sequence[Any] = (
        *(headers, compiler.sources_hash),
        *(compiler.compiler_version, disk_cache._warn),
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


def warned(setting: Any) -> list[str]:
    """The warnings of two sources, each compiled twice."""
    with (
        dask.config.set({"gpuagg.kernel-cache": setting}),
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
    (message,) = warned(str(tmp_path))
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
    (message,) = warned(str(tmp_path))
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
    (message,) = warned(str(cache))
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


# ---- which directories are trusted -------------------------------------------------------------


BAD = {
    "False": (False, "it is no path"),
    "a number": (123, "it is no path"),
    "nothing": ("", "it is no path"),
    "no such user": ("~nosuchuser/x", "home directory"),
    "NUL": ("/tmp/a\0b", "it has a NUL in it"),
    "relative": ("some/folder", "it is no absolute path"),
    "too long": ("/" + "x" * 300, "too long"),
    "a mapping": ({"a": 1}, "it is no path"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_directory_costs_a_warning(name: str, fresh: None) -> None:
    value, reason = BAD[name]
    (message,) = warned(value)
    assert reason in message
    assert "gpuagg.kernel-cache" in message


def test_others_of_a_list_are_used_all_the_same(fresh: None, tmp_path: Path) -> None:
    (message,) = warned([False, str(tmp_path / "own")])
    assert "False is not used" in message
    assert len(entries(tmp_path / "own")) == 2


def test_a_home_is_found(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert warned("~/kernels") == []
    assert len(entries(tmp_path / "kernels")) == 2


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777, 0o757])
def test_a_directory_that_others_may_write_is_refused(
    mode: int, fresh: None, tmp_path: Path
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    (message,) = warned(str(folder))
    assert f"{folder} is not used: other users may write there (mode {mode:o})" in message
    assert entries(folder) == []


def owned_by(user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this process were of another user than its files."""
    monkeypatch.setattr(os, "geteuid", lambda: user)


def test_a_directory_of_another_user_is_refused(
    fresh: None, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:
        cache.mkdir()
        os.chown(cache, 65534, -1)
    else:
        cache.mkdir()
        owned_by(os.geteuid() + 1, monkeypatch)
    owner = cache.stat().st_uid
    (message,) = warned(str(cache))
    assert f"user {owner} owns it" in message
    assert entries(cache) == []


def test_an_entry_of_another_user_is_not_loaded(fresh: None, cache: Path, calls: list[Any]) -> None:
    """It may be from when the directory was open to others."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    cubin(TINY, "sm_90")
    (entry,) = entries(cache)
    os.chown(entry, 65534, -1)
    with pytest.warns(
        UserWarning, match=f"{entry.name} of the kernel cache is not used: user 65534"
    ):
        cubin(TINY, "sm_90")
    assert len(calls) == 2
    # written anew, by this user
    assert entry.stat().st_uid == 0


def test_an_entry_that_others_may_write_is_not_loaded(
    fresh: None, cache: Path, calls: list[Any]
) -> None:
    cubin(TINY, "sm_90")
    (entry,) = entries(cache)
    entry.chmod(0o666)
    with pytest.warns(UserWarning, match="other users may write there"):
        cubin(TINY, "sm_90")
    assert len(calls) == 2
    assert stat.S_IMODE(entry.stat().st_mode) == 0o644


def test_a_pipe_in_the_place_of_an_entry(fresh: None, cache: Path, calls: list[Any]) -> None:
    cubin(TINY, "sm_90")
    (entry,) = entries(cache)
    entry.unlink()
    os.mkfifo(entry)
    with pytest.warns(UserWarning, match="it is no file"):
        cubin(TINY, "sm_90")
    assert len(calls) == 2


def test_roots_directory_is_trusted(
    fresh: None, cache: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an image has it: root filled it, and another user reads it."""
    if os.geteuid() != 0:
        pytest.skip("the files are not root's")
    cubin(TINY, "sm_90")
    owned_by(1000, monkeypatch)
    assert warned(str(cache)) == []
    # one entry was there
    assert len(calls) == len(entries(cache)) == 2


def test_all_users_can_read_what_is_written(cache: Path) -> None:
    before = os.umask(0o002)
    try:
        cubin(TINY, "sm_90")
    finally:
        os.umask(before)
    (entry,) = entries(cache)
    assert stat.S_IMODE(entry.stat().st_mode) == 0o644
    assert stat.S_IMODE(cache.stat().st_mode) == 0o755


def test_a_umask_of_nothing_opens_no_directory(cache: Path) -> None:
    before = os.umask(0)
    try:
        disk_cache.write_whole(cache / "notes", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o755
    assert stat.S_IMODE((cache / "notes").stat().st_mode) == 0o644


# ---- several directories -----------------------------------------------------------------------


@pytest.mark.parametrize("joined", [False, True], ids=["list", "text"])
def test_all_are_read_and_the_first_is_written(
    joined: bool, cache: Path, calls: list[Any], tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    with dask.config.set({"gpuagg.kernel-cache": str(shared)}):
        cubin(TINY, "sm_90")
    both: Any = [str(cache), str(shared)]
    with dask.config.set({"gpuagg.kernel-cache": os.pathsep.join(both) if joined else both}):
        cubin(TINY, "sm_90")
        assert len(calls) == 1
        assert not cache.exists()
        cubin(other(TINY), "sm_90")
    assert len(calls) == 2
    assert len(entries(cache)) == len(entries(shared)) == 1


def test_what_cannot_be_written_is_passed_over(
    fresh: None, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    made = tempfile.NamedTemporaryFile

    def refuse(**where: Any) -> Any:
        if where["dir"] == shared:
            raise PermissionError(13, "Permission denied", "a name")
        return made(**where)

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    assert warned([str(shared), str(cache)]) == []
    assert len(entries(cache)) == 2


def test_directories_that_cannot_be_read_or_written_are_told_apart(
    fresh: None, cache: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cubin(TINY, "sm_90")
    opened = os.open

    def refuse(path: Any, *how: Any, **more: Any) -> int:
        if str(path).endswith(".cubin"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *how, **more)

    monkeypatch.setattr(os, "open", refuse)
    (message,) = warned(str(cache))
    assert f"{cache} cannot be read (Permission denied)" in message
    assert "written" not in message.partition(".")[0]


# ---- nothing grows for ever --------------------------------------------------------------------


def filled(cache: Path, sizes: Sequence[int]) -> list[Path]:
    """Entries of these sizes, the first one used longest ago."""
    cache.mkdir(exist_ok=True)
    made = []
    for i, size in enumerate(sizes):
        path = cache / f"{i:040x}.cubin"
        path.write_bytes(b"x" * size)
        at = time.time() - HOUR * (len(sizes) - i)
        os.utime(path, (at, at))
        made.append(path)
    return made


def test_entries_used_last_stay(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "SIZE_AT_MOST", 1000)
    made = filled(cache, [200] * 6)
    own = cache / "notes.txt"
    own.write_bytes(b"x" * 5000)
    disk_cache.tidy(cache)
    # three quarters of the limit, and nothing that is no entry
    assert entries(cache) == [*made[3:], own]
    disk_cache.tidy(cache)
    assert entries(cache) == [*made[3:], own]


def test_writing_keeps_the_size(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "SIZE_AT_MOST", 100_000)
    monkeypatch.setattr(disk_cache, "_TIDY_EACH", 4)
    for i in range(40):
        disk_cache.write(f"{i:040x}", b"x" * 10_000)
    assert sum(path.stat().st_size for path in entries(cache)) <= 100_000 + 3 * 10_032
    assert disk_cache.read(f"{39:040x}") == b"x" * 10_000
    assert disk_cache.read(f"{0:040x}") is None


def test_reading_counts_as_use(cache: Path, calls: list[Any]) -> None:
    cubin(TINY, "sm_90")
    (entry,) = entries(cache)
    long_ago = time.time() - 48 * HOUR
    os.utime(entry, (long_ago, long_ago))
    cubin(TINY, "sm_90")
    assert time.time() - entry.stat().st_mtime < HOUR
    assert len(calls) == 1


def test_what_killed_processes_left_is_swept(cache: Path) -> None:
    cache.mkdir()
    names = ("gpuagg-abc.tmp", "gpuagg-def.lock", "tmp-of-others", "gpuagg-recent.tmp")
    for name in names:
        (cache / name).write_bytes(b"")
        at = time.time() - (2 * HOUR if "recent" not in name else 60)
        os.utime(cache / name, (at, at))
    disk_cache.tidy(cache)
    assert [path.name for path in entries(cache)] == ["gpuagg-recent.tmp", "tmp-of-others"]


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
        with disk_cache.one_at_a_time(compiler._key(TINY, "sm_90")):
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
    with disk_cache.one_at_a_time(compiler._key(TINY, "sm_90")):
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


# ---- several units at once ---------------------------------------------------------------------


def test_units_are_compiled_side_by_side(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3)

    def wait(unit: TranslationUnit, architecture: str) -> Compiled:
        together.wait(30)
        return compile_source(unit, architecture)

    monkeypatch.setattr(compiler, "_cores", lambda: 3)
    monkeypatch.setattr(compiler, "compile_source", wait)
    wanted = [(other(TINY, i), "sm_90") for i in range(3)]
    made = cubins(wanted)
    assert made == [compile_source(*one) for one in wanted]
    assert len(entries(cache)) == 3


@pytest.mark.parametrize("cores", [1, 4])
def test_a_unit_that_fails_leaves_the_others(
    cores: int, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "_cores", lambda: cores)
    wrong = TranslationUnit("__global__ void f() { no_such_thing(); }", {})
    first, failed, last = cubins([(unit, "sm_90") for unit in (TINY, wrong, other(TINY))])
    assert isinstance(failed, CompileError)
    assert "no_such_thing" in str(failed)
    assert isinstance(first, Compiled)
    assert isinstance(last, Compiled)
    assert len(entries(cache)) == 2


def test_no_units_are_no_work(cache: Path) -> None:
    assert cubins([]) == []
    assert not cache.exists()
