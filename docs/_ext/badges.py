"""Badges of ``README.md``: what the package asks for, and what continuous integration runs.

They say what files of the repository say, not whether a run has passed, and are made by
``python docs/_ext/badges.py``. A test compares them.
"""

from __future__ import annotations

import re
import tomllib
from html import escape
from pathlib import Path

from dask_gpuagg.frontend.activation import NEWEST_DASK, OLDEST_DASK

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "_static" / "badges"
# pixels of a letter of 11 px, on average, and on either side of a text
_LETTER, _ROOM = 6.2, 7


def badges() -> dict[str, str]:
    """Each badge as SVG, by the name of its file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    python = project["requires-python"].removeprefix(">=")
    steps = re.findall(r"^(?:exec )?make (\S+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    return {
        "ci": _drawn("CI runs", " · ".join(steps)),
        "dask": _drawn("tested on Dask", f"{OLDEST_DASK} to {NEWEST_DASK}"),
        "python": _drawn("Python", f"{python} or newer"),
        "license": _drawn("license", project["license"]),
    }


def _drawn(label: str, text: str) -> str:
    left, right = (round(len(part) * _LETTER) + 2 * _ROOM for part in (label, text))
    width = left + right
    label, text = escape(label), escape(text)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" '
        f'aria-label="{label}: {text}"><rect width="{width}" height="20" rx="3" fill="#555"/>'
        f'<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1 -3 3h-{right - 3}z" '
        'fill="#1f77b4"/><g fill="#fff" text-anchor="middle" font-size="11" '
        'font-family="Verdana,DejaVu Sans,sans-serif">'
        f'<text x="{left / 2:g}" y="14" textLength="{left - 2 * _ROOM}">{label}</text>'
        f'<text x="{left + right / 2:g}" y="14" textLength="{right - 2 * _ROOM}">{text}</text>'
        "</g></svg>\n"
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, svg in badges().items():
        (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")
