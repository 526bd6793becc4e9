"""The first or last rows of each group, by position."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.engines.host.first_rows import key_table, rows_within
from tests.data import KEYS


@given(
    st.lists(st.tuples(st.sampled_from([1.0, -0.0, 0.0, np.nan, 7.0]), st.integers(0, 2))),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
)
def test_rows_are_pandas(pairs: list[tuple[float, int]], n: int, dropna: bool, last: bool):
    frame = pd.DataFrame(pairs, columns=["a", "b"]).astype({"a": "float64", "b": "int64"})
    grouped = frame.groupby(["a", "b"], dropna=dropna)
    want = (grouped.tail(n) if last else grouped.head(n)).index.tolist()
    keys = key_table([frame["a"], frame["b"]])
    assert rows_within(keys, dropna, n, last).tolist() == want


@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("name", KEYS)
def test_of_every_dtype(name: str, dropna: bool):
    key = KEYS[name].reset_index(drop=True)
    codes = pd.factorize(key.astype(object), use_na_sentinel=dropna)[0]
    if name.startswith(("string", "str", "int", "datetime")):
        want = pd.Series(codes)[codes >= 0].groupby(codes[codes >= 0]).tail(1).index.tolist()
        assert rows_within(key_table([key]), dropna, 1, True).tolist() == want
    else:
        picked = rows_within(key_table([key]), dropna, 1, True)
        assert len(picked) <= len(set(codes))
        assert (np.diff(picked) > 0).all()
