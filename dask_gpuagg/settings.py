"""The section ``gpuagg`` of Dask's configuration: typed, checked, with its defaults."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import yaml
from dask.utils import parse_bytes

DEFAULTS: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "gpuagg.yaml").read_text())

CHOICES = {
    "fallback": ("warn", "raise", "silent"),
    "sample": ("auto", "never"),
    "kernel": ("auto", "hgb", "direct", "pgb", "pgb_fold", "pgb_ur", "sgb", "sp_ega", "lphga"),
    "compile": ("background", "wait"),
    "engine": ("auto", "device"),
}


class BadSetting(ValueError):
    """An unknown setting of the section ``gpuagg``, or a value that is not allowed."""


@dataclass(frozen=True, slots=True)
class ChunkLimit:
    """The most that one task takes; ``None`` for no limit."""

    partitions: int | None = None
    nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings by name; ``gpuagg.yaml`` describes them."""

    enabled: bool | None
    fallback: str
    chunk: ChunkLimit
    sample: str
    kernel: str
    compile: str
    # as it was given: one that is no directory costs time, and no query its result
    kernel_cache: Any
    pool: str | int | None
    engine: str
    deterministic: bool


# the section as last read, and its settings
_last: tuple[Any, Settings | None] = (None, None)


def settings() -> Settings:
    """The current settings.

    Raises
    ------
    BadSetting
        With the name, the value and what is allowed.
    """
    global _last
    section = dask.config.config.get("gpuagg")
    # comparing the section is much cheaper than checking it; this is called for every node and task
    found, known = _last
    if known is not None and section == found:
        return known
    # a copy: dask.config.set changes the section in place
    found = dict(section) if isinstance(section, Mapping) else section
    known = _read(found)
    _last = (found, known)
    return known


def switch() -> bool | None:
    """The setting ``gpuagg.enabled`` alone: errors in other settings concern group-bys only.

    Raises
    ------
    BadSetting
    """
    section = dask.config.config.get("gpuagg")
    value = section.get("enabled") if isinstance(section, dict) else None
    if value is None or isinstance(value, bool):  # every node of every query comes here
        return value
    return check("enabled", value)  # type: ignore[no-any-return]


def _read(section: Any) -> Settings:
    if section is None:
        section = {}
    if not isinstance(section, Mapping):
        raise BadSetting(f"gpuagg is {section!r}; allowed: a section of settings")
    # Dask takes either spelling; the defaults are gone where someone emptied the configuration
    given = {str(name).replace("-", "_"): value for name, value in section.items()}
    known = {name.replace("-", "_"): value for name, value in DEFAULTS["gpuagg"].items()}
    for name in given.keys() - known.keys():
        names = [n.replace("_", "-") for n in known]
        near = difflib.get_close_matches(name.replace("_", "-"), names, n=1)
        hint = f" Did you mean gpuagg.{near[0]}?" if near else ""
        raise BadSetting(
            f"there is no setting gpuagg.{name} (its value is {given[name]!r}).{hint} "
            f"Settings are {', '.join(names)}."
        )
    return Settings(**{name: check(name, value) for name, value in (known | given).items()})


def check(name: str, value: Any) -> Any:
    """A value as the package uses it.

    Parameters
    ----------
    name : str
        A field of ``Settings``.
    value : object

    Raises
    ------
    BadSetting
    """
    try:
        if name in CHOICES:
            return _choice(value, CHOICES[name])
        return _CHECKS[name](value)
    except ValueError as error:
        shown = name.replace("_", "-")
        raise BadSetting(f"gpuagg.{shown} is {value!r}; allowed: {error}") from None


# Each raises a ValueError whose text says what is allowed.


def _choice(value: Any, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(", ".join(choices))
    return value


def _enabled(value: Any) -> bool | None:
    # environment variables are read as Python literals, and people write 0 and 1 there
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise ValueError("true or false (not as text), or null to leave it to enable() and disable()")


def _deterministic(value: Any) -> bool:
    if not isinstance(value, bool | int) or value not in (0, 1):
        raise ValueError("true or false (not as a string)")
    return bool(value)


def _count(value: Any) -> int:
    try:
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        count = operator.index(whole)
    except TypeError:
        count = 0
    if count < 1 or isinstance(value, bool):
        raise ValueError("a whole number from 1 on")
    return count


def _chunk(value: Any) -> ChunkLimit:
    if value == "auto":
        return ChunkLimit()
    try:
        if isinstance(value, str):
            size = parse_bytes(value)
            if size > 0 and not value.strip().isdecimal():
                return ChunkLimit(nbytes=size)
        return ChunkLimit(partitions=_count(int(value) if isinstance(value, str) else value))
    except (TypeError, ValueError, AttributeError, OverflowError):
        raise ValueError('auto, a number of partitions from 1 on, or bytes such as "4GB"') from None


def _as_given(value: Any) -> Any:
    return value


def _pool(value: Any) -> str | int | None:
    if value is not None and _bytes(value) is None:
        raise ValueError('a number of bytes above 0, text such as "20GB", or null')
    return value  # type: ignore[no-any-return]


def _bytes(value: Any) -> int | None:
    """Bytes as Dask reads them; ``None`` for what is no number of bytes above 0."""
    try:
        if isinstance(value, bool):
            return None
        size = parse_bytes(value)
    except (TypeError, ValueError, AttributeError, OverflowError):
        return None
    return size if size >= 1 else None


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "enabled": _enabled,
    "chunk": _chunk,
    "kernel_cache": _as_given,
    "pool": _pool,
    "deterministic": _deterministic,
}
