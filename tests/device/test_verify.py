"""Comparing rows with the keys of their groups ends, whatever the rows have become."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.device.test_kernels import check


def test_words_that_change_meanwhile_end_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """No group has these words: the rows are grouped again by their keys themselves."""
    from dask_gpuagg.cuda.keys import words as module
    from dask_gpuagg.cuda.query.forms import HASHED
    from dask_gpuagg.cuda.runtime.driver import fill

    original, changed = module.verified, []

    def spoiled(call: Any, counters: Any) -> Any:
        words = call.columns[len(call.columns) - 1].data
        assert call.query.form == HASHED
        fill(words, 0x11, 8 * call.rows, call.handle)
        changed.append(call.rows)
        return original(call, counters)

    monkeypatch.setattr(module, "verified", spoiled)
    rng = np.random.default_rng(4)
    rows = 50_000
    frame = pd.DataFrame({"v": rng.normal(size=rows)})
    # longer than words, and of more bytes than dictionary codes have
    frame["text"] = [f"{n * 2654435761 % 2**32:032x}" for n in rng.integers(0, 3_000, rows)]
    wanted = {"v": ["sum", "count"]}
    run = check(frame, ["text"], wanted)
    assert changed == [rows]
    assert run.groups == frame["text"].nunique()
