"""The modules of the engines: loaded by name, and by several threads."""

import ast
import functools
import inspect
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dask_gpuagg import engines
from dask_gpuagg.engines import Engine, device, host


def functions(protocol: Any) -> dict[str, inspect.Signature]:
    """The signatures that a protocol asks for, by name."""
    return {
        name: inspect.signature(function)
        for name, function in vars(protocol).items()
        if inspect.isfunction(function) and not name.startswith("_")
    }


@functools.cache
def parameters(module: Path) -> dict[str, list[str]]:
    """Names of the parameters of the functions that a module defines or imports; not imported."""
    found: dict[str, list[str]] = {}
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dask_gpuagg"):
            path = module.parents[3].joinpath(*str(node.module).split(".")).with_suffix(".py")
            if path.exists() and path != module:
                names = {alias.name for alias in node.names}
                found |= {n: p for n, p in parameters(path).items() if n in names}
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = [arg.arg for arg in node.args.args]
    return found


@pytest.mark.parametrize("engine", [host, device], ids=["host", "device"])
def test_an_engine_has_the_functions_of_the_protocol(engine: Any) -> None:
    has = parameters(Path(engine.__file__).parent / "engine.py")
    for function, signature in functions(Engine).items():
        assert function in has, function
        assert len(has[function]) == len(signature.parameters) - 1, function


def test_a_module_that_another_thread_still_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text("import time\n\ntime.sleep(0.5)\nready = True\n")
    monkeypatch.setattr(device, "__path__", [*device.__path__, str(tmp_path)])
    try:
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda name: hasattr(engines._device(name), "ready"), ["slow"] * 4)
            assert all(found)
    finally:
        sys.modules.pop(f"{device.__name__}.slow", None)
        vars(device).pop("slow", None)
