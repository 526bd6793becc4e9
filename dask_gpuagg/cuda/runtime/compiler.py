"""Machine code of translation units, from the wheel, the disk cache or NVRTC.

NVRTC needs no GPU, so that every specialisation can be compiled, for every architecture, where
the tests run.
"""

import contextlib
import hashlib
import json
import lzma
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dask.system import cpu_count

from dask_gpuagg.cuda.query import structs
from dask_gpuagg.cuda.query.instantiations import TranslationUnit
from dask_gpuagg.cuda.query.tuning import constants
from dask_gpuagg.cuda.runtime import disk_cache
from dask_gpuagg.cuda.runtime.driver import driver_version

T = TypeVar("T")

_PACKAGE = Path(__file__).parents[2]

# in a wheel inside the package, in a checkout beside it
_BESIDE = _PACKAGE.parent / "kernels"
_CHECKOUT = (_PACKAGE.parent / "pyproject.toml").exists() and (_BESIDE / "core").is_dir()
KERNEL_DIR = _BESIDE if _CHECKOUT else _PACKAGE / "kernels"

_OPTIONS = ("--std=c++17", "--device-int128")
_LENGTH = 4  # bytes of the length of what follows the code


class KernelsUnavailable(RuntimeError):
    """Kernels could not be compiled, or not be loaded."""


class CompileError(KernelsUnavailable):
    """NVRTC is missing, or rejected a source; then the message is its log."""


class KernelsCompiling(KernelsUnavailable):
    """Kernels are being compiled, and will be ready for a later call."""


class Compiled(NamedTuple):
    """Machine code, and the names of its kernels in it by their names on the host."""

    code: bytes
    names: dict[str, str]


def cubin(unit: TranslationUnit, architecture: str) -> Compiled:
    """Machine code of a translation unit, from the wheel, the cache or NVRTC, or ``CompileError``.

    The name of an entry of the cache depends on everything that the code depends on: the unit, all
    files of ``kernels/``, options, architecture and the compiler's version. Of processes and
    threads that want an entry one compiles it.
    """
    compiled = cached(unit, architecture)
    if compiled is None:
        key = _key(unit, architecture, compiler_version())
        with disk_cache.one_at_a_time(key):
            compiled = cached(unit, architecture)
            if compiled is None:
                compiled = compile_source(unit, architecture)
                disk_cache.write(key, _entry(compiled))
    return compiled


def cached(unit: TranslationUnit, architecture: str) -> Compiled | None:
    """Read a translation unit's machine code from the wheel or the disk cache; None without it."""
    content = _shipped(unit, architecture)
    if content is None:
        content = disk_cache.read(_key(unit, architecture, compiler_version()))
    if content is None:
        return None
    end = len(content) - _LENGTH
    begin = end - int.from_bytes(content[end:], "little")
    return Compiled(content[:begin], json.loads(content[begin:end]))


def _entry(compiled: Compiled) -> bytes:
    """Names behind the code, so that tools which read machine code still can."""
    names = json.dumps(compiled.names).encode()
    return compiled.code + names + len(names).to_bytes(_LENGTH, "little")


def compile_source(unit: TranslationUnit, architecture: str, *more: str) -> Compiled:
    """Machine code of a translation unit from NVRTC, with ``more`` options; see ``cubin``."""
    compiler_version()  # says what is wrong where there is no NVRTC
    work = partial(_compiled, unit, architecture, more)
    # At its end a process destroys NVRTC's static objects, and a thread that still compiles
    # corrupts the heap. Python waits for threads that are no daemons; those of Dask's workers are.
    return in_own_thread(work).result() if threading.current_thread().daemon else work()


def in_own_thread(
    work: Callable[[], T], slots: contextlib.AbstractContextManager[Any] | None = None
) -> Future[T]:
    """Call a function in a thread that the end of the process waits for, once a slot is free.

    The future raises ``KernelsUnavailable`` if the process is ending before the call begins.
    """
    done: Future[T] = Future()

    def run() -> None:
        with slots or contextlib.nullcontext():
            try:
                if not threading.main_thread().is_alive():
                    raise KernelsUnavailable("the program ends")
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

    threading.Thread(target=run, name="gpuagg-compile", daemon=False).start()
    return done


def _compiled(unit: TranslationUnit, architecture: str, more: Sequence[str]) -> Compiled:
    from cuda.bindings import nvrtc

    with program_of(unit, [f"--gpu-architecture={architecture}", *_OPTIONS, *more]) as program:
        # NVRTC writes into it: objects that cannot change may be shared
        code = bytearray(_checked(nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc.nvrtcGetCUBIN(program, code))
        lowered = {
            kernel: _checked(nvrtc.nvrtcGetLoweredName(program, expression.encode())).decode()
            for kernel, expression in unit.kernels.items()
        }
    return Compiled(bytes(code), lowered)


@contextlib.contextmanager
def program_of(unit: TranslationUnit, options: Sequence[str]) -> Iterator[Any]:
    """A translation unit as a program of NVRTC that is compiled, or ``CompileError``."""
    from cuda.bindings import nvrtc

    names, contents = [name.encode() for name in headers()], list(headers().values())
    source, encoded = unit.source.encode(), [option.encode() for option in options]
    created = nvrtc.nvrtcCreateProgram(source, b"gpuagg.cu", len(names), contents, names)
    program = _checked(created)
    try:
        for expression in unit.kernels.values():
            _checked(nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
            _checked(nvrtc.nvrtcGetProgramLog(program, log))
            raise CompileError(log.decode(errors="replace").rstrip("\0 \n"))
        yield program
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@cache
def headers() -> dict[str, bytes]:
    """The files of ``kernels/``, and those made here, by the names that they are included by.

    Read once in a process, so that entries of the cache have the names of what was compiled.
    """
    paths = sorted(KERNEL_DIR.rglob("*.cuh"))
    files = {path.relative_to(KERNEL_DIR).as_posix(): path.read_bytes() for path in paths}
    generated = {"constants.cuh": constants(), "structs.cuh": structs.header()}
    return {name: text.encode() for name, text in generated.items()} | files


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


@cache
def compiler_version() -> str:
    """NVRTC's version; ``CompileError`` where it cannot be loaded."""
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, OSError, RuntimeError) as error:
        raise CompileError(f"NVRTC cannot be loaded: {error}") from error
    return f"{major}.{minor}"


def supported_architectures() -> list[str]:
    """Architectures that NVRTC compiles for."""
    compiler_version()  # says what is wrong where there is no NVRTC
    from cuda.bindings import nvrtc

    return [f"sm_{number}" for number in _checked(nvrtc.nvrtcGetSupportedArchs())]


def _key(unit: TranslationUnit, architecture: str, compiler: str = "") -> str:
    """The name of an entry; in a wheel it does not depend on the user's compiler."""
    parts = (*unit.kernels, *unit.kernels.values(), *_OPTIONS, architecture, compiler)
    text = "\0".join((unit.source, sources_hash(), *parts))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


# ---- in the wheel --------------------------------------------------------------------------------

# Of each architecture there is an index, and archives of code that is alike and compressed
# together, to a thirtieth, so that the first call of a common query compiles nothing.
# ``dask-gpuagg warm --pack`` writes them.
SHIPPED = _PACKAGE / "cubins"


class _Index(NamedTuple):
    """The version of CUDA that a driver needs at least; archive, begin and end of each entry."""

    cuda: int
    entries: dict[str, tuple[int, int, int]]


def _shipped(unit: TranslationUnit, architecture: str) -> bytes | None:
    """Read an entry; None where the wheel has none that runs.

    Code for the first architecture of a generation runs on all of it.
    """
    for built in dict.fromkeys((architecture, f"{architecture[:-1]}0")):
        index = _index(built)
        if index is None or index.cuda > driver_version():
            continue
        place = index.entries.get(_key(unit, built))
        if place is not None:
            archive, begin, end = place
            return _archive(built, archive)[begin:end]
    return None


def pack(folder: Path, architecture: str, archives: Iterable[Iterable[TranslationUnit]]) -> None:
    """Write machine code as a wheel brings it, an archive for each group of translation units."""
    folder.mkdir(parents=True, exist_ok=True)
    entries: dict[str, tuple[int, int, int]] = {}
    for number, units in enumerate(archives):
        content = bytearray()
        for unit in units:
            entry = _entry(cubin(unit, architecture))
            entries[_key(unit, architecture)] = number, len(content), len(content) + len(entry)
            content += entry
        compressed = lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)
        (folder / f"{architecture}-{number}.xz").write_bytes(compressed)
    major, minor = map(int, compiler_version().split("."))
    index = json.dumps(_Index(1000 * major + 10 * minor, entries)._asdict())
    (folder / f"{architecture}.json").write_text(index, encoding="utf-8")


@cache
def _index(architecture: str) -> _Index | None:
    path = SHIPPED / f"{architecture}.json"
    return _Index(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


@lru_cache(maxsize=2)
def _archive(architecture: str, number: int) -> bytes:
    return lzma.decompress((SHIPPED / f"{architecture}-{number}.xz").read_bytes())


# ---- in the background ---------------------------------------------------------------------------

_waits: ContextVar[bool] = ContextVar("_waits", default=True)


def waits() -> bool:
    """Whether a call waits until its kernels are compiled."""
    return _waits.get()


@contextlib.contextmanager
def waiting(waits: bool) -> Iterator[None]:
    """Calls inside wait for their kernels, or raise ``KernelsCompiling`` instead."""
    token = _waits.set(waits)
    try:
        yield
    finally:
        _waits.reset(token)


def submit(work: Callable[[], Any]) -> Future[Any]:
    """Call a function that compiles in a thread of its own.

    A program that ends completes what has begun, for the cache, and leaves out the rest, all of
    which an executor's threads would do first.
    """
    return in_own_thread(work, _cores_free(os.getpid()))


@lru_cache(1)
def _cores_free(process: int) -> threading.Semaphore:
    # of each process: a fork may find its parent's taken. NVRTC lets go of the interpreter's lock.
    return threading.Semaphore(cpu_count())
