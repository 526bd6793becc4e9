"""libcudf's group-by in place of the kernels: what can be told without a GPU."""

import warnings
from collections.abc import Iterator
from types import ModuleType
from unittest.mock import MagicMock

import dask
import pytest

from dask_gpuagg.cuda.runtime.compiler import CompileError
from dask_gpuagg.reporting.fallbacks import FallbackWarning
from tests.cuda.specialisations import TABLE
from tests.engines.device import stand_ins
from tests.engines.device.stand_ins import without_rapids

LOG = """gpuagg.cu(3): warning #177-D: variable "x" was declared but never referenced
states.cuh(70): error: identifier "no_such_thing" is undefined
1 error detected in the compilation of "gpuagg.cu"."""


@pytest.fixture
def library() -> Iterator[ModuleType]:
    """The module, with a stand-in for pylibcudf: enough for what touches no column."""
    plc, any_column = MagicMock(), MagicMock()
    any_column.columns.return_value = [any_column]
    plc.groupby.GroupBy.return_value.aggregate.return_value = (any_column, [any_column] * 64)
    plc.transform.bools_to_mask.return_value = (any_column, 0)
    with without_rapids(pylibcudf=plc, pylibcudf__types=plc.types):
        yield stand_ins.module("libcudf")


def test_every_state_and_output_is_made(library: ModuleType) -> None:
    """The specialisations have all there are, as the tests of the compiler make sure."""
    for query in TABLE.values():
        keys, inputs = ([MagicMock() for _ in part] for part in (query.keys, query.inputs))
        served = library.aggregate(query, keys, inputs, "because")
        assert len(served.outputs) == len(query.outputs)


def test_the_warning_names_the_cause_once(library: ModuleType) -> None:
    with dask.config.set({"gpuagg.fallback": "warn"}), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        causes = {library.cause_of(CompileError(LOG)) for _ in range(3)}
        other = library.cause_of(CompileError("NVRTC cannot be loaded: no such file"))
    assert causes == {'states.cuh(70): error: identifier "no_such_thing" is undefined'}
    assert other == "NVRTC cannot be loaded: no such file"
    assert [w.category for w in seen] == [FallbackWarning] * 2
    assert "no_such_thing" in str(seen[0].message)
    assert "libcudf" in str(seen[0].message)


def test_silent_does_not_warn_and_raise_raises(library: ModuleType) -> None:
    error = CompileError(LOG)
    with dask.config.set({"gpuagg.fallback": "silent"}), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "no_such_thing" in library.cause_of(error)
    with dask.config.set({"gpuagg.fallback": "raise"}), pytest.raises(CompileError, match="177-D"):
        library.cause_of(error)
