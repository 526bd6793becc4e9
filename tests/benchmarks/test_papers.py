"""Experiments of the papers: what needs no GPU."""

import pytest

from benchmarks import papers
from dask_gpuagg.cuda.choice import choose, tables
from dask_gpuagg.cuda.choice.summary import KeySummary
from tests.cuda.choice.test_choose import H200
from tests.cuda.choice.test_tables import SUM


def test_rounds_look_at_fewer_slots_than_linear_probing(monkeypatch: pytest.MonkeyPatch) -> None:
    """By Knuth's formula for successful searches, and as the rounds of SP-EGA have it."""
    monkeypatch.setattr(papers, "PROBED_SLOTS", 1 << 14)
    cells = list(papers.probes(1))
    assert len(cells) == 2 * len(papers.TABLE_1)
    for cell in cells:
        assert 1.3 < cell["sp_ega"] < 1.7 < cell["linear"]
        if cell["keys"] == "distinct" and cell["load_factor"] < 0.96:
            expected = (1 + 1 / (1 - cell["load_factor"])) / 2
            assert cell["linear"] == pytest.approx(expected, rel=0.25)


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
