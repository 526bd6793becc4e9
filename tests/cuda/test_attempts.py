"""What is decided between the sample and the groups, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dask_gpuagg.cuda import attempts
from dask_gpuagg.cuda.call.call import Args
from dask_gpuagg.cuda.choice import choose
from dask_gpuagg.cuda.choice.decision import Decision, Hgb, Lphga, Sgb
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.sampling import repeat
from tests.cuda.choice.test_choose import H200
from tests.cuda.choice.test_window import SUM

PAIRS = KeySummary(1_000, 1_000, 0.0, 0.0, bounds=(0, 2**40))
HGB = Hgb(
    why="few groups", estimate=PAIRS, shared_slots=2_048, replicas=8, blocks=132, global_slots=4_096
)
PARTS = choose.decide(SUM, 10**8, replace(PAIRS, groups=10**6, most=10**6), H200, "pgb")


@pytest.mark.parametrize(
    ("decision", "numbered"),
    [
        (HGB, False),
        (replace(HGB, kernel="hgb_runs"), False),
        (Lphga(why="", estimate=PAIRS, global_slots=4_096), True),
        (PARTS, True),
        (Sgb(why="", estimate=PAIRS), False),
        (Lphga(why="", global_slots=4_096), False),
    ],
)
def test_words_of_few_groups_are_hashed_as_they_are(
    decision: Decision, numbered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def filling(*of: Any) -> None:
        asked.append(of)

    monkeypatch.setattr(attempts, "filling", filling)
    call: Any = SimpleNamespace(query=SUM, rows=10**6, about=("a", "b"))
    sample: Any = SimpleNamespace(ranges=[(0, 30), (0, 30)])
    columns: Any = None
    assert attempts._filling(columns, call, "auto", sample, decision) is None
    assert len(asked) == numbered


def test_kernels_of_the_sample_compare_it_where_keys_are_numbered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The unit with this kernel is compiled for the keys as they come, whose sample was taken."""
    launched: list[tuple[str, str]] = []

    def call_of(form: str) -> Any:
        launch = lambda name, *_: launched.append((form, name))  # noqa: E731
        return SimpleNamespace(args=Args(), held=[], check=None, query=SUM, rows=9, launch=launch)

    call, other = call_of("as they come"), call_of("numbered")
    columns: Any = SimpleNamespace(call=lambda *_: other)
    known = SimpleNamespace(form=(SUM, [(0, 9)]), decision=PARTS, expected=None)
    monkeypatch.setattr(repeat, "expectation", lambda *_: known)
    monkeypatch.setattr(repeat, "refused", lambda *_: None)
    monkeypatch.setattr(attempts, "_begin", lambda _: None)
    monkeypatch.setattr(attempts, "Sample", lambda _: SimpleNamespace(summary=1))
    monkeypatch.setattr(attempts, "_taken", lambda target, _: target.check())
    assert attempts._as_expected(columns, call, "auto")[0] is None
    assert launched == [("as they come", "check")]
