"""Results on dask-cudf collections are combined by their keys, whatever partitions they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
import pytest

from tests.device.frames import random_rows

pytestmark = pytest.mark.usefixtures("raising")

ROWS, PARTITIONS = 20_000, 5


def collection() -> Any:
    import dask_cudf

    rows = random_rows(ROWS)[["i", "s", "c", "v"]]
    return dask_cudf.from_cudf(rows, npartitions=PARTITIONS)


RESULTS: dict[str, Callable[..., Any]] = {
    "open": lambda grouped: grouped().sum(),
    "kept, one": lambda grouped: grouped().sum().persist(),
    "given": lambda grouped: grouped().sum(split_out=3),
    "sorted": lambda grouped: grouped(sort=True).sum(),
}
COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "series": lambda a, b: (a.v / b.w).to_frame("r"),
    "frames": lambda a, b: a.rename(columns={"v": "w"}).add(b, fill_value=0),
    "columns": lambda a, b: (pd if isinstance(a, pd.DataFrame) else dd).concat([a, b], axis=1),
}


def grouped(frame: Any, by: Any) -> Callable[..., Any]:
    return lambda **options: frame.groupby(by, observed=True, **options)


@pytest.mark.parametrize("by", ["i", "s", "c", ["s", "i"]], ids=str)
@pytest.mark.parametrize("name", COMBINED)
@pytest.mark.parametrize("left", ["kept, one", "given"])
def test_two_results_are_combined(left: str, name: str, by: Any) -> None:
    chosen = [*(by if isinstance(by, list) else [by]), "v"]
    ddf = collection()[chosen]
    whole = ddf.compute().to_pandas()
    other = whole[whole.v > 80].rename(columns={"v": "w"})
    want = COMBINED[name](*(grouped(frame, by)().sum() for frame in (whole, other)))
    for right in RESULTS:
        few = ddf[ddf.v > 80].rename(columns={"v": "w"})
        query = COMBINED[name](RESULTS[left](grouped(ddf, by)), RESULTS[right](grouped(few, by)))
        got = query.compute().to_pandas()
        same(got, want)


def same(got: pd.DataFrame, want: pd.DataFrame) -> None:
    def rows(frame: pd.DataFrame) -> pd.DataFrame:
        flat = frame.reset_index()
        texts = [c for c in flat if c in ("s", "c")]
        flat = flat.astype(dict.fromkeys(texts, object))
        return flat.sort_values(list(flat)).reset_index(drop=True)

    pd.testing.assert_frame_equal(rows(got), rows(want), check_dtype=False)


def test_what_was_promised_one_partition_is_whole() -> None:
    with dask.config.set({"gpuagg.output-bytes": 4_000}):
        result = collection()[["i", "v"]].groupby("i").sum()
        groups = len(result)
        assert result.npartitions == 1
        assert len(result.get_partition(0).compute()) == groups
        (kept,) = dask.persist(result)
        assert len(kept.compute()) == groups
    assert kept.npartitions == 1 < kept.optimize().npartitions
    rows = collection()[["i", "v"]]
    meta = rows._meta.assign(n=1)
    beside = rows.map_partitions(_counting, kept, meta=meta, align_dataframes=False)
    assert (beside.compute().n == groups).all()
    both = (kept + kept.repartition(npartitions=3)).compute().to_pandas()
    pd.testing.assert_frame_equal(both.sort_index(), kept.compute().to_pandas().sort_index() * 2)


def _counting(part: Any, whole: Any) -> Any:
    return part.assign(n=len(whole))
