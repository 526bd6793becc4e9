"""Numbers with their units, and tables as text and as HTML, for reports."""

import html
from collections.abc import Sequence
from typing import TypeVar

# colours that are read on light and on dark pages
STYLE = (
    "<style>.gpuagg{font:13px/1.45 system-ui,sans-serif;max-width:100%}"
    ".gpuagg .wide{overflow-x:auto}"
    ".gpuagg table{border-collapse:collapse;margin:.3em 0 .8em;font:inherit;color:inherit}"
    ".gpuagg th,.gpuagg td{padding:.15em .7em .15em 0;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid rgba(128,128,128,.35)}"
    ".gpuagg th{font-weight:600}"
    ".gpuagg th:first-child,.gpuagg td:first-child{text-align:left}"
    ".gpuagg .text th,.gpuagg .text td{text-align:left}"
    ".gpuagg .text td{white-space:normal;overflow-wrap:anywhere}"
    ".gpuagg .text td:first-child{overflow-wrap:normal}"
    ".gpuagg h4{margin:.6em 0 .1em;overflow-wrap:anywhere}"
    ".gpuagg p{margin:.2em 0;overflow-wrap:anywhere}"
    ".gpuagg .off{border-left:4px solid #d08700;padding-left:.6em}"
    ".gpuagg td:has(.bar){text-align:left}"
    ".gpuagg .bar{display:inline-block;height:.7em;background:#3b82c4;vertical-align:middle}"
    "</style>"
)


T = TypeVar("T")


class Lines(list[T]):
    """A list that prints one element a line, in a notebook too."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) if self else "[]"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return page(*(f"<p>{escaped(line)}</p>" for line in self or ["[]"]))


def count_text(number: int, noun: str) -> str:
    """A number of something: ``1 task``, ``1,200 tasks``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_text(nbytes: float) -> str:
    """Bytes in a unit that suits them: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:,.0f} B" if unit == "B" else f"{nbytes:,.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.1f} TiB"


def time_text(seconds: float) -> str:
    """Seconds in a unit that suits them: ``12.5 ms``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:,.0f} µs"
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def rate_text(per_second: float) -> str:
    """Rows a second: ``12.5 M``."""
    for factor, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if per_second >= factor:
            return f"{per_second / factor:,.1f}{unit}"
    return f"{per_second:,.0f}"


def page(*parts: str) -> str:
    """Parts of a report as one piece of HTML."""
    return f'<div class="gpuagg">{STYLE}{"".join(parts)}</div>'


def escaped(text: object) -> str:
    """Text as HTML shows it."""
    return html.escape(str(text))


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], text: bool = False) -> str:
    """A table of cells that are HTML already: of numbers, or of text that is wrapped."""
    titles = "".join(f"<th>{escaped(cell)}</th>" for cell in head)
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    kind = ' class="text"' if text else ""
    return f'<div class="wide"><table{kind}><tr>{titles}</tr>{body}</table></div>'


def bar(share: float) -> str:
    """HTML of a bar, whose width is a share of 10 letters."""
    return f'<span class="bar" style="width:{max(10 * share, 0.1):.2f}em"></span>'


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for first, *others in (head, *rows):
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return lines
