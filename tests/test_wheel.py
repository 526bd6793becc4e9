"""Published files: the source archive, the wheel made of it, and an environment that has it."""

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

import dask_gpuagg
from tests.running import ROOT

QUERY = """
import json
from importlib.metadata import files, version

import dask.dataframe as dd
import pandas as pd

import dask_gpuagg
from dask_gpuagg.cuda.runtime.compiler import KERNEL_DIR

frame = pd.DataFrame({"k": [1, 2, 1, 2], "v": [1, 5, 2, 5], "w": [1.0, 2.0, 3.0, 4.0]})
query = {"v": ["nunique", "median"], "w": ["mean"]}
dask_gpuagg.enable()
result = dd.from_pandas(frame, npartitions=2).groupby("k").agg(query).compute().sort_index()
pd.testing.assert_frame_equal(result, frame.groupby("k").agg(query))
print(json.dumps({
    "version": version("dask-gpuagg"),
    "imported": dask_gpuagg.__file__,
    "kernels": str(KERNEL_DIR),
    "fallbacks": len(dask_gpuagg.fallbacks().entries),
    "files": [str(path) for path in files("dask-gpuagg")],
}))
"""

# what a program that uses the public names looks like to a type checker
CONSUMER = """
from typing import assert_type

import dask_gpuagg

assert_type(dask_gpuagg.is_enabled(), bool)
dask_gpuagg.enable()
with dask_gpuagg.enabled(), dask_gpuagg.profile() as p:
    print(p.to_json())
assert_type(p, dask_gpuagg.profile)
"""
MISTAKEN = "import dask_gpuagg\nanswer: int = dask_gpuagg.is_enabled().real + 'x'\n"


def run(*command: str | Path, cwd: Path, **options: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | options,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def built(kind: str, source: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder, cwd=source)
    (archive,) = folder.glob({"sdist": "*.tar.gz", "wheel": "*.whl"}[kind])
    return archive


def link_dependencies(packages: Path) -> None:
    """Link what the package needs, and what that needs, out of this environment."""
    (wheel,) = metadata.distributions(name="dask-gpuagg", path=[str(packages)])
    needed: dict[tuple[str, str], metadata.Distribution] = {}
    unread: list[tuple[metadata.Distribution, str]] = [(wheel, "")]
    while unread:
        distribution, extra = unread.pop()
        for requirement in map(Requirement, distribution.requires or ()):
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            for option in ("", *requirement.extras):
                key = (requirement.name.lower(), option)
                if key not in needed:
                    needed[key] = metadata.distribution(requirement.name)
                    unread.append((needed[key], option))
    for distribution in needed.values():
        for name in {path.parts[0] for path in distribution.files or ()} - {"..", "__pycache__"}:
            target = packages / name
            if not target.exists():
                target.symlink_to(distribution.locate_file(name))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    return {name: data for name, data in held.items() if not name.endswith("/RECORD")}


def test_built_archives_install_answer_a_query_and_are_typed(tmp_path: Path) -> None:
    archive = built("sdist", ROOT, tmp_path)
    with tarfile.open(archive) as source:
        source.extractall(tmp_path / "source", filter="data")
    (unpacked,) = (tmp_path / "source").iterdir()
    for page in ("LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "SECURITY.md"):
        assert (unpacked / page).read_bytes() == (ROOT / page).read_bytes()

    wheel = built("wheel", unpacked, tmp_path)
    assert contents(wheel) == contents(built("wheel", ROOT, tmp_path / "checkout"))

    # with the dependencies that the wheel names, and nothing else
    venv.create(tmp_path / "environment")
    python = tmp_path / "environment" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile")
    run(*pip, "--no-deps", wheel, cwd=tmp_path)
    # before its dependencies are there: they would take mypy most of its time
    (tmp_path / "consumer.py").write_text(CONSUMER)
    (tmp_path / "mistaken.py").write_text(MISTAKEN)
    check = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]
    check += ["--cache-dir", str(tmp_path / "types"), "--follow-imports", "silent"]
    checked = subprocess.run(
        [*check, "consumer.py", "mistaken.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 1, checked.stdout
    error, summary = checked.stdout.splitlines()
    assert error.startswith("mistaken.py:2: error: Unsupported operand types")
    assert summary == "Found 1 error in 1 file (checked 2 source files)"

    (packages,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    link_dependencies(packages)
    answers = json.loads(run(python, "-c", QUERY, cwd=tmp_path).splitlines()[-1])
    package = Path(answers["imported"]).parent
    assert tmp_path in package.parents
    assert answers["version"] == dask_gpuagg.__version__
    assert answers["fallbacks"] == 0
    assert Path(answers["kernels"]) == package / "kernels"
    headers = {path.relative_to(ROOT / "kernels") for path in ROOT.glob("kernels/**/*.cuh")}
    assert headers == {path.relative_to(package / "kernels") for path in package.glob("**/*.cuh")}
    installed = {Path(name).parts[0] for name in answers["files"]}
    assert {name for name in installed if name not in ("..", "dask_gpuagg")} == {
        f"dask_gpuagg-{dask_gpuagg.__version__}.dist-info"
    }
    for notice in ("LICENSE", "NOTICE"):
        assert any(name.endswith(f"licenses/{notice}") for name in answers["files"])
