"""Reading the functions of a specification."""

from __future__ import annotations

from functools import partial

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.functions import read_function
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
            (np.median, "median"),
            (np.std, "std"),
            (np.var, "var"),
            (pd.Series.nunique, "nunique"),
        ],
    )
    def test_names(self, function, name):
        assert read_function(function) == (name, (), None)

    def test_keyword_arguments_are_sorted(self):
        function = partial(np.var, ddof=0, axis=None)
        assert read_function(function) == ("var", (("axis", None), ("ddof", 0)), None)

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
