"""From numbers to a kernel and its geometry: what must hold whatever the sample said."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dask_gpuagg.cuda.choice.choose import decide
from dask_gpuagg.cuda.choice.decision import Hgb, Lphga, SpEga, safe_slots
from dask_gpuagg.cuda.choice.summary import (
    SAMPLED_FROM,
    SEGMENTS,
    KeySummary,
    Numbers,
    estimate_groups,
)
from dask_gpuagg.cuda.choice.tables import shared_capacity
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.tuning import EXTRA_SLOTS, SEGMENT
from dask_gpuagg.cuda.query.types import KernelState, KeyPart, ValuePart
from dask_gpuagg.cuda.runtime.driver import Device

H200 = Device(0, "H200", "sm_90", 132, 232_448)
SUM = KernelState("FloatSum", (0,))
# what a block has besides its table: the counter `claimed` of kernels/hgb/hgb.cuh
STATIC_BYTES = 4


def query(*states: KernelState, key: str = "i64") -> Query:
    inputs = max((i + 1 for s in states for i in s.inputs), default=0)
    values = tuple(ValuePart("f64", False) for _ in range(inputs))
    return Query((KeyPart(key, False),), False, values, states, ())


def exact(groups: int, repeats: float = 0.0) -> KeySummary:
    return KeySummary(groups, groups, repeats, 0.0)


POLICIES = [
    KernelState("Size"), SUM, KernelState("WideSum", (0,)),
    KernelState("Any", (0,)), KernelState("FirstRow", (0,)),
    KernelState("Moments", (0,)), KernelState("MergedMoments", (0, 1, 2)),
    KernelState("Min", (0,), "i8"), KernelState("Max", (0,), "f64"),
]  # fmt: skip
# as far as states of which not one slot fits a block
queries = st.tuples(
    st.lists(st.sampled_from(POLICIES), max_size=30), st.sampled_from([1, 10, 2_000])
).map(lambda drawn: query(*drawn[0] * drawn[1]))
devices = st.builds(
    Device,
    st.just(0),
    st.just("any"),
    st.just("sm_90"),
    st.integers(1, 200),
    # the least that CUDA grants any block, and more than any device has
    st.integers(48 << 10, 512 << 10),
)
all_rows = st.one_of(st.integers(0, 2_000), st.integers(0, 2**31 - 1))


@st.composite
def inputs(draw: st.DrawFn) -> tuple[int, KeySummary | None]:
    rows = draw(all_rows)
    if draw(st.booleans()):
        return rows, None
    groups = draw(st.one_of(st.integers(0, min(rows, 50_000)), st.integers(0, rows)))
    most = draw(st.integers(groups, rows))
    return rows, KeySummary(groups, most, draw(st.floats(0, 1)), draw(st.floats(0, 1)))


forced_kernels = st.sampled_from(["auto", "hgb", "sp_ega", "lphga"])


def table_bytes(of: Query, made: Any) -> int:
    fixed, replica = of.slot_bytes
    return (made.shared_slots + EXTRA_SLOTS) * (fixed + made.replicas * replica)


# ---- decide ------------------------------------------------------------------------------------


@given(queries, inputs(), devices, forced_kernels)
def test_what_is_decided_can_be_launched(
    of: Query, given_: tuple[int, KeySummary | None], device: Device, forced: str
) -> None:
    rows, estimate = given_
    made = decide(of, rows, estimate, device, forced)
    assert made.estimate is estimate
    assert made.why
    assert isinstance(made, Lphga | SpEga | Hgb)
    assert made.global_slots % 2 == 0
    assert 64 <= made.global_slots < 2**32
    if not isinstance(made, Hgb):
        assert made.kernel in ("lphga", "sp_ega")
        assert made.global_slots <= safe_slots(rows)
        return
    assert made.kernel in ("hgb", "hgb_runs")
    assert made.replicas in {1 << i for i in range(9)}
    assert made.shared_slots >= 2
    assert made.shared_slots % 2 == 0
    assert STATIC_BYTES + table_bytes(of, made) <= device.shared_bytes
    assert 1 <= made.blocks <= device.multiprocessors


@pytest.mark.parametrize("states", [(), (SUM,), (SUM, KernelState("Any", (0,))), POLICIES])
def test_full_tables_fit(states: tuple[KernelState, ...]) -> None:
    """Where a table takes all there is, every byte counts: each size of a device, and each load."""
    of = query(*states)
    for shared in range(48 << 10, 52 << 10, 4):
        device = replace(H200, shared_bytes=shared)
        capacity = shared_capacity(of, device)
        for groups in (1, capacity // 9, capacity // 3, capacity // 2, capacity, 3 * capacity):
            made = decide(of, 10**8, exact(groups), device, "hgb")
            assert STATIC_BYTES + table_bytes(of, made) <= shared


@given(queries, inputs(), devices)
def test_expected_groups_have_a_place(
    of: Query, given_: tuple[int, KeySummary | None], device: Device
) -> None:
    """Unless it was forced, a shared table is chosen only where the expected groups fit it."""
    rows, estimate = given_
    made = decide(of, rows, estimate, device)
    assume(isinstance(made, Hgb))
    assert isinstance(made, Hgb)
    assert estimate is not None
    assert made.shared_slots > estimate.groups
    assert made.global_slots > 2 * estimate.groups


@given(queries, st.integers(1, 2**31 - 1), devices)
def test_more_groups_never_take_a_smaller_table(of: Query, rows: int, device: Device) -> None:
    def slots(groups: int) -> int:
        made = decide(of, rows, exact(groups), device)
        # the other kernels have other tables
        return made.shared_slots if isinstance(made, Hgb) else 2**31

    sizes = [slots(g) for g in (1, 50, 100, 500, 1_000, 4_000, 8_000, 30_000) if g <= rows]
    assert sizes == sorted(sizes)


def test_states_too_wide_for_shared_memory() -> None:
    wide = query(*[KernelState("Moments", (0,))] * 10_000)
    assert shared_capacity(wide, H200) <= 0
    for forced in ("auto", "hgb"):
        made = decide(wide, 10**8, exact(1), H200, forced)
        assert made.kernel == "lphga"
        assert "exceed shared memory" in made.why


def test_few_rows_are_not_sampled() -> None:
    assert decide(query(SUM), SAMPLED_FROM - 1, None, H200).kernel == "lphga"
    assert decide(query(SUM), 0, None, H200).kernel == "lphga"


@pytest.mark.parametrize(
    ("groups", "kernel", "replicas"),
    [
        (1, "hgb", 256),
        (64, "hgb", 128),
        (1_000, "hgb", 8),
        (8_000, "hgb", 1),
        (20_000, "pgb", 1),
        (1_000_000, "pgb", 1),
    ],
)
def test_a_sum_on_an_h200(groups: int, kernel: str, replicas: int) -> None:
    made: Any = decide(query(SUM), 10**8, exact(groups), H200)
    assert (made.kernel, made.replicas) == (kernel, replicas)


def test_runs_are_summed_in_registers() -> None:
    assert decide(query(SUM), 10**8, exact(100, 0.95), H200).kernel == "hgb_runs"
    assert decide(query(SUM), 10**8, exact(100, 0.5), H200).kernel == "hgb"


@pytest.mark.parametrize("groups", [1_000, 100_000, 1_000_000])
def test_a_table_of_sp_ega_is_nearly_full(groups: int) -> None:
    made = decide(query(SUM), 10**8, exact(groups), H200, "sp_ega")
    assert isinstance(made, SpEga)
    assert 0.85 < groups / made.global_slots <= 0.95


def test_a_table_of_sp_ega_has_no_more_slots_than_rows() -> None:
    made = decide(query(SUM), 10**6, exact(10**6), H200, "sp_ega")
    assert isinstance(made, SpEga)
    assert made.global_slots == 10**6


# ---- safe_slots --------------------------------------------------------------------------------


@given(st.integers(0, 2**30 - 64))
def test_safe_slots_stay_half_empty(rows: int) -> None:
    slots = safe_slots(rows)
    assert slots % 2 == 0
    assert slots >= 2 * rows + 64
    # the limit of ``call.table_of``
    assert slots - slots // 16 - 1 > rows


@given(st.integers(2**30, 2**31 - 1))
def test_safe_slots_are_32_bit_numbers(rows: int) -> None:
    slots = safe_slots(rows)
    assert slots % 2 == 0
    # the two slots behind the table included
    assert slots + EXTRA_SLOTS < 2**32


# ---- estimate_groups ---------------------------------------------------------------------------


def counts_of(**counts: int) -> Numbers:
    """Those of a sample of keys anywhere, one of which falls."""
    return Numbers(**dict.fromkeys(Numbers._fields, 0) | {"descents": 1} | counts)


def estimated(rows: int, counts: list[int], repeats: int = 0, descents: int = 1) -> KeySummary:
    """The estimate from the rows that each sampled key has."""
    of = Counter(counts)
    numbers = counts_of(
        rows=sum(counts),
        distinct=len(counts),
        once=of[1],
        twice=of[2],
        most=max(counts, default=0),
        repeats=repeats,
        descents=descents,
    )
    return estimate_groups(rows, numbers)


samples = st.lists(st.integers(1, 40), max_size=400)


@given(samples, st.integers(0, 2**31 - 1), st.floats(0, 1))
def test_an_estimate_is_within_bounds(counts: list[int], more: int, share: float) -> None:
    sampled = sum(counts)
    rows = min(sampled + more, 2**31 - 1)
    made = estimated(rows, counts, int(sampled * 31 / 32 * share))
    assert len(counts) <= made.groups <= made.most <= rows
    assert 0.0 <= made.repeats <= 1.0
    assert 0.0 <= made.heaviest <= 1.0
    if counts:
        assert made.heaviest == max(counts) / sampled


@given(st.lists(st.integers(2, 40), min_size=1, max_size=400), st.integers(0, 2**30))
def test_without_rare_keys_the_sample_has_them_all(counts: list[int], more: int) -> None:
    made = estimated(sum(counts) + more, counts)
    assert made.groups == made.most == len(counts)


@given(samples, st.integers(0, 2**30))
def test_the_formulas(counts: list[int], more: int) -> None:
    """Chao's bias-corrected estimator, and the guaranteed-error estimator."""
    rows, distinct, of = sum(counts) + more, len(counts), Counter(counts)
    assume(counts)
    made = estimated(rows, counts)
    chao = distinct + of[1] * (of[1] - 1) / (2 * (of[2] + 1))
    assert made.groups == min(rows, math.floor(chao))
    seen_again = distinct - of[1]
    guaranteed = math.sqrt(rows / sum(counts)) * of[1] + seen_again
    assert made.most >= min(rows, math.floor(guaranteed))
    assert made.most <= max(made.groups, math.ceil(guaranteed) + 1)


@pytest.mark.parametrize("run", [1, 2, 6, 100])
def test_every_run_of_ascending_keys_is_a_group(run: int) -> None:
    sampled = SEGMENTS * SEGMENT
    counts = [run] * (sampled // run)
    repeats = int(sum(counts) * (1 - 1 / run) * 31 / 32)
    made = estimated(10**8, counts, repeats, descents=0)
    assert made.ascending
    assert made.groups == pytest.approx(10**8 / run, rel=1e-3)
    assert not estimated(10**8, counts, repeats, descents=1).ascending


def test_no_row_belongs_to_a_group() -> None:
    assert estimate_groups(10**6, counts_of()) == KeySummary(0, 0, 0.0, 0.0)
