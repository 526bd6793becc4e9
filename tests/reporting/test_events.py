"""Events go to those who have registered for them, and cost no query."""

import threading

import pytest

from dask_gpuagg.reporting.events import (
    Fallback,
    FellBack,
    Refused,
    dry_run,
    emit,
    is_dry_run,
    register,
    unregister,
)
from tests.reporting import listening

FELL_BACK = FellBack(Fallback("a", "runs", "because"), "query")
REFUSED = Refused(None, "complex")


def test_a_sink_gets_the_kinds_that_it_has_registered_for() -> None:
    fell_back: list[object] = []
    both: list[object] = []
    with listening(fell_back.append, FellBack), listening(both.append, FellBack, Refused):
        emit(REFUSED)
        emit(FELL_BACK)
    emit(FELL_BACK)
    assert (fell_back, both) == ([FELL_BACK], [REFUSED, FELL_BACK])


def test_a_sink_that_fails_costs_no_query(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: FellBack) -> None:
        raise RuntimeError("the loop is closed")

    events: list[object] = []
    with listening(fail, FellBack), listening(events.append, FellBack):
        emit(FELL_BACK)
    assert events == [FELL_BACK]
    assert "the loop is closed" in caplog.text


def test_a_dry_run_tells_its_own_sink_alone() -> None:
    dry: list[object] = []
    events: list[object] = []
    with listening(events.append, FellBack):
        with dry_run(dry.append):
            assert is_dry_run()
            with dry_run():
                emit(REFUSED)
            emit(FELL_BACK)
            other = threading.Thread(target=emit, args=(REFUSED,))
            other.start()
            other.join()
        assert not is_dry_run()
        assert events == []
    assert dry == [FELL_BACK]


def test_threads_lose_no_sink() -> None:
    counts: list[list[object]] = [[] for _ in range(8)]
    sinks = [count.append for count in counts]

    def come_and_go(sink: object) -> None:
        for _ in range(200):
            register(sink, Refused)
            unregister(sink)
        register(sink, Refused)

    threads = [threading.Thread(target=come_and_go, args=(sink,)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    emit(REFUSED)
    for sink in sinks:
        unregister(sink)
    emit(REFUSED)
    assert [len(count) for count in counts] == [1] * 8
