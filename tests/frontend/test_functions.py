"""Reading the functions of a specification."""

from __future__ import annotations

from functools import partial

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.utils import M

from dask_gpuagg.frontend.specification import WithArguments, label_of, read_function
from dask_gpuagg.plan import Unsupported


class TestReadFunction:
    @pytest.mark.parametrize(
        ("function", "name"),
        [
            ("sum", "sum"),
            (sum, "sum"),
            (min, "min"),
            (list, "list"),
            (np.sum, "sum"),
            (np.min, "min"),
            (np.max, "max"),
            (np.mean, "mean"),
            (np.nanmedian, "median"),
            (len, "size"),
            (M.sum, "sum"),
            (pd.Series.nunique, "nunique"),
            (pd.Series.std, "std"),
            (pd.Series.quantile, "quantile"),
        ],
    )
    def test_names(self, function, name):
        assert read_function(function) == (name, (), None)

    def test_keyword_arguments_are_sorted(self):
        function = partial(np.var, ddof=0, axis=None)
        assert read_function(function) == ("var", (("axis", None), ("ddof", 0)), None)

    def test_functions_of_numpy_mean_what_they_do_to_a_series(self):
        values = pd.Series([1.0, 3.0, np.nan])
        for function in (np.median, np.std, np.var, np.nanstd):
            name, parameters, _ = read_function(function)
            got = getattr(values, name)(**dict(parameters))
            assert got == pytest.approx(values.agg(function), nan_ok=True)

    def test_arguments_of_the_user_come_before_what_a_function_means(self):
        assert read_function(partial(np.std, ddof=1)) == ("std", (("ddof", 1),), None)
        function = WithArguments("quantile", (("q", 0.1),))
        assert read_function(function) == ("quantile", (("q", 0.1),), None)

    @pytest.mark.parametrize("name", ["nunique", "sum", "median"])
    def test_a_function_of_the_users_own_is_not_pandas(self, name):
        def function(values):
            return 42

        function.__name__ = name
        with pytest.raises(Unsupported, match="of your own"):
            read_function(function)

    @pytest.mark.parametrize("function", [lambda v: v.sum(), np.ptp, set, np.percentile])
    def test_what_stands_for_no_aggregation_is_refused(self, function):
        with pytest.raises(Unsupported, match="not supported in"):
            read_function(function)

    def test_labels_are_those_of_pandas(self):
        functions = [np.nansum, len, "max", partial(np.var, ddof=0), np.min, sum, pd.Series.mean]
        wanted = pd.DataFrame({"k": [1], "v": [1.0]}).groupby("k").v.agg(functions).columns
        assert [label_of(f) for f in functions] == list(wanted)

    def test_positional_arguments_are_refused(self):
        with pytest.raises(Unsupported, match="positional"):
            read_function(partial(np.var, 0))

    def test_a_dask_aggregation_keeps_its_functions(self):
        aggregation = dd.Aggregation("mine", len, sum, max)
        name, parameters, custom = read_function(aggregation)
        assert (name, parameters) == ("custom", ())
        assert (custom.name, custom.chunk, custom.agg, custom.finalize) == ("mine", len, sum, max)

    @pytest.mark.parametrize("function", [3, None, object()])
    def test_what_is_no_function_is_refused(self, function):
        with pytest.raises(Unsupported, match="not an aggregation"):
            read_function(function)
