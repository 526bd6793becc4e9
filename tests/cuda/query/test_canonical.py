"""Queries that differ in order alone are one, and what was asked for is found in it again."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.cuda.query.canonical import STATES_IN_ORDER, canonical
from dask_gpuagg.cuda.query.forms import WIDE
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import STATE_BYTES, KernelOutput, KeyPart
from dask_gpuagg.cuda.warm import KEYS, common
from tests.cuda.specialisations import EVERY, INT64, TABLE, Builder, key, string

# What may be asked of a column; merged: of three or two columns of partials.
NAMES = [*EVERY, "wide sum", "limbs", "moments", "exact sum", "total", "total mean"]
MERGED = ["mean of partials", "spread of partials", "sum of partials"]
Asked = list[tuple[int, str]]


def built(asked: Asked, columns: list[tuple[str, bool]]) -> tuple[Query, list[int]]:
    """The query of aggregations of columns, in their order, and the columns of its inputs."""
    builder = Builder(*INT64)
    inputs: dict[int, int] = {}

    def read(column: int, ctype: str, masked: bool) -> int:
        if column not in inputs:
            inputs[column] = builder.input(ctype, masked)
        return inputs[column]

    for c, name in asked:
        ctype, masked = columns[c]
        # partials have columns of their own
        fields = [1000 + 10 * c + i for i in range(3)]
        match name:
            case "mean of partials":
                total = builder.state("FloatSum", read(fields[0], "f64", masked))
                n = builder.state("IntegerSum", read(fields[1], "i64", False))
                builder.output("Mean", (total, n), "f64", True)
            case "sum of partials":
                total = builder.state("FloatSum", read(fields[0], "f64", masked))
                builder.output("Field", total, "f64")
            case "spread of partials":
                of = [
                    read(100 + f, t, False)
                    for f, t in zip(fields, ("i64", "f64", "f64"), strict=True)
                ]
                state = builder.state("MergedMoments", *of)
                builder.output("Spread", state, "f64", True, (1, 1))
            case _:
                builder.add(name, read(c, ctype, masked))
    return builder.query, list(inputs)


def meaning(query: Query, columns: list[int], output: KernelOutput) -> object:
    """An output by the columns that its states read, not by any number in the query."""
    of_none = output.renumbered([0] * len(query.states))
    states = [query.states[i] for i in output.states]
    return of_none, [(s.policy, s.ctype, [columns[i] for i in s.inputs]) for s in states]


asked_of_columns = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([*NAMES, *MERGED])), min_size=1, max_size=9
)
types = st.lists(
    st.tuples(st.sampled_from(["f64", "i64", "f32"]), st.booleans()), min_size=3, max_size=3
)


@given(asked_of_columns, types, st.randoms(use_true_random=False))
def test_order_makes_no_other_query(
    asked: Asked, columns: list[tuple[str, bool]], rng: random.Random
) -> None:
    shuffled = rng.sample(asked, len(asked))
    names = rng.sample(range(3), 3)
    renamed = [(names[c], name) for c, name in shuffled]
    types_renamed = [columns[names.index(i)] for i in range(3)]
    found = {
        canonical(built(*of)[0]).query
        for of in ((asked, columns), (shuffled, columns), (renamed, types_renamed))
    }
    (made,) = found
    assert canonical(made).query is made


@given(asked_of_columns, types)
def test_what_was_asked_is_found_in_it(asked: Asked, columns: list[tuple[str, bool]]) -> None:
    query, read = built(asked, columns)
    made = canonical(query)
    of_made = [read[i] for i in made.inputs]
    assert sorted(made.inputs) == list(range(len(query.inputs)))
    types_read = [query.inputs[i].ctype for i in made.inputs]
    assert types_read == [part.ctype for part in made.query.inputs]
    assert sorted(made.outputs) == list(range(len(query.outputs)))
    for output, place in zip(query.outputs, made.outputs, strict=True):
        there = made.query.outputs[place]
        assert meaning(query, read, output) == meaning(made.query, of_made, there)
    assert len(made.query.states) == len(query.states) == len(set(made.query.states))


@pytest.mark.parametrize("key", KEYS)
def test_common_queries_are_canonical(key: str) -> None:
    for query, _ in common(key):
        assert canonical(query).query == query


def test_usual_queries_stay_as_they_are_asked_for() -> None:
    """Their machine code is that which was measured."""
    for names in (["sum", "count", "min", "max", "mean"], ["mean", "std"], ["min"], ["count"]):
        query, _ = built([(0, name) for name in names], [("f64", False)])
        assert canonical(query).query == query
    five = [(0, "sum"), (0, "count"), (0, "min"), (0, "max"), (1, "mean")]
    for second in ("f32", "f64"):
        query, _ = built(five, [("f64", False), (second, False)])
        assert canonical(query).query == query
    for names in (["sum"], ["mean"], ["sum", "min", "max"]):
        query, _ = built([(c, name) for c in range(3) for name in names], [("f64", False)] * 3)
        assert canonical(query).query == query


def test_every_state_has_its_place() -> None:
    of_keys = {"CheckedRow", "Witness"}
    assert {*STATE_BYTES, "Min", "Max"} - of_keys == set(STATES_IN_ORDER)
    for query in TABLE.values():
        canonical(query)


@given(asked_of_columns, types)
def test_inputs_have_nulls_all_or_none(asked: Asked, columns: list[tuple[str, bool]]) -> None:
    """So it does not matter to the inputs which columns have some."""
    query, _ = built(asked, columns)
    some = any(part.masked for part in query.inputs)
    assert {part.masked for part in canonical(query).query.inputs} == {some}


def test_more_inputs_than_partitions_have_bits_for_stay_as_they_are() -> None:
    query, _ = built([(c, "first") for c in range(65)], [("f64", c == 0) for c in range(65)])
    assert sum(part.masked for part in canonical(query).query.inputs) == 1
    query, _ = built([(c, "first") for c in range(64)], [("f64", c == 0) for c in range(64)])
    assert all(part.masked for part in canonical(query).query.inputs)


key_types = st.lists(
    st.one_of(
        st.sampled_from(["i8", "i16", "i32", "i64", "u8", "f32", "f64", "i128"]).map(key),
        st.sampled_from(["i32", "i64"]).map(string),
    ),
    min_size=1,
    max_size=12,
)


@given(key_types, st.booleans(), st.data())
def test_keys_with_and_without_nulls_are_two_queries(
    keys: list[KeyPart], keep_nulls: bool, data: st.DataObject
) -> None:
    patterns = st.lists(st.booleans(), min_size=len(keys), max_size=len(keys))
    found = set()
    for nulls in [data.draw(patterns) for _ in range(4)]:
        asked = [k._replace(masked=masked) for k, masked in zip(keys, nulls, strict=True)]
        query = Builder(*asked, keep_nulls=keep_nulls).query
        made = canonical(query).query
        # tables hold the keys as they would, and no null is overlooked
        assert made.form == query.form
        assert all(m.masked or not k.masked for m, k in zip(made.keys, asked, strict=True))
        if not any(nulls):
            assert made == query
        found.add(made)
    if len(keys) <= 8:
        assert len(found) <= 2


def test_many_narrow_keys_keep_their_word() -> None:
    """The flags of all fifteen columns would not fit two words."""
    asked = [key("i8", True), *[key("u8")] * 6]
    seven = Builder(*asked, keep_nulls=True).query
    assert all(k.masked for k in canonical(seven).query.keys)
    fifteen = Builder(*asked, *[key("u8")] * 8, keep_nulls=True).query
    assert fifteen.form == WIDE
    assert canonical(fifteen).query == fifteen
