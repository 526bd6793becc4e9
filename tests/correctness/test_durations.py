"""Deviations and means of durations: units, groups without values, whole results."""

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pytest

from tests.comparison import same

pytestmark = pytest.mark.usefixtures("plugin")


def seconds(*values: float, unit: str) -> pd.Series:
    return pd.Series(pd.to_timedelta(values, unit="s").astype(f"timedelta64[{unit}]"))


@pytest.mark.parametrize("units", [("s", "ns"), ("ns", "s")], ids="-".join)
def test_partitions_of_different_units(units: tuple[str, str]) -> None:
    first = pd.DataFrame({"k": [1, 1], "t": seconds(1, 5, unit=units[0])})
    second = pd.DataFrame({"k": [1], "t": seconds(2, unit=units[1])})
    rows = dd.from_map(lambda part: part, [first, second], meta=first.iloc[:0])
    got = rows.groupby("k").agg({"t": ["std", "sem"]}).compute()
    want = pd.concat([first, second]).groupby("k").agg({"t": ["std", "sem"]})
    assert got.iloc[0].tolist() == want.iloc[0].tolist()


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_groups_without_values(unit: str) -> None:
    values = [pd.Timedelta(5, "s"), pd.Timedelta(8, "s"), None]
    data = pd.DataFrame({"k": [1, 1, 2]})
    data["t"] = pd.array(values, dtype=pd.ArrowDtype(pa.duration(unit)))
    got = dd.from_pandas(data, npartitions=1).groupby("k").agg({"t": ["mean", "std", "sem"]})
    same(got.compute(), data.groupby("k").agg({"t": ["mean", "std", "sem"]}))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_whole_errors_of_means_are_whole(unit: str) -> None:
    data = pd.DataFrame({"k": 1, "t": seconds(0, 12, unit=unit)})
    got = dd.from_pandas(data, npartitions=1).groupby("k").agg({"t": ["sem"]}).compute()
    assert got.iloc[0, 0] == pd.Timedelta(6, "s")
