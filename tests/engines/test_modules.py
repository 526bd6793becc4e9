"""Modules of the engines, chosen by their names: what is asked of them, and by several threads."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dask_gpuagg
from dask_gpuagg import engines
from dask_gpuagg.engines import device

PACKAGE = Path(dask_gpuagg.__file__).parent
# what gives a module of an engine, and the name of the module
GIVEN = {"engine_of": "engine", "narrowing_of": "narrowed"}


def defined(path: Path) -> set[str]:
    """Names at the top level of a module."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def asked(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """What a function asks of an engine's modules: the module, and the attribute."""
    given = {arg.arg: "engine" for arg in function.args.args if arg.arg == "engine"} | {
        target.id: GIVEN[node.value.func.id]
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id in GIVEN
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id=name)) if name in given:
                yield given[name], node.attr
            case ast.Attribute(value=ast.Call(func=ast.Name(id=name))) if name in GIVEN:
                yield GIVEN[name], node.attr


def test_the_device_engine_has_what_is_asked_of_an_engine() -> None:
    """Modules that are chosen as the program runs are none that a type checker looks into."""
    wanted = {
        (module, name)
        for path in PACKAGE.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for module, name in asked(function)
        if not name.startswith("__")
    }
    assert {"partial", "finalize", "shape_of", "stack"} <= {name for _, name in wanted}
    folder = Path(device.__file__).parent
    has = {module: defined(folder / f"{module}.py") for module in GIVEN.values()}
    assert not [(module, name) for module, name in wanted if name not in has[module]]


def test_modules_of_the_device_engine_have_what_is_asked_of_them() -> None:
    """The same of those that are named where they are asked."""
    wanted = set()
    for node in ast.walk(ast.parse(Path(engines.__file__).read_text())):
        match node:
            case ast.Attribute(
                value=ast.Call(func=ast.Name(id="_device"), args=[ast.Constant(value=str(module))])
            ):
                wanted.add((module, node.attr))
    assert wanted
    folder = Path(device.__file__).parent
    for module, name in wanted:
        assert name in defined(folder / f"{module}.py")


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
