"""Directories that keep what is made once for a machine: which are trusted, read and written.

What lies there is machine code that is run as it is. So a directory, and an entry in it, counts
only if nobody but its reader and root may have written it.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from dask_gpuagg.settings import settings

# Entries that were used last stay, up to so many bytes: tens of thousands of units.
SIZE_AT_MOST = 1 << 30
# What a process that was killed has left is removed after so many seconds.
LEFT_AFTER = 3600
# Another process that compiles the same entry is waited for at most so many seconds: it may have
# been stopped.
WAIT_AT_MOST = 20.0

SUFFIX = ".cubin"
_ENTRY = re.compile(r"[0-9a-f]{40}\.cubin")
_UNFINISHED = re.compile(r"gpuagg-.*\.(tmp|lock)")
_DIGEST = hashlib.sha256().digest_size
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def directories() -> tuple[Path, ...]:
    """Those of ``gpuagg.kernel-cache`` that may be trusted, in its order.

    One that does not exist is among them: it is made when something is written. Each of the others
    is named by a warning, once in a process.
    """
    trusted = []
    for name in _named():
        try:
            trusted.append(_trusted(name))
        except (ValueError, RuntimeError) as error:
            reason = str(error).rstrip(".")
            _warn(f"the kernel cache {name or repr(name)} is not used: {reason}")
    return tuple(trusted)


def cache_directory() -> Path | None:
    """First writable directory, or else the first one; None without directories."""
    trusted = directories()
    for directory in trusted:
        there = next(p for p in (directory, *directory.parents) if p.exists())
        if os.access(there, os.W_OK | os.X_OK):
            return directory
    return trusted[0] if trusted else None


def read(name: str) -> bytes | None:
    """Read the data stored under a name; None if there are none, or if their checksum differs."""
    for directory in directories():
        content = _trusted_content(directory / f"{name}{SUFFIX}")
        if content is None:
            continue
        content, digest = content[:-_DIGEST], content[-_DIGEST:]
        if hashlib.sha256(content).digest() == digest:
            return content
    return None


def write(name: str, content: bytes) -> None:
    """Keep an entry in the first directory that can be written; a warning where none can."""
    refused = []
    for directory in directories():
        try:
            entry = content + hashlib.sha256(content).digest()
            write_whole(directory / f"{name}{SUFFIX}", entry)
        except OSError as error:
            # the error's own text may name the temporary file, which differs each time
            refused.append(f"{directory} cannot be written ({error.strerror})")
        else:
            tidy(directory)
            return
    if refused:
        _warn(f"the kernel cache {', and '.join(refused)}")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that other processes see entirely or not at all, and that all users can read.

    Of an ``OSError`` nothing is left.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        dir=path.parent, prefix="gpuagg-", suffix=".tmp", delete=False
    ) as file:
        try:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.replace(file.name, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise


@contextlib.contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Let one process or thread make an entry while the others that want it wait.

    A lock that cannot be had is done without: then several make the same.
    """
    directory = cache_directory()
    path = None if directory is None else directory / f"gpuagg-{name}.lock"
    file = None if path is None else _locked(path)
    try:
        yield
    finally:
        if path is not None and file is not None:
            with contextlib.suppress(OSError):
                os.unlink(path)
            # closing is not enough where a fork has the file too
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


def _locked(path: Path) -> int | None:
    """The descriptor of a file that is locked; None where it cannot be, or others keep it."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    end = time.monotonic() + WAIT_AT_MOST
    while time.monotonic() < end:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:  # a file system without locks
            break
        else:
            return file
    os.close(file)
    return None


def tidy(directory: Path) -> None:
    """Remove leftovers of killed processes, and the least recently used entries above the limit."""
    entries = []
    with contextlib.suppress(OSError), os.scandir(directory) as files:
        for file in files:
            with contextlib.suppress(OSError):  # another process removed it
                state = file.stat(follow_symlinks=False)
                if _UNFINISHED.fullmatch(file.name) and time.time() - state.st_mtime > LEFT_AFTER:
                    os.unlink(file.path)
                elif _ENTRY.fullmatch(file.name):
                    entries.append((state.st_mtime, state.st_size, file.path))
    size = sum(entry[1] for entry in entries)
    if size <= SIZE_AT_MOST:
        return
    # some room more, so that the next writes need not remove anything
    for _, bytes_of, path in sorted(entries):
        if size <= SIZE_AT_MOST // 4 * 3:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)
            size -= bytes_of


def _named() -> Iterator[Any]:
    """The entries of the setting: paths as text, unless they are something else."""
    chosen = settings().kernel_cache
    if chosen is None:
        base = os.environ.get("XDG_CACHE_HOME", "")
        # as that specification has it, one that is not absolute does not count
        yield os.path.join(base if os.path.isabs(base) else "~/.cache", "dask_gpuagg")
        return
    for value in chosen if isinstance(chosen, list | tuple) else [chosen]:
        if isinstance(value, str | os.PathLike) and os.fspath(value):
            yield from filter(None, os.fsdecode(value).split(os.pathsep))
        else:
            yield value


def _trusted(name: Any) -> Path:
    """The directory of an entry of the setting; ``ValueError`` says why it is not to be used."""
    if not isinstance(name, str) or not name:
        raise ValueError("it is no path")
    path = Path(name).expanduser()
    if not path.is_absolute():
        raise ValueError("it is no absolute path")
    try:
        state = os.stat(path)
    except FileNotFoundError:
        return path
    except OSError as error:
        raise ValueError(error.strerror) from error
    reason = _foreign(state) if stat.S_ISDIR(state.st_mode) else "it is no directory"
    if reason is not None:
        raise ValueError(reason)
    return path


def _foreign(state: os.stat_result) -> str | None:
    """Whether others than this user and root may have written there, in words."""
    if state.st_uid not in (0, os.geteuid()):
        return f"user {state.st_uid} owns it, and this process is of user {os.geteuid()}"
    if state.st_mode & _BY_OTHERS:
        return f"other users may write there (mode {stat.S_IMODE(state.st_mode):o})"
    return None


def _trusted_content(path: Path) -> bytes | None:
    try:
        # a pipe in the place of a file would never answer
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            state = os.fstat(file.fileno())
            reason = "it is no file" if not stat.S_ISREG(state.st_mode) else _foreign(state)
            if reason is not None:
                _warn(f"{path} of the kernel cache is not used: {reason}")
                return None
            content = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn(f"the kernel cache {path.parent} cannot be read ({error.strerror})")
        return None
    if time.time() - state.st_mtime > LEFT_AFTER:
        # when it was last used, as far as an hour; root's entries stay as they are
        with contextlib.suppress(OSError):
            os.utime(path)
    return content


@lru_cache(256)
def _warn(problem: str) -> None:
    warnings.warn(
        f"{problem}. What it lacks is compiled again in each process; gpuagg.kernel-cache "
        "names directories of this user or of root, which no other user may write",
        stacklevel=2,
    )
