"""Batches, merges and the steps down where device memory lacks, without a GPU."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.engines.host import engine as host
from dask_gpuagg.plan import Plan, Requested
from dask_gpuagg.reporting.events import FellBack
from dask_gpuagg.streaming import stream
from dask_gpuagg.streaming.batches import Sizes
from dask_gpuagg.streaming.stream import loads, partials_of, parts_of
from dask_gpuagg.tasks.partials import inputs_of
from tests.data import plan_of
from tests.reporting import listening
from tests.streaming.fake import FakeDevice


@pytest.mark.parametrize(("groups", "capacity"), [(10**6, 50_000), (10**5, 20_000), (4_000, 900)])
def test_no_part_has_more_groups_than_fit(groups: int, capacity: int) -> None:
    parts = parts_of(groups, capacity)
    rng = np.random.default_rng(groups)
    for _ in range(20):
        assert np.bincount(rng.integers(0, parts, groups)).max() < capacity
    # about e times as many as would hold them if all were equal
    assert groups / capacity < parts <= 3 * groups / capacity + 1


def test_the_bound_at_its_ends() -> None:
    assert parts_of(100, 100) == 1
    assert parts_of(0, 1) == 1
    assert parts_of(10**12, 1) == 256
    assert parts_of(10**9, 10**8) == 28


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 100))
def test_loads(rows: list[int], capacity: int) -> None:
    found = loads(rows, capacity)
    assert [part for load in found for part in load] == [i for i, n in enumerate(rows) if n]
    sizes = [sum(rows[part] for part in load) for load in found]
    for load, size in zip(found, sizes, strict=True):
        assert len(load) == 1 or size <= capacity
    for size, following in zip(sizes, found[1:], strict=False):
        assert size + rows[following[0]] > capacity


ASKED = ("sum", "count", "min", "max", "first", "last", "var", "mean", "size")


def frame(rows: int, groups: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=rows)
    values[rng.random(rows) < 0.1] = np.nan
    return pd.DataFrame({"k": rng.integers(0, max(groups, 1), rows), "x": values})


def plan_by_k(rows: pd.DataFrame, names: Any = ASKED) -> Plan:
    requested = [Requested(name, name, None if name == "size" else "x") for name in names]
    return plan_of(rows, ["k"], *requested)


def expected(whole: pd.DataFrame) -> pd.DataFrame:
    by = whole.groupby("k").x
    return pd.DataFrame({name: getattr(by, name)() for name in ASKED})


def streamed(pieces: list[pd.DataFrame], asked: Any, device: FakeDevice) -> list[Any]:
    """The partials of a stream, which have the groups of all pieces."""
    whole = pd.concat(pieces)
    plan = plan_by_k(whole, asked)
    made = partials_of((inputs_of(piece, ["k"], plan) for piece in pieces), plan, device)
    theirs = expected(whole)[list(asked)]
    pd.testing.assert_frame_equal(host.finalize(made, plan, theirs.iloc[:0]), theirs)
    return made


cases = st.builds(
    SimpleNamespace,
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    groups=st.integers(1, 40),
    nbytes=st.integers(1, 2_000),
    limit=st.integers(0, 200),
    most=st.integers(100, 4_000),
    ordered=st.booleans(),
    undivided=st.sampled_from([5, 20, 1 << 27]),
    null_keys=st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    spilled=st.sampled_from([0, 1 << 40]),
)


@given(cases)
def test_every_way_down_gives_the_same_groups(case: Any) -> None:
    pieces = [frame(rows, case.groups, seed) for seed, rows in enumerate(case.lengths)]
    if case.null_keys:
        rng, share = np.random.default_rng(case.groups), case.null_keys
        pieces = [p.assign(k=p.k.astype(float).mask(rng.random(len(p)) < share)) for p in pieces]
    asked = ASKED if case.ordered else [name for name in ASKED if name not in ("first", "last")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_LEAST_ROWS", 8)
        patch.setattr(stream, "_FEW_ROWS", 16)
        patch.setattr(stream, "MOST_GROUPS", case.undivided)
        patch.setattr(stream, "_SPILLED_BYTES", case.spilled)
        streamed(pieces, asked, FakeDevice(Sizes(case.nbytes, case.most), case.limit))


def test_tables_without_groups_are_not_held() -> None:
    """Those of null keys alone, before device memory does not suffice for the next rows."""

    class Shrinking(FakeDevice):
        def load(self, batch: Any) -> Any:
            made = super().load(batch)
            self.limit = 0
            return made

    whole = frame(200, 5).assign(k=np.nan)
    plan = plan_by_k(whole, ("sum", "min"))
    device = Shrinking(Sizes(50 * 16, 1 << 20))
    (made,) = partials_of(iter([inputs_of(whole, ["k"], plan)]), plan, device)
    assert any(line.startswith("no memory") for line in device.log)
    assert not any(line.startswith(("split", "leave")) for line in device.log)
    assert len(made["groups"]) == 0


@pytest.mark.parametrize("asked", [("sum", "min", "var"), ("sum", "first")])
def test_groups_beyond_the_device_leave_in_parts_and_are_merged_there(
    asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose states have an order leave whole, and the host merges them."""
    monkeypatch.setattr(stream, "_FEW_ROWS", 100)
    pieces = [frame(1_000, 3_000, seed) for seed in range(8)]
    device = FakeDevice(Sizes(16_000, 40_000), limit=20_000)
    made = streamed(pieces, asked, device)
    splits = [line for line in device.log if line.startswith("split")]
    assert bool(splits) == ("first" not in asked)
    if splits:
        assert len(made) == 1
        assert len(made[0]["groups"]) == pd.concat(pieces).k.nunique()
        assert len(set(splits)) == 1


@pytest.mark.parametrize("dtype", ["int8", "float64", "bool", "datetime64[ms]", "str", "Int32"])
def test_parts_are_concatenated_whatever_their_dtype(dtype: str) -> None:
    parts = [pd.Series(np.arange(n) % 2).astype(dtype) for n in (3, 0, 5)]
    parts.append(parts[0].astype("float64" if dtype == "int8" else dtype))
    made = stream._concatenated(parts)
    pd.testing.assert_series_equal(made, pd.concat(parts, ignore_index=True))


def test_the_host_holds_groups_and_not_as_many_as_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that have left are merged whenever they have doubled, not at the end alone."""
    monkeypatch.setattr(stream, "_FEW_ROWS", 100)
    monkeypatch.setattr(stream, "_SPILLED_BYTES", 1)
    held = []
    spill = stream.Stream.spill_partitioned

    def watched(self: stream.Stream) -> None:
        spill(self)
        held.append(sum(len(piece) for part in self.parts for piece in part))

    monkeypatch.setattr(stream.Stream, "spill_partitioned", watched)
    pieces = [frame(1_000, 1_500, seed) for seed in range(30)]
    (result,) = streamed(pieces, ("sum", "count"), FakeDevice(Sizes(16_000, 16_000), limit=20_000))
    assert len(result["groups"]) == 1_500
    assert len(held) > 10
    assert max(held) <= 2 * 1_500


SMALL, LARGE = (1.0,), (1e30,)


@pytest.mark.parametrize(
    ("scales", "by_device"),
    [
        ([SMALL, (*SMALL, *LARGE)], True),
        ([SMALL, LARGE], False),
        ([LARGE, SMALL], True),
        ([(1e-40, 1e200), SMALL], True),
    ],
)
def test_parts_with_other_bins_of_exact_sums_lose_none(
    scales: list[tuple[float, ...]], by_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of small values have no bins of large ones: what a part lacks is 0."""
    monkeypatch.setattr(stream, "_FEW_ROWS", 100)
    monkeypatch.setattr(stream, "_GROWTH", 1)
    rng = np.random.default_rng(3)
    # two batches of each make a table that leaves
    pieces = [
        pd.DataFrame({"k": rng.permutation(300), "x": rng.normal(size=300) * rng.choice(of, 300)})
        for of in scales
        for _ in range(2)
    ]
    # one part alone has its bins
    pieces.append(pd.DataFrame({"k": [400], "x": [1e300]}))
    whole = pd.concat(pieces)
    plan = plan_of(whole, ["k"], Requested("sum", "sum", "x"), deterministic=True)
    device = FakeDevice(Sizes(300 * 16, 6_000))
    if not by_device:
        monkeypatch.setattr(device, "from_host", lambda *_: device._take(1 << 60, "part"))
        device.limit = 1 << 50
    made = partials_of((inputs_of(piece, ["k"], plan) for piece in pieces), plan, device)
    assert len({line for line in device.log if line.startswith("split")}) == 1
    theirs = whole.groupby("k").x.agg(lambda x: math.fsum(x)).to_frame("sum")
    found = host.finalize(made, plan, theirs.iloc[:0])
    assert dict(found["sum"]) == dict(theirs["sum"])


@pytest.mark.parametrize("asked", [("sum", "min", "var"), ("sum", "first", "last")])
def test_many_groups_are_divided_and_merged_part_by_part(
    asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay on the device, and leave it as one partial."""
    for name, value in {"_FEW_ROWS": 100, "MOST_GROUPS": 1_000, "PARTS": 4}.items():
        monkeypatch.setattr(stream, name, value)
    pieces = [frame(1_000, 3_000, seed) for seed in range(12)]
    device = FakeDevice(Sizes(16_000, 16_000, of_groups=1 << 20))
    (made,) = streamed(pieces, asked, device)
    assert device.log.count("divide in 4") == 1
    after = device.log[device.log.index("divide in 4") :]
    merges = [line for line in after if line.startswith("merge")]
    assert merges
    assert len(merges) % 4 == 0
    assert device.log.count("leave") == 1
    assert len(made["groups"]) == pd.concat(pieces).k.nunique()


def test_tables_are_merged_on_the_device_and_leave_once() -> None:
    device = FakeDevice(Sizes(16_000, 1 << 20))
    (made,) = streamed([frame(1_000, 10, seed) for seed in range(5)], ASKED, device)
    assert len(made["groups"]) == 10
    assert device.log.count("leave") == 1
    assert device.log[0] == "begin"
    assert device.log[-2:] == ["merge 5", "leave"]


def test_copies_run_ahead_of_the_kernels() -> None:
    """The next batch is copied before the groups of the one before are asked for."""
    pieces = [frame(1_000, 10, seed) for seed in range(3)]
    plan = plan_by_k(pieces[0])
    order: list[str] = []

    class Watched(FakeDevice):
        def load(self, batch: Any) -> Any:
            order.append("copy")
            return super().load(batch)

        def partial(self, columns: Any, plan: Plan, parts: int) -> list[Any]:
            order.append("group")
            return super().partial(columns, plan, parts)

    parts = [inputs_of(piece, ["k"], plan) for piece in pieces]

    def ask() -> Any:
        for part in parts:
            order.append("read")
            yield part

    partials_of(ask(), plan, Watched(Sizes(16_000, 1 << 20)))
    assert order.index("group") > [i for i, what in enumerate(order) if what == "read"][1]


def test_rows_without_memory_are_halved_and_then_the_host_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "_LEAST_ROWS", 100)
    device = FakeDevice(Sizes(1 << 20, 1 << 20), limit=50)
    streamed([frame(1_000, 10)], ASKED, device)
    tried = [line for line in device.log if line.startswith("no memory for batch")]
    assert [line.split()[-1] for line in tried[:5]] == ["1000", "1000", "500", "250", "125"]
    assert "release" in device.log


@pytest.mark.parametrize("limit", [0, 9_999])
def test_a_device_with_room_for_nothing_leaves_all_rows_to_the_host(limit: int) -> None:
    fell_back: list[FellBack] = []
    device = FakeDevice(Sizes(1 << 20, 1 << 20), limit=limit)
    with listening(fell_back.append, FellBack):
        streamed([frame(3_000, 700)], ASKED, device)
    reasons = [] if limit else ["device memory does not suffice for them"]
    assert [event.fallback.reason for event in fell_back] == reasons


def test_errors_of_reading_are_raised() -> None:
    whole = frame(100, 7)
    plan = plan_by_k(whole)

    def parts() -> Any:
        yield inputs_of(whole, ["k"], plan)
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="gone"):
        partials_of(parts(), plan, FakeDevice(Sizes(1 << 20, 1 << 20)))


X_Y, Y_X = pd.CategoricalDtype(["x", "y"]), pd.CategoricalDtype(["y", "x"])


@pytest.mark.parametrize("dtypes", [[X_Y, Y_X], [X_Y, X_Y, Y_X, Y_X, X_Y], [Y_X, X_Y] * 4])
@pytest.mark.parametrize("most", [400, 1 << 20])
def test_codes_are_decoded_by_the_categories_of_their_own_rows(
    dtypes: list[Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dtypes of categories are equal in any order of those; tables that leave keep theirs."""
    monkeypatch.setattr(stream, "_FEW_ROWS", 2)
    rng = np.random.default_rng(0)
    pieces = [
        pd.DataFrame(
            {
                "k": pd.Series(rng.choice(["x", "y"], 40, p=[0.8, 0.2])).astype(dtype),
                "j": rng.integers(0, 30, 40),
                "x": rng.integers(0, 9, 40).astype(float),
            }
        )
        for dtype in dtypes
    ]
    plan = plan_of(pieces[0], ["k", "j"], Requested("x", "sum", "x"))
    device = FakeDevice(Sizes(100, most))
    parts = (inputs_of(piece, ["k", "j"], plan) for piece in pieces)
    made = partials_of(parts, plan, device)
    assert any(line.startswith("split") for line in device.log) == (most == 400)
    theirs = pd.concat(pieces).groupby(["k", "j"], observed=True)[["x"]].sum()
    found = host.finalize(made, plan, theirs.iloc[:0])
    assert dict(found["x"]) == dict(theirs["x"])
