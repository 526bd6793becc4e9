"""Settings: defaults, what is refused, and how it is told."""

import pickle
import re

import dask
import pytest

from dask_gpuagg import BadSetting
from dask_gpuagg.cuda.choice.choose import KERNELS
from dask_gpuagg.settings import DEFAULTS, SETTINGS, ChunkLimit, Settings, settings
from tests.running import ROOT, run_python

BAD = {
    "enabled": ["maybe", "", "2", 2, 0.5, []],
    "fallback": ["explode", None, True, 1, ["warn"]],
    "chunk": ["few", None, 0, -4, 1.5, "1.5", "-1GB", "0B", True, [2], float("nan")],
    "sample": ["always", False, 3],
    "eager-merge": ["maybe", "", "2", None, 2, 0.5, []],
    "kernel": ["fastest", "hgb_runs", "", None],
    "compile": ["never", False, None],
    "engine": ["gpu", "host", None, True],
    "deterministic": ["maybe", "", "2", None, 2, 0.5, []],
    # what is no directory costs a warning and time: tests/cuda/runtime/test_disk_cache.py
    "kernel-cache": [],
}
SWITCHES = [
    *((value, True) for value in (True, 1, "true", "True", "yes", "on", "1", " ON ")),
    *((value, False) for value in (False, 0, "false", "False", "no", "off", "0", "No")),
]
GOOD = {
    "enabled": [*SWITCHES, (None, None)],
    "fallback": [("warn", "warn"), ("raise", "raise"), ("silent", "silent")],
    "chunk": [
        ("auto", ChunkLimit()),
        (4, ChunkLimit(partitions=4)),
        ("4", ChunkLimit(partitions=4)),
        ("1 GiB", ChunkLimit(nbytes=1 << 30)),
    ],
    "sample": [("auto", "auto"), ("never", "never")],
    "eager-merge": SWITCHES,
    "kernel": [("auto", "auto"), ("pgb_ur", "pgb_ur")],
    "compile": [("background", "background"), ("wait", "wait")],
    "engine": [("auto", "auto"), ("device", "device")],
    "deterministic": SWITCHES,
    "kernel-cache": [(None, None), ("/tmp/x", "/tmp/x"), (["/x", "/y"], ["/x", "/y"]), (3, 3)],
}


CHOICES = {
    "fallback": ("warn", "raise", "silent"),
    "sample": ("auto", "never"),
    "kernel": ("auto", *KERNELS),
    "compile": ("background", "wait"),
    "engine": ("auto", "device"),
}

AS_SHIPPED = Settings(
    enabled=None,
    fallback="warn",
    chunk=ChunkLimit(),
    engine="auto",
    deterministic=False,
    sample="auto",
    eager_merge=True,
    kernel="auto",
    compile="background",
    kernel_cache=None,
)


def test_the_configuration_has_the_defaults():
    code = (
        "import dask, dask_gpuagg, dask_gpuagg.settings as s\n"
        "assert dask.config.config['gpuagg'] == s.DEFAULTS['gpuagg']\n"
        "print(s.settings())"
    )
    ran = run_python("-c", code)
    assert ran.stdout.strip() == str(AS_SHIPPED), ran.stderr


def test_every_setting_is_checked_here():
    assert list(SETTINGS) == [name.replace("_", "-") for name in Settings.__slots__]
    assert set(SETTINGS) == set(BAD) == set(GOOD)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_a_section_and_a_row_of_the_table(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    from package_tables import settings_table

    assert re.match(r"[A-Z].{20}", section_of(name))
    (row,) = (line for line in settings_table().splitlines() if f"(#gpuagg-{name})" in line)
    default = {None: "null", False: "false", True: "true"}.get(
        SETTINGS[name].default, SETTINGS[name].default
    )
    variable = f"DASK_GPUAGG__{name.upper().replace('-', '_')}"
    assert f"| `{default}` | {SETTINGS[name].allowed} | `{variable}` |" in row


def section_of(name):
    """The text about a setting."""
    page = (ROOT / "docs" / "configuration.md").read_text()
    return page.partition(f"\n## `gpuagg.{name}`\n\n")[2].partition("\n(gpuagg-")[0]


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in BAD.items() for v in values])
def test_a_bad_value_is_refused_with_what_is_allowed(name, value):
    with dask.config.set({f"gpuagg.{name}": value}), pytest.raises(BadSetting) as caught:
        settings()
    message = str(caught.value)
    assert f"gpuagg.{name} is {value!r}" in message
    assert "allowed: " in message
    assert all(c in message for c in CHOICES.get(name, ()))
    assert isinstance(caught.value, ValueError)
    settings()


@pytest.mark.parametrize(("name", "pair"), [(n, p) for n, pairs in GOOD.items() for p in pairs])
def test_a_good_value_is_taken(name, pair):
    with dask.config.set({f"gpuagg.{name}": pair[0]}):
        value = getattr(settings(), name.replace("-", "_"))
    assert value == pair[1]
    assert type(value) is type(pair[1])


@pytest.mark.parametrize(
    ("name", "near"), [("falback", "fallback"), ("kernels_cache", "kernel-cache")]
)
def test_an_unknown_name_is_refused_with_the_nearest(name, near):
    with dask.config.set({"gpuagg": {name: 1}}), pytest.raises(BadSetting) as caught:
        settings()
    assert f"gpuagg.{name}" in str(caught.value)
    assert f"Did you mean gpuagg.{near}?" in str(caught.value)
    assert all(known in str(caught.value) for known in DEFAULTS["gpuagg"])


@pytest.mark.parametrize("section", [True, "raise", ["fallback"]])
def test_a_section_that_is_none_is_refused(section):
    with dask.config.set({"gpuagg": section}), pytest.raises(BadSetting, match="a section"):
        settings()


@pytest.mark.parametrize("section", [None, {}])
def test_an_empty_section_means_the_defaults(section):
    with dask.config.set({"gpuagg": section}):
        assert settings() == AS_SHIPPED


def test_both_spellings_are_one_name():
    with dask.config.set({"gpuagg": {"kernel_cache": "/tmp"}}):
        assert settings().kernel_cache == "/tmp"
    with dask.config.set(dask.config.collect_env({"DASK_GPUAGG__KERNEL_CACHE": "/tmp"})):
        assert settings().kernel_cache == "/tmp"


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_is_explained(name):
    explained = re.findall(r"^- `(\S+)`: \S", section_of(name), re.MULTILINE)
    assert sorted(explained) == sorted(CHOICES[name])
    assert sorted(SETTINGS[name].allowed.split(", ")) == sorted(CHOICES[name])


def test_the_error_pickles():
    # a task may raise it on a worker
    assert str(pickle.loads(pickle.dumps(BadSetting("gpuagg.x is 1")))) == "gpuagg.x is 1"
