"""Metadata of results on its way to schedulers and tasks."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.decomposition import make_plan
from dask_gpuagg.plan import Column, Requested
from dask_gpuagg.planning.nodes import Promised


def test_promised_metadata_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    key = Column("k", np.dtype("int64"))
    plan = make_plan(
        [key], [key], [Requested("k", "count", "k")], dropna=True, observed=True, sort=False
    )
    meta = pd.Series([], dtype="int64", name="k")
    arrived = pickle.loads(pickle.dumps(Promised(meta, plan)))
    pd.testing.assert_series_equal(arrived.meta, meta)
    pd.testing.assert_series_equal(arrived.sent, meta)
    # as of a collection of cuDF: tasks get the shape, nodes above can have the metadata
    engine = SimpleNamespace(shape_of=lambda meta: ("shape", meta.name))
    monkeypatch.setattr("dask_gpuagg.planning.nodes.engine_name", lambda meta: "device")
    monkeypatch.setattr("dask_gpuagg.planning.nodes.engine_of", lambda meta: engine)
    arrived = pickle.loads(pickle.dumps(Promised(meta, plan)))
    again = pickle.loads(pickle.dumps(arrived))
    assert arrived.sent == again.sent == ("shape", "k")
    pd.testing.assert_series_equal(again.meta, meta)
