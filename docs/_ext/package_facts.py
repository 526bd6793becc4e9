"""Write the parts of the documentation that the package itself knows.

Before a build reads its pages, this makes ``_generated/support.md`` and ``meaning.md`` from the
registry of aggregations, ``device.md`` from what the device engine takes, ``configuration.md`` from
the configuration file with its comments, and others from the committed results of the benchmarks
(``result_tables.py``). The pages of ``kernels/``, which lie beside the kernels, are copied to
``docs/kernels/``. Their links, and those to them, are written as they are in the repository, where
readers of the sources follow them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import result_tables
import yaml
from dask.dataframe import from_pandas
from sphinx.application import Sphinx

import dask_gpuagg
from dask_gpuagg.engines.device.support import device_table
from dask_gpuagg.picture import columns_of, drawn
from dask_gpuagg.tables import meaning_table, support_table

_ROOT = Path(__file__).parents[2]
# ``docs/`` and ``kernels/`` are neighbours in the repository; in the build one holds the other.
_TO_KERNELS = re.compile(r"\]\(\.\./(?=kernels/)")
_TO_DOCS = re.compile(r"\]\((?P<up>(\.\./)+)docs/")
_KEY = re.compile(r"(?P<indent> *)(?P<name>[\w-]+):(?P<value>.*)")
_CHOICE = re.compile(r" {2,}(?P<name>\S+) {2,}(?P<meaning>\S.*)")


def configuration(text: str) -> str:
    """Markdown section for each key of a commented YAML file.

    Parameters
    ----------
    text : str
        The file; the comment above a key describes it. Lines of the form
        ``#   choice  meaning`` become a list.

    Returns
    -------
    str
        For each key with a value: name, default, environment variable and description.
    """
    return "\n\n".join(_sections(text)) + "\n"


def _sections(text: str) -> Iterator[str]:
    defaults = yaml.safe_load(text)
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("#"):
            comment.append(bare[1:].removeprefix(" "))
        elif match := _KEY.fullmatch(line):
            path[len(match["indent"]) // 2 :] = [match["name"]]
            if match["value"].strip():
                yield _section(path, _look_up(defaults, path), comment)
            comment = []


def _look_up(tree: Any, path: list[str]) -> Any:
    for name in path:
        tree = tree[name]
    return tree


def _section(path: list[str], default: Any, comment: list[str]) -> str:
    shown = yaml.safe_dump(default).removesuffix("\n").removesuffix("\n...")
    variable = "DASK_" + "__".join(path).upper().replace("-", "_")
    lines = [f"## `{'.'.join(path)}`", "", f"Default `{shown}`, environment `{variable}`.", ""]
    for text in comment:
        if choice := _CHOICE.fullmatch(text):
            # A list may not start in the middle of a paragraph.
            if not lines[-1].startswith("- "):
                lines.append("")
            lines.append(f"- `{choice['name']}`: {choice['meaning']}")
        else:
            lines.append(text.strip())
    return "\n".join(lines)


def plan_picture(aggregation: str) -> str:
    """The picture of a plan, as ``explain()`` shows it, as HTML.

    Parameters
    ----------
    aggregation : str
        Of a column of twelve partitions.

    Returns
    -------
    str
        A raw block of Markdown.
    """
    frame = pd.DataFrame({"key": range(1_200), "value": 1.0})
    with dask_gpuagg.enabled():
        grouped = from_pandas(frame, npartitions=12).groupby("key").value
        (explained,) = dask_gpuagg.explain(getattr(grouped, aggregation)()).groupbys
    return f"```{{raw}} html\n{drawn(columns_of(explained.physical, ''))}\n```\n"


def in_the_build(page: str, text: str) -> str:
    """A page's text with the links that hold in the build.

    Parameters
    ----------
    page : str
        Name of the document, relative to ``docs/``.
    text : str
        As it is in the repository.

    Returns
    -------
    str
    """
    if page.startswith("kernels/"):
        return _TO_DOCS.sub(r"](\g<up>", text)
    return _TO_KERNELS.sub("](", text)


def _copy_kernel_pages(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "kernels"
    shutil.rmtree(folder, ignore_errors=True)
    for page in (_ROOT / "kernels").rglob("*.md"):
        copy = folder / page.relative_to(_ROOT / "kernels")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, copy)


def _relink(app: Sphinx, page: str, text: list[str]) -> None:
    text[0] = in_the_build(page, text[0])


def _write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "_generated"
    folder.mkdir(exist_ok=True)
    settings = files(dask_gpuagg).joinpath("gpuagg.yaml").read_text(encoding="utf-8")
    parts = {
        "support.md": support_table(),
        "meaning.md": meaning_table(),
        "configuration.md": configuration(settings),
        "device.md": device_table(),
        "plan_sum.md": plan_picture("sum"),
        "plan_median.md": plan_picture("median"),
        **result_tables.parts(),
    }
    for name, text in parts.items():
        (folder / name).write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("builder-inited", _write)
    app.connect("builder-inited", _copy_kernel_pages)
    app.connect("source-read", _relink)
    return {"parallel_read_safe": True}
