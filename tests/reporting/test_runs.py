"""What is remembered of the kernels' calls."""

import dask.dataframe as dd
import msgpack
import numpy as np
import pandas as pd
import pytest

from dask_gpuagg import last_runs
from dask_gpuagg.cuda.aggregate import Run
from dask_gpuagg.cuda.choice.decision import Decision
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.decomposition import make_plan
from dask_gpuagg.explain import explain
from dask_gpuagg.plan import Column, Plan, Requested
from dask_gpuagg.reporting.runs import activity, forget, note_run, runs_here, subject, task
from tests.data import plan_of

DECISION = Decision(kernel="hgb", why="few", estimate=KeySummary(90, 100, 0.0, 0.1))


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    """The number of runs that are remembered is limited."""
    forget()


def plan_to(name: str) -> Plan:
    return plan_of(pd.DataFrame({"k": [1], "v": [1.0]}), ["k"], Requested("v", name, "v"))


def test_runs_are_kept_in_order_and_tell_what_happened() -> None:
    run = Run(DECISION, 1_000_000, 100, spilled=7, bytes_read=16_000_000, seconds=0.001)
    before = len(last_runs())
    note_run(run)
    assert last_runs()[before:] == [run]
    text = str(run)
    for part in ("hgb", "1,000,000 rows", "100 groups", "90 expected", "7 rows overflowed"):
        assert part in text
    assert "not estimated" in str(Run(Decision(kernel="lphga", why=""), 1, 1))


def test_runs_belong_to_a_plan_and_a_step() -> None:
    plan = plan_to("var")
    with task(plan, "partial"):
        note_run(Run(DECISION, 10, 2))
    with task(plan_to("min"), "combine"):
        note_run(Run(DECISION, 20, 3))
    note_run(Run(DECISION, 30, 4))
    (run,) = last_runs(plan_to("var"))
    assert (run.plan, run.step, run.rows) == (plan, "partial", 10)
    assert str(run).startswith("partial, hgb: 10 rows")
    assert [r.step for r in last_runs()[-3:]] == ["partial", "combine", ""]


def test_calls_are_about_the_keys_of_their_plan() -> None:
    assert subject() == ()
    with task(plan_to("var"), "partial"):
        assert subject() == ("k",)
    assert subject() == ()


def test_activity_sums_up_all_queries_in_plain_values() -> None:
    for name in ("var", "min"):
        with task(plan_to(name), "partial") as running:
            note_run(Run(DECISION, np.int64(10), np.int64(2), spilled=3, seconds=0.5))
            running.saw("device", 10, 2)
    with task(plan_to("var"), "finalize") as running:
        note_run(Run(Decision(kernel="hgb", why=""), 4, 2, bytes_read=32, seconds=0.5))
        running.saw("device", 4, 2, 32)
    found = activity()
    # as heartbeats carry it
    assert msgpack.loads(msgpack.dumps(found)) == found
    steps = {tuple(entry[:3]): entry[3:] for entry in found}
    assert steps["partial", "device", "hgb"] == [2, 1.0, 20, 4, 180, 6]
    # nothing was expected: what was found counts
    assert steps["finalize", "device", "hgb"] == [1, 0.5, 4, 2, 2, 0]
    calls, _, rows, groups, *rest = steps["partial", "device", ""]
    assert (calls, rows, groups, rest) == (2, 20, 4, [0, 0])


def test_explain_shows_the_runs_of_the_plan() -> None:
    """As the device notes them; the plan of a collection is the same each time it is read."""
    rows = dd.from_pandas(pd.DataFrame({"k": [1, 2], "w": [1.0, 2.0]}), npartitions=1)
    query = rows.groupby("k").w.std(ddof=3)
    (before,) = explain(query).groupbys
    assert before.runs == ()
    assert "ran" not in str(before)
    for rows_seen in range(25):
        with task(before.plan, "partial"):
            note_run(Run(DECISION, rows_seen, 2))
    (after,) = explain(query).groupbys
    assert [run.rows for run in after.runs] == list(range(25))
    lines = str(after).splitlines()
    assert lines[-21:-19] == ["  ran      5 earlier, then", f"  ran      {after.runs[5]}"]
    assert lines[-1] == f"  ran      {after.runs[-1]}"


class Counted(pd.CategoricalDtype):
    """Categories that count how often they are compared: on a GPU it takes milliseconds."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return super().__eq__(other)

    __hash__ = pd.CategoricalDtype.__hash__


def test_plans_by_categories_are_known_without_comparing_them() -> None:
    plans = []
    for _ in range(3):
        # by no other test's labels: of plans that read alike the first one is kept
        key, value = Column("counted", Counted(["a", "b"])), Column("v", np.dtype("float64"))
        wanted = [Requested("v", "sum", "v")]
        plans.append(make_plan([key], [key, value], wanted, dropna=True, observed=True, sort=False))
    before = Counted.comparisons
    for plan in plans:
        with task(plan, "partial") as done:
            done.saw("host", 10, 2)
    assert Counted.comparisons == before
    _, runs = runs_here()
    assert [run.plan is plans[0] for run in runs] == [True] * 3
