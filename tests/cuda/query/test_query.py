"""What the host derives from a query before anything is compiled."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.cuda.query.forms import BY_ROW, FORMS, HASHED, PACKED, WIDE, Form
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import STATE_BYTES, TYPE_BYTES, KernelState, KeyPart, ValuePart
from tests.cuda.specialisations import TABLE

key_parts = st.tuples(st.sampled_from(list(TYPE_BYTES)), st.booleans()).map(lambda of: KeyPart(*of))
strings = st.tuples(st.sampled_from(["i32", "i64"]), st.booleans()).map(
    lambda of: KeyPart(*of, string=True)
)


def by(*keys: KeyPart, keep_nulls: bool = False) -> Query:
    return Query(keys, keep_nulls, (), (), ())


# ---- the packed rule ---------------------------------------------------------------------------


@given(st.lists(key_parts, min_size=1, max_size=6), st.booleans())
def test_packed_keys_fit_a_word(keys: list[KeyPart], keep_nulls: bool) -> None:
    made = by(*keys, keep_nulls=keep_nulls)
    bits = sum(8 * TYPE_BYTES[k.ctype] for k in keys)
    flags = sum(k.masked or k.ctype in ("f32", "f64") for k in keys) if keep_nulls else 0
    if len(keys) == 1:
        assert (made.form == PACKED) == (bits <= 64)
    else:
        assert (made.form == PACKED) == (bits + flags <= 64)
    if made.form != PACKED:
        assert made.form == (WIDE if bits + flags <= 128 else HASHED)
    assert made.key_outputs == (len(keys) if bits + flags <= 128 or bits == 64 else 1)


@given(st.lists(key_parts, max_size=3), strings, st.booleans())
def test_strings_are_never_packed(others: list[KeyPart], text: KeyPart, keep_nulls: bool) -> None:
    made = by(*others, text, keep_nulls=keep_nulls)
    assert made.form == HASHED
    assert made.key_outputs == 1
    assert replace(made, chosen=BY_ROW).form == BY_ROW


@pytest.mark.parametrize(
    ("ctypes", "masked", "dropped", "kept"),
    [
        (["i64"], True, True, True),
        (["f64"], False, True, True),
        (["i128"], False, False, False),
        (["i32", "i32"], False, True, True),
        (["i32", "i32"], True, True, False),
        (["f32", "f32"], False, True, False),
        (["i32", "i16", "i8"], True, True, True),
        (["i64", "u8"], False, False, False),
        (["u8"] * 8, False, True, True),
        (["u8"] * 9, False, False, False),
    ],
)
def test_the_null_flags_need_room(
    ctypes: list[str], masked: bool, dropped: bool, kept: bool
) -> None:
    keys = [KeyPart(c, masked) for c in ctypes]
    assert (by(*keys).form == PACKED) == dropped
    assert (by(*keys, keep_nulls=True).form == PACKED) == kept


def test_nan_keys_are_null() -> None:
    assert KeyPart("f32", False).nullable
    assert not KeyPart("i32", False).nullable
    assert KeyPart("i32", True).nullable


# ---- sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLE)
def test_slots_are_the_sum_of_their_states(name: str) -> None:
    """The compiler asserts the same of the policies (see ``test_compiler.py``)."""
    fixed, replica = 8, 0
    for state in TABLE[name].all_states:
        if state.policy in ("Min", "Max"):
            assert state.ctype is not None
            # 32-bit atomics are the narrowest
            fixed += max(4, TYPE_BYTES[state.ctype])
        else:
            fixed += STATE_BYTES[state.policy][0]
            replica += STATE_BYTES[state.policy][1]
    assert TABLE[name].slot_bytes == (fixed, replica)


def test_a_key_alone_needs_its_word() -> None:
    assert by(KeyPart("i8", False)).slot_bytes == (8, 0)


def test_sizes_are_whole_words() -> None:
    """4-byte fields of an even number of slots keep 8-byte fields behind them aligned."""
    for fixed, replica in STATE_BYTES.values():
        assert fixed % 4 == replica % 4 == 0


def test_heavy_states_and_keys_take_smaller_blocks() -> None:
    ordinary = TABLE["the usual ones by int64"]
    assert TABLE["1 aggregation by int64"].threads == 1024
    assert TABLE["1 aggregation by strings"].threads == 1024
    assert TABLE["1 aggregation by strings, by row"].threads == 512
    assert ordinary.threads == 512
    assert replace(ordinary, states=ordinary.states[:4]).threads == 1024


def test_many_columns_are_read_in_smaller_steps() -> None:
    assert TABLE["20 aggregations by int64"].unroll == 4
    five = Query((KeyPart("i64", False),), False, (ValuePart("f64", False),) * 5, (), ())
    assert five.unroll == 2
    assert by(*[KeyPart("i8", False)] * 3).unroll == 2


# ---- the text ----------------------------------------------------------------------------------


def test_columns_are_numbered_keys_first() -> None:
    text = KeyPart("i32", True, string=True)
    of = replace(
        by(text, KeyPart("i64", False), keep_nulls=True),
        inputs=(ValuePart("f32", True), ValuePart("u8", False)),
        states=(KernelState("FloatSum", (0,)), KernelState("Max", (1,), "u8")),
    )
    source = of.source().source
    # a string column takes two: offsets and characters
    keys = "StringColumn<i32, 0, true>, KeyColumn<i64, 2, false>>"
    # the words come last, checks before them; the rows with these are the last state
    assert f"Hashed<true, 6, 5, 2, {keys}" in source
    assert f"ByRow<true, {keys}" in replace(of, chosen=BY_ROW).source().source
    assert "Row<Input<f32, 3, true>, Input<u8, 4, false>, Input<u64, 5, false>>" in source
    assert "States<FloatSum<0>, Max<u8, 1>, CheckedRow<2>>" in source
    assert "Query<Key, Kept, Read, 7, false>" in source


def test_the_witness_is_an_input() -> None:
    of = replace(by(*[KeyPart("i64", False)] * 2), inputs=(ValuePart("f32", True),))
    source = of.source().source
    assert "Wide<false, 4, 3, 0, KeyColumn" in source
    assert "Row<Input<f32, 2, true>, Input<u64, 3, false>>" in source
    assert "States<Witness<1>>" in source


def test_different_queries_have_different_sources() -> None:
    assert len({q.source().source for q in TABLE.values()}) == len(set(TABLE.values()))


def test_queries_that_are_equal_have_one_hash_in_every_process() -> None:
    query = TABLE["5 aggregations by int64"]
    copied = replace(query, keys=tuple(key._replace() for key in query.keys))
    assert (copied, hash(copied)) == (query, hash(query))
    # what a process has worked out, hashes of strings among it, does not travel
    assert query.form == PACKED
    there = pickle.loads(pickle.dumps(query))
    assert "_hash" not in vars(there)
    assert "form" not in vars(there)
    assert (there, hash(there)) == (query, hash(query))


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_a_form_stays_one_object_in_every_process(form: Form) -> None:
    query = replace(by(*[KeyPart("i64", False)] * 2), chosen=form)
    there = pickle.loads(pickle.dumps(query))
    assert there == query
    assert there.form is form
