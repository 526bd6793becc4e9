"""The registry: frozen, complete, and consistent with the engine that implements it."""

import pytest

from dask_gpuagg.aggregations import REGISTRY, STATES, Kind
from dask_gpuagg.dtypes import DTYPE_CLASSES
from dask_gpuagg.engines.host.finish import _FINISH, WHOLE
from dask_gpuagg.engines.host.sketches import SKETCHES
from dask_gpuagg.engines.host.states import _MERGES

PROMISED = {
    *("sum", "prod", "count", "size", "min", "max", "mean", "var", "std", "sem", "first", "last"),
    *("any", "all", "nunique", "unique", "idxmin", "idxmax", "median", "quantile", "list"),
    *("cov", "corr", "value_counts", "nunique_approx", "quantile_approx"),
    *("nlargest", "nsmallest"),
}


def test_every_promised_aggregation_is_registered_under_its_own_name():
    assert set(REGISTRY) == PROMISED
    assert all(name == record.name for name, record in REGISTRY.items())


@pytest.mark.parametrize("record", REGISTRY.values(), ids=lambda r: r.name)
def test_states_and_kind_agree(record):
    assert record.accepts
    assert record.accepts <= set(DTYPE_CLASSES)
    assert record.accepts == set(record.states)
    for states in record.states.values():
        assert set(states) <= set(STATES)
        assert bool(states) is (record.kind is Kind.MERGEABLE)


@pytest.mark.parametrize("record", REGISTRY.values(), ids=lambda r: r.name)
def test_order_sensitive_states_make_order_sensitive_aggregations(record):
    of_every_dtype = [any(STATES[s].order_sensitive for s in u) for u in record.states.values()]
    if of_every_dtype and all(of_every_dtype):
        assert record.order_sensitive


@pytest.mark.parametrize("record", REGISTRY.values(), ids=lambda r: r.name)
def test_a_sketch_approximates_an_exact_aggregation(record):
    if record.kind is not Kind.SKETCH:
        assert not record.exact
        assert not record.shapes
    assert set(record.shapes) <= set(record.parameters)
    if record.exact:
        exact = REGISTRY[record.exact]
        assert (exact.result, exact.null_rule) == (record.result, record.null_rule)
        assert record.accepts <= exact.accepts
        assert set(record.parameters) <= set(exact.parameters)


def test_every_state_is_used_by_an_aggregation_or_by_users():
    remaining = [by for r in REGISTRY.values() for by in (r.states, r.reproducible)]
    used = {state for by_class in remaining for states in by_class.values() for state in states}
    assert used | {"custom"} == set(STATES)


@pytest.mark.parametrize("state", STATES.values(), ids=lambda s: s.name)
def test_a_reduction_of_one_field_merges_states(state):
    reductions = {"sum", "prod", "min", "max", "first", "last", "any", "all", "concat"}
    assert state.merge in reductions | {""}
    if state.merge not in ("", "sum"):
        assert len(state.fields) == 1
    # rows that have been exchanged have neither labels nor partitions
    assert not (state.by_partition and state.kernels)


def test_the_engine_merges_every_state():
    assert set(_MERGES) == set(STATES) - {"custom"}


def test_the_engine_finishes_every_kind():
    by_kind = {kind: {a.name for a in REGISTRY.values() if a.kind is kind} for kind in Kind}
    assert set(WHOLE) == by_kind[Kind.DISTINCT] | by_kind[Kind.WHOLE]
    assert set(SKETCHES) == by_kind[Kind.SKETCH]
    several = {
        a.name
        for a in REGISTRY.values()
        for states in a.states.values()
        if states != ("comoments",) and sum(len(STATES[s].fields) for s in states) > 1
    }
    # an aggregation of several fields cannot be its own state
    assert several <= set(_FINISH)


def test_in_agg_covers_what_stock_dask_refuses():
    refused = {a.name for a in REGISTRY.values() if a.in_agg and not a.stock_agg}
    not_pandas = {"nunique_approx", "quantile_approx", "nlargest", "nsmallest"}
    exact = {"sem", "any", "all", "nunique", "idxmin", "idxmax", "quantile"}
    assert refused == exact | not_pandas
    assert not any(a.stock_agg and not a.in_agg for a in REGISTRY.values())
