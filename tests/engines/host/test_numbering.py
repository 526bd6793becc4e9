"""Numbers by hashing are those of ``pandas.factorize``, for integers of any range."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.engines.host import fused, numbering
from dask_gpuagg.engines.host.grouping import densify, group

WIDE = {
    "int64": st.sampled_from([-(2**63), -1, 0, 1, 2**62, 2**63 - 1]),
    "uint64": st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1]),
    "int32": st.sampled_from([-(2**31), -1, 0, 2**31 - 1]),
    "uint32": st.sampled_from([0, 1, 2**32 - 1]),
}


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | WIDE["int64"], min_size=1, max_size=50))
def test_numbers_and_integers(values):
    array = np.array(values, np.int64)
    codes, present = numbering.number_hashed(array)
    expected, uniques = pd.factorize(array)
    assert codes.tolist() == expected.tolist()
    assert present.tolist() == uniques.tolist()


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 1000])
def test_no_more_than_half_of_the_slots_are_taken(rows):
    table, shift = numbering.hash_table(rows)
    assert 2 * rows <= len(table) == 2 ** (64 - shift) <= max(4 * rows, 2)
    codes, _ = numbering.number_hashed(np.arange(rows))
    assert codes.tolist() == list(range(rows))


@pytest.mark.parametrize("dtype", WIDE)
@given(data=st.data())
def test_keys_of_a_wide_range(dtype, data):
    values = data.draw(st.lists(WIDE[dtype], min_size=1, max_size=30))
    column = pd.Series(values, dtype=dtype)
    with mock.patch.object(fused, "LEAST_ROWS", 1):
        groups = group([column], dropna=True)
    (keys,) = groups.keys
    assert keys.dtype == column.dtype
    assert keys[groups.codes].tolist() == values
    assert groups.n == len(set(values))


@pytest.mark.parametrize("step", [1, 2**20, 2**40])
def test_pairs_of_columns_beyond_direct_addressing(step):
    rows = fused.LEAST_ROWS
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({i: rng.integers(0, rows, rows) * step for i in range(2)})
    frame = pd.concat([frame, frame])
    groups = group([frame[0], frame[1]], dropna=True)
    assert groups.n == len(frame.drop_duplicates())
    for i, keys in enumerate(groups.keys):
        assert (keys[groups.codes] == frame[i].to_numpy()).all()


def test_codes_are_made_dense_by_hashing():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2**60, 1000).repeat(fused.LEAST_ROWS // 1000)
    dense, present = densify(codes, 2**60)
    assert (present[dense] == codes).all()
    assert len(present) == len(np.unique(codes)) == dense.max() + 1
