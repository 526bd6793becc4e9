"""The choice of a kernel and its numbers, without a GPU."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dask_gpuagg.cuda.choice import choose
from dask_gpuagg.cuda.choice import partitions as partitioning
from dask_gpuagg.cuda.choice.decision import PgbFold
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.query import tuning
from dask_gpuagg.cuda.query.forms import BY_ROW, CODED
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import PRESENT, KernelOutput, KernelState, KeyPart, ValuePart
from dask_gpuagg.cuda.runtime.driver import Device
from tests.cuda.choice.test_choose import H200
from tests.cuda.choice.test_tables import FIVE, SUM

A100 = Device(0, "A100", "sm_80", 108, 166_912)
WORD = KeyPart("i64", masked=False)
WIDE = Query((WORD,), False, (ValuePart("i128", True),), (KernelState("WideSum", (0,)),), ())


def decided(query: Query, groups: int, device: Device = H200, rows: int = 10**8) -> Any:
    return choose.decide(query, rows, KeySummary(groups, groups, 0.0, 0.0), device)


@pytest.mark.parametrize("device", [H200, A100], ids=lambda d: d.name)
@pytest.mark.parametrize("query", [SUM, WIDE], ids=["sum", "decimal"])
@pytest.mark.parametrize("groups", [50_000, 1_000_000, 16_000_000, 100_000_000])
@pytest.mark.parametrize("kernel", ["pgb", "pgb_ur"])
def test_partitions_hold_the_rows_and_tables_the_groups(
    kernel: str, groups: int, query: Query, device: Device
) -> None:
    decision = choose.decide(query, 10**8, KeySummary(groups, groups, 0.0, 0.0), device, kernel)
    fixed, replica = query.slot_bytes
    assert decision.kernel == kernel
    assert decision.partitions % device.multiprocessors == 0
    assert decision.partitions * decision.capacity >= 10**8
    assert decision.partitions * decision.capacity < 2**32
    assert decision.partitions * decision.slices * decision.shared_slots > groups
    assert decision.slices & (decision.slices - 1) == 0
    assert decision.shared_slots * (fixed + replica) < device.shared_bytes
    _, tile, shared = partitioning.scatter_tile(
        decision.partition_query(query), device, decision.partitions
    )
    assert tile > 0
    assert shared < device.shared_bytes


def word(i: int) -> int:
    """Words are mixed, so that they lie far apart."""
    return i * 0x9E3779B97F4A7C15 % 2**64


def skewed(groups: int, *hot: float, alike: float = 0.0) -> KeySummary:
    told = tuple((word(i), share) for i, share in enumerate(hot))
    return KeySummary(groups, groups, 0.0, max(hot, default=0.0), True, told, alike)


@pytest.mark.parametrize("query", [SUM, WIDE], ids=["sum", "decimal"])
def test_hot_keys_stay_out_of_the_partitions(query: Query) -> None:
    decision = choose.decide(query, 10**8, skewed(10**6, 0.1, 0.01, 1e-5), H200)
    assert decision.hot == (word(0), word(1))
    kernel, tile, used = partitioning.scatter_of(query, H200, decision)
    threads, items, _ = query.scatter
    assert (kernel, tile) == ("scatter_hot", threads * items)
    assert used <= H200.shared_bytes
    assert decision.hot_buckets > len(decision.hot)
    assert decision.hot_replicas & (decision.hot_replicas - 1) == 0


MANY = replace(SUM, states=tuple(KernelState("Moments", (0,)) for _ in range(40)))


@pytest.mark.parametrize("device", [H200, A100], ids=lambda d: d.name)
@pytest.mark.parametrize("query", [SUM, WIDE, MANY], ids=["sum", "decimal", "many"])
def test_tables_of_skewed_keys_leave_room_for_copies(query: Query, device: Device) -> None:
    decision = choose.decide(query, 10**8, skewed(10**6, 0.1), device, "pgb")
    assert decision.has_replicated_slots
    used = decision.shared_slots * sum(query.slot_bytes) + partitioning.crowd_bytes(query)
    # tags, owners and counter of kernels/pgb_tr/crowds.cuh, and four words of its own
    assert used + 4 * (256 + query.replicated_slots + 1) + 16 <= device.shared_bytes
    assert decision.partitions * decision.slices * decision.shared_slots > 10**6
    assert not getattr(decided(query, 10**6, device), "has_replicated_slots", False)


def test_hundreds_of_hot_keys_find_room() -> None:
    shares = [0.3 / (i + 1) for i in range(tuning.HOT_AT_MOST)]
    for groups in (10**5, 10**7):
        decision = choose.decide(SUM, 10**8, skewed(groups, *shares), H200)
        assert len(decision.hot) == tuning.HOT_AT_MOST
        assert decision.hot_replicas == 32
        assert partitioning.scatter_of(SUM, H200, decision)[2] <= H200.shared_bytes


@pytest.mark.parametrize(
    ("ctype", "bounds", "base"),
    [
        ("i64", (0, 10**7), -(2**30)),
        ("i64", (-(10**9), 10**9), -(10**9) - 2**30),
        ("i64", (0, 2**31), None),
        ("i64", (-(2**63), -(2**63) + 10**7), -(2**63) - 2**30),
        ("i64", (-(2**63), 2**63 - 1), None),
        ("i32", (0, 2**32 - 1), 0),
        ("i32", (5, 10**7), 0),
    ],
)
def test_words_of_a_narrow_range_are_narrow(
    ctype: str, bounds: tuple[int, int], base: int | None
) -> None:
    query = replace(SUM, keys=(KeyPart(ctype, False),))
    estimate = KeySummary(10**6, 10**6, 0.0, 0.0, bounds=bounds)
    decision = choose.decide(query, 10**8, estimate, H200, "pgb")
    assert (decision.base, decision.window) == (base, 0)


@pytest.mark.parametrize("kernel", ["pgb", "pgb_ur", "pgb_fold"])
def test_only_skewed_keys_are_counted(kernel: str) -> None:
    even = choose.decide(SUM, 10**8, even_keys(10**6), H200, kernel)
    assert (even.kernel, even.counted) == (kernel, False)
    assert partitioning.most_rows(even) == even.capacity
    counted = choose.decide(SUM, 10**8, skewed(10**6, 0.1), H200, kernel)
    assert (counted.kernel, counted.counted) == (kernel, True)
    # a block that folds has places for so many
    most = partitioning.most_rows(counted)
    if isinstance(counted, PgbFold):
        assert 2 * counted.capacity <= most <= max(2 * counted.capacity, partitioning.FOLD_ROWS)
        assert most <= 4 * counted.capacity
    else:
        assert most == 2**32 - 1


@pytest.mark.parametrize(
    ("repeats", "counted"), [(0.0, True), (0.3, True), (0.4, False), (0.97, False)]
)
def test_skewed_keys_in_runs_are_not_counted(repeats: float, counted: bool) -> None:
    """One hot key with half of the rows follows itself in a fourth of them."""
    estimate = replace(skewed(10**6, 0.5, alike=0.02), repeats=repeats)
    decision = choose.decide(SUM, 10**8, estimate, H200, "pgb")
    assert decision.counted == counted
    if not counted:
        even = decided(SUM, 10**6)
        assert decision.capacity * decision.partitions > even.capacity * even.partitions


def test_keys_that_share_a_bucket_with_two_hotter_ones_are_not_hot() -> None:
    near, far = [(i << 32 | 7, 0.3 - i / 100) for i in range(3)], [(1 << 63, 0.1)]
    assert partitioning.found_in([*near, *far], 32) == (*near[:2], *far)
    assert partitioning.found_in([*near, *far], 1 << 32) == (*near, *far)
    assert partitioning.found_in((), 0) == ()
    # all that a decision keeps out are found
    shares = [0.1 / (i + 1) for i in range(tuning.HOT_AT_MOST)]
    words = np.random.default_rng(2).integers(0, 2**63, len(shares))
    words[60:63] = words[60]
    told = tuple(zip((2 * words + np.arange(len(words)) % 2).tolist(), shares, strict=True))
    told = (*told[:62], (told[62][0] + 2, told[62][1]), *told[63:])
    estimate = KeySummary(10**6, 10**6, 0.0, 0.1, True, told, 0.0)
    decision = choose.decide(SUM, 10**8, estimate, H200, "pgb")
    assert 0.98 * len(told) < len(decision.hot) < len(told)
    assert told[61][0] in decision.hot
    assert told[62][0] not in decision.hot
    kept = tuple(key for key in told if key[0] in decision.hot)
    assert partitioning.found_in(kept, decision.hot_buckets) == kept


def test_frequent_keys_left_in_partitions_need_more_room() -> None:
    """Three keys in one bucket, the hotter of which are kept out, or two."""
    for third, left_in in ((word(1), 0.0), (word(0) + 2, 0.15)):
        told = (word(0), 0.2), (word(0) + 1, 0.19), (third, 0.15), (word(2), 0.1)
        estimate = KeySummary(10**6, 10**6, 0.9, 0.2, True, told, 1e-5)
        decision = choose.decide(SUM, 10**8, estimate, H200, "pgb")
        assert not decision.counted
        assert decision.hot == tuple(key for key, _ in told if key != third or not left_in)
        alike = 1e-5 + left_in**2
        assert decision.capacity == partitioning._capacity(10**8, decision.partitions, alike)


def dense(groups: int, span: float = 1.0, skewed: bool = False) -> KeySummary:
    return KeySummary(groups, groups, 0.0, 0.0, skewed, bounds=(0, int(groups * span) - 1))


@pytest.mark.parametrize("device", [H200, A100], ids=lambda d: d.name)
@pytest.mark.parametrize("query", [SUM, replace(WIDE, inputs=(ValuePart("i128", False),))])
@pytest.mark.parametrize("groups", [2_000, 70_000, 1_000_000, 16_000_000, 64_000_000])
@pytest.mark.parametrize("kernel", ["pgb", "pgb_ur", "pgb_fold"])
def test_keys_of_a_window_have_their_own_slots(
    kernel: str, groups: int, query: Query, device: Device
) -> None:
    decision = choose.decide(query, 10**8, dense(groups), device, kernel)
    if kernel == "pgb_fold" and decision.kernel != kernel:
        # few groups make skewed partitions, and wide columns many
        assert groups == 2_000 or query is not SUM
        return
    assert decision.kernel == kernel
    assert decision.window > groups
    assert decision.base == -(groups // 192 + 16)
    assert decision.partitions % device.multiprocessors == 0
    # every stripe has one key for each partition, and so a slot there
    stripes = -(-decision.window // decision.partitions)
    assert stripes <= decision.slices * decision.shared_slots < 2**16
    assert decision.partitions * decision.capacity >= 10**8
    assert decision.global_slots <= decision.window + 1
    if kernel != "pgb_fold":
        once, copied = partitioning.striped_bytes(query)
        used = decision.shared_slots * (once + decision.replicas * copied) + 8
        assert used <= partitioning.shared_bytes(device)


def test_one_partition_alone_is_hashed() -> None:
    single = replace(H200, multiprocessors=1)
    assert choose.decide(SUM, 10**7, dense(10_000), single, "pgb").window == 0
    decision = choose.decide(SUM, 10**7, dense(100_000), single, "pgb")
    assert decision.partitions > 1
    assert decision.window > 0


def test_partitions_of_slots_are_alike() -> None:
    """Each has as many keys, so that few groups make them no more skewed than many."""
    for groups, beyond in ((16_384, 1.15), (10**6, 1.05)):
        decision = choose.decide(SUM, 10**8, dense(groups), H200, "pgb")
        assert 1.0 < decision.capacity * decision.partitions / 10**8 < beyond
    sparse = choose.decide(SUM, 10**8, dense(10**6, 1.9), H200, "pgb")
    assert sparse.window > 0
    assert sparse.capacity * sparse.partitions / 10**8 > 1.04


@pytest.mark.parametrize(
    ("estimate", "rows"),
    [
        (dense(10**6, 3.0), 10**8),
        (dense(10**6, skewed=True), 10**8),
        (KeySummary(10**6, 10**6, 0.0, 0.0), 10**8),
    ],
    ids=["sparse", "skewed", "unknown range"],
)
def test_other_keys_are_hashed(estimate: KeySummary, rows: int) -> None:
    for kernel in ("auto", "pgb"):
        decision = choose.decide(SUM, rows, estimate, H200, kernel)
        assert decision.kernel in ("pgb", "direct")
        assert not getattr(decision, "window", 0)


def test_columns_are_written_at_once_only_where_groups_are_final() -> None:
    bare = replace(SUM, outputs=(KernelOutput("Field", (0,), "f64"),))
    nullable = replace(SUM, outputs=(KernelOutput("Field", (0,), "f64", True),))
    # a mean of partials: of the sum of one column and the counts in another
    of_two = replace(
        bare,
        inputs=(*bare.inputs, ValuePart("i64", False)),
        states=(*bare.states, KernelState("IntegerSum", (1,))),
        outputs=(KernelOutput("Mean", (0, 1), "f64"),),
    )
    assert of_two.can_fold
    assert not of_two.can_fold_outputs
    hashed = KeySummary(4_000_000, 4_000_000, 0.0, 0.0)
    for estimate in (dense(4_000_000), hashed):
        decision = choose.decide(bare, 10**8, estimate, H200, "pgb")
        assert partitioning.writes_columns(bare, decision)
        assert not partitioning.writes_columns(nullable, decision)
        folded = choose.decide(bare, 10**8, estimate, H200, "pgb_fold")
        assert folded.fills
        assert partitioning.writes_columns(bare, folded)
        assert not partitioning.writes_columns(of_two, folded)
    # hot keys have no rows in partitions
    hot = choose.decide(bare, 10**8, skewed(10**6, 0.1), H200, "pgb")
    assert hot.hot_buckets
    assert partitioning.writes_columns(bare, hot)
    wide = replace(bare, keys=(WORD, WORD))
    assert wide.form.has_witness
    assert partitioning.writes_columns(wide, hot)
    assert partitioning.writes_columns(wide, choose.decide(wide, 10**8, hashed, H200, "pgb_fold"))
    text = replace(bare, keys=(KeyPart("i32", False, string=True), WORD))
    assert partitioning.writes_columns(text, choose.decide(text, 10**8, hashed, H200, "pgb"))


@pytest.mark.parametrize("kernel", ["pgb", "pgb_ur", "pgb_fold"])
def test_tables_of_narrow_words_have_more_slots(kernel: str) -> None:
    narrow, wide = (
        choose.decide(
            SUM, 10**8, KeySummary(3 * 10**7, 3 * 10**7, 0.0, 0.0, bounds=b), H200, kernel
        )
        for b in ((0, 10**9), (0, 2**40))
    )
    assert (narrow.base is None, wide.base is None) == (False, True)
    assert narrow.shared_slots * narrow.slices > wide.shared_slots
    assert narrow.partitions <= wide.partitions
    if kernel == "pgb":
        slot = partitioning.hashed_bytes(SUM, narrow.base)
        assert slot == partitioning.hashed_bytes(SUM, None) - 4
        assert slot * narrow.shared_slots <= partitioning.shared_bytes(H200)


def test_made_words_are_not_narrow() -> None:
    query = replace(SUM, keys=(WORD, WORD))
    estimate = KeySummary(10**6, 10**6, 0.0, 0.0, bounds=(0, 5))
    assert choose.decide(query, 10**8, estimate, H200).base is None


def test_codes_are_numbers() -> None:
    text = KeyPart("i32", False, string=True)
    query = replace(SUM, keys=(text, text), chosen=CODED)
    for words, kernel in (((0, 1_000_000), "direct"), ((5, 2**31), "pgb")):
        estimate = KeySummary(10**6, 10**6, 0.0, 0.0, bounds=words)
        decision = choose.decide(query, 10**8, estimate, H200)
        assert decision.kernel == kernel
        assert decision.base == (words[0] - 5_224 if kernel == "direct" else words[0] - 2**30)


def test_null_keys_of_64_bits_have_a_table_beside_the_partitions() -> None:
    nullable = replace(SUM, keys=(KeyPart("i64", True),), keep_nulls=True)
    decision = decided(nullable, 1_000_000)
    assert decision.kernel == "pgb"
    assert decision.hot == ()
    assert decision.hot_buckets > 0
    assert decided(replace(nullable, keep_nulls=False), 1_000_000).hot_buckets == 0


def test_few_rows_are_not_partitioned() -> None:
    assert decided(SUM, 400_000, rows=500_000).kernel == "lphga"


def test_keys_by_row_are_not_partitioned() -> None:
    strings = Query((KeyPart("i32", False, string=True),), False, SUM.inputs, SUM.states, ())
    assert decided(strings, 1_000_000).kernel == "pgb"
    assert decided(replace(strings, chosen=BY_ROW), 1_000_000).kernel == "lphga"


def even_keys(groups: int) -> KeySummary:
    """An estimate of keys that lie in no narrow range."""
    return KeySummary(groups, groups, 0.0, 0.0, bounds=(0, 10**12))


@pytest.mark.parametrize("device", [H200, A100], ids=lambda d: d.name)
@pytest.mark.parametrize("query", [SUM, FIVE, WIDE], ids=["sum", "five", "decimal"])
@pytest.mark.parametrize("rows", [10**6, 10**7, 10**8])
@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 1.0])
def test_folded_partitions_fit(share: float, rows: int, query: Query, device: Device) -> None:
    groups = int(share * rows)
    decision = choose.decide(query, rows, even_keys(groups), device, "pgb_fold")
    if decision.kernel == "lphga":
        # columns so wide in memory so small would need too many partitions
        assert (query, rows, device) == (WIDE, 10**8, A100)
        return
    assert decision.kernel == "pgb_fold"
    assert decision.capacity < 1 << 16
    assert decision.partitions * decision.capacity >= rows
    assert decision.partitions * decision.slices * decision.shared_slots >= groups
    # where groups start, their words, their counts
    assert decision.shared_slots * 14 + 8 <= partitioning.fold_bytes(device)
    assert decision.shared_slots % 2 == 0
    assert partitioning.fold_bytes(device) + 4 * (5 + 32) <= device.shared_bytes
    assert 1 <= decision.fills <= 4
    assert partitioning.scatter_tile(query, device, decision.partitions)[1] > 0


def test_many_states_of_groups_of_few_rows_are_folded() -> None:
    def kernel(query: Query, groups: int) -> str:
        return choose.decide(query, 10**8, even_keys(groups), H200).kernel

    assert kernel(SUM, 1 << 24) == "pgb"
    assert [kernel(FIVE, 1 << i) for i in (16, 20, 22, 24, 26)] == ["pgb"] * 3 + ["pgb_fold"] * 2


def unlike_keys(groups: int, *hot: tuple[int, float]) -> KeySummary:
    return replace(even_keys(groups), skewed=True, hot=hot, collision_probability=2 / groups)


def test_skewed_keys_are_folded() -> None:
    """Of all that a warp adds up no more than a fourth of a partition's rows are one key's."""
    told = (word(0), 0.05), (word(1), 2e-4), (word(2), 1e-4), (word(3), 1.5e-5)
    decision = choose.decide(FIVE, 10**8, unlike_keys(1 << 24, *told), H200)
    assert (decision.kernel, decision.counted) == ("pgb_fold", True)
    assert 1e-4 < 0.25 * (1 - 0.05) / decision.partitions < 2e-4
    assert decision.hot == (word(0), word(1))
    assert decision.capacity <= partitioning.FOLD_ROWS
    assert 1 <= decision.fills <= 4


@pytest.mark.parametrize(("share", "folded"), [(2.5e-4, True), (5e-4, False)])
def test_a_frequent_key_left_in_a_partition_is_not_folded(share: float, folded: bool) -> None:
    """Two hotter ones have its bucket, and a turn of its partition has places for 65,000 rows."""
    told = (word(0), 0.02), (word(0) + 1, 0.01), (word(0) + 2, share)
    decision = choose.decide(FIVE, 10**8, unlike_keys(1 << 24, *told), H200)
    assert decision.hot == (word(0), word(0) + 1)
    assert (decision.kernel == "pgb_fold") == folded


@pytest.mark.parametrize(("share", "folded"), [(3e-4, True), (7e-4, False)])
def test_unreported_keys_may_be_as_frequent_as_the_last_reported(
    share: float, folded: bool
) -> None:
    told = [(word(i), share) for i in range(tuning.HOT_AT_MOST)]
    few = choose.decide(FIVE, 10**8, unlike_keys(1 << 24, *told[:-1]), H200)
    assert few.kernel == "pgb_fold"
    decision = choose.decide(FIVE, 10**8, unlike_keys(1 << 24, *told), H200)
    assert (decision.kernel == "pgb_fold") == folded


def test_rows_with_too_small_a_sample_are_not_folded() -> None:
    """Of so many it misses keys with more rows than a turn has places for."""
    for rows, kernel in ((250_000_000, "pgb_fold"), (280_000_000, "lphga")):
        skewed, even = unlike_keys(1 << 24), even_keys(1 << 24)
        assert choose.decide(FIVE, rows, skewed, H200, "pgb_fold").kernel == kernel
        assert choose.decide(FIVE, rows, even, H200, "pgb_fold").kernel == "pgb_fold"


def test_skewed_keys_in_runs_are_folded_where_their_partitions_have_room() -> None:
    estimate = replace(unlike_keys(1 << 24, (word(0), 0.05)), repeats=0.5)
    folded = choose.decide(FIVE, 10**8, estimate, H200, "pgb_fold")
    assert (folded.kernel, folded.counted) == ("pgb_fold", False)
    assert partitioning.most_rows(folded) == folded.capacity <= partitioning.FOLD_ROWS
    estimate = replace(estimate, collision_probability=1e-4)
    assert choose.decide(FIVE, 10**8, estimate, H200, "pgb_fold").kernel == "lphga"


def test_states_of_several_columns_are_not_folded() -> None:
    merged = replace(
        FIVE,
        inputs=(ValuePart("f64", False),) * 3,
        states=(KernelState("MergedMoments", (0, 1, 2)),),
    )
    assert not merged.can_fold
    assert not {"fold", "fold_narrow"} & set(merged.units)
    assert {"fold", "fold_narrow"} < set(FIVE.units)
    made = choose.decide(merged, 10**8, even_keys(1 << 24), H200, "pgb_fold")
    assert made.kernel == "lphga"
    assert "pgb_fold" not in choose.decide(merged, 10**8, even_keys(1 << 24), H200).why


STRINGS = ValuePart(PRESENT, True)
COUNTS = replace(
    SUM, inputs=(STRINGS,), states=(KernelState("Count", (0,)), KernelState("FirstRow", (0,)))
)
MANY = replace(
    SUM,
    inputs=(ValuePart("i64", True),) * 6 + (STRINGS,),
    states=(*(KernelState("Max", (i,), "i64") for i in range(6)), KernelState("Count", (6,))),
)


def test_counts_of_strings_are_partitioned() -> None:
    """The validity travels, and nothing else has to."""
    decision = decided(COUNTS, 1_000_000)
    assert (decision.kernel, COUNTS.copied, COUNTS.values) == ("pgb", (), 0)


def chosen(values: float | None, query: Query = MANY, groups: int = 4_000_000) -> Any:
    estimate = KeySummary(groups, groups, 0.0, 0.0, bounds=(0, 10**9))
    return choose.decide(query, 10**8, estimate, H200, values=values)


def test_values_that_are_mostly_null_are_gathered() -> None:
    assert chosen(None).kernel == chosen(6).kernel == "pgb"
    few = chosen(0.3)
    assert (few.kernel, few.gathered) == ("pgb_ur", 0.3)
    assert "pgb_ur" not in chosen(6).why
    assert "pgb " in few.why
    # one column costs as much to move as the number of the row
    one = replace(SUM, inputs=(ValuePart("f64", True),))
    assert chosen(0.2, one).kernel == "pgb"


@pytest.mark.parametrize("name", ["", "pbg", "hgb_runs", "range"])
def test_unknown_kernel_raises(name: str) -> None:
    with pytest.raises(ValueError, match=r"there is no kernel .*auto, hgb, direct, pgb, pgb_ur, "):
        choose.decide(SUM, 10**8, None, H200, name)
