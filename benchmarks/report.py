"""Result files: JSON with one measured cell a line, so that a new run makes a short diff."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# What these keys hold are records: one a line, whatever their length.
RECORDS = ("cells", "compiling", "queries", "results", "runs")
WIDTH = 100


def write(report: dict[str, Any], path: Path) -> None:
    """Write a report so that an interrupted run leaves a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text(report))
    unfinished.replace(path)


def text(report: dict[str, Any]) -> str:
    """Return the JSON text of a report."""
    return "\n".join(_lines(report, "", records=False)) + "\n"


def _lines(value: Any, indent: str, records: bool) -> Iterator[str]:
    """Lines of a value; of one that holds records, one line for each of them."""
    whole = json.dumps(value)
    if not isinstance(value, dict | list) or not (records or len(indent + whole) > WIDTH):
        yield whole
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    yield opening
    inner = indent + " "
    items = list(value.items()) if isinstance(value, dict) else [(None, v) for v in value]
    for number, (key, item) in enumerate(items, 1):
        comma = "," if number < len(items) else ""
        name = "" if key is None else f"{json.dumps(key)}: "
        if records:
            yield f"{inner}{name}{json.dumps(item)}{comma}"
        else:
            first, *rest = _lines(item, inner, records=key in RECORDS)
            yield inner + name + first + (comma if not rest else "")
            yield from (line + (comma if line is rest[-1] else "") for line in rest)
    yield indent + closing
