"""What is remembered of the kernels' calls."""

from __future__ import annotations

from dask_gpuagg.cuda.geometry import Decision, Estimate
from dask_gpuagg.cuda.groupby import Run
from dask_gpuagg.runs import last_runs, note_run


def test_runs_are_kept_in_order_and_tell_what_happened() -> None:
    decision = Decision("hgb", "few", Estimate(90, 100, 0.0, 0.1), 64, 32, 1, 132, 2048)
    run = Run(decision, 1_000_000, 100, spilled=7, bytes_read=16_000_000, seconds=0.001)
    before = len(last_runs())
    note_run(run)
    assert last_runs()[before:] == (run,)
    text = str(run)
    for part in ("hgb", "1,000,000 rows", "100 groups", "90 expected", "7 rows spilled"):
        assert part in text
    assert "not estimated" in str(Run(Decision("lphga", "", None, 0, 1, 1, 0, 64), 1, 1))
