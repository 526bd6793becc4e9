"""The cost model: what it must be whatever the constants, and how well those of an H200 choose."""

import json
import math
import statistics
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.choice import RESULT, Case, cases, chosen, expected_ms, verdict
from benchmarks.kernels import SPECS, Cell, gathered_cells
from dask_gpuagg.cuda.choice import choose, tables
from dask_gpuagg.cuda.choice.costs import shipped
from dask_gpuagg.cuda.choice.decision import Decision, Direct, Hgb
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.query.forms import STEPPED
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KernelState, KeyPart, ValuePart
from dask_gpuagg.cuda.runtime.driver import Device
from tests.cuda.choice.test_tables import SUM
from tests.cuda.specialisations import Builder

H200 = Device(0, "NVIDIA H200", "sm_90", 132, 232_448)
COSTS = shipped(H200).costs
KERNELS = tuple(name for name in choose.KERNELS if name != "sgb")
KEY = KeyPart("i64", False)
MEASURED = cases(RESULT)
SETS = {cell.labels["set"]: cell for cell in gathered_cells()}
CTYPES = {"float64": "f64", "float32": "f32", "int64": "i64", "int32": "i32", "decimal128": "i128"}
GATHERED = json.loads(RESULT.with_name("gathered.json").read_text())["cells"]

policies = st.sampled_from(
    [
        KernelState("Size"),
        *(
            KernelState(name, (0,))
            for name in ("FloatSum", "WideSum", "Moments", "Any", "FirstRow", "CheckedRow")
        ),
        KernelState("MergedMoments", (0, 0, 0)),
        KernelState("Max", (0,), "f64"),
    ]
)
queries = st.lists(policies, max_size=8, unique=True).map(
    lambda states: Query((KEY,), False, (ValuePart("f64", True),), tuple(states), ())
)


def about(groups: int) -> KeySummary:
    return KeySummary(groups, groups, 0.0, 1 / max(groups, 1), bounds=(0, groups))


def told(query: Query, rows: int, groups: int, kernel: str) -> tuple[Decision, float]:
    decision = choose.decide(query, rows, about(groups), H200, kernel)
    return decision, choose.expected_ms(query, rows, H200, COSTS, decision)


# ---- what the shipped constants choose -----------------------------------------------------------


def test_the_choice_is_seldom_far_from_the_best() -> None:
    judgement = verdict(MEASURED, COSTS)
    assert judgement.cells >= 20
    assert judgement.good, judgement


def test_the_expectation_is_near_the_measurement() -> None:
    def error(case: Case, name: str) -> float:
        made = case.kernels[name]
        return expected_ms(case, made, COSTS) / made.ms

    cases_ = [case for case in MEASURED if not case.misjudged]
    errors = [error(c, name) for c in cases_ for name in c.contenders]
    assert statistics.mean(1 / 1.25 <= e <= 1.25 for e in errors) >= 0.75
    # of those that are chosen none is far off
    assert all(1 / 1.75 <= error(case, chosen(case, COSTS)) <= 1.75 for case in cases_)


def test_a_wrong_constant_is_noticed() -> None:
    """The result tells kernels apart: constants that favour the wrong one fail it."""
    free = replace(COSTS, access_ps=0.01, miss_ps=0.01, claim_ps=0.01)
    assert verdict(MEASURED, free).worst > 1.5


def query_of(cell: Cell) -> Query:
    """The query of a cell of ``benchmarks.kernels``."""
    builder, nulls = Builder(KEY), cell.input.nulls
    for label, names in SPECS[cell.query].items():
        ctype = CTYPES[cell.input.values[label][0]]
        i = builder.input(ctype, nulls > 0)
        for name in names:
            wide = "wide " if ctype == "i128" else ""
            null = " or null" if name == "sum" and nulls else ""
            builder.add(f"{wide}{name}{null}", i)
    return builder.query


@pytest.mark.parametrize("cell", GATHERED, ids=lambda c: f"{c['set']} {c['groups']:,}")
def test_values_are_gathered_where_that_is_faster(cell: dict[str, Any]) -> None:
    of_set = SETS[cell["set"]]
    query = query_of(of_set)
    present = (1 - of_set.input.nulls) * len(SPECS[of_set.query])
    times = {name: kernel["device_ms"] for name, kernel in cell["kernels"].items()}

    def expected(name: str) -> float:
        made = choose.decide(query, 10**8, about(cell["groups"]), H200, name, COSTS, values=present)
        return choose.expected_ms(query, 10**8, H200, COSTS, made)

    assert times[min(times, key=expected)] <= 1.1 * min(times.values())


# ---- what holds whatever the constants -----------------------------------------------------------


@given(queries, st.integers(0, 2**31 - 1), st.integers(1, 10**8), st.sampled_from(KERNELS))
def test_expected_times_are_numbers(query: Query, rows: int, groups: int, kernel: str) -> None:
    _, ms = told(query, rows, min(groups, max(rows, 1)), kernel)
    assert math.isfinite(ms)
    assert ms > 0


@given(
    queries,
    st.integers(1 << 20, 1 << 30),
    st.integers(1, 1 << 20),
    st.sampled_from(KERNELS),
    st.sampled_from(sorted(asdict(COSTS))),
)
def test_higher_costs_never_reduce_the_expected_time(
    query: Query, rows: int, groups: int, kernel: str, constant: str
) -> None:
    decision, ms = told(query, rows, groups, kernel)
    dearer = replace(COSTS, **{constant: 2 * getattr(COSTS, constant)})
    slower = choose.expected_ms(query, rows, H200, dearer, decision)
    if constant in ("bandwidth", "table_bandwidth", "l2_megabytes"):
        assert slower <= ms
    else:
        assert slower >= ms


# ---- the decision --------------------------------------------------------------------------------


@given(queries, st.integers(1 << 20, 1 << 30), st.integers(1, 1 << 26))
def test_no_other_kernel_is_expected_to_be_much_faster(
    query: Query, rows: int, groups: int
) -> None:
    groups = min(groups, rows)
    chosen = choose.decide(query, rows, about(groups), H200)
    if chosen.expected_ms is None:
        assert isinstance(chosen, Hgb | Direct)
        assert groups <= tables.shared_capacity(query, H200)
        return
    assert chosen.expected_ms == choose.expected_ms(query, rows, H200, COSTS, chosen)
    others = [choose.decide(query, rows, about(groups), H200, kernel) for kernel in KERNELS]
    for other in others:
        # a table that does not hold the groups is no choice, whatever it would cost
        room = tables.shared_capacity(query, H200)
        holds = other.kernel != "hgb" or room >= groups + groups // 16 + 8
        if holds and other.kernel != chosen.kernel:
            ms = choose.expected_ms(query, rows, H200, COSTS, other)
            assert chosen.expected_ms * 0.9 <= ms * 1.0001


def test_the_reason_names_the_expectations() -> None:
    made = choose.decide(SUM, 10**8, about(10**6), H200)
    assert made.kernel == "direct"
    expected = "1.3 ms expected, pgb 1.5, sp_ega 2.7, lphga 2.1"
    assert made.why == f"1,000,000 groups of a narrow range: {expected}"
    for groups, kernels in (
        (10**6, ["pgb", "sp_ega", "lphga"]),
        (16 * 10**6, ["pgb", "sp_ega", "lphga"]),
        (4 * 10**7, ["pgb_fold", "pgb", "sp_ega", "lphga"]),
    ):
        made = choose.decide(SUM, 10**8, replace(about(groups), bounds=(0, 10**12)), H200)
        others = made.why.split("expected")[1].split(", ")[1:]
        assert [made.kernel, *(part.split()[0] for part in others)] == kernels


def test_skewed_keys_do_not_go_to_a_table_that_cannot_grow() -> None:
    free = replace(COSTS, access_ps=0.01, miss_ps=0.01, claim_ps=0.01, same_ps=0.01)
    wide = replace(about(10**6), bounds=(0, 10**12))
    skewed = replace(wide, skewed=True)
    assert choose.decide(SUM, 10**8, wide, H200, costs=free).kernel == "lphga"
    assert choose.decide(SUM, 10**8, skewed, H200, costs=free).kernel == "sp_ega"


@pytest.mark.parametrize("kernel", KERNELS)
def test_forced_kernels_are_not_timed(kernel: str) -> None:
    # the rows of few groups would exceed the places of a partition that folds
    groups = 500_000 if kernel == "pgb_fold" else 5_000
    made = choose.decide(SUM, 10**8, about(groups), H200, kernel)
    assert (made.kernel, made.why, made.expected_ms) == (kernel, "forced", None)


def test_keys_divided_by_their_step_take_the_scatter_longer() -> None:
    stepped = replace(SUM, chosen=STEPPED)
    (_, plain), (_, divided) = (told(query, 10**8, 50_000, "pgb") for query in (SUM, stepped))
    # as long as a column is read, unless memory hides some of it
    assert plain < divided < plain + 1.01 * 10**8 * COSTS.load_ps * 1e-9
