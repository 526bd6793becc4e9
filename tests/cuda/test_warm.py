"""``dask-gpuagg warm`` without a GPU: what it compiles, keeps and says."""

from pathlib import Path

import dask
import pytest

from dask_gpuagg.cuda import warm
from dask_gpuagg.cuda.query.instantiations import TranslationUnit
from dask_gpuagg.cuda.runtime import driver
from dask_gpuagg.cuda.runtime.compiler import compile_source
from tests.cuda.runtime.caching import entries
from tests.cuda.specialisations import TABLE

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's bindings are not installed")

TINY = TranslationUnit("__global__ void tiny() {}\n", {"tiny": "tiny"})
WRONG = TranslationUnit("__global__ void f() { no_such_thing(); }\n", {})


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little to compile."""
    monkeypatch.setattr(warm, "work", lambda many_groups: {"by int64": [TINY]})


def test_the_second_time_all_is_there(
    small: None, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert warm.main(["--architecture", "sm_90"]) == 0
    said = capsys.readouterr().out
    assert f"kernels for sm_90, kept in {cache}" in said
    assert "by int64: 1 units compiled" in said
    (entry,) = entries(cache)
    assert entry.read_bytes().startswith(b"\x7fELF")
    assert warm.main(["--architecture", "sm_90"]) == 0
    said = capsys.readouterr().out
    assert "by int64: 0 units compiled" in said
    assert "1 were there" in said
    assert entries(cache) == [entry]


def test_several_architectures(small: None, cache: Path) -> None:
    assert warm.main(["--architecture", "sm_80", "--architecture", "sm_100"]) == 0
    assert len(entries(cache)) == 2


def test_a_unit_that_fails_is_told(
    small: None, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "work", lambda many_groups: {"by int64": [WRONG, TINY]})
    assert warm.main(["--architecture", "sm_90"]) == 1
    said = capsys.readouterr()
    assert "no_such_thing" in said.err
    assert "1 units compiled" in said.out
    assert len(entries(cache)) == 1


def test_an_unknown_architecture(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert warm.main(["--architecture", "sm_1"]) == 1
    assert "not for sm_1" in capsys.readouterr().err


def test_without_a_gpu_an_architecture_is_needed(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "unavailable", lambda: "no CUDA device")
    assert warm.main([]) == 1
    assert "no CUDA device; name an --architecture" in capsys.readouterr().err


def test_without_a_directory_nothing_is_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        dask.config.set({"gpuagg.kernel-cache": "~nosuchuser/x"}),
        pytest.warns(UserWarning, match="home directory"),
    ):
        assert warm.main(["--architecture", "sm_90"]) == 1
    assert "no kernel cache" in capsys.readouterr().err


def test_queries_are_those_of_the_specialisations() -> None:
    """Which are written as the device engine writes them."""
    for key, name in {"int64": "int64", "string": "strings"}.items():
        queries = {query for query, _ in warm.common(key)}
        assert {TABLE[f"1 aggregation by {name}"], TABLE[f"5 aggregations by {name}"]} <= queries


@pytest.mark.parametrize("key", warm.KEYS)
def test_units_of_many_groups_are_more_and_none_comes_twice(key: str) -> None:
    few, every = (warm.units_of(key, many_groups) for many_groups in (False, True))
    for units in (few, every):
        texts = {(unit.source, *unit.kernels) for unit in units}
        assert len(texts) == len(units)
    assert {unit.source for unit in few} < {unit.source for unit in every}
    kernels = {kernel for unit in few for kernel in unit.kernels}
    assert {"write", "lphga", "sample", "hgb", "encode"} <= kernels
    assert ("make_words" in kernels) == (key in ("string", "two int64"))


def test_merges_of_common_queries_compile() -> None:
    queries = {query for query, of_rows in warm.common("int64") if not of_rows}
    assert len(queries) >= len(warm.AGGREGATIONS)
    for query in queries:
        assert compile_source(query.source("core"), "sm_90").code
