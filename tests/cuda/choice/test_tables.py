"""Tables: windows of keys from a narrow range, and those for which memory suffices."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.cuda.choice.choose import decide, needed_bytes, with_less_memory
from dask_gpuagg.cuda.choice.decision import Decision, Direct, Partitioned, SpEga
from dask_gpuagg.cuda.choice.summary import ANY_WORD, EMPTY_PLAIN, KeySummary, window
from dask_gpuagg.cuda.choice.tables import direct_bytes
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KernelState, KeyPart, ValuePart
from tests.cuda.choice.test_choose import H200, POLICIES, exact, query

SUM = query(KernelState("FloatSum", (0,)))
GOLDEN, WORD = 0x9E3779B97F4A7C15, 1 << 64


def dense(groups: int, least: int = 0, skewed: bool = False) -> KeySummary:
    bounds = (least, least + groups - 1)
    return KeySummary(groups, groups, 0.0, 1 / groups, skewed=skewed, bounds=bounds)


def test_the_plain_word_that_is_mixed_to_an_empty_one() -> None:
    assert (EMPTY_PLAIN ^ EMPTY_PLAIN >> 32) * GOLDEN % WORD == WORD - 1


@given(st.integers(-(2**63), 2**63 - 2), st.integers(1, 2**21))
def test_a_window_has_room_at_both_ends(least: int, span: int) -> None:
    found = window(SUM, dense(span, least))
    if found is None:
        assert (EMPTY_PLAIN - least + 2**17) % WORD < 2**22
        return
    base, keys = found
    assert keys % 2 == 0
    assert base < least
    assert base + keys > least + span
    assert keys <= 1.1 * span + 64
    assert not (EMPTY_PLAIN - base) % WORD < keys


def test_the_empty_word_is_in_no_window() -> None:
    signed = EMPTY_PLAIN if EMPTY_PLAIN < 2**63 else EMPTY_PLAIN - WORD
    assert window(SUM, dense(1_000, signed - 500)) is None


@pytest.mark.parametrize(
    "estimate", [None, replace(dense(10), bounds=ANY_WORD), replace(dense(10), bounds=(5, 4))]
)
def test_unknown_bounds_have_no_window(estimate: KeySummary | None) -> None:
    assert window(SUM, estimate) is None


def test_keys_without_plain_words_have_no_window() -> None:
    values, states = (ValuePart("f64", False),), (KernelState("FloatSum", (0,)),)
    null = Query((KeyPart("i64", True),), True, values, states, ())
    assert window(null, dense(10)) is None
    assert window(replace(null, keep_nulls=False), dense(10)) is not None
    assert window(replace(null, keys=(KeyPart("i32", True),)), dense(10)) is not None
    text = (KeyPart("i32", False, string=True),)
    assert window(replace(null, keys=text), dense(10)) is None


@pytest.mark.parametrize("groups", [1, 4, 64, 1_000, 8_000, 16_384, 27_000])
def test_dense_keys_go_to_shared_memory(groups: int) -> None:
    made = decide(SUM, 10**8, dense(groups), H200)
    assert isinstance(made, Direct)
    assert made.shared_slots >= groups
    assert "narrow range" in made.why


@pytest.mark.parametrize("groups", [65_536, 262_144, 1 << 20])
def test_dense_keys_of_one_sum_go_to_global_memory(groups: int) -> None:
    made = decide(SUM, 10**8, dense(groups), H200)
    assert isinstance(made, Direct)
    assert made.shared_slots == 0
    assert (made.shift == 2) == (groups == 65_536)
    several = query(*(KernelState("FloatSum", (i,)) for i in range(5)))
    assert decide(several, 10**8, dense(groups), H200).kernel == "pgb"


def test_sparse_skewed_and_ascending_keys_are_not_direct() -> None:
    sparse = replace(dense(20_000), bounds=(0, 10**6))
    assert decide(SUM, 10**8, sparse, H200).kernel != "direct"
    assert decide(SUM, 10**8, sparse, H200, "direct").kernel == "direct"
    assert decide(SUM, 10**8, dense(20_000, skewed=True), H200).kernel != "direct"
    assert decide(SUM, 10**8, dense(10**6, skewed=True), H200, "direct").kernel == "lphga"
    runs = replace(dense(1_000), repeats=0.95)
    assert decide(SUM, 10**8, runs, H200).kernel == "hgb_runs"
    # no two lanes meet in a slot, however long the runs are
    few = decide(SUM, 10**8, replace(dense(100), repeats=0.95), H200)
    assert isinstance(few, Direct)
    assert few.replicas >= 32
    assert decide(SUM, 10**8, replace(dense(10**6), ascending=True), H200).kernel == "sgb"


@given(
    st.lists(st.sampled_from(POLICIES), max_size=20), st.integers(1, 1 << 22), st.integers(1, 2**31)
)
def test_what_is_decided_can_be_launched(states: list[KernelState], groups: int, rows: int) -> None:
    of = query(*states)
    made = decide(of, rows, dense(min(groups, rows)), H200, "direct")
    if not isinstance(made, Direct):
        assert made.kernel == "lphga"
        return
    assert direct_bytes(of, made) <= H200.shared_bytes
    assert made.global_slots >= groups if rows >= groups else made.global_slots >= rows
    assert 1 <= made.blocks <= H200.multiprocessors
    assert made.replicas & (made.replicas - 1) == 0
    assert made.shared_slots in (0, made.global_slots)


FIVE = replace(
    query(
        KernelState("FloatSum", (0,)),
        KernelState("Size"),
        KernelState("Min", (0,), "f64"),
        KernelState("Max", (0,), "f64"),
        KernelState("FloatSum", (1,)),
    ),
    inputs=(ValuePart("f64", False), ValuePart("f32", False)),
)


@pytest.mark.parametrize(("groups", "replicas"), [(4_000, 2), (6_000, 1)])
def test_states_of_a_window_fill_shared_memory(groups: int, replicas: int) -> None:
    made = decide(FIVE, 10**8, dense(groups), H200)
    assert isinstance(made, Direct)
    assert made.replicas == replicas
    assert made.shared_slots == made.global_slots >= groups
    assert groups * 36 < direct_bytes(FIVE, made) <= H200.shared_bytes


def test_states_that_do_not_fit_go_to_partitions() -> None:
    chosen = decide(FIVE, 10**8, dense(8_000), H200)
    assert isinstance(chosen, Partitioned)
    assert chosen.window
    forced = decide(FIVE, 10**8, dense(8_000), H200, "direct")
    assert isinstance(forced, Direct)
    assert forced.shared_slots == 0
    # hot keys would wait for each other
    assert decide(FIVE, 10**8, dense(8_000, skewed=True), H200, "direct").kernel == "lphga"


# ---- less memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [10**6, 10**7])
def test_rows_whose_copies_have_no_room_go_to_one_table(groups: int) -> None:
    first = decide(SUM, 10**8, exact(groups), H200)
    assert isinstance(first, Partitioned)
    less = with_less_memory(SUM, 10**8, first, H200)
    assert isinstance(less, SpEga)
    assert needed_bytes(SUM, 10**8, less) < needed_bytes(SUM, 10**8, first)
    assert less.why.endswith(f"device memory has no room for {first.kernel}")


def test_dense_keys_keep_slots_of_their_own() -> None:
    partitions = decide(SUM, 10**8, dense(1_500_000), H200, "pgb")
    assert isinstance(partitions, Partitioned)
    assert partitions.window
    assert isinstance(with_less_memory(SUM, 10**8, partitions, H200), Direct)


def test_none_needs_less_than_the_smallest_table() -> None:
    decision: Decision | None = decide(SUM, 10**8, exact(6 * 10**7), H200)
    tried = []
    while decision is not None:
        tried.append(decision)
        decision = with_less_memory(SUM, 10**8, decision, H200)
    assert len(tried) >= 2
    assert "device memory has no room for" in tried[-1].why
