"""Links between the pages of the repository lead somewhere, and kernels have a page each."""

import json
import re
from pathlib import Path

import pytest

import dask_gpuagg
from tests.running import ROOT

PAGES = sorted(
    page
    for pattern in ("*.md", "benchmarks/*.md", "docs/*.md", "docs/n*/*.md", "kernels/**/*.md")
    for page in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\((?!https?:|mailto:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
# without headings of pages that are generated
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
RELEASE = re.compile(r"^## \[(?P<version>[\d.]+)\] - \d{4}-\d{2}-\d{2}$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def text_of(page: Path) -> str:
    """A page without its blocks of code, whose brackets are no links."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The text that headings are linked by: lower case, without punctuation, hyphens for spaces."""
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text_of(page)))
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.finditer(text_of(page)):
        target = page.parent / link["path"] if link["path"] else page
        assert target.exists(), link[0]
        if link["anchor"]:
            assert link["anchor"] in anchors(target), link[0]


def test_public_names_that_are_loaded_late_are_documented() -> None:
    """Sphinx finds the others in the module."""
    late = {name for name in dask_gpuagg.__all__ if name not in vars(dask_gpuagg)}
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\.\. auto\w+:: dask_gpuagg\.(\w+)$", page, re.MULTILINE)
    assert late
    assert late <= set(documented)


def test_the_notebook_of_a_gpu_has_the_outputs_of_one() -> None:
    notebook = json.loads((ROOT / "docs" / "notebooks" / "gpu.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    # run as a whole, in this order
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert "NVIDIA" in "".join(outputs[0]["text"])
    assert {output["output_type"] for output in outputs} == {"stream", "execute_result"}
    assert all(output.get("name", "stdout") == "stdout" for output in outputs)


def test_every_folder_of_kernels_has_a_page() -> None:
    folders = {path.parent for path in (ROOT / "kernels").rglob("*.cuh")}
    # what all share is in the map itself
    folders -= {ROOT / "kernels", ROOT / "kernels" / "core"}
    map_of_kernels = (ROOT / "kernels" / "README.md").read_text(encoding="utf-8")
    for folder in folders:
        assert (folder / "README.md").exists()
        assert f"]({folder.name}/README.md)" in map_of_kernels


def test_the_changelog_has_the_version_that_is_released() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## .*$", changelog, re.MULTILINE)
    assert headings[0] == "## [Unreleased]"
    assert all(RELEASE.fullmatch(heading) for heading in headings[1:])
    newest = RELEASE.search(changelog)
    assert newest is not None
    if ".dev" in dask_gpuagg.__version__:
        # the next one
        assert dask_gpuagg.__version__.split(".dev")[0] not in RELEASE.findall(changelog)
    else:
        assert dask_gpuagg.__version__ == newest["version"]


def test_the_figures_of_the_readme_are_those_of_the_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    from result_tables import highlight_table

    assert f"\n{highlight_table()}\n" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_badges_say_what_the_files_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    from badges import FOLDER, badges

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pictures = badges()
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(pictures)
    for name, svg in pictures.items():
        assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == svg
        assert f"({(FOLDER / name).relative_to(ROOT)}.svg)" in readme
    assert ">test-oldest · docs · test<" in pictures["ci"]
