"""pytest plugin: run Dask's own suites with dask_gpuagg enabled and count what it ran.

``pytest -p tests.upstream.plugin --pyargs dask.dataframe.tests.test_groupby``
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import dask
import pytest

import dask_gpuagg
from dask_gpuagg.report import tally

_planned = 0
_fallbacks: Counter[str] = Counter()


def pytest_configure(config: pytest.Config) -> None:
    # silent: a fallback must not fail Dask's tests, it is counted instead
    dask.config.set({"gpuagg.fallback": "silent"})
    dask_gpuagg.enable()


# Tests that assert not results but the nodes of stock Dask's own physical plan, with the setting
# under which ours has them too: its number of outputs for three groups in 500 partitions, and
# the shuffle that Dask takes by default without a cluster.
_SETTINGS: dict[str, dict[str, str]] = {
    "test_split_out_automatically": {"gpuagg.outputs": "dask"},
    "test_merge_avoid_shuffle": {"dataframe.shuffle.method": "disk"},
    "test_merge_shuffle_if_different_order": {"dataframe.shuffle.method": "disk"},
    "test_shuffle_after_only_blockwise_merge": {"dataframe.shuffle.method": "disk"},
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    tally.reset()
    try:
        with dask.config.set(_SETTINGS.get(item.originalname, {})):
            return (yield)
    finally:
        _count(len(tally.planned), tally.reasons())


def _count(planned: int, fallbacks: Counter[str] | dict[str, int]) -> None:
    global _planned
    _planned += planned
    _fallbacks.update(fallbacks)


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # an xdist worker reports to the controller
        output["gpuagg"] = json.dumps([_planned, dict(_fallbacks)])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    _count(*json.loads(getattr(node, "workeroutput", {}).get("gpuagg", "[0, {}]")))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    fell_back = sum(_fallbacks.values())
    total = _planned + fell_back
    share = 100 * _planned / total if total else 0.0
    write = terminalreporter.write_line
    write(f"dask_gpuagg ran {_planned} of {total} group-by aggregations ({share:.1f} %)")
    for reason, count in _fallbacks.most_common():
        write(f"  {count:6d} fell back: {reason}")
    if target := os.environ.get("GPUAGG_TALLY"):
        Path(target).write_text(json.dumps({"planned": _planned, "fallbacks": dict(_fallbacks)}))
