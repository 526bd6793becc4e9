"""Outputs of groups on the device: finished states, distinct pairs and whole groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cudf
import pylibcudf as plc

from dask_gpuagg.aggregations import REGISTRY, Kind
from dask_gpuagg.engines.device import best, library_states
from dask_gpuagg.engines.device.columns import column_at, like, names_of, plain, table, view
from dask_gpuagg.engines.device.groups import Grouping, Numbering
from dask_gpuagg.engines.device.passes import keys_of
from dask_gpuagg.engines.device.results import index_of
from dask_gpuagg.engines.device.whole_groups import by_kernels, counts, is_chrono, serves
from dask_gpuagg.plan import Output, Plan


def numbered(keys: Sequence[Any], keep_nulls: bool = True) -> tuple[Any, Numbering | None]:
    """The groups of some rows, and the rows' numbers if the kernels made them."""
    grouping = Grouping(keys, keep_nulls)
    grouping.aggregator.encode()
    groups = grouping.table([])
    codes = grouping.aggregator.codes
    return groups, None if codes is None else Numbering(len(groups), of_rows=codes)


def with_outputs(
    groups: Any,
    tables: Mapping[str, Any],
    plan: Plan,
    names: Sequence[Any],
    numberings: dict[str, Numbering],
) -> Any:
    """The groups with every output, those that no row has included.

    ``names`` are those of the keys; ``numberings`` of the rows of some tables are known already.
    """
    keys, labels = keys_of(groups), names_of(groups)
    made = {f"k{i}": key for i, key in enumerate(keys)}
    for i, output in enumerate(plan.outputs):
        label = f"o{i}"
        if label in labels:
            values = column_at(groups, label)
        elif output.kind is Kind.MERGEABLE:
            prefix = f"s{output.states[0]}."
            fields = {n.removeprefix(prefix): groups[n] for n in labels if n.startswith(prefix)}
            values = library_states.finish(output, fields, index_of(keys, names))
        else:
            name = plan.table_of(output)
            paired = name in tables and name != "rows"
            name = name if paired else "rows"
            if name not in numberings:
                numberings[name] = Numbering.of_keys(keys_of(tables[name]), keys)
            if plan.narrowed and output.kind is Kind.WHOLE:
                numbering = numberings[name]
                column = numbering.take(tables[name][label])
                values = plain(numbering.spread(numbering.codes, column))
            elif output.kind is Kind.SKETCH:
                values = best.lists(output, numberings[name], tables[name]["v"])
            else:
                column = tables[name]["v" if paired else f"v{output.column}"]
                values = _of_rows(output, numberings[name], column, paired)
        empty = None if output.custom else REGISTRY[output.aggregation].of_no_rows
        if empty is not None and view(values).null_count():
            values = values.fillna(empty)
        made[label] = values
    return table(made)


def _of_rows(output: Output, numbering: Numbering, column: Any, paired: bool) -> Any:
    """One output from distinct pairs or whole rows: the kernels' where they can, else libcudf's."""
    counted = output.aggregation == "nunique"
    rows = len(column)
    sorts = counts(column.dtype, rows) if counted else serves(output, column.dtype, rows)
    made = by_kernels(lambda: _sorted(output, numbering, column)) if sorts else None
    if made is None:
        return library_states.whole(output, numbering, column, paired)
    if counted:
        return plain(made)
    if output.aggregation == "list":
        return like(made, cudf.ListDtype(column.dtype))
    return like(made, column.dtype) if is_chrono(column.dtype) else plain(made)


def _sorted(output: Output, numbering: Numbering, column: Any) -> plc.Column:
    rows = numbering.sorted(len(column))
    if output.aggregation == "nunique":
        return rows.nunique(view(column))
    return rows.output(output, view(column))
