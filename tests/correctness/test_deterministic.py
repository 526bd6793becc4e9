"""``gpuagg.deterministic``: the same bits however rows are divided, ordered and merged."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_gpuagg
from dask_gpuagg.aggregations import REGISTRY
from tests.data import in_pieces
from tests.test_exact_sums import rounded

pytestmark = pytest.mark.usefixtures("plugin", "synchronous")

GIVEN = {"gpuagg.deterministic": True, "gpuagg.fallback": "raise"}
ROUTES: list[dict[str, Any]] = [{}, {"split_every": 2}, {"split_out": 3}]
# partitions of the compiled loops have more rows than that
ROWS = 60_000


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    with dask.config.set(GIVEN):
        yield


def assert_bits(made: Any, wanted: Any) -> None:
    pd.testing.assert_frame_equal(made.sort_index(), wanted.sort_index(), check_exact=True)


def frame(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    x = rng.normal(size=rows) * 10.0 ** rng.integers(-9, 9, rows)
    x[rng.random(rows) < 0.1] = np.nan
    return pd.DataFrame({
        "k": rng.integers(0, 40, rows),
        "x": x,
        "f": x.astype("float32"),
        "i": rng.integers(-(2**63), 2**63 - 1, rows),
        "u": rng.integers(0, 2**64 - 1, rows, dtype=np.uint64),
        "b": rng.random(rows) < 0.5,
        "m": pd.Series(x).astype("Float64"),
        "a": pd.Series(x).astype("double[pyarrow]"),
        "n": pd.Series(rng.integers(-9, 9, rows)).astype("Int64").mask(rng.random(rows) < 0.3),
    })  # fmt: skip


ASKED = {
    "x": ["sum", "mean", "max"], "f": ["sum", "mean"], "i": ["sum", "mean"], "u": ["mean"],
    "b": ["mean", "sum"], "m": ["sum", "mean"], "a": ["sum", "mean"], "n": ["mean", "sum"],
}  # fmt: skip


@pytest.mark.parametrize("rows", [900, ROWS])
@pytest.mark.parametrize("flags", ROUTES)
def test_bits_do_not_depend_on_partitions(flags: dict[str, Any], rows: int) -> None:
    data = frame(rows)
    expected = dd.from_pandas(data, npartitions=1).groupby("k").agg(ASKED).compute().sort_index()
    by_key = data.groupby("k")
    assert expected["x"]["sum"].tolist() == [math.fsum(v.dropna()) for _, v in by_key["x"]]
    assert expected["i"]["mean"].tolist() == [
        float(sum(map(int, v))) / len(v) for _, v in by_key["i"]
    ]
    assert expected["u"]["mean"].tolist() == [
        float(sum(map(int, v))) / len(v) for _, v in by_key["u"]
    ]
    for npartitions in (2, 7, 19):
        mixed = data.sample(frac=1, random_state=npartitions)
        collection = dd.from_pandas(mixed, npartitions=npartitions, sort=False)
        assert_bits(collection.groupby("k").agg(ASKED, **flags).compute(), expected)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.floats(-8, 8)),
        ),
        min_size=1,
        max_size=40,
    ),
    st.lists(st.integers(0, 40), max_size=4),
    st.sampled_from(ROUTES),
)
def test_sums_are_rounded_once(
    rows: list[tuple[int, float]], cuts: list[int], flags: dict[str, Any]
) -> None:
    data = pd.DataFrame(rows, columns=["k", "x"])
    ends = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:stop] for start, stop in pairwise(ends)]
    result = in_pieces(pieces).groupby("k").x.sum(**flags).compute().sort_index()
    expected = [rounded(values.tolist()) for _, values in data.groupby("k")["x"]]
    assert result.tolist() == expected


def test_infinities_nan_and_groups_without_values() -> None:
    data = pd.DataFrame({
        "k": [0, 0, 1, 1, 2, 3, 4, 0, 5],
        "x": [1.5, np.inf, np.inf, -np.inf, -np.inf, np.nan, 1.0, np.nan, -0.0],
    })  # fmt: skip
    result = dd.from_pandas(data, npartitions=4).groupby("k").x.agg(["sum", "mean"]).compute()
    plain = data.groupby("k").x.agg(["sum", "mean"])
    assert_bits(result, plain)
    masked = data.assign(x=data["x"].astype("Float64"))
    masked["x"] = masked["x"] / masked["x"].where(masked["x"] != 1.0, 1.0)  # 0 / 0 and inf / inf
    ours = dd.from_pandas(masked, npartitions=4).groupby("k").x.sum().compute().sort_index()
    with dask.config.set({"gpuagg.deterministic": False}):
        usual = dd.from_pandas(masked, npartitions=4).groupby("k").x.sum().compute().sort_index()
    pd.testing.assert_series_equal(ours, usual)


def test_partitions_of_other_dtypes() -> None:
    """Integers in one partition are added to the floats of another."""
    parts = [
        pd.DataFrame({"k": [0, 1, 0], "x": [0.1, 0.2, 2.0**60]}),
        pd.DataFrame({"k": [0, 1, 1], "x": [1, -(2**62) - 1, 2**62]}),
        pd.DataFrame({"k": [1, 0, 0], "x": pd.array([None, 3, 5], dtype="Int64")}),
    ]
    collection = dd.from_map(lambda i: parts[i], range(3), meta=parts[0][:0])
    result = collection.groupby("k").x.agg(["sum", "mean"]).compute()
    sums = [math.fsum([0.1, 2.0**60, 1, 3, 5]), math.fsum([0.2, -(2**62), -1, 2**62])]
    assert result["sum"].sort_index().tolist() == sums
    assert result["mean"].sort_index().tolist() == [sums[0] / 5, sums[1] / 3]


def test_kept_or_streamed_groups_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Numba, pandas and NumPy make the same bins."""
    import numba

    data = frame()
    query = dd.from_pandas(data, npartitions=1).groupby("k").agg(ASKED)
    expected = query.compute()
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert_bits(query.compute(), expected)


REFUSED = ["var", "std", "sem", "prod", "quantile_approx"]


@pytest.mark.parametrize("name", ["sem", "quantile_approx"])
def test_the_error_of_stock_dask_has_the_reason(name: str) -> None:
    groups = dd.from_pandas(frame(100), npartitions=2).groupby("k")
    with pytest.raises(ValueError, match="unknown aggregate") as caught:
        groups.agg({"x": name})
    assert "gpuagg.deterministic" in str(caught.value)


def test_every_rounding_aggregation_is_refused() -> None:
    """Those whose states or entries are floats that are added up."""
    rounding = {name for name, record in REGISTRY.items() if record.rounds}
    assert rounding == {*REFUSED, "cov", "corr", "sum"}
    groups = dd.from_pandas(frame(100), npartitions=2).groupby("k")[["x", "f"]]
    for name in ("cov", "corr", "var", "std", "prod"):
        with pytest.raises(dask_gpuagg.UnsupportedGroupBy, match=r"gpuagg\.deterministic: "):
            getattr(groups, name)().compute()


def test_functions_of_users_are_refused() -> None:
    mine = dd.Aggregation("mine", lambda s: s.sum(), lambda s: s.sum())
    groups = dd.from_pandas(frame(100), npartitions=2).groupby("k")
    with pytest.raises(dask_gpuagg.UnsupportedGroupBy, match="nothing is known of the functions"):
        groups.agg({"x": mine}).compute()


def test_explain_names_the_states() -> None:
    query = dd.from_pandas(frame(100), npartitions=2).groupby("k").agg({"x": ["sum", "mean"]})
    assert "states   exact sum of x\n" in str(dask_gpuagg.explain(query))
    with dask.config.set({"gpuagg.deterministic": False}):
        assert "exact" not in str(dask_gpuagg.explain(query))


@pytest.mark.parametrize("promised", ["int64", "float64"])
def test_the_dtype_of_a_partition_without_rows_does_not_count(promised: str) -> None:
    rows = pd.DataFrame({"k": [1, 2, 1], "x": [1, 2, 3]})
    none = rows.iloc[:0].astype({"x": "float64"})
    meta = rows.iloc[:0].astype({"x": promised})
    result = in_pieces([none, rows, none], meta).groupby("k").agg({"x": ["sum", "mean"]}).compute()
    assert result["x"].sort_index().to_dict("list") == {"sum": [4, 2], "mean": [2.0, 2.0]}
