"""The line that a warning points at."""

import threading
import warnings
from collections.abc import Callable
from typing import Any

import dask
import pytest

from dask_gpuagg.reporting.events import dry_run
from dask_gpuagg.reporting.fallbacks import FallbackWarning, UnsupportedGroupBy, note_fallback
from dask_gpuagg.reporting.runs import session
from tests.running import run_python

SCRIPT = """
import dask, dask.dataframe as dd, pandas as pd, dask_gpuagg
dask.config.set(scheduler="synchronous")
dask_gpuagg.enable()
f = dd.from_pandas(pd.DataFrame({"k": [1, 2], "v": [1j, 2j]}), npartitions=2)
for value in (1, 2):
    f.assign(v=f.v * value).groupby("k").v.sum().compute()
f.groupby("k").v.sum().compute()
"""


def library(name: str) -> Callable[..., Any]:
    """A function of a module of that name, which calls what it is given."""
    space: dict[str, Any] = {"__name__": name}
    exec(compile("def call(function, *args): return function(*args)", f"{name}.py", "exec"), space)
    return space["call"]


def caught(function: Callable[..., Any], *args: Any) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        function(*args)
    return seen


def test_a_script_is_told_once_for_each_line(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ran = run_python(script)
    told = [line for line in ran.stderr.splitlines() if "FallbackWarning" in line]
    assert [line.partition(": ")[0] for line in told] == [f"{script}:7", f"{script}:8"]


@pytest.mark.parametrize(
    "between", ["dask.base", "distributed.client", "pandas.core.frame", "dask_gpuagg.frontend.hook"]
)
def test_frames_of_the_libraries_are_skipped(between):
    call = library(between)
    (warning,) = caught(call, note_fallback, "name", ".sum()", f"through {between}")
    assert warning.filename == __file__


@pytest.mark.parametrize("own", ["daskboard", "pandas_tools", "__main__"])
def test_those_of_other_modules_are_not(own):
    (warning,) = caught(library(own), note_fallback, "name", ".sum()", f"in {own}")
    assert (warning.filename, warning.lineno) == (f"{own}.py", 1)


def test_in_a_thread_of_a_library_no_line_is_the_users():
    def run() -> None:
        thread = threading.Thread(target=note_fallback, args=("name", ".sum()", "in a thread"))
        thread.start()
        thread.join()

    (warning,) = caught(run)
    assert warning.category is FallbackWarning
    assert (warning.filename, warning.lineno) == ("dask_gpuagg", 0)


def test_nothing_happens_in_a_dry_run():
    session.reset()
    with dry_run(), dask.config.set({"gpuagg.fallback": "raise"}):
        assert not caught(note_fallback, "name", ".sum()", "none")
    assert not session.fallbacks


def test_raise_names_the_cause():
    error = ZeroDivisionError()
    text = r"group-by \.sum\(\) runs with stock Dask: why"
    refused = pytest.raises(UnsupportedGroupBy, match=text)
    with dask.config.set({"gpuagg.fallback": "raise"}), refused as e:
        note_fallback("name", ".sum()", "why", cause=error)
    assert e.value.__cause__ is error
