"""Bounds on the number of groups from metadata, and estimates from samples."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask.dataframe.utils import clear_known_categories

from dask_gpuagg.planning.estimates import (
    GroupEstimate,
    dtype_bound,
    from_key_samples,
    from_metadata,
    from_samples,
)
from dask_gpuagg.tasks.tasks import ROWS_OF_A_SAMPLE, KeySample


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([True, False], "bool"),
        ([True, False, None], "boolean"),
        ([True, False, None], pd.ArrowDtype(pa.bool_())),
        (range(-128, 128), "int8"),
        (range(256), "uint8"),
        ([*range(-128, 128), None], "Int8"),
        ([*range(256), None], pd.ArrowDtype(pa.uint8())),
        (["a", "b", None], pd.CategoricalDtype(["a", "b"])),
    ],
)
def test_the_bound_of_a_dtype_holds_and_is_not_far_off(values, dtype):
    column = pd.Series(values, dtype=dtype)
    distinct = column.nunique(dropna=False)
    assert distinct <= dtype_bound(dtype_of(column)) <= distinct + 1


def dtype_of(column: pd.Series):
    return column.dtype


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype("int16"),
        np.dtype("float64"),
        np.dtype("object"),
        np.dtype("datetime64[ns]"),
        pd.Int64Dtype(),
        pd.StringDtype(),
        pd.DatetimeTZDtype("ns", "UTC"),
        pd.ArrowDtype(pa.string()),
        pd.ArrowDtype(pa.decimal128(10, 2)),
    ],
    ids=str,
)
def test_wide_dtypes_bound_nothing(dtype):
    assert dtype_bound(dtype) is None


def test_unknown_categories_bound_nothing():
    known = pd.Series(["a", "b"], dtype="category")
    assert dtype_bound(known.dtype) == 3
    assert dtype_bound(clear_known_categories(known).dtype) is None


class TestFromMetadata:
    def test_bounds_multiply(self):
        dtypes = [np.dtype("bool"), pd.CategoricalDtype(list("abcd"))]
        assert from_metadata(dtypes, None) == GroupEstimate(
            15, True, "the keys' dtypes admit no more"
        )

    def test_rows_bound_too(self):
        estimate = from_metadata([np.dtype("int8")], 10)
        assert (estimate.groups, estimate.bound) == (10, True)
        assert "rows" in estimate.how

    def test_the_smaller_bound_wins(self):
        assert from_metadata([np.dtype("int8")], 1000).groups == 257

    def test_one_unbounded_key_leaves_only_the_rows(self):
        dtypes = [np.dtype("bool"), np.dtype("float64")]
        assert from_metadata(dtypes, 77).groups == 77
        unknown = from_metadata(dtypes, None)
        assert unknown.groups is None
        assert not unknown.bound


def samples_of(*partitions) -> list[list[pd.Series]]:
    return [[pd.Series(pd.unique(np.asarray(p)))] for p in partitions]


class TestFromSamples:
    def test_all_partitions_sampled_is_exact(self):
        estimate = from_samples(samples_of([1, 2], [2, 3], [9]), 3)
        assert estimate.groups == 4

    def test_the_same_keys_everywhere(self):
        estimate = from_samples(samples_of(range(50), range(50), range(50)), 64)
        assert estimate.groups == 50
        assert not estimate.bound
        assert estimate.how == "sampled 3 of 64 partitions"

    def test_disjoint_keys_grow_with_the_partitions(self):
        estimate = from_samples(samples_of(range(100), range(100, 200), range(200, 300)), 64)
        assert estimate.groups == 6400

    @pytest.mark.parametrize("groups", [1_000, 20_000, 200_000])
    def test_capture_and_recapture_finds_the_population(self, groups):
        rng = np.random.default_rng(groups)
        partitions = [rng.integers(0, groups, 10_000) for _ in range(3)]
        estimate = from_samples(samples_of(*partitions), 1000)
        assert groups * 0.9 < estimate.groups < groups * 1.1

    def test_never_fewer_than_were_seen(self):
        # one shared key of skewed samples would point to fewer than the sample itself holds
        estimate = from_samples(samples_of(range(1000), [0], [0]), 64)
        assert estimate.groups >= 1000

    def test_never_more_than_every_partition_could_bring(self):
        # a single shared key points to 1000 * 1000 / 1 keys, more than 4 partitions hold
        a, b, c = range(1000), range(999, 1999), range(5000, 6000)
        assert from_samples(samples_of(a, b, c), 4).groups == 4000

    def test_two_partitions_with_the_same_keys(self):
        # a table that was written twice: partitions i and i + 32 hold the same keys, and the
        # third one shows that every other partition brings its own
        estimate = from_samples(samples_of(range(100), range(100), range(6300, 6400)), 64)
        assert estimate.groups >= 3200

    def test_several_keys_are_counted_together(self):
        one = [pd.Series([1, 1, 2]), pd.Series(["a", "b", "a"])]
        two = [pd.Series([1, 2, 3]), pd.Series(["a", "b", "a"])]
        assert from_samples([one, two], 2).groups == 5

    def test_nulls_are_one_key(self):
        one = [pd.Series([1.0, np.nan])]
        two = [pd.Series([2.0, np.nan])]
        assert from_samples([one, two], 2).groups == 3

    def test_empty_samples(self):
        empty = [pd.Series([], dtype="int64")]
        assert from_samples([empty, empty, empty], 64).groups == 0
        assert from_samples([empty, [pd.Series([1, 2])], empty], 3).groups == 2

    def test_partitions_with_different_categories(self):
        one = [pd.Series(["a", "b"], dtype="category")]
        two = [pd.Series(["b", "c"], dtype="category")]
        assert from_samples([one, two], 2).groups == 3


def key_samples(keys: np.ndarray, npartitions: int = 32) -> list[KeySample]:
    """Samples of the first, middle and last of equal partitions."""
    size = len(keys) // npartitions
    found = []
    for i in (0, npartitions // 2, npartitions - 1):
        part = keys[i * size : (i + 1) * size]
        taken = part[:: -(-size // ROWS_OF_A_SAMPLE)]
        found.append(KeySample([pd.Series(np.unique(taken))], len(taken), size))
    return found


class TestFromKeySamples:
    @pytest.mark.parametrize("groups", [1, 7, 1000, 30_000, 300_000, 3_000_000])
    def test_keys_at_random(self, groups):
        keys = np.random.default_rng(groups).integers(0, groups, 4_000_000)
        found = from_key_samples(key_samples(keys), 32)
        assert found.how == "sampled rows of 3 of 32 partitions"
        assert not found.bound
        assert 0.8 * len(np.unique(keys)) <= found.groups <= 1.6 * groups

    @pytest.mark.parametrize("repeats", [1, 2, 20, 200, 5000])
    def test_sorted_keys(self, repeats):
        keys = np.arange(4_000_000) // repeats
        found = from_key_samples(key_samples(keys), 32)
        # of rows at equal distances nearly as many keys are found as there are, or none repeats
        assert 0.9 * keys[-1] <= found.groups <= 4_000_000

    def test_empty_partitions(self):
        nothing = KeySample([pd.Series([], dtype="int64")], 0, 0)
        assert from_key_samples([nothing, nothing, nothing], 9).groups == 0

    def test_whole_partitions_that_share_no_key(self):
        samples = [KeySample([pd.Series(np.arange(10) + 10 * i)], 10, 10) for i in range(3)]
        assert from_key_samples(samples, 20).groups == 200
