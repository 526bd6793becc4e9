"""Directories of the kernel cache: which are trusted, read, written and kept small."""

import itertools
import os
import pwd
import stat
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import pytest

from dask_gpuagg.cuda.runtime import disk_cache
from dask_gpuagg.cuda.runtime.compiler import cubin
from tests.cuda.runtime.caching import TINY, entries, other, warned

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's bindings are not installed")

HOUR = 3600


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
    def unknown(user: int) -> Any:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
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


# ---- which directories are trusted -------------------------------------------------------------


BAD = {
    "False": (False, "it is no path"),
    "a number": (123, "it is no path"),
    "nothing": ("", "it is no path"),
    "no such user": ("~nosuchuser/x", "home directory"),
    "NUL": ("/tmp/a\0b", "embedded null"),
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
    for i in range(40):
        disk_cache.write(f"{i:040x}", b"x" * 10_000)
    assert sum(path.stat().st_size for path in entries(cache)) <= 100_000
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
