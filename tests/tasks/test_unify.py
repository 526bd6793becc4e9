"""Partials of partitions whose columns have other dtypes than the metadata promised."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.decomposition import make_matrix_plan, make_plan, retyped
from dask_gpuagg.engines.host import engine
from dask_gpuagg.engines.host.found_dtypes import common_dtype, durations, nullable
from dask_gpuagg.plan import Column, Plan, Requested
from dask_gpuagg.tasks.merging import DTYPES, as_found, rescaled, sources, unify

DECIMAL = {p: pd.ArrowDtype(pa.decimal128(*p)) for p in ((12, 2), (14, 3), (15, 3))}


def dtype_of(name: Any) -> Any:
    return pd.Series([], dtype=name).dtype


def plan_of(dtype: Any, *names: str) -> Plan:
    requested = [Requested(name, name, "v") for name in names]
    columns = [Column("v", dtype_of(dtype))]
    key = [Column("k", np.dtype("int64"))]
    return make_plan(key, columns, requested, dropna=True, observed=True, sort=True)


class TestAsFound:
    def check(self, values: pd.Series, promised: Any, dtype: Any, reported: Any) -> None:
        got, found = as_found(values, dtype_of(promised), engine)
        assert got.dtype == dtype_of(dtype)
        assert found == dtype_of(reported)
        pd.testing.assert_index_equal(got.index, values.index)

    def test_as_promised(self):
        values = pd.Series([1, 2])
        assert as_found(values, np.dtype("int64"), engine)[0] is values

    @pytest.mark.parametrize("found", ["float64", "int32", "Int64", "string", "datetime64[s]"])
    def test_another_dtype_is_kept(self, found: str):
        self.check(pd.Series([1, 2]).astype(found), "int64", found, found)

    def test_a_column_without_rows_has_no_dtype_of_its_own(self):
        self.check(
            pd.Series([], dtype=object), "datetime64[ns]", "datetime64[ns]", "datetime64[ns]"
        )

    @pytest.mark.parametrize(
        ("promised", "held"),
        [("int16", "Int16"), ("bool", "boolean"), ("float32", "float32"), ("category", "category")],
    )
    def test_a_column_without_values_has_none_either(self, promised: str, held: str):
        self.check(pd.Series([None, None], [3, 4], dtype=object), promised, held, promised)

    @pytest.mark.parametrize("promised", ["int64", "float64", "bool", "Int64"])
    def test_complex_objects_are_numbers(self, promised: str):
        values = pd.Series([1j, None, 2, True], [1, 2, 3, 4], dtype=object)
        self.check(values, promised, "complex128", "complex128")

    def test_complex_numbers_beside_text_are_objects(self):
        self.check(pd.Series([1j, "1"], dtype=object), "float64", object, object)

    def test_times_without_a_value_have_their_unit(self):
        values = pd.Series([None], dtype="datetime64[s]")
        self.check(values, "datetime64[us]", "datetime64[s]", "datetime64[s]")

    def test_nan_is_a_value_of_a_dtype(self):
        self.check(pd.Series([np.nan]), "int64", "float64", "float64")

    @pytest.mark.parametrize(
        ("objects", "promised", "held"),
        [
            ([True, None], "bool", "boolean"),
            ([1, None], "int64", "Int64"),
            ([1.5, None], "float64", "float64"),
            ([2**64 - 1, None], "uint64", "UInt64"),
        ],
    )
    def test_objects_of_the_promised_dtype(self, objects: list, promised: str, held: str):
        self.check(pd.Series(objects, dtype=object), promised, held, promised)

    @pytest.mark.parametrize(
        ("objects", "promised", "held"),
        [
            ([300, None], "int8", "Int64"),
            ([0.1, None], "float32", "Float64"),
            ([2**70, None], "int64", object),
        ],
    )
    def test_objects_that_the_promised_dtype_does_not_hold(
        self, objects: list, promised: str, held: Any
    ):
        self.check(pd.Series(objects, dtype=object), promised, held, held)

    @pytest.mark.parametrize("make", [pd.Timestamp, pd.Timedelta])
    def test_times_among_objects_keep_their_own_unit(self, make: Any):
        promised = "datetime64[s]" if make is pd.Timestamp else "timedelta64[s]"
        values = pd.Series([make(1, unit="s"), None, make(5, unit="ms")], dtype=object)
        got, found = as_found(values, dtype_of(promised), engine)
        # durations stay objects for their sum, and are durations for all else
        assert (got.dtype == object) == (make is pd.Timedelta)
        got = durations(got, found)
        assert got.dtype == found != dtype_of(promised)  # milliseconds do not fit the promise
        assert found.kind == dtype_of(promised).kind

    def test_other_objects_stay(self):
        self.check(pd.Series([1, "a"], dtype=object), "int64", object, object)

    def test_categories_where_values_were_promised(self):
        self.check(pd.Series(["a", "b"], dtype="category"), "str", "str", "str")


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["int64"], "int64"),
        (["int32", "int64"], "int64"),
        (["int64", "float64"], "float64"),
        (["bool", "float64"], "float64"),
        (["bool", "int8"], "int64"),
        (["int64", "Int64"], "Int64"),
        (["datetime64[s]", "datetime64[ns]", "datetime64[us]"], "datetime64[ns]"),
        (["str", object], object),
        (["category", "str"], "str"),
        ([DECIMAL[12, 2], DECIMAL[14, 3]], DECIMAL[14, 3]),
        ([DECIMAL[14, 3], DECIMAL[15, 3]], DECIMAL[15, 3]),
        (["int64", "bool", "complex64"], "complex128"),
        (["Int64", "complex128"], "complex128"),
        (["complex64", "complex64"], "complex64"),
        (["complex128", "str"], object),
    ],
    ids=str,
)
def test_common_dtype(dtypes: list[Any], expected: Any):
    dtypes = [
        pd.CategoricalDtype(pd.Index(["a"], dtype="str")) if d == "category" else dtype_of(d)
        for d in dtypes
    ]
    assert common_dtype(dtypes) == dtype_of(expected)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("int8", "Int8"), ("uint64", "UInt64"), ("bool", "boolean"), ("f8", "f8")],
)
def test_nullable(dtype: str, expected: str):
    assert nullable(np.dtype(dtype)) == dtype_of(expected)


class TestRetypedPlans:
    def test_states_are_those_of_the_dtype(self):
        plan = plan_of("int64", "sum", "mean")
        assert [s.state for s in plan.states] == ["isum", "fsum", "count"]
        floats = retyped(plan, [np.dtype("float64")])
        assert [s.state for s in floats.states] == ["fsum", "count"]
        assert [o.states for o in floats.outputs] == [(0,), (0, 1)]
        assert floats.found == {0}

    def test_as_promised_nothing_changes(self):
        plan = plan_of("int64", "sum", "mean")
        assert retyped(plan, [np.dtype("int64")]) == plan

    def test_what_an_aggregation_does_not_accept_keeps_its_states(self):
        plan = plan_of("int64", "mean")
        assert retyped(plan, [np.dtype(object)]).states == plan.states


class TestSources:
    def test_states_are_found_by_the_outputs_that_they_serve(self):
        names = ("sum", "mean", "min", "var", "count")
        own, together = plan_of("int64", *names), plan_of("float64", *names)
        source = sources(own, together)
        states = {own.states[i].state: together.states[j].state for j, i in source.items()}
        # the sum of floats serves sum and mean
        assert states == {"fsum": "fsum", "count": "count", "min": "min", "moments": "moments"}
        assert sources(plan_of("int64", "sum"), plan_of("float64", "sum")) == {0: 0}

    @pytest.mark.parametrize("other", ["int64", "m8[s]"])
    def test_states_of_other_fields_or_units_do_not_merge(self, other: str):
        with pytest.raises(TypeError, match=r"column 'v'.*cannot be aggregated"):
            sources(plan_of(other, "mean"), plan_of("M8[s]", "mean"))


@given(
    ticks=st.integers(-(2**62), 2**62),
    ratio=st.sampled_from([1, 10**3, 10**6, 10**9]),
    more=st.integers(0, 2**20),
)
def test_sums_in_halves_take_another_unit(ticks: int, ratio: int, more: int):
    total = ticks // ratio
    # the lower half of several partials together has more than 32 bits
    high = pd.Series([(total >> 32) - more])
    low = pd.Series([(total & (2**32 - 1)) + (more << 32)])
    made = rescaled(high, low, ratio)
    assert (int(made["hi"][0]) << 32) + int(made["lo"][0]) == total * ratio


def partial_of(plan: Plan, keys: list[int], values: pd.Series) -> dict[str, Any]:
    own = retyped(plan, [values.dtype])
    frame = pd.DataFrame({"k": keys, "v": values})
    tables = engine.partial([frame.k], [frame.v], frame.index, own)
    return tables if own == plan else tables | {DTYPES: (values.dtype,)}


class TestUnify:
    def test_of_one_kind_nothing_is_done(self):
        plan = plan_of("int64", "sum")
        partials = [partial_of(plan, [1], pd.Series([1])), partial_of(plan, [2], pd.Series([5]))]
        tables, together, dtypes = unify(partials, plan, engine)
        assert tables == partials
        assert (together, dtypes) == (plan, None)

    def test_states_of_two_plans_get_one_layout(self):
        plan = plan_of("int64", "sum", "mean", "max")
        partials = [
            partial_of(plan, [1, 2], pd.Series([1, 2])),
            partial_of(plan, [1, 2], pd.Series([0.5, np.nan])),
        ]
        tables, together, dtypes = unify(partials, plan, engine)
        assert dtypes == (np.dtype("float64"),)
        assert [set(t["groups"].columns) for t in tables] == [
            {"k0", "s0.sum", "s1.n", "s2.max"}
        ] * 2
        got = engine.finalize(
            tables, together, pd.DataFrame({"sum": [0], "mean": [0.0], "max": [0]})[:0]
        )
        assert got.loc[1].tolist() == [1.5, 0.75, 1.0]
        assert got.loc[2].tolist() == [2.0, 2.0, 2.0]

    def test_dtypes_of_partials_without_rows_do_not_count(self):
        plan = plan_of("int64", "sum")
        empty = partial_of(plan, [], pd.Series([], dtype="float64"))
        tables, together, dtypes = unify(
            [empty, partial_of(plan, [1], pd.Series([1]))], plan, engine
        )
        assert (together, dtypes) == (plan, None)
        assert list(tables[0]["groups"].columns) == list(tables[1]["groups"].columns)

    def test_sums_of_ticks_get_one_unit(self):
        plan = plan_of("datetime64[s]", "mean")
        far = pd.Series(pd.to_datetime(["2200-01-01"] * 3)).astype("datetime64[s]")
        near = pd.Series(pd.to_datetime(["2200-01-01T00:00:00.000000004"])).astype("datetime64[ns]")
        partials = [partial_of(plan, [1] * 3, far), partial_of(plan, [1], near)]
        tables, together, _ = unify(partials, plan, engine)
        meta = pd.DataFrame({"mean": far[:0]})
        got = engine.finalize(tables, together, meta)
        assert got["mean"].dtype == "datetime64[ns]"
        # a mean in nanoseconds is rounded to a float64 of as many
        assert abs(got["mean"].iloc[0] - far.iloc[0]) < pd.Timedelta(2048, "ns")

    def test_sums_of_signed_and_unsigned_integers_are_exact(self):
        plan = plan_of("int64", "sum")
        unsigned = pd.Series([2**32 - 1], dtype="uint32")
        partials = [partial_of(plan, [1], pd.Series([2**60])), partial_of(plan, [1], unsigned)]
        tables, together, _ = unify(partials, plan, engine)
        got = engine.finalize(tables, together, pd.DataFrame({"sum": [0]})[:0])
        assert got["sum"].tolist() == [2**60 + 2**32 - 1]

    def test_dtypes_without_a_common_state_raise(self):
        plan = plan_of("datetime64[ns]", "mean")
        partials = [
            partial_of(plan, [1], pd.Series(pd.to_datetime(["2020"])).astype("datetime64[ns]")),
            partial_of(plan, [1], pd.Series([Decimal(1)], dtype=DECIMAL[12, 2])),
        ]
        with pytest.raises(TypeError, match=r"column 'v'.*datetime64\[ns\].*object"):
            unify(partials, plan, engine)


def test_comoments_of_several_dtypes():
    columns = [Column("v", np.dtype("int64"))]
    key = [Column("k", np.dtype("int64"))]
    plan = make_matrix_plan(key, columns, "cov", (), dropna=True, observed=True, sort=True)
    parts = [pd.Series([-3, 7, 0]), pd.Series([np.nan] * 3), pd.Series([1.0, np.nan, 2.0])]
    partials = [partial_of(plan, [0, 0, 1], values) for values in parts]
    meta = pd.DataFrame({"v": [0.0]}, pd.MultiIndex.from_tuples([(0, "v")])).iloc[:0]
    tables, together, _ = unify(partials, plan, engine)
    frame = pd.DataFrame({"k": [0, 0, 1] * 3, "v": pd.concat(parts, ignore_index=True)})
    expected = frame.groupby("k").cov()
    got = engine.finalize(tables, together, meta)
    assert np.allclose(got["v"].to_numpy(), expected["v"].to_numpy())
