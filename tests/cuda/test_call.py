"""What the host does while the kernels of a call run, without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dask_gpuagg.cuda import call as module
from dask_gpuagg.cuda.call import Call
from tests.cuda.choice.test_choose import H200
from tests.cuda.specialisations import TABLE


def test_what_needs_no_group_is_done_once_before_the_groups_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(module, "read_back", lambda *_: done.append("waited"))
    nothing: Any = None
    call = Call(
        query=TABLE["5 aggregations by int64"],
        kernels=nothing,
        device=H200,
        stream=SimpleNamespace(__cuda_stream__=lambda: (0, 0)),
        pieces=(),
        rows=0,
        meanwhile=lambda: done.append("work"),
    )
    call.counters()
    call.counters()
    assert done == ["work", "waited", "waited"]
