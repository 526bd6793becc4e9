"""The result of the only partition in one pass, without a partial in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cudf
import numpy as np

from dask_gpuagg.cache import OfObjects
from dask_gpuagg.engines.device.aggregator import Aggregator, Template
from dask_gpuagg.engines.device.columns import Bare, is_own, table, view
from dask_gpuagg.engines.device.groups import Grouping
from dask_gpuagg.engines.device.layout import kind_of
from dask_gpuagg.engines.device.moments import is_lost, losses_of, without_losses
from dask_gpuagg.engines.device.operations import nans_to_nulls
from dask_gpuagg.engines.device.outputs import numbered, with_outputs
from dask_gpuagg.engines.device.passes import add_outputs, finished, keys_of, states_of_rows
from dask_gpuagg.engines.device.results import Result, Shape, of_plan, shape_of, shaped
from dask_gpuagg.engines.device.stacking import bytes_of
from dask_gpuagg.engines.device.states import finish_rows, is_watched, keeps_values
from dask_gpuagg.engines.device.support import of_rows, one_pass
from dask_gpuagg.plan import Output, Plan

# Kinds of columns of which a plan's pass is remembered: with nulls and without them.
_KINDS = 16


def direct_of_frame(
    frame: Any, by: Sequence[Any], plan: Plan, shape: Any
) -> tuple[Any, int] | None:
    """The result of the only partition, where it has the columns that the plan promises.

    Nothing is made of its columns then that only users ask for.

    Parameters
    ----------
    frame : DataFrame or Series
    by : sequence of labels, Series, Index or callables
    plan : Plan
    shape : Shape or DataFrame
        Metadata of the result.

    Returns
    -------
    tuple or None
        DataFrame or Series, and the bytes of the columns. None where ``direct`` does not serve or
        device memory does not suffice for it, or where the frame has other columns.
    """
    if not _takes_bare(plan) or not isinstance(frame, cudf.DataFrame):
        return None
    keys = _bare_columns(frame, by)
    columns = _bare_columns(frame, [c.label for c in plan.columns])
    if keys is None or columns is None:
        return None
    for column, promised in zip(columns, plan.columns, strict=True):
        # of other dtypes the values may have to be converted
        if not (isinstance(column.dtype, np.dtype) and column.dtype == promised.dtype):
            return None
    try:
        made = direct(keys, columns, plan, shape_of(shape))
    except MemoryError:
        # the caller has other steps to find memory
        return None
    return made, bytes_of((*keys, *columns))


# Of the plans used last.
_bare: OfObjects[bool] = OfObjects(8)


def _takes_bare(plan: Plan) -> bool:
    """Whether nothing but values and dtypes is read for a plan."""

    def decide() -> bool:
        # what loses digits is made again by other ways
        lossless = not any(is_watched(output, plan) for output in plan.outputs)
        return of_rows(plan) or (one_pass(plan) and lossless)

    return _bare.of(plan, decide)


def _bare_columns(frame: Any, labels: Sequence[Any]) -> list[Bare] | None:
    """Columns of a frame by label; None if one is no label of a single level, or not there."""
    data = frame._data
    if data.multiindex or not all(isinstance(label, str) and label in data for label in labels):
        return None
    return [Bare(data[label]) for label in labels]


def direct(keys: Sequence[Any], columns: Sequence[Any], plan: Plan, shape: Shape) -> Any:
    """One partition to its result in one pass, without a partial in between.

    Parameters
    ----------
    keys, columns : sequence of Series
        Of the partition's rows, as the plan names them.
    plan : Plan
        For which ``support.one_pass`` or ``support.of_rows`` holds.
    shape : Shape

    Returns
    -------
    DataFrame or Series
    """
    if not plan.grouped:
        return _direct_of_rows(keys, columns, plan, shape)
    grouping = Grouping(keys, not plan.dropna)
    labels = _add_all(grouping, columns, plan)
    prepared = _prepared.of(plan, lambda: _prepare(plan, shape))
    if prepared.promised is not shape:
        prepared = _prepare(plan, shape)
    shape = prepared.shape
    if prepared.by_table:
        dtypes = {
            f"o{i}": columns[o.column].dtype
            for i, o in enumerate(plan.outputs)
            if o.column is not None
            and keeps_values(o.aggregation)
            and not is_own(columns[o.column].dtype)
        }
        groups = grouping.table(labels, dtypes)
        if not is_lost(losses_of(groups)):
            return shaped(without_losses(groups), plan, shape)
    else:
        result = Result(shape, [k.dtype for k in keys])
        found, made = grouping.run(result.prepare)
        pairs = list(zip(labels, made, strict=True))
        if not is_lost([column for label, column in pairs if label.startswith("l")]):
            outputs = [column for label, column in pairs if label.startswith("o")]
            if not plan.dropna:  # a NaN key is a null one
                found = [nans_to_nulls(key) for key in found]
            return result.of(found, outputs)
    # moments lost digits: the states of rows have them restored
    states = states_of_rows(keys, dict(enumerate(columns)), None, plan, not plan.dropna)
    groups = with_outputs(finished(states, plan), {}, plan, shape.index, {})
    return shaped(groups, plan, shape)


class _Prepared(NamedTuple):
    """What ``direct`` finds out about a plan.

    Attributes
    ----------
    promised : Shape
        With which the plan came.
    shape : Shape
        As the plan has it.
    by_table : bool
        Whether the result is sorted, or has a dtype that libcudf does not know.
    """

    promised: Shape
    shape: Shape
    by_table: bool


def _prepare(plan: Plan, promised: Shape) -> _Prepared:
    shape = of_plan(promised, plan)
    return _Prepared(promised, shape, plan.sort or not all(map(is_own, shape.dtypes)))


# Of the plans used last; and for each what a pass computes of columns of one kind.
_prepared: OfObjects[_Prepared] = OfObjects(8)
_templates: OfObjects[dict[Any, tuple[Template, list[str]]]] = OfObjects(8)


def _add_all(grouping: Grouping, columns: Sequence[Any], plan: Plan) -> list[str]:
    """Add all outputs of a plan, as for earlier columns of the same kind; their labels."""
    views = list(map(view, columns))
    known = _templates.of(plan, dict)
    kind = kind_of([*grouping.views, *views])
    if kind is not None and kind in known:
        template, labels = known[kind]
        grouping.aggregator.repeat(template, views)
        return labels
    grouping.read(views)

    def add(aggregator: Aggregator, output: Output, watched: bool) -> None:
        column = None if output.column is None else views[output.column]
        finish_rows(aggregator, output, plan, column, watched)

    labels = add_outputs(grouping, plan, range(len(plan.outputs)), add)
    made = grouping.template(views)
    if kind is not None and made is not None and len(known) < _KINDS:
        known[kind] = made, labels
    return labels


def _direct_of_rows(keys: Sequence[Any], columns: Sequence[Any], plan: Plan, shape: Shape) -> Any:
    """The same where all outputs are of whole groups."""
    whole = {f"k{i}": k for i, k in enumerate(keys)}
    rows = table(whole | {f"v{c}": columns[c] for c in sorted({*plan.rows, *plan.pairs})})
    groups, numbering = numbered(keys_of(rows), not plan.dropna)
    numberings = {} if numbering is None else {"rows": numbering}
    made = with_outputs(groups, {"rows": rows}, plan, shape.index, numberings)
    return shaped(made, plan, of_plan(shape, plan))
