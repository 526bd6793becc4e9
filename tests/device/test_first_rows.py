"""``head`` and ``tail`` of groups on dask-cudf collections: cuDF's rows, in the input's order."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from tests.device.frames import random_rows

pytestmark = pytest.mark.usefixtures("raising")

ROWS = 40_000


@pytest.mark.parametrize("npartitions", [1, 9])
@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("by", ["i", "f", "s", "c", ["s", "u"]], ids=str)
def test_rows_are_those_of_the_whole_frame(by: Any, dropna: bool, npartitions: int) -> None:
    import dask_cudf

    whole = random_rows(ROWS)
    whole.index = whole.index * 3
    grouped = dask_cudf.from_cudf(whole, npartitions=npartitions).groupby(by, dropna=dropna)
    theirs = whole.to_pandas().groupby(by, dropna=dropna, observed=True)
    for ours, want in (
        (grouped.head(3), theirs.head(3)),
        (grouped.v.tail(2), theirs.v.tail(2)),
        (grouped[["v"]].head(1), theirs[["v"]].head(1)),
    ):
        got = ours.compute().to_pandas()
        assert type(got) is type(want)
        pd.testing.assert_index_equal(got.index, want.index)
        columns = [got] if got.ndim == 1 else [got[c] for c in got]
        expected = [want] if want.ndim == 1 else [want[c] for c in got]
        for a, b in zip(columns, expected, strict=True):
            assert a.astype(object).where(a.notna(), None).tolist() == (
                b.astype(object).where(b.notna(), None).tolist()
            )


@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("keys", [[None, None], [1.5, None], []], ids=str)
def test_partitions_without_groups(keys: list[float | None], dropna: bool) -> None:
    import cudf
    import dask.dataframe as dd

    def part(i: int) -> Any:
        one = cudf.DataFrame({"k": cudf.Series(keys, dtype="float64"), "v": range(len(keys))})
        return one.iloc[: i * len(one)]

    ddf = dd.from_map(part, range(2), meta=part(0).iloc[:0])
    whole = part(1).to_pandas()
    for name in ("head", "tail"):
        got = getattr(ddf.groupby("k", dropna=dropna).v, name)(1).compute().to_pandas()
        want = getattr(whole.groupby("k", dropna=dropna).v, name)(1)
        assert (got.index.tolist(), got.tolist()) == (want.index.tolist(), want.tolist())
