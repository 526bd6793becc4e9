"""The package is the rooms of docs/how-it-works.md: each imports what the table says, no more."""

import ast
from pathlib import Path

import pytest

import dask_gpuagg

PACKAGE = Path(dask_gpuagg.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "how-it-works.md").read_text()


def rows() -> list[list[str]]:
    """Name, files or folders, purpose and permitted imports of each room, from the bottom up."""
    section = PAGE.partition("\n## Rooms\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


ROOMS = {name: [place.strip("`") for place in places.split()] for name, places, _, _ in rows()}
MAY = {name: may.split(", ") if may else [] for name, _, _, may in rows()}


def room_of(path: Path) -> str:
    """The room of a file: the innermost that lists its folder, or the file itself."""
    place = path.relative_to(PACKAGE)
    candidates = [str(place), *(f"{parent}/" for parent in place.parents)]
    for candidate in candidates:
        for name, places in ROOMS.items():
            if candidate in places:
                return name
    raise AssertionError(f"{place} lies in no room")


def file_of(module: str) -> Path | None:
    path = PACKAGE.parent.joinpath(*module.split("."))
    imports = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in imports if file.exists()), None)


def imported(path: Path) -> set[Path]:
    """The files of ours that a file imports, at its top or in a function."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                modules.add(inner if file_of(inner) else node.module)
        elif isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
    files = {file_of(m) for m in modules if m.partition(".")[0] == "dask_gpuagg"}
    return {file for file in files if file is not None}


def test_no_room_may_import_upwards() -> None:
    order = list(ROOMS)
    upward = {(a, b) for a in order for b in MAY[a] if order.index(b) >= order.index(a)}
    assert not upward


@pytest.mark.parametrize("room", list(ROOMS))
def test_a_room_imports_what_the_table_permits(room: str) -> None:
    files = [path for path in PACKAGE.rglob("*.py") if room_of(path) == room]
    assert files
    imports = {room_of(other) for path in files for other in imported(path)} - {room}
    assert imports == set(MAY[room])
