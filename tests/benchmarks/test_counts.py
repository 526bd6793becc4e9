"""Counters of the hardware beside those of the cost model, without a GPU."""

from __future__ import annotations

import pytest

from benchmarks.counts import by_launch, expected, term
from dask_gpuagg.cuda.choice import choose
from dask_gpuagg.cuda.choice.cost_model import Observation
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KernelState, KeyPart, ValuePart
from dask_gpuagg.cuda.runtime.driver import Device

H200 = Device(0, "NVIDIA H200", "sm_90", 132, 232_448)
ROWS = 1 << 25
SUM = Query(
    (KeyPart("i64", False),),
    False,
    (ValuePart("f64", False),),
    (KernelState("FloatSum", (0,)),),
    (),
)
PRINTED = """\
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","gpuagg_benchmark_mark","dram__bytes_read.sum","byte","0"
"0","gpuagg_benchmark_mark","lts__t_sectors_op_read.sum","sector","3"
"1","gpuagg::clear","dram__bytes_read.sum","Kbyte","1.5"
"2","scatter_narrow","dram__bytes_read.sum","Gbyte","1"
"3","scatter_hot","dram__bytes_read.sum","Mbyte","2"
"4","gpuagg_benchmark_mark","dram__bytes_read.sum","byte","0"
"5","hgb","lts__t_sectors_op_read.sum","sector","1,234"
"""


def seen(kernel: str, *names: str) -> Observation:
    about = KeySummary(1_000, 1_000, 0.0, 1e-3, bounds=(0, 1_000))
    decision = choose.decide(SUM, ROWS, about, H200, kernel)
    return Observation(SUM, ROWS, decision, H200, dict.fromkeys(names, 1.0))


def test_launches_between_marks_are_one_experiment_and_variants_one_kernel() -> None:
    first, second = by_launch(iter(PRINTED.splitlines()))
    assert first == {"clear": {"memory_read": 1_500}, "scatter": {"memory_read": 1e9 + 2e6}}
    assert second == {"hgb": {"l2_reads": 1_234}}


def test_a_term_is_what_the_model_expects_where_nothing_else_costs() -> None:
    hgb = expected(seen("hgb", "hgb", "clear"))
    assert hgb["hgb"]["bytes"] == pytest.approx(16 * ROWS)
    assert hgb["hgb"]["searches"] == pytest.approx(ROWS)
    assert 0 < hgb["hgb"]["sums"] <= ROWS
    assert "comparisons" not in hgb["hgb"]
    assert set(hgb["clear"]) == {"bytes"}
    lphga = expected(seen("lphga", "lphga"))["lphga"]
    assert lphga["accesses"] == pytest.approx(2 * ROWS)
    assert term(seen("lphga", "lphga")) == {"lphga": 0.0}
