"""Figures in the pages come from committed results, or say what else they are.

A figure is a number with a decimal point, or with a unit of time, memory or speed, a share or a
ratio. Its paragraph or item of a list, or its row of a table with the paragraph before, names a
file of ``benchmarks/results`` or a paper, or says ``by hand`` and links to the notebook. A figure
beside a file's name is one of that file's, rounded. Generated tables are compared with the
generator's. Columns that are called ``theirs`` have figures of papers.
"""

import importlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.running import ROOT

FILES = sorted((ROOT / "benchmarks" / "results").rglob("*.json"))
# says itself that its figures are by hand
NOTEBOOK = ROOT / "docs" / "notebook.md"
PAGES = [
    page
    for pattern in ("README.md", "docs/*.md", "kernels/**/README.md")
    for page in sorted(ROOT.glob(pattern))
    if page != NOTEBOOK
]

# what makes a number of a results file (seconds, milliseconds, bytes) one of a unit, or of none
SCALES = {
    **dict.fromkeys(("ms", "milliseconds"), (1, 1e3)),
    **dict.fromkeys(("s", "seconds"), (1, 1e-3)),
    "MiB": (1 / 2**20,),
    **dict.fromkeys(("GB", "GB/s"), (1, 1e-9)),
    "": (1, 1e3, 1e-3, 1e-9, 1 / 2**20),
}
_UNITS = "|".join(
    [*filter(None, SCALES), "[µpn]s", "picoseconds", "minutes", "%", "times", "×", "[KGT]i?B", "MB"]
)
_NUMBER = r"\d[\d,]*(?:\.\d+)?"
# also "1, 2 and 3 ms", and any number with a decimal point
WITH_UNIT = re.compile(
    rf"(?<![\w./^-])((?:{_NUMBER}(?:,? and |,? or |, | to ))*{_NUMBER}) ?({_UNITS})(?![\w/])"
)
DECIMAL = re.compile(r"(?<![\w./^:-])(?<!section )(?<!Python )\d+\.\d+(?![\w./-])")
IN_WORDS = re.compile(r"\b(?:twice|(?:two|three|four|five|six|eight|ten) times) as (?:long|fast)")
NO_PROSE = re.compile(r"`[^`]*`|\]\([^)]*\)|<[^>]*>")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"\w+\.json")
# parts of a results file that a page has to name, if its figures are theirs
DETAILS = {"kernels_ms", "decision", "query", "versions", "machine"}
THEIRS = re.compile(r"(?<=\|)[^|]*(?=\|[^|]*\|$)")
BY_HAND = re.compile(r"\[[^]]*by hand[^]]*\]\([^)]*notebook\.md|notebook\.md[^)]*\),? by hand")
PAPER = re.compile(r"\b(?:Karnagel|Luan|Rosenfeld|Wang|Wu)(?: and Chang)? 20\d\d|libcudf 2026")

# Not measured: limits and sizes that the code or Dask sets, versions, what an algorithm promises.
LIMITS: dict[str, set[str]] = {
    "README.md": {"0.1", "12 minutes"},
    "docs/configuration.md": {"4 GB", "1 GiB"},
    "docs/gpu.md": {"26.10"},
    "docs/gpu-kernels.md": {"1.8"},
    "docs/larger.md": {"16 MiB", "192 MiB", "256 MiB", "2 GiB", "32 GiB"},
    "docs/memory.md": {"128 MiB"},
    "docs/papers.md": {"26.10", "256 MiB"},
    "docs/quickstart.md": {"2025.5"},
    "docs/routes.md": {"4 MiB", "16 MiB", "32 MiB", "64 MiB", "128 MiB", "1 GiB", "100 MB"},
    "docs/support.md": {"1 %", "1.6 %", "16 KiB"},
    "docs/what-it-costs.md": {"0.5"},
    "docs/when-it-fails.md": {"30 s", "95 %"},
    "kernels/direct/README.md": {"1.8"},
    "kernels/hgb/README.md": {"0.85"},
    "kernels/output/README.md": {"32 MiB"},
    "kernels/pgb_tr/README.md": {"0.65", "0.75", "0.8"},
    "kernels/select/README.md": {"0.0", "4.5"},
    "kernels/sgb/README.md": {"0.0"},
}


def blocks(page: Path) -> Iterator[str]:
    """Paragraphs, items of lists, and rows of tables with the paragraph before."""
    marked = importlib.import_module("page_tables").MARKED
    text = FENCE.sub("", marked.sub("", page.read_text(encoding="utf-8")))
    block = ""
    for paragraph in re.split(r"\n\s*\n", text):
        if paragraph.lstrip().startswith("|"):
            is_of_papers = "| theirs | ours |" in paragraph
            for row in paragraph.splitlines():
                yield f"{block}\n{THEIRS.sub('', row) if is_of_papers else row}"
            continue
        yield block
        *items, block = re.split(r"\n(?=\s*(?:[-*:]|\d+\.) )", paragraph)
        yield from items
    yield block


def figures(page: Path, block: str) -> dict[str, str]:
    """The figures of a block, and their units, without those that are limits."""
    prose = NO_PROSE.sub("", block)
    shown = {found[0]: found[2] for found in WITH_UNIT.finditer(prose)}
    shown |= dict.fromkeys(DECIMAL.findall(WITH_UNIT.sub("", prose)), "")
    shown |= dict.fromkeys(IN_WORDS.findall(prose), "%")
    limits = LIMITS.get(str(page.relative_to(ROOT)), set())
    return {figure: unit for figure, unit in shown.items() if figure not in limits}


@cache
def numbers_of(name: str, left_out: frozenset[str]) -> list[float]:
    """The numbers of the results files of a name, without parts that are called so."""

    def numbers(value: Any) -> Iterator[float]:
        if isinstance(value, dict | list):
            parts = dict(enumerate(value)) if isinstance(value, list) else value
            for key, part in parts.items():
                if key not in left_out:
                    yield from numbers(part)
        elif isinstance(value, int | float):
            yield value

    same = [path for path in FILES if path.name == name]
    return [number for path in same for number in numbers(json.loads(path.read_text()))]


def is_of(figure: str, unit: str, names: set[str], block: str) -> bool:
    """Whether each number of a figure is one of the files, rounded; shares may be of two."""
    left_out = frozenset(detail for detail in DETAILS if f"`{detail}`" not in block)
    numbers = [number for name in names for number in numbers_of(name, left_out)]
    for text in re.findall(_NUMBER, figure) if unit in SCALES else ():
        shown, digits = float(text.replace(",", "")), len(text.partition(".")[2])
        if not any(round(n * scale, digits) == shown for n in numbers for scale in SCALES[unit]):
            return False
    return True


@pytest.fixture(autouse=True)
def _generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_figures_are_of_results_or_of_papers_or_by_hand(page: Path) -> None:
    problems = []
    for block in blocks(page):
        if PAPER.search(block) or BY_HAND.search(block):
            continue
        names = set(FILE.findall(block)) & {path.name for path in FILES}
        for figure, unit in figures(page, block).items():
            if not names:
                problems.append(f"{figure} has no source: {block.strip()[:200]}")
            elif not is_of(figure, unit, names, block):
                problems.append(f"{figure} is not in {sorted(names)}: {block.strip()[:200]}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_results_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"benchmarks/results/(\S+?\.json)", text)
    assert all((ROOT / "benchmarks" / "results" / name).exists() for name in named)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_tables_are_those_of_the_generator(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert importlib.import_module("page_tables").with_tables(text) == text


def test_limits_are_still_in_their_pages() -> None:
    for name, limits in LIMITS.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert {limit for limit in limits if limit not in text} == set()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("takes 1.27 and 2.5 ms, or `4 ms` by [another](of_3_ms.md)", {"1.27 and 2.5 ms": "ms"}),
        ("1,024 MiB of 3 columns", {"1,024 MiB": "MiB"}),
        ("a ratio of 3.1 by Python 3.11, section 4.2", {"3.1": ""}),
        ("12 % less, and six times as fast", {"12 %": "%", "six times as fast": "%"}),
        ("131,072 rows of 2 partitions", {}),
    ],
)
def test_what_a_figure_is(text: str, shown: dict[str, str]) -> None:
    assert figures(NOTEBOOK, text) == shown


def test_a_figure_that_no_file_has_is_seen() -> None:
    assert is_of("8.63 ms", "ms", {"families.json"}, "")
    assert not is_of("8.17 ms", "ms", {"families.json"}, "")
    assert not is_of("8.63 to 787 ms", "ms", {"families.json"}, "")
