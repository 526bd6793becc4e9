"""What a pass asks the kernels for, who makes it, and in which order it is given: without a GPU."""

from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines.device import stand_ins
from tests.engines.device.stand_ins import without_rapids


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, with stand-ins for what it imports of RAPIDS."""
    with without_rapids():
        made, columns = stand_ins.module("aggregator"), stand_ins.module("columns")
        monkeypatch.setattr(made, "CTYPES", {kind: kind for kind in ("i64", "f64", "f32")})
        monkeypatch.setattr(made, "identity", lambda column: (column.name,))
        monkeypatch.setattr(made, "wide", lambda ctype, dtype: ("i64", dtype))
        for of in (made, columns):
            monkeypatch.setattr(of, "ctype_of", lambda column: column.kind)
            monkeypatch.setattr(of, "masked", lambda column: column.nulls)
        monkeypatch.setattr(made, "reinterpreted", lambda column, _: column)
        monkeypatch.setattr(made, "grouped", _grouped(made))
        yield made


def _grouped(module: ModuleType) -> Any:
    """In place of a call: outputs say what they were made of."""

    def grouped(query: Any, keys: Sequence[Any], inputs: Sequence[Any], **options: Any) -> Any:
        assert [part.ctype for part in query.inputs] == [column.kind for column in inputs]
        outputs = []
        for output in query.outputs:
            states = [query.states[i] for i in output.states]
            read = [(s.policy, *(inputs[i].name for i in s.inputs)) for s in states]
            outputs.append((output.policy, *read))
        return module.libcudf.Served(list(keys), outputs, None)

    return grouped


def column(name: str, kind: str, nulls: bool = False) -> Any:
    def type_of() -> Any:
        return SimpleNamespace(id=lambda: kind)

    return SimpleNamespace(name=name, kind=kind, nulls=nulls, type=type_of)


COLUMNS = {
    "k": column("k", "i64"), "a": column("a", "f64"), "b": column("b", "f64"),
    "c": column("c", "f32"), "d": column("d", "i64", nulls=True),
}  # fmt: skip
METHODS = ("sum", "min", "max", "mean", "count")


def made_of(method: str, name: str) -> tuple[Any, ...]:
    """What an output is to be made of."""
    nulls = COLUMNS[name].nulls
    kind = "Integer" if COLUMNS[name].kind == "i64" and method != "mean" else "Float"
    count = ("Count", name) if nulls else ("Size",)
    match method:
        case "sum" if nulls:
            return ("FieldOf", (f"{kind}Sum", name), count)
        case "sum":
            return ("Field", (f"{kind}Sum", name))
        case "count":
            return ("Field", count)
        case "mean":
            return ("Mean", ("FloatSum", name), count)
    return ("Extreme", (method.capitalize(), name), *([count] if nulls else []))


def asking(
    module: ModuleType,
    asked: Sequence[tuple[str, str]],
    columns: dict[str, Any] = COLUMNS,
    nulls: bool = False,
) -> Any:
    made = module.Aggregator([columns["k"]], False)
    made.nulls = nulls
    for method, name in asked:
        getattr(made, method)(columns[name])
    return made


every = st.lists(
    st.tuples(st.sampled_from(METHODS), st.sampled_from("abcd")), min_size=1, max_size=8
)


@given(every)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_outputs_come_in_the_order_that_was_asked_for(
    module: ModuleType, asked: list[tuple[str, str]]
) -> None:
    _, outputs, _ = asking(module, asked).run()
    assert outputs == [made_of(*one) for one in asked]


def test_without_nulls_nothing_is_counted_but_rows(module: ModuleType) -> None:
    asked = [("sum", "a"), ("count", "b"), ("min", "c"), ("mean", "a")]
    query = asking(module, asked).query
    assert [s.policy for s in query.states] == ["FloatSum", "Size", "Min"]
    assert not any(output.nullable for output in query.outputs)


def test_integers_that_are_never_null_are_not_counted(module: ModuleType) -> None:
    """Counts of partials, beside sums of which one is null."""
    made = module.Aggregator([COLUMNS["k"]], False)
    made.nulls = True
    made.sum(COLUMNS["a"])
    made.total(column("n", "i64"))
    assert sorted(s.policy for s in made.query.states) == ["Count", "FloatSum", "IntegerSum"]
    assert [o.nullable for o in made.query.outputs] == [True, False]
