"""The settings as a part of the documentation: a table of all, and a section for each."""

from __future__ import annotations

import inspect
import json

from dask_gpuagg.settings import SETTINGS


def settings_page() -> str:
    """Markdown for the settings: a table of all, and a section for each.

    Returns
    -------
    str
        A row has name, default and environment variable, a section also the values and the text.
    """
    rows = ["| setting | default | environment |", "| --- | --- | --- |"]
    sections = []
    for name, setting in SETTINGS.items():
        default = json.dumps(setting.default).strip('"')
        variable = f"DASK_GPUAGG__{name.upper().replace('-', '_')}"
        rows.append(f"| [`gpuagg.{name}`](#gpuagg-{name}) | `{default}` | `{variable}` |")
        values = f"Default `{default}`, environment `{variable}`. Values: {setting.values.allowed}."
        text = inspect.cleandoc(setting.text)
        sections.append(f"(gpuagg-{name})=\n\n## `gpuagg.{name}`\n\n{values}\n\n{text}")
    return "\n\n".join(["\n".join(rows), *sections]) + "\n"
