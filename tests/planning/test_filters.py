"""Filters below a group-by: which are taken out of the frame, and answers as pandas has them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.dask_expr import _accessor as A
from dask.dataframe.dask_expr import _expr as E
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_gpuagg
from dask_gpuagg.planning.chunks import Chunks
from dask_gpuagg.planning.filters import STEPS
from dask_gpuagg.tasks.tasks import blanked
from tests.comparison import compare
from tests.data import in_pieces

pytestmark = pytest.mark.usefixtures("synchronous", "plugin")

ROWS = 40
_rng = np.random.default_rng(7)
_times = pd.Timestamp("2020-02-27") + pd.to_timedelta(_rng.integers(0, 20_000, ROWS), unit="h")
DATA = pd.DataFrame(
    {
        "k": _rng.integers(0, 4, ROWS),
        "i": _rng.integers(-9, 9, ROWS),
        "u": _rng.integers(0, 255, ROWS).astype("uint8"),
        "big": _rng.integers(2**60, 2**60 + 9, ROWS),
        "f": _rng.integers(-9, 9, ROWS) / 4,
        "f4": (_rng.integers(-9, 9, ROWS) / 4).astype("float32"),
        "b": _rng.random(ROWS) < 0.5,
        "t": pd.Series(_times),
        "d": pd.to_timedelta(_rng.integers(0, 9, ROWS), unit="D"),
        "s": pd.Series(_rng.choice(["a", "bb"], ROWS)).astype("str"),
        "keep": _rng.random(ROWS) < 0.6,
        "nb": pd.array(_rng.choice([True, False, None], ROWS), dtype="boolean"),
        "ab": pd.array(_rng.choice([True, False, None], ROWS), dtype="bool[pyarrow]"),
    }
)
# all nulls are in rows that leave, but for one
DATA.loc[~DATA.keep & (_rng.random(ROWS) < 0.5), ["f", "f4", "t", "d"]] = None
DATA.loc[DATA.index[DATA.keep][5], ["f", "t"]] = None
PIECES = [DATA[:15], DATA[15:15], DATA[15:18], DATA[18:]]
Step = Callable[[Any], Any]

TRIED: dict[type, Step] = {
    E.Add: lambda c: c + 1,
    E.Sub: lambda c: 2 - c,
    E.Mul: lambda c: c * c,
    E.Div: lambda c: c / 0,
    E.Mod: lambda c: c % 3,
    E.FloorDiv: lambda c: c // 2,
    E.Abs: lambda c: c.abs(),
    E.Neg: lambda c: -c,
    E.Pos: lambda c: +c,
    E.Round: lambda c: c.round(),
    E.Clip: lambda c: c.clip(1, 3),
    E.Fillna: lambda c: c.fillna(1),
    E.Where: lambda c: c.where(c >= c, 1),
    E.Mask: lambda c: c.mask(c > 2, c),
    E.And: lambda c: c & True,
    E.Or: lambda c: c | c,
    E.XOr: lambda c: c ^ True,
    E.Invert: lambda c: ~c,
    E.LT: lambda c: c < c,
    E.LE: lambda c: c <= c,
    E.GT: lambda c: c > c,
    E.GE: lambda c: c >= c,
    E.EQ: lambda c: c == c,
    E.NE: lambda c: c != c,
    E.Between: lambda c: c.between(c, c),
    E.Isin: lambda c: c.isin([1, 2, 3]),
    E.IsNa: lambda c: c.isna(),
    E.NotNull: lambda c: c.notnull(),
    A.PropertyMap: lambda c: c.dt.year,
    A.FunctionMap: lambda c: c.dt.floor("D"),
}
PLAIN = [dtype for dtype in DATA.dtypes if isinstance(dtype, np.dtype)]
_TRUTHS = ("b", "keep")
# pandas refuses these, or another dtype would follow
LEFT_OUT = dict.fromkeys((E.Sub, E.Div, E.Mod, E.FloorDiv, E.Neg, E.Round, E.Clip), _TRUTHS)
LEFT_OUT |= {E.Fillna: _TRUTHS, E.Where: _TRUTHS, E.Isin: ("t", "d"), E.GT: _TRUTHS}


def held(pieces: list[pd.DataFrame] = PIECES) -> Any:
    """A persisted collection, whose text Dask need not convert above a filter."""
    with dask.config.set({"dataframe.convert-string": False}):
        return in_pieces(pieces, PIECES[0][:0]).persist()


def where(query: Any) -> str:
    """The filter that a query's tasks apply; empty where Dask filters."""
    (one,) = dask_gpuagg.explain(query).groupbys
    return one.physical.predicate


def derived(name: str, step: Step) -> Callable[[Any], Any]:
    """A query of a column that is derived of rows that stay."""
    return lambda f: (lambda e: e.assign(z=step(e[name])).groupby("k").z.max())(f[f.keep])


def test_every_step_is_tried() -> None:
    assert TRIED.keys() == STEPS.keys()


@pytest.mark.parametrize("kind", TRIED, ids=lambda kind: kind.__name__)
def test_a_step_above_a_filter(kind: type) -> None:
    kinds = "M" if kind in (A.PropertyMap, A.FunctionMap) else STEPS[kind]
    numpy = {name: dtype.kind for name, dtype in DATA.dtypes.items() if dtype in PLAIN}
    left_out = LEFT_OUT.get(kind, ())
    columns = {
        f"z{name}": name for name, of in numpy.items() if of in kinds and name not in left_out
    }

    def query(f: Any, **options: Any) -> Any:
        e = f[f.keep]
        e = e.assign(**{new: TRIED[kind](e[name]) for new, name in columns.items()})
        return e.groupby("k")[list(columns)].agg(["count", "first", "max"], **options)

    ddf = held()
    compare(query, ddf)
    assert where(query(ddf)) == "keep"


MOVED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "key": (lambda f: (lambda e: e.groupby(e.t.dt.year).i.sum())(f[f.keep]), "keep"),
    "column": (lambda f: f.i[f.keep].groupby(f.k[f.keep]).sum(), "keep"),
    "labels": (lambda f: f[f.keep].groupby("k").f.idxmax(), "keep"),
    "masked": (lambda f: f[f.nb].groupby("k").i.sum(), "nb"),
    "Arrow's": (lambda f: f[f.ab].groupby(["s", "k"]).i.agg(["sum", "first"]), "ab"),
    "null-free": (
        lambda f: f[f.t.notnull()].assign(y=lambda e: e.t.dt.year).groupby("k").y.sum(),
        "t.notnull(…)",
    ),
    "text": (lambda f: f[(f.s == "a") & ~(f.i > 3)].groupby("k").i.sum(), "(s == 'a') & ~(i > 3)"),
    "list": (lambda f: f[f.i.isin([1, 2, 3])].groupby("k").i.agg(list), "i.isin(…)"),
    "none stays": (lambda f: f[f.i > 99].groupby("k").i.sum(), "i > 99"),
    "wide": (lambda f: f[f.keep].assign(**WIDE).groupby("k")[[*WIDE]].sum(), "keep"),
}
WIDE = dict.fromkeys((f"w{j}" for j in range(34)), 2)


@pytest.mark.parametrize("name", MOVED)
def test_a_filter_is_taken_out(name: str) -> None:
    query, expected = MOVED[name]
    ddf = held()
    compare(query, ddf)
    assert where(query(ddf)) == expected
    assert "where" in str(dask_gpuagg.explain(query(ddf)))


LEFT: dict[str, Callable[[Any], Any]] = {
    # other dtypes: integers beyond 2**53 would be rounded
    "null integers": derived("big", lambda c: c.where(c % 3 != 0)),
    "clipped": derived("i", lambda c: c.clip(2.5)),
    "by zero": derived("i", lambda c: c % 0),
    "by a column": derived("i", lambda c: c // c),
    "function": lambda f: f[f.keep].groupby(lambda label: label % 3).i.sum(),
    "frame": lambda f: f[["k", "i"]][f[["k", "i"]] > 1].groupby("k").i.sum(),
    "masks": lambda f: (lambda e: e.assign(i=1)[e.ab].groupby("k").i.sum())(f[f.nb].assign(u=1)),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_filter_stays(name: str) -> None:
    ddf = held()
    compare(LEFT[name], ddf)
    assert where(LEFT[name](ddf)) == ""


def test_rows_of_another_filter_are_unaligned() -> None:
    ddf = held()
    with pytest.raises(ValueError, match="unaligned"):
        ddf[ddf.keep].groupby(ddf[ddf.b].k).i.sum().compute()


@pytest.mark.parametrize("bad", [None, "text"])
def test_objects_for_promised_numbers(bad: Any) -> None:
    objects = DATA.assign(i=DATA.i.astype(object).where(DATA.keep, bad))
    pieces = [*PIECES[:3], objects[18:]]
    query = derived("i", lambda c: abs(-c * 2).clip(1, 9))
    ddf = held(pieces)
    assert where(query(ddf)) == "keep"
    assert query(ddf).compute().sort_index().tolist() == query(DATA).tolist()


def test_an_object_that_is_no_mask_raises() -> None:
    pieces = [PIECES[0], PIECES[3].assign(keep=PIECES[3].keep.astype(object).mask(PIECES[3].b))]
    with pytest.raises(ValueError, match="Cannot mask"):
        derived("i", lambda c: c)(held(pieces)).compute()


def test_times_out_of_range_leave() -> None:
    times = pd.Series(np.array([-(2**63) + 1, 0, 2**63 - 1]).view("M8[s]"))
    mask = pd.Series([False, True, pd.NA], dtype="boolean")
    assert blanked(times, mask, "MO").dt.year.tolist() == [1970, 1970, 1970]
    usual = pd.Series(pd.date_range("2020", periods=3))
    assert blanked(usual, mask, "MO") is usual


def text_keys_of(query: Any) -> list[Any]:
    operands = [op for node in query.optimize(fuse=False).expr.walk() for op in node.operands]
    return [op.text_keys for op in operands if isinstance(op, Chunks)]


def test_text_keys_below_filters_are_dictionaries(tmp_path: Path) -> None:
    for i, piece in enumerate(PIECES):
        piece.drop(columns="d").to_parquet(tmp_path / f"{i}.parquet")
    ddf = dd.read_parquet(tmp_path)

    def query(f: Any) -> Any:
        return f[f.i > 0].assign(z=lambda e: e.i + 1).groupby("s").z.sum()

    compare(query, ddf)
    assert text_keys_of(query(ddf)) == [("s",)]
    assert text_keys_of(query(ddf[ddf.s != "a"])) == [()]


PROGRAM: dict[str, Callable[[Any], Any]] = {
    "keep": lambda e: e[e.keep],
    "positive": lambda e: e[(e.i > 0) | e.b],
    "times": lambda e: e[e.t.notnull()],
    "derived": lambda e: e[e.f.fillna(0) * 2 >= e.i],
    "masked": lambda e: e[e.nb],
    "new": lambda e: e.assign(i=e.i * 2 - e.u, b=~e.b),
    "year": lambda e: e.assign(k=e.t.dt.year),
    "outside": lambda e: e.assign(f=e.f**2),
    "renamed": lambda e: e.rename(columns={"d": "d2"}),
}
SPEC = {"i": ["sum", "first", "nunique"], "f": ["mean", "min", "count"], "u": ["max", "last"]}


@settings(max_examples=settings.default.max_examples // 3)
@given(
    st.lists(st.sampled_from(sorted(PROGRAM)), min_size=1, max_size=4),
    st.sampled_from(["k", "s", ["k", "s"], "t", "year"]),
    st.booleans(),
    st.booleans(),
)
def test_programs_agree_with_pandas(
    program: list[str], key: Any, dropna: bool, persisted: bool
) -> None:
    def query(f: Any) -> Any:
        for name in program:
            f = PROGRAM[name](f)
        return f.groupby(f.t.dt.year if key == "year" else key, dropna=dropna).agg(SPEC)

    compare(query, held() if persisted else in_pieces(PIECES))


def test_bools_held_as_objects_stay_conditions() -> None:
    """In a partition without rows that stay, too."""
    data = pd.DataFrame({"u": [1, 2, 3, 4], "b": [True, False] * 2, "f": [1.0, 2.0, 3.0, 4.0]})
    for other in (data, data.iloc[:2]):
        pieces = [data, other.astype({"b": object})]
        with dask.config.set({"dataframe.convert-string": False}):
            rows = dd.from_map(lambda piece: piece, pieces, meta=data[:0])
            rows, expected = (frame[frame.f > 2] for frame in (rows, pd.concat(pieces)))
            result = rows.groupby(rows.u.where(rows.b, 3)).size()
            with dask_gpuagg.enabled():
                found = result.compute()
        assert found.to_dict() == expected.groupby(expected.u.where(expected.b, 3)).size().to_dict()
