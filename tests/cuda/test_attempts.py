"""Which attempts a group-by makes, and what is left of those that fail, without a GPU."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dask_gpuagg.cuda import aggregate as attempts
from dask_gpuagg.cuda.aggregate import Attempt
from dask_gpuagg.cuda.call import Piece, Run
from dask_gpuagg.cuda.choice import choose
from dask_gpuagg.cuda.choice.choose import needed_bytes
from dask_gpuagg.cuda.choice.decision import Decision, Hgb, Lphga, Partitioned, Sgb
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.keys import codes, ranges, words
from dask_gpuagg.cuda.keys.words import Keys
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import Args, Counters
from dask_gpuagg.cuda.sampling import repeat
from tests.cuda.choice.test_choose import H200
from tests.cuda.choice.test_tables import SUM, dense

PAIRS = KeySummary(1_000, 1_000, 0.0, 0.0, bounds=(0, 2**40))
HGB = Hgb(
    why="few groups", estimate=PAIRS, shared_slots=2_048, replicas=8, blocks=132, global_slots=4_096
)
MANY = replace(PAIRS, groups=10**6, most=10**6)
PARTS = choose.decide(SUM, 10**8, MANY, H200, "pgb")
WINDOW = choose.decide(SUM, 10**8, dense(20_000), H200)
ROWS = 10**8


class Columns:
    """Makes calls that launch nothing, and keeps them."""

    rows, key_labels = ROWS, ("k",)

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def call(self, query: Query, extra: Any = (), codes: Any = None) -> Any:
        held: list[Any] = []
        memory = SimpleNamespace(ptr=4096)
        made = SimpleNamespace(
            query=query, rows=self.rows, args=Args(), held=held, early=None, check=None,
            device=H200, values=None, key_labels=self.key_labels, handle=0,
            pieces=(Piece([SimpleNamespace()] * 4, 0, self.rows),),
            counters=Counters, allocate=lambda size: held.append(memory) or memory,
            launch=lambda *a, **k: None, launch_over=lambda *a: None,
            spread=lambda *a: 1, codes=codes, kernels=query,
        )  # fmt: skip
        self.calls.append(made)
        return made


Algorithm = Callable[[Any, Decision], Any]


@pytest.fixture
def run_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Algorithm], None]:
    """Replaces every algorithm; nothing is sampled."""

    def replace_all(algorithm: Algorithm) -> None:
        def lphga(call: Any, decision: Decision) -> Any:
            is_own = isinstance(decision, Lphga)
            return algorithm(call, decision if is_own else Lphga(why="", global_slots=2))

        monkeypatch.setattr(attempts, "_ALGORITHMS", {Lphga: lphga, Decision: algorithm})
        monkeypatch.setattr(attempts, "zero", lambda *_: None)
        monkeypatch.setattr(words, "make_words", lambda call, *_: call.allocate(8))
        monkeypatch.setattr(codes, "make_words", lambda *_: None)
        monkeypatch.setattr(attempts, "sampled", lambda *_: False)
        monkeypatch.setattr(attempts, "narrowest_keys", lambda call, _: Keys(call.query))
        for module in (attempts, ranges):
            monkeypatch.setattr(module, "remember_out_of_range", lambda *_: None)
        repeat.forget()

    return replace_all


def done(decision: Decision, **counters: int) -> Any:
    return Run(decision, ROWS, 7), Counters(groups=7, **counters)


# ---- one attempt ---------------------------------------------------------------------------------


def test_failed_attempt_is_rolled_back(run_by: Callable[[Algorithm], None]) -> None:
    """Partitions have no list of slots, so that of another table must not be taken for one."""

    def fail(call: Any, decision: Decision) -> None:
        call.allocate(8)
        call.args.order, call.early = 4096, [("data", None)]

    run_by(fail)
    call = Columns().call(SUM)
    words = call.allocate(8)
    assert Attempt(Keys(SUM), call, WINDOW).run() is None
    assert (call.held, call.args.order, call.early) == ([words], None, None)


def test_memory_errors_are_raised_unless_another_attempt_follows(
    run_by: Callable[[Algorithm], None],
) -> None:
    def fail(call: Any, decision: Decision) -> None:
        call.allocate(8)
        raise MemoryError("std::bad_alloc")

    run_by(fail)
    call = Columns().call(SUM)
    with pytest.raises(MemoryError):
        Attempt(Keys(SUM), call, PARTS).run()
    call.held.clear()
    attempt = Attempt(Keys(SUM), call, PARTS, spares_memory=True)
    assert attempt.run() is None
    assert attempt.refused == "std::bad_alloc"
    assert call.held == []


def test_a_call_lives_no_longer_than_its_attempt(run_by: Callable[[Algorithm], None]) -> None:
    run_by(lambda call, decision: call.check())
    call = Columns().call(SUM)
    attempt = Attempt(Keys(SUM), call, HGB, check=lambda of=call: of.held.append("checked"))
    gc.disable()
    try:
        seen = weakref.ref(call.args)
        attempt.run()
        assert call.check is None
        del attempt, call
        assert seen() is None
    finally:
        gc.enable()


def test_sp_ega_takes_rows_whose_copies_exceed_memory(run_by: Callable[[Algorithm], None]) -> None:
    tried: list[str] = []

    def without_copies(call: Any, decision: Decision) -> Any:
        tried.append(decision.kernel)
        if isinstance(decision, Partitioned):
            call.allocate(8)
            raise MemoryError("std::bad_alloc")
        return done(decision)

    run_by(without_copies)
    columns: Any = Columns()
    estimate = KeySummary(10**7, 10**7, 0.0, 0.0)
    decision = choose.decide(SUM, ROWS, estimate, H200)
    made = attempts.group(columns, SUM, "auto", False, decision)
    assert tried == ["pgb", "sp_ega"]
    assert "device memory has no room for pgb" in made.run.decision.why
    # of the copies nothing is left
    assert len(made.call.held) == 1
    with pytest.raises(MemoryError):
        attempts.group(columns, SUM, "pgb", False, decision)


@pytest.mark.parametrize("groups", [2_000_000, 90_000_000])
def test_the_kernel_that_needs_least_memory_follows_each(
    groups: int, run_by: Callable[[Algorithm], None]
) -> None:
    """Until none needs less: then the allocator's message is raised."""
    tried: list[Decision] = []

    def fail(call: Any, decision: Decision) -> Any:
        tried.append(decision)
        call.allocate(8)
        raise MemoryError("std::bad_alloc")

    run_by(fail)
    estimate = KeySummary(groups, groups, 0.0, 0.0)
    columns: Any = Columns()
    with pytest.raises(MemoryError, match="std::bad_alloc"):
        attempts.group(columns, SUM, "auto", False, choose.decide(SUM, ROWS, estimate, H200))
    needed = [needed_bytes(SUM, ROWS, decision) for decision in tried]
    assert len(tried) >= 2
    assert needed[-1] == min(needed[1:])
    assert len(set(needed)) == len(needed)
    # buffers of earlier attempts are released, those of the last one go with the call
    assert len(columns.calls[-1].held) <= 2


# ---- the loop ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decision", "then"),
    [
        (HGB, [Lphga]),
        (PARTS, [Lphga]),
        (WINDOW, [Partitioned, Lphga]),
        (Sgb(why="", estimate=replace(MANY, ascending=True)), [Partitioned, Lphga]),
    ],
)
def test_another_kernel_where_rows_do_not_admit_the_first(
    decision: Decision, then: list[type[Decision]], run_by: Callable[[Algorithm], None]
) -> None:
    tried: list[Decision] = []

    def last_alone(call: Any, decision: Decision) -> Any:
        tried.append(decision)
        return done(decision) if isinstance(decision, Lphga) else None

    run_by(last_alone)
    columns: Any = Columns()
    made = attempts.group(columns, SUM, "auto", False, decision)
    assert made.run.groups == 7
    assert tried[0] is decision
    assert [isinstance(d, of) for d, of in zip(tried[1:], then, strict=True)] == [True] * len(then)
    assert not any(isinstance(d, Partitioned) and d.window for d in tried[1:])
    assert len(columns.calls) == 1
