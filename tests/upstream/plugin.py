"""pytest plugin: run Dask's own suites with dask_gpuagg enabled and count what it ran.

``pytest -p tests.upstream.plugin --pyargs dask.dataframe.tests.test_groupby``

A run in which our plans took less than ``--least-share`` percent of the group-by aggregations
fails: stock Dask passes its own tests, so passing says nothing of what was never planned.
``python -m tests.upstream`` runs the suites twice with it, and tells our failures from Dask's.
"""

import inspect
import json
from collections import Counter
from pathlib import Path
from typing import Any

import dask
import pytest

import dask_gpuagg
from dask_gpuagg.reporting.runs import session
from tests.upstream import LEAST_SHARE

_planned = 0
_fallbacks: Counter[str] = Counter()
_failed: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dask_gpuagg")
    group.addoption(
        "--least-share",
        type=float,
        default=LEAST_SHARE,
        help="percentage of group-by aggregations below which the run fails (%(default)s)",
    )
    group.addoption("--stock", action="store_true", help="leave the plugin off, count nothing")
    group.addoption("--outcome", type=Path, help="write counts and failed tests there, as JSON")
    group.addoption(
        "--group-by",
        action="store_true",
        help="leave out tests without a group-by, none of which calls what the plugin wraps",
    )
    group.addoption("--only-failed", type=Path, help="run the failed tests of such a file alone")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.stock:
        return
    # silent: a fallback must not fail Dask's tests, it is counted instead
    dask.config.set({"gpuagg.fallback": "silent"})
    dask_gpuagg.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        reason = _ANSWERED.get(item.originalname) if "dask_expr" in str(item.path) else None
        if reason and not config.option.stock:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    if config.option.group_by:
        items[:] = [item for item in items if _has_group_by(item)]
    if config.option.only_failed:
        failed = set(json.loads(config.option.only_failed.read_text())["failed"])
        items[:] = [item for item in items if item.nodeid in failed]


def _has_group_by(item: pytest.Item) -> bool:
    """Whether a test may call what the plugin wraps.

    By a count of those calls, of the suites beside ``test_groupby`` only tests whose text has the
    word do, and ``test_join``, which asks a frame for its partitioning.
    """
    if "groupby" in item.path.name or item.originalname == "test_join":
        return True
    return "groupby" in inspect.getsource(item.function)


# Tests that assert that Dask refuses what it can answer while the plugin is on.
_ANSWERED = {
    "test_groupby_nunique": "frames have nunique",
    "test_series_groupby_not_supported": "var and std of the key itself",
}


# Tests that assert not results but the nodes of stock Dask's own physical plan, with the setting
# under which ours has them too: its number of outputs for three groups in 500 partitions, and
# the shuffle that Dask takes by default without a cluster.
_SETTINGS: dict[str, dict[str, str]] = {
    "test_merge_avoid_shuffle": {"dataframe.shuffle.method": "disk"},
    "test_merge_shuffle_if_different_order": {"dataframe.shuffle.method": "disk"},
    "test_shuffle_after_only_blockwise_merge": {"dataframe.shuffle.method": "disk"},
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    if item.config.option.stock:
        return (yield)
    session.reset()
    try:
        with dask.config.set(_SETTINGS.get(item.originalname, {})):
            return (yield)
    finally:
        _count(len(session.planned), Counter(session.fallbacks.values()))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _failed.add(report.nodeid)


def _count(planned: int, fallbacks: Counter[str] | dict[str, int]) -> None:
    global _planned
    _planned += planned
    _fallbacks.update(fallbacks)


def share() -> float:
    """Percentage of the group-by aggregations that our plans ran; 0 where there were none."""
    total = _planned + _fallbacks.total()
    return 100 * _planned / total if total else 0.0


def _falls_short(config: pytest.Config) -> bool:
    return not config.option.stock and share() < config.option.least_share


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # an xdist worker reports to the controller
        output["gpuagg"] = json.dumps([_planned, dict(_fallbacks)])
        return
    options = session.config.option
    if options.outcome:
        outcome = {"planned": _planned, "fallbacks": dict(_fallbacks), "failed": sorted(_failed)}
        options.outcome.write_text(json.dumps(outcome, indent=1) + "\n")
    if session.exitstatus == pytest.ExitCode.OK and _falls_short(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    _count(*json.loads(getattr(node, "workeroutput", {}).get("gpuagg", "[0, {}]")))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.option.stock:
        return
    total = _planned + _fallbacks.total()
    write = terminalreporter.write_line
    write(f"dask_gpuagg ran {_planned} of {total} group-by aggregations ({share():.1f} %)")
    for reason, count in _fallbacks.most_common():
        write(f"  {count:6d} fell back: {reason}")
    if _falls_short(config):
        least = config.option.least_share
        write(f"FAILED: fewer than {least:g} % of them were planned", red=True)
