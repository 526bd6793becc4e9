"""Experiments of the papers: what needs no GPU."""

from benchmarks import papers
from dask_gpuagg.cuda.choice import choose, tables
from dask_gpuagg.cuda.choice.summary import KeySummary
from tests.cuda.choice.test_choose import H200
from tests.cuda.choice.test_tables import SUM


def test_forced_tables_have_the_slots_that_are_asked_for() -> None:
    estimate = KeySummary(10**7, 10**7, 0.0, 0.0)

    def slots_of(kernel: str) -> int:
        decision = choose.decide(SUM, 10**8, estimate, H200, kernel)
        assert decision.kernel == kernel
        return decision.global_slots  # type: ignore[attr-defined, no-any-return]

    before = [slots_of("lphga"), slots_of("sp_ega"), tables.PROBES]
    with papers.slots(10_000_002):
        assert {slots_of("lphga"), slots_of("sp_ega")} == {10_000_002}
    assert [slots_of("lphga"), slots_of("sp_ega"), tables.PROBES] == before
