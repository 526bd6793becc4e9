"""Write the parts of the documentation that the package itself knows.

Before a build reads its pages, this makes ``_generated/support.md`` and ``meaning.md`` from the
registry of aggregations, ``device.md`` from what the device engine takes, ``configuration.md`` from
the table of settings, and others from the committed results of the benchmarks
(``result_tables.py``). The pages of ``kernels/``, which lie beside the kernels, are copied to
``docs/kernels/``. Their links, and those to them, are written as they are in the repository, where
readers of the sources follow them.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import result_tables
from dask.dataframe import from_pandas
from package_tables import (
    device_table,
    meaning_table,
    settings_table,
    steps_table,
    support_table,
)
from sphinx.application import Sphinx

import dask_gpuagg
from dask_gpuagg.explain import drawn, stages_of

_ROOT = Path(__file__).parents[2]
# ``docs/`` and ``kernels/`` are neighbours in the repository; in the build one holds the other.
_TO_KERNELS = re.compile(r"\]\(\.\./(?=kernels/)")
_TO_DOCS = re.compile(r"\]\((?P<up>(\.\./)+)docs/")


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
    return f"```{{raw}} html\n{drawn(stages_of(explained.physical, ''))}\n```\n"


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
    parts = {
        "support.md": support_table(),
        "meaning.md": meaning_table(),
        "configuration.md": settings_table(),
        "device.md": device_table(),
        "steps.md": steps_table(),
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
