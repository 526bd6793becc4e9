"""States: reducing all rows at once is the same as merging what their pieces reduce to."""

import decimal
import math
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_gpuagg import exact_sums
from dask_gpuagg.aggregations import REGISTRY, STATES
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.host import compiled
from dask_gpuagg.engines.host.compiled import Fields, Reducer
from dask_gpuagg.engines.host.grouping import group
from dask_gpuagg.engines.host.states import merge, update
from tests.engines.host.columns import DTYPES as COLUMNS
from tests.engines.host.columns import series_of

# floats whose sums are finite but for infinities
_FLOATS = st.sampled_from([0.0, -0.0, 1.5, -2.25, 1e9 + 1, 1e9 + 2, np.inf, -np.inf, 0.1])
DTYPES = {
    dtype: (_FLOATS if "float" in str(dtype).lower() else values, nullable)
    for dtype, (values, nullable) in COLUMNS.items()
}


# row labels that float64 cannot tell apart
FAR = 2**60 + 1


def states_of(dtype: Any) -> list[str]:
    """The states that some aggregation keeps for a column of this dtype."""
    cls = dtype_class(pd.Series(dtype=dtype).dtype)
    states = {s for r in REGISTRY.values() for s in r.states.get(cls, ())}
    if dtype == pd.ArrowDtype(pa.string()):
        states -= {"any", "all"}  # pandas has neither, so that no metadata comes to be
    if isinstance(dtype, pd.CategoricalDtype) and not dtype.ordered:
        states -= {"min", "max"}
    return sorted(states)


CASES = [(dtype, state) for dtype in DTYPES for state in states_of(dtype)]


def some_value(dtype: Any) -> Any:
    """A value of a dtype, as ``series_of`` takes it."""
    if isinstance(dtype, pd.CategoricalDtype):
        return dtype.categories[0]
    if isinstance(dtype, str) and dtype.startswith(("date", "time")):
        return 7
    values = {"bool": True, "int": 3, "uint": 3, "float": 1.5, "decimal": decimal.Decimal("0.25")}
    values |= {"datetime": pd.Timestamp(7), "timedelta": pd.Timedelta(7)}
    return values.get(dtype_class(pd.Series(dtype=dtype).dtype), "a")


@st.composite
def pieces(draw: st.DrawFn, dtype: Any) -> tuple[pd.Series, np.ndarray, list[int]]:
    """A column, the group of each row, and where the rows are cut."""
    values, nullable = DTYPES[dtype]
    rows = draw(st.lists((st.none() | values) if nullable else values, min_size=1, max_size=12))
    codes = draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    return series_of(rows, dtype), np.array(codes), [0, *cuts, len(rows)]


def reduced(state: str, column: pd.Series, codes: np.ndarray, start: int = 0) -> pd.DataFrame:
    """One row per group that occurs: its number and the state's fields."""
    groups = group([pd.Series(codes)], dropna=True)
    column = column.reset_index(drop=True)
    inputs = [column] * (2 if state == "comoments" else 1)
    labels = pd.RangeIndex(FAR + start, FAR + start + len(column))
    fields = update(Reducer(groups.codes, groups.n), state, inputs, labels)
    return table(fields, groups.keys[0])


def table(fields: Fields, keys: Any) -> pd.DataFrame:
    return pd.DataFrame({"key": keys, **fields}).sort_values("key", ignore_index=True)


def merged(state: str, parts: list[pd.DataFrame]) -> pd.DataFrame:
    stacked = pd.concat([p for p in parts if len(p)] or parts[:1], ignore_index=True)
    groups = group([stacked["key"]], dropna=True)
    fields = {name: stacked[name] for name in STATES[state].fields}
    return table(merge(Reducer(groups.codes, groups.n), state, fields), groups.keys[0])


# inf - inf is NaN; which of the ways to get there is taken does not matter
EXACT = set(STATES) - {"fsum", "fprod", "moments", "comoments"}


def check(got: pd.DataFrame, expected: pd.DataFrame, state: str, column: pd.Series) -> None:
    scale = 0.0
    if state not in EXACT:
        values = column.dropna().to_numpy(dtype="float64")
        scale = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    for name in ("key", *STATES[state].fields):
        a, b = got[name], expected[name]
        if name == "label":
            # without a value there is no label, whatever stands in its place
            valid = expected["value"].notna()
            assert a[valid].astype(object).tolist() == b[valid].astype(object).tolist()
            continue
        if state in EXACT or name in ("key", "n"):
            pd.testing.assert_series_equal(a, b, check_dtype=len(b.dropna()) > 0)
            continue
        # the smallest differences that rounding may make, for sums of squares and for sums
        power = 2 if name in ("m2", "cxx", "cxy", "cyy") else 1
        tolerance = 1e-14 * len(column) * scale**power
        if name in ("mean", "mx", "my"):
            # nothing is made of a mean that is not finite: the second moment is NaN then
            a, b = (m.where(np.isfinite(m)) for m in (a, b))
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=tolerance, equal_nan=True)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize(("dtype", "state"), CASES, ids=str)
@settings(max_examples=settings.default.max_examples // 3)
@given(data=st.data())
def test_merging_the_pieces_is_reducing_the_whole(dtype, state, data):
    column, codes, cuts = data.draw(pieces(dtype))
    least_rows = data.draw(st.sampled_from([compiled.LEAST_ROWS, 1]), "rows of the compiled loops")
    with mock.patch.object(compiled, "LEAST_ROWS", least_rows):
        expected = reduced(state, column, codes)
        parts = [reduced(state, column.iloc[a:b], codes[a:b], a) for a, b in pairwise(cuts)]
        in_steps = merged(state, [merged(state, parts[:2]), *parts[2:]])
        check(merged(state, parts), expected, state, column)
        check(in_steps, expected, state, column)


@pytest.mark.parametrize(("dtype", "state"), CASES, ids=str)
def test_a_group_without_rows_has_the_identity(dtype, state):
    column = series_of([some_value(dtype)] * 2, dtype)
    inputs = [column] * (2 if state == "comoments" else 1)
    # group 1 of three has no rows
    fields = update(Reducer(np.array([0, 2]), 3), state, inputs, pd.RangeIndex(2))
    for name, identity in zip(STATES[state].fields, STATES[state].identity, strict=True):
        got = pd.Series(fields[name])[1]
        if identity is None and name != "label":  # a label means nothing without its value
            # pandas' sum of nothing is "", 0 or a timedelta of 0
            assert pd.isna(got) or (state in ("osum", "concat") and not got), got
        elif identity is not None:
            assert got == identity


@pytest.mark.parametrize(
    ("dtype", "state"), [c for c in CASES if DTYPES[c[0]][1] and c[1] != "size"], ids=str
)
def test_merging_the_identity_changes_nothing(dtype, state):
    """Rows of only nulls, which every group may have in some partition."""
    value = some_value(dtype)
    some = reduced(state, series_of([value, None, value], dtype), np.zeros(3, int))
    nulls = reduced(state, series_of([None], dtype), np.zeros(1, int))
    if state.startswith("idx"):
        nulls["nulls"] = 0
    for parts in ([some, nulls], [nulls, some], [nulls, nulls, some]):
        check(merged(state, parts), some, state, series_of([value], dtype))


def test_sums_of_ticks_do_not_wrap():
    column = pd.Series(np.array([2**62] * 4).view("datetime64[ns]"))
    parts = [reduced("limbs", column.iloc[i : i + 2], np.zeros(2, int)) for i in (0, 2)]
    state = merged("limbs", parts)
    assert int(state.hi[0]) * 2**32 + int(state.lo[0]) == 2**64


class TestReducer:
    codes = np.array([2, 0, 2, 0])

    @pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint64", "int8"])
    @pytest.mark.parametrize("how", ["sum", "min", "max", "var"])
    def test_columns_reduced_together_are_those_reduced_alone(self, how, dtype):
        rng = np.random.default_rng(0)
        codes = rng.integers(0, 7, 200)
        columns = [pd.Series(rng.integers(0, 100, 200)).astype(dtype) for _ in range(4)]
        if dtype.startswith("float"):
            columns[1][5] = np.nan
        together = Reducer(codes, 8)
        for column in columns:
            together.expect("moments" if how in ("sum", "var") else how, column)
        for column in columns:
            got = together.by_pandas(how, column)
            alone = Reducer(codes, 8).by_pandas(how, column)
            assert got.dtype == alone.dtype
            np.testing.assert_array_equal(got, alone)

    def test_the_values_of_a_batch_are_bounded(self, monkeypatch):
        columns = [pd.Series([1.0, 2.0, 3.0, i]) for i in range(20)]
        for most, sizes in ((8, [2] * 10), (27, [6, 6, 6, 2]), (1, [1] * 20), (1000, [20])):
            monkeypatch.setattr(compiled, "_MOST_VALUES", most)
            reducer = Reducer(self.codes, 3)
            for column in columns:
                reducer.expect("fsum", column)
            with mock.patch.object(reducer, "_reduce_batch", wraps=reducer._reduce_batch) as reduce:
                # the second one first: a batch begins with the column that is asked for
                sums = [reducer.sum(columns[i]).tolist() for i in (1, 0, *range(2, 20))]
            # each column once, however many batches there are
            assert [len(call.args[0]) for call in reduce.call_args_list] == sizes
            assert reduce.call_args_list[0].args[0][0] is columns[1]
            assert sums == [[2.0 + i, 0, 4] for i in (1, 0, *range(2, 20))]

    @pytest.mark.parametrize("function", ["first", "last"])
    def test_columns_with_nulls_have_their_own_rows(self, function):
        columns = [pd.Series([1.0, 2.0, 3.0, 4.0]), pd.Series([np.nan, 2.0, 3.0, np.nan])]
        reducer = Reducer(self.codes, 3)
        got = [update(reducer, function, [c], c.index)[function].tolist() for c in columns]
        data = [2.0, 1.0] if function == "first" else [4.0, 3.0]
        assert [got[0][0], got[0][2]] == data
        assert [got[1][0], got[1][2]] == [2.0, 3.0]


def test_values_between_words_are_reduced_without_a_warning(capfd):
    """Arrow writes one to stderr; a worker receives columns that begin anywhere."""
    result = pa.array([decimal.Decimal(i) for i in range(4)], pa.decimal128(10, 2))
    bytes_of = b"\0" + result.buffers()[1].to_pybytes()
    # of a buffer that begins at a word the next byte does not
    words = pa.py_buffer(np.frombuffer(bytes_of + b"\0" * 7, "int64").view("uint8"))[1:65]
    between = pa.Array.from_buffers(result.type, 4, [None, words])
    assert between.buffers()[1].address % 8
    values = pd.Series(between, dtype=pd.ArrowDtype(result.type))
    got = Reducer(np.array([0, 1, 0, 1]), 2).arrow(values, "sum")
    assert list(got) == [decimal.Decimal(2), decimal.Decimal(4)]
    assert capfd.readouterr().err == ""


ROWS, GROUPS = 3_000, 13
_rng = np.random.default_rng(2)
_codes = compiled.read_only(_rng.integers(0, GROUPS - 1, ROWS), np.int32)
_x = _rng.normal(size=ROWS) * 10.0 ** _rng.integers(-30, 30, ROWS)
_words = _rng.integers(0, 2**53, ROWS, dtype=np.uint64).view(np.float64)


def exact_sums_of(values: np.ndarray, nan_is_null: bool, by_loops: bool) -> Fields:
    """Sums without rounding, by the compiled loops or by NumPy."""
    with mock.patch.object(compiled, "LEAST_ROWS", 1 if by_loops else 2 * ROWS):
        return Reducer(_codes, GROUPS).exact_sums(values, nan_is_null)


@pytest.mark.parametrize("by_loops", [True, False])
@pytest.mark.parametrize("block", [1 << 30, 700])
@pytest.mark.parametrize("values", [_x, _words, _x * 0, _x.round(), np.full(ROWS, 0.1)])
def test_sums_are_those_of_fsum(
    values: np.ndarray, block: int, by_loops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_ROWS_OF_A_BIN", block)
    fields = exact_sums_of(values, True, by_loops)
    assert fields.keys().isdisjoint(exact_sums.SPECIAL)
    result = exact_sums.total({exact_sums.COUNT: np.zeros(GROUPS, np.int64)} | fields, np)
    assert result.tolist() == [math.fsum(values[_codes == g]) for g in range(GROUPS)]


@pytest.mark.parametrize("by_loops", [True, False])
@pytest.mark.parametrize("nan_is_null", [True, False])
def test_values_that_are_not_finite_are_counted(nan_is_null: bool, by_loops: bool) -> None:
    values = _x.copy()
    values[::7], values[1::7], values[2::7] = np.nan, np.inf, -np.inf
    fields = exact_sums_of(values, nan_is_null, by_loops)
    assert ("nan" in fields) is not nan_is_null
    for name, which in {"above": values == np.inf, "below": values == -np.inf}.items():
        assert fields[name].tolist() == [which[_codes == g].sum() for g in range(GROUPS)]
    rest = np.where(np.isfinite(values), values, 0.0)
    finite = exact_sums_of(rest, nan_is_null, by_loops)
    n = {exact_sums.COUNT: np.zeros(GROUPS, np.int64)}
    bins = {name: v for name, v in fields.items() if name not in exact_sums.SPECIAL}
    sums = exact_sums.total(n | bins, np), exact_sums.total(n | finite, np)
    assert sums[0].tolist() == sums[1].tolist()


@pytest.mark.parametrize("by_loops", [True, False])
@pytest.mark.parametrize("fill", [np.nan, np.inf, 0.0])
def test_no_number_at_all(fill: float, by_loops: bool) -> None:
    fields = exact_sums_of(np.full(ROWS, fill), True, by_loops)
    assert list(fields) == (["above"] if fill == np.inf else [])
