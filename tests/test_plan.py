"""Plans: shared states, values that pickle and print, and one reason per refusal."""

import pickle
from dataclasses import replace
from functools import partial

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.base import tokenize

from dask_gpuagg.aggregations import REGISTRY, Kind
from dask_gpuagg.decomposition import make_matrix_plan, make_plan, reasons, retyped
from dask_gpuagg.dtypes import DTYPE_CLASSES, dtype_class
from dask_gpuagg.frontend.specification import read_function
from dask_gpuagg.plan import Column, CustomFunctions, Plan, Requested, Unsupported
from dask_gpuagg.settings import settings
from tests.data import VALUES

KEY = Column("k", np.dtype("int64"))
DTYPES = {cls: np.dtype(object) for cls in DTYPE_CLASSES}
DTYPES |= {dtype_class(values.dtype): values.dtype for values in VALUES.values()}
# one column of every dtype class, named after it
COLUMNS = [Column(name, dtype) for name, dtype in DTYPES.items()]
FLAGS = {"dropna": True, "observed": True, "sort": False}


def plan_of(*pairs: tuple[str, str], **flags) -> Plan:
    requested = [Requested((column, name), name, column) for column, name in pairs]
    return make_plan([KEY], COLUMNS, requested, **(FLAGS | flags))


def states_of(plan: Plan) -> list[str]:
    labels = [", ".join(str(plan.columns[c].label) for c in use.columns) for use in plan.states]
    return [f"{use.state}({of})" for use, of in zip(plan.states, labels, strict=True)]


class TestSharing:
    def test_mean_and_sum_of_floats_share_the_sum(self):
        plan = plan_of(("float", "mean"), ("float", "sum"))
        assert states_of(plan) == ["fsum(float)", "count(float)"]
        assert [o.states for o in plan.outputs] == [(0, 1), (0,)]

    def test_var_std_and_sem_share_the_moments(self):
        plan = plan_of(("int", "var"), ("int", "std"), ("int", "sem"))
        assert states_of(plan) == ["moments(int)"]
        assert [o.states for o in plan.outputs] == [(0,)] * 3

    def test_different_ddof_share_the_moments(self):
        requested = [Requested(d, "var", "float", (("ddof", d),)) for d in (0, 1)]
        plan = make_plan([KEY], COLUMNS, requested, **FLAGS)
        assert states_of(plan) == ["moments(float)"]
        assert [dict(o.parameters)["ddof"] for o in plan.outputs] == [0, 1]

    def test_the_same_pair_twice_is_computed_once(self):
        plan = plan_of(("int", "sum"), ("int", "sum"))
        assert states_of(plan) == ["isum(int)"]
        assert len(plan.outputs) == 2

    def test_columns_are_read_once_and_only_those_needed(self):
        plan = plan_of(("float", "sum"), ("int", "sum"), ("float", "max"), ("string", "nunique"))
        assert [c.label for c in plan.columns] == ["float", "int", "string"]

    def test_custom_functions_share_with_themselves_alone(self):
        one, two = (partial(sum, start=i) for i in range(2))
        functions = [read_function(dd.Aggregation("f", f, f))[2] for f in (one, one, two)]
        requested = [Requested(i, "custom", "int", (), f) for i, f in enumerate(functions)]
        plan = make_plan([KEY], COLUMNS, requested, **FLAGS)
        assert [o.states for o in plan.outputs] == [(0,), (0,), (1,)]

    def test_co_moments_once_per_unordered_pair(self):
        columns = [c for c in COLUMNS if c.label in ("int", "uint", "float")]
        plan = make_matrix_plan([KEY], columns, "cov", (), **FLAGS)
        assert [s.columns for s in plan.states] == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]
        assert plan.shape == "matrix"


def names_of(plan: Plan) -> list[str]:
    return [table.name for table in plan.tables]


class TestTables:
    def test_distinct_pairs_and_whole_rows_have_their_own(self):
        plan = plan_of(("int", "sum"), ("uint", "nunique"), ("float", "median"), ("bool", "list"))
        assert names_of(plan) == ["groups", "pairs1", "rows"]
        assert plan.pairs == (1,)
        assert plan.rows == (2, 3)

    def test_states_of_exchanged_columns_are_made_from_the_rows(self):
        plan = plan_of(("float", "std"), ("float", "median"))
        assert names_of(plan) == ["rows"]
        assert plan.states

    def test_value_counts_has_a_shape_of_its_own(self):
        plan = plan_of(("string", "value_counts"))
        assert plan.shape == "values"
        assert states_of(plan) == ["size()"]


def test_one_order_sensitive_output_makes_the_plan_so():
    assert plan_of(("int", "sum"), ("int", "first")).order_sensitive
    assert not plan_of(("int", "sum"), ("int", "max")).order_sensitive


class TestValue:
    pairs = (("float", "mean"), ("int", "var"), ("string", "nunique"), ("float", "median"))

    def test_pickles(self):
        plan = plan_of(*self.pairs, ("object", "first"), ("decimal", "sum"), ("category", "count"))
        copy = pickle.loads(pickle.dumps(plan))
        assert copy == plan
        assert hash(copy) == hash(plan)
        assert copy.outputs[0].kind is Kind.MERGEABLE

    def test_prints_what_is_kept_and_made(self):
        requested = [Requested("a", "std", "float", (("ddof", 0),))]
        text = str(make_plan([KEY, Column(None, KEY.dtype)], COLUMNS, requested, **FLAGS))
        assert text.splitlines() == [
            "keys     k, None",
            "states   mean and variance of float",
            "outputs  std of float (ddof=0)",
        ]
        assert "pairs    string\nrows     float\n" in str(plan_of(*self.pairs))

    def test_prints_the_beginning_of_long_labels_and_lists(self):
        columns = [Column("n" * 10_000 + str(i), DTYPES["float"]) for i in range(500)]
        requested = [Requested(c.label, "sum", c.label) for c in columns]
        text = str(make_plan([KEY], columns, requested, **FLAGS))
        assert len(text) < 20_000
        assert text.endswith("… and 480 more")


@pytest.mark.parametrize("name", REGISTRY)
def test_a_dtype_that_is_not_accepted_is_refused_by_name(name):
    for column in set(DTYPE_CLASSES) - REGISTRY[name].accepts:
        with pytest.raises(Unsupported) as caught:
            plan_of((column, name))
        refusal = caught.value
        assert (refusal.aggregation, refusal.column) == (name, column)
        assert name in refusal.reason
        assert str(DTYPES[column]) in refusal.reason


def test_one_reason_per_refused_aggregation():
    pairs = [("string", "mean"), ("int", "sum"), ("category", "sum"), ("int", "mode"), ("x", "sum")]
    requested = [Requested(pair, pair[1], pair[0]) for pair in pairs]
    got = reasons(COLUMNS, requested)
    assert [(r.column, r.aggregation) for r in got] == [pairs[0], pairs[2], pairs[3], pairs[4]]
    assert "not in the registry" in got[2].reason
    assert "not in the frame" in got[3].reason


def test_an_unknown_argument_is_refused():
    requested = [Requested("a", "sum", "int", (("min_count", 1),))]
    (refusal,) = reasons(COLUMNS, requested)
    assert "min_count" in refusal.reason


def test_a_dtype_outside_all_classes_is_refused():
    columns = [Column("c", np.dtype("complex128"))]
    for name in REGISTRY:
        refused = reasons(columns, [Requested("c", name, "c")])
        assert bool(refused) is (name != "size"), name


def test_tokens_differ_where_plans_do():
    base = [("v", "sum"), ("w", "mean")]
    columns = [Column("v", np.dtype("float64")), Column("w", np.dtype("float64"))]

    def plan(pairs=base, key=KEY, of=columns, parameters=(), **flags) -> Plan:
        requested = [Requested(column, name, column, parameters) for column, name in pairs]
        return make_plan([key], of, requested, **(FLAGS | flags))

    several = [
        plan(),
        plan(dropna=False),
        plan(observed=False),
        plan(sort=True),
        plan([("v", "sum"), ("w", "max")]),
        plan([("v", "var"), ("w", "var")]),
        plan([("v", "var"), ("w", "var")], parameters=(("ddof", 0),)),
        plan([("w", "mean"), ("v", "sum")]),
        plan(key=Column("j", np.dtype("int64"))),
        plan(key=Column("k", np.dtype("int32"))),
        plan(key=Column("k", pd.CategoricalDtype(range(200)))),
        plan(key=Column("k", pd.CategoricalDtype([*range(100), -1, *range(101, 200)]))),
        plan(of=[columns[0], Column("w", np.dtype("float32"))]),
        retyped(plan(), [np.dtype("float64"), np.dtype("int64")]),
        replace(plan(), settings=replace(settings(), kernel="hgb")),
    ]
    tokens = [tokenize(one) for one in several]
    assert len(set(tokens)) == len(several)
    assert [tokenize(pickle.loads(pickle.dumps(one))) for one in several] == tokens


def test_tokens_tell_users_functions_apart():
    """Also those that look alike: NumPy prints long arrays without their middles."""

    def chunk(values, table):
        return values.sum() + table.sum()

    def token(function) -> str:
        custom = CustomFunctions("total", function, chunk, None)
        requested = [Requested("v", "custom", "v", (), custom)]
        columns = [Column("v", np.dtype("float64"))]
        return tokenize(make_plan([KEY], columns, requested, **FLAGS))

    tables = [np.zeros(2_000), np.zeros(2_000)]
    tables[1][900] = 1
    several = [lambda s: s.sum(), lambda s: s.max(), len]
    several += [partial(chunk, table=table) for table in tables]
    assert len(set(map(token, several))) == 5
    assert token(partial(chunk, table=np.zeros(2_000))) == token(several[3])
