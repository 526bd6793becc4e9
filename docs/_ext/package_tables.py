"""Tables of the documentation that the package itself knows: aggregations, dtypes and settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.dtypes import DEVICE_CLASSES, DTYPE_CLASSES
from dask_gpuagg.engines.device.support import device_classes
from dask_gpuagg.planning.derived import COMPUTED, COMPUTED_OF_TIMES
from dask_gpuagg.planning.filters import METHODS_OF_TIMES, STEPS
from dask_gpuagg.settings import SETTINGS


def support_table() -> str:
    """Aggregations against dtype classes: ``✓`` where our plan runs it."""
    rows = [
        [f"`{agg.name}`", *("✓" if cls in agg.accepts else "" for cls in DTYPE_CLASSES)]
        for agg in REGISTRY.values()
    ]
    return markdown(["aggregation", *DTYPE_CLASSES], rows)


def device_table() -> str:
    """Aggregations against dtype classes: ``yes`` where the device engine runs it."""
    rows = []
    for name in REGISTRY:
        marks = ["yes" if cls in device_classes(name) else "" for cls in DEVICE_CLASSES]
        if any(marks):
            rows.append([f"`{name}`", *marks])
    return markdown(["aggregation", *DEVICE_CLASSES], rows)


def meaning_table() -> str:
    """By aggregation: its result, its treatment of nulls, how partials meet, where to write it."""
    rows = []
    for agg in REGISTRY.values():
        where = "yes" if agg.in_agg else "method only"
        if agg.in_agg and not agg.stock_agg:
            where = "yes (stock Dask refuses it)"
        rows.append([f"`{agg.name}`", agg.summary, agg.null_rule, agg.kind.value, where])
    return markdown(["aggregation", "gives", "nulls", "combined by", "in `.agg`"], rows)


def settings_table() -> str:
    """Settings: their defaults, values and environment variables."""
    rows = []
    for name, setting in SETTINGS.items():
        default = json.dumps(setting.default).strip('"')
        variable = f"`DASK_GPUAGG__{name.upper().replace('-', '_')}`"
        setting_of = f"[`gpuagg.{name}`](#gpuagg-{name})"
        rows.append([setting_of, f"`{default}`", setting.allowed, variable])
    return markdown(["setting", "default", "values", "environment"], rows)


# words for the kinds of dtypes of numpy
_COLUMNS = {
    "biuf": "numbers and booleans",
    "biufmM": "numbers, booleans, times and durations",
    "b": "booleans",
    "iM": "times",
}


def steps_table() -> str:
    """Steps that may be above a filter, by the columns that they take."""
    steps: dict[str, list[tuple[str, bool]]] = {}
    for kind, dtypes in STEPS.items():
        name = getattr(kind, "_operator_repr", kind.__name__.lower())
        steps.setdefault(dtypes, []).append((name, kind in COMPUTED))
    names = sorted(METHODS_OF_TIMES)
    steps["iM"] = [(f".dt.{name}", name == COMPUTED_OF_TIMES) for name in names]
    rows = [
        [
            _listed([name for name, _ in of_dtypes]),
            _COLUMNS[dtypes],
            _listed([name for name, computed in of_dtypes if computed]),
        ]
        for dtypes, of_dtypes in steps.items()
    ]
    return markdown(["steps", "of columns of", "by the kernel of a GPU"], rows)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`".replace("|", "\\|") for name in names)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells."""
    rule = "|" + " --- |" * len(head)
    body = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([body[0], rule, *body[1:]])
