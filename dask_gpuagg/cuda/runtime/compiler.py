"""Compile translation units with NVRTC, once per machine.

NVRTC needs no GPU, so that every specialisation can be compiled, for every architecture, where
the tests run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dask_gpuagg.cuda.query.instantiations import TranslationUnit
from dask_gpuagg.cuda.query.tuning import constants
from dask_gpuagg.settings import settings

_PACKAGE = Path(__file__).parents[2]

# in a wheel inside the package, in a checkout beside it
_BESIDE = _PACKAGE.parent / "kernels"
_CHECKOUT = (_PACKAGE.parent / "pyproject.toml").exists() and (_BESIDE / "core").is_dir()
KERNELS = _BESIDE if _CHECKOUT else _PACKAGE / "kernels"

# Ampere, Hopper, Blackwell (data centre, workstation): what CI compiles for
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")

_OPTIONS = ("--std=c++17", "--device-int128")
_DIGEST = hashlib.sha256().digest_size
_LENGTH = 4  # bytes of the length of what follows the code


class KernelsUnavailable(RuntimeError):
    """Kernels could not be compiled, or not be loaded."""


class CompileError(KernelsUnavailable):
    """NVRTC is missing, or rejected a source; then the message is its log."""


class Compiled(NamedTuple):
    """Machine code.

    Attributes
    ----------
    code : bytes
    names : dict of str to str
        The name that each kernel has in the code, by its name on the host.
    """

    code: bytes
    names: dict[str, str]


def cubin(unit: TranslationUnit, architecture: str) -> Compiled:
    """Machine code of a translation unit, from the disk cache or from NVRTC.

    Parameters
    ----------
    unit : TranslationUnit
    architecture : str
        As NVRTC names it: ``sm_90``.

    Returns
    -------
    Compiled

    Raises
    ------
    CompileError
        With NVRTC's log.

    Notes
    -----
    An entry of the cache is named by everything that its content depends on: the unit, all files
    of ``kernels/``, options, architecture and NVRTC's version. Entries are written under another
    name first and then moved, so that processes can share a cache; one that was cut short or
    changed is compiled anew and replaced. ``gpuagg.kernel-cache`` names the directory; one that
    cannot be written is reported once and not used.
    """
    directory = cache_directory()
    if directory is None:
        return compile_source(unit, architecture)
    path = directory / f"{_key(unit, architecture)}.cubin"
    compiled = _read(path)
    if compiled is None:
        compiled = compile_source(unit, architecture)
        _write(path, compiled)
    return compiled


def compile_source(unit: TranslationUnit, architecture: str, *more: str) -> Compiled:
    """Machine code of a translation unit from NVRTC, with ``more`` options; see ``cubin``."""
    _nvrtc_version()  # says what is wrong where there is no NVRTC
    from cuda.bindings import nvrtc

    names, contents = zip(*headers().items(), strict=True)
    program = _checked(
        nvrtc.nvrtcCreateProgram(
            unit.source.encode(),
            b"gpuagg.cu",
            len(names),
            list(contents),
            [name.encode() for name in names],
        )
    )
    try:
        for expression in unit.kernels.values():
            _checked(nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        options = [o.encode() for o in (f"--gpu-architecture={architecture}", *_OPTIONS, *more)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log: bytes = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
            _checked(nvrtc.nvrtcGetProgramLog(program, log))
            raise CompileError(log.decode(errors="replace").rstrip("\0 \n"))
        code: bytes = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
        _checked(nvrtc.nvrtcGetCUBIN(program, code))
        lowered = {
            kernel: _checked(nvrtc.nvrtcGetLoweredName(program, expression.encode())).decode()
            for kernel, expression in unit.kernels.items()
        }
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Compiled(code, lowered)


@cache
def headers() -> dict[str, bytes]:
    """The files of ``kernels/``, and ``constants.cuh``, by the names that they are included by.

    Each is read once in a process: what is compiled is what names the entries of the cache, even
    where files change meanwhile.
    """
    paths = sorted(KERNELS.rglob("*.cuh"))
    files = {path.relative_to(KERNELS).as_posix(): path.read_bytes() for path in paths}
    return {"constants.cuh": constants().encode(), **files}


@cache
def sources_hash() -> str:
    """Digest of all files of ``kernels/`` that are compiled: what a measurement was made with."""
    digest = hashlib.sha256()
    for name, content in headers().items():
        digest.update(name.encode() + b"\0" + content + b"\0")
    return digest.hexdigest()


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


def _read(path: Path) -> Compiled | None:
    """What an entry holds; None where there is none, or not the one that was written."""
    try:
        entry = path.read_bytes()
    except OSError:
        return None
    content, digest = entry[:-_DIGEST], entry[-_DIGEST:]
    if hashlib.sha256(content).digest() != digest:
        return None
    end = len(content) - _LENGTH
    begin = end - int.from_bytes(content[end:], "little")
    return Compiled(content[:begin], json.loads(content[begin:end]))


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


def _write(path: Path, compiled: Compiled) -> None:
    names = json.dumps(compiled.names).encode()
    # the names follow the code, so that tools which read machine code still can
    content = compiled.code + names + len(names).to_bytes(_LENGTH, "little")
    try:
        write_whole(path, content + hashlib.sha256(content).digest())
    except OSError as error:
        # the error's own text may name the temporary file, which differs each time
        _warn_cache(str(path.parent), error.strerror or type(error).__name__)


@cache
def _nvrtc_version() -> str:
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, OSError, RuntimeError) as error:
        raise CompileError(f"NVRTC cannot be loaded: {error}") from error
    return f"{major}.{minor}"


def _key(unit: TranslationUnit, architecture: str) -> str:
    parts = (*unit.kernels, *unit.kernels.values(), *_OPTIONS, architecture, _nvrtc_version())
    whole = "\0".join((unit.source, sources_hash(), *parts))
    return hashlib.sha256(whole.encode()).hexdigest()[:40]


@cache
def _warn_cache(directory: str, reason: str) -> None:
    warnings.warn(
        f"kernels are compiled anew in each process: the kernel cache {directory} cannot be "
        f"written ({reason}); set gpuagg.kernel-cache to a directory that can",
        stacklevel=2,
    )
