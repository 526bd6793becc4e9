"""Compile the kernels of a query with NVRTC, once per machine.

NVRTC needs no GPU, so that every specialisation can be compiled, for every architecture, where
the tests run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from dask_gpuagg.settings import settings

_PACKAGE = Path(__file__).parents[2]

# in a wheel inside the package, in a checkout beside it
_CHECKOUT = (_PACKAGE.parent / "pyproject.toml").exists()
KERNELS = (_PACKAGE.parent if _CHECKOUT else _PACKAGE) / "kernels"

# Ampere, Hopper, Blackwell (data centre, workstation): what CI compiles for
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")

_OPTIONS = ("--std=c++17", "--device-int128", f"--include-path={KERNELS}")
_DIGEST = hashlib.sha256().digest_size


class KernelsUnavailable(RuntimeError):
    """Kernels could not be compiled, or not be loaded."""


class CompileError(KernelsUnavailable):
    """NVRTC is not there, or refused a source; then the message is its log."""


def cubin(source: str, architecture: str) -> bytes:
    """Machine code of a source, from the disk cache or from NVRTC.

    Parameters
    ----------
    source : str
        A translation unit; it may include any file below ``kernels/``.
    architecture : str
        As NVRTC names it: ``sm_90``.

    Returns
    -------
    bytes

    Raises
    ------
    CompileError
        With NVRTC's log.

    Notes
    -----
    An entry of the cache is named by everything that its content depends on: the source, all
    files of ``kernels/``, options, architecture and NVRTC's version. Entries are written under
    another name first and then moved, so that processes can share a cache; one that was cut short
    or changed is compiled anew and replaced. ``gpuagg.kernel-cache`` names the directory; one that
    cannot be written is reported once and not used.
    """
    directory = cache_directory()
    if directory is None:
        return compile_source(source, architecture)
    path = directory / f"{_key(source, architecture)}.cubin"
    code = _read(path)
    if code is None:
        code = compile_source(source, architecture)
        _write(path, code)
    return code


def compile_source(source: str, architecture: str, *more: str) -> bytes:
    """Machine code of a source from NVRTC, with ``more`` options; see ``cubin``."""
    _nvrtc_version()  # says what is wrong where there is no NVRTC
    from cuda.bindings import nvrtc

    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), b"gpuagg.cu", 0, [], []))
    options = [
        f"--gpu-architecture={architecture}".encode(),
        *(o.encode() for o in (*_OPTIONS, *more)),
    ]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log: bytes = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        _checked(nvrtc.nvrtcGetProgramLog(program, log))
        nvrtc.nvrtcDestroyProgram(program)
        raise CompileError(log.decode(errors="replace").rstrip("\0 \n"))
    code: bytes = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
    _checked(nvrtc.nvrtcGetCUBIN(program, code))
    nvrtc.nvrtcDestroyProgram(program)
    return code


def sources_hash() -> str:
    """Digest of all files of ``kernels/`` that are compiled: what a measurement was made with."""
    return _sources_hash()


def _checked(returned: tuple[Any, ...]) -> Any:
    from cuda.bindings import nvrtc

    status, *values = returned
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC failed: {status}")
    return values[0] if values else None


def cache_directory() -> Path | None:
    """Where what is made once for a machine is kept; None without a place for it."""
    chosen = settings().kernel_cache
    if chosen is not None:
        return Path(chosen).expanduser()
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:  # a user whom the system does not know, as in some containers
        _warn_cache("below the home directory", str(error))
        return None
    return base / "dask_gpuagg"


def _read(path: Path) -> bytes | None:
    """The code of an entry; None where there is none, or not the one that was written."""
    try:
        entry = path.read_bytes()
    except OSError:
        return None
    code, digest = entry[:-_DIGEST], entry[-_DIGEST:]
    return code if hashlib.sha256(code).digest() == digest else None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that other processes see whole or not at all.

    Raises
    ------
    OSError
        Then nothing is left of it.
    """
    unfinished = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            unfinished = file.name
            file.write(content)
        os.replace(unfinished, path)
    except OSError:
        if unfinished is not None:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
        raise


def _write(path: Path, code: bytes) -> None:
    try:
        # the digest follows the code, so that tools which read machine code still can
        write_whole(path, code + hashlib.sha256(code).digest())
    except OSError as error:
        # the error's own text may name the temporary file, which differs each time
        _warn_cache(str(path.parent), error.strerror or type(error).__name__)


@cache
def _sources_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(KERNELS.rglob("*.cuh")):
        digest.update(path.relative_to(KERNELS).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def _nvrtc_version() -> str:
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, OSError, RuntimeError) as error:
        raise CompileError(f"NVRTC cannot be loaded: {error}") from error
    return f"{major}.{minor}"


def _key(source: str, architecture: str) -> str:
    # the include path is where this installation lies, which changes nothing
    parts = (source, _sources_hash(), *_OPTIONS[:-1], architecture, _nvrtc_version())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


@cache
def _warn_cache(directory: str, reason: str) -> None:
    warnings.warn(
        f"kernels are compiled anew in each process: the kernel cache {directory} cannot be "
        f"written ({reason}); set gpuagg.kernel-cache to a directory that can",
        stacklevel=2,
    )
