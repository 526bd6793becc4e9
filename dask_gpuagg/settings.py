"""The section ``gpuagg`` of Dask's configuration: one table of settings, and how they are read.

A setting is a record of ``SETTINGS``, which gives its default, its check and messages, a typed
field of ``Settings``, and a section of ``docs/configuration.md``.
"""

import difflib
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import dask
from dask.utils import parse_bytes


class BadSetting(ValueError):
    """An unknown setting of the section ``gpuagg``, or a value that is not allowed."""


@dataclass(frozen=True, slots=True)
class ChunkLimit:
    """The most that one task takes; ``None`` for no limit."""

    partitions: int | None = None
    nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """The values of a setting; ``parse`` raises one of ``_REFUSED`` where one is not allowed."""

    default: Any
    allowed: str  # in words, for messages and the documentation
    parse: Callable[[Any], Any]


# raised by parsers for values of wrong types and sizes
_REFUSED = (ValueError, TypeError, AttributeError, OverflowError)


def _one_of(*choices: str) -> tuple[str, Callable[[Any], Any]]:
    """The values of a setting that is one of some names, and their parser."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError
        return value

    return ", ".join(choices), parse


_ON, _OFF = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_SWITCH = f"{', '.join(_ON[:-1])} or {_ON[-1]}; {', '.join(_OFF[:-1])} or {_OFF[-1]}"


def _switch(value: Any) -> bool:
    # Dask reads environment variables as Python literals: yes, no, on and off stay text
    if isinstance(value, str) and value.strip().lower() in (*_ON, *_OFF):
        return value.strip().lower() in _ON
    if not isinstance(value, int) or value not in (0, 1):
        raise ValueError
    return bool(value)


def _count(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    count = operator.index(value)
    if count < 1 or isinstance(value, bool):
        raise ValueError
    return count


def _chunk(value: Any) -> ChunkLimit:
    if value == "auto":
        return ChunkLimit()
    if isinstance(value, str) and value.strip()[-1:].isalpha():
        nbytes = parse_bytes(value)
        if nbytes < 1:
            raise ValueError
        return ChunkLimit(nbytes=nbytes)
    return ChunkLimit(partitions=_count(int(value) if isinstance(value, str) else value))


SETTINGS: dict[str, Setting] = {
    "enabled": Setting(
        None,
        f"{_SWITCH}; or null to leave it to enable() and disable()",
        lambda value: None if value is None else _switch(value),
    ),
    "fallback": Setting("warn", *_one_of("warn", "raise", "silent")),
    "chunk": Setting(
        "auto", 'auto, a number of partitions from 1 on, or bytes such as "4GB"', _chunk
    ),
    "engine": Setting("auto", *_one_of("auto", "device")),
    "deterministic": Setting(False, _SWITCH, _switch),
    "sample": Setting("auto", *_one_of("auto", "never")),
    "eager-merge": Setting(True, _SWITCH, _switch),
    "kernel": Setting(
        "auto",
        *_one_of("auto", "hgb", "direct", "pgb", "pgb_fold", "pgb_ur", "sgb", "sp_ega", "lphga"),
    ),
    "compile": Setting("background", *_one_of("background", "wait")),
    # one that is no directory costs time, and no query its result
    "kernel-cache": Setting(
        None, "a directory, several as a list or with colons, or null", lambda value: value
    ),
}

# for Dask's configuration
DEFAULTS: dict[str, Any] = {"gpuagg": {name: setting.default for name, setting in SETTINGS.items()}}


@dataclass(frozen=True, slots=True)
class Settings:
    """The parsed settings, by name."""

    enabled: bool | None
    fallback: str
    chunk: ChunkLimit
    engine: str
    deterministic: bool
    sample: str
    eager_merge: bool
    kernel: str
    compile: str
    kernel_cache: Any


# the section as last read, and its settings
_last: tuple[Any, Settings | None] = (None, None)


def settings() -> Settings:
    """The current settings; raises ``BadSetting`` with the name, the value and what is allowed."""
    global _last
    section = dask.config.config.get("gpuagg")
    # comparing the section is much cheaper than checking it; this is called for every node and task
    read, result = _last
    if result is not None and section == read:
        return result
    # a copy: dask.config.set changes the section in place
    section = dict(section) if isinstance(section, Mapping) else section
    result = _read(section)
    _last = (section, result)
    return result


def switch() -> bool | None:
    """The setting ``gpuagg.enabled`` alone: errors in other settings concern group-bys only."""
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
    # the defaults are gone where someone emptied the configuration
    values = dict(DEFAULTS["gpuagg"])
    for spelled, value in section.items():
        # Dask takes either spelling
        name = str(spelled).replace("_", "-")
        if name not in SETTINGS:
            near = difflib.get_close_matches(name, SETTINGS, n=1)
            hint = f" Did you mean gpuagg.{near[0]}?" if near else ""
            raise BadSetting(
                f"there is no setting gpuagg.{spelled} (its value is {value!r}).{hint} "
                f"Settings are {', '.join(SETTINGS)}."
            )
        values[name] = value
    return Settings(**{name.replace("-", "_"): check(name, v) for name, v in values.items()})


def check(name: str, value: Any) -> Any:
    """The value of a setting as the package uses it; raises ``BadSetting``."""
    setting = SETTINGS[name]
    try:
        return setting.parse(value)
    except _REFUSED:
        raise BadSetting(f"gpuagg.{name} is {value!r}; allowed: {setting.allowed}") from None


# those of the client travel with a task: workers have configurations of their own
_of_task: ContextVar[Settings | None] = ContextVar("_of_task", default=None)


def task_settings() -> Settings:
    """The settings of the task that runs; outside of one, those of this process."""
    return _of_task.get() or settings()


@contextmanager
def using(of_task: Settings | None) -> Iterator[None]:
    """Run what is inside by the settings of a task; by those around it for ``None``."""
    token = _of_task.set(of_task or _of_task.get())
    try:
        yield
    finally:
        _of_task.reset(token)
