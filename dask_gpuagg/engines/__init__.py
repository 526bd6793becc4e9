"""The engines of host and device, and their protocol: partial, combine and finalize.

Two modules have it: ``host.engine`` and ``device.engine``. A *partition* has ``keys`` and
``columns``, sequences of Series as the plan names them, and ``index``, the row labels. A partial
(``plan.Partial``) has every group in every table. Several partials come in the order of their
partitions; those that are ``owned`` nobody else needs, so that they may be emptied, and outputs may
take their memory. ``meta`` is an empty DataFrame or Series with the labels, names and dtypes of the
result, or its ``Shape``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dask_gpuagg.engines.host import engine, stacking
from dask_gpuagg.expressions import Derived
from dask_gpuagg.plan import Partial, Plan

if TYPE_CHECKING:
    from dask_gpuagg.engines.device import engine as device_engine

    # a module that is loaded by name is checked here
    _engine: Engine = device_engine

T = TypeVar("T")

HOST, DEVICE = "host", "device"
_BY_LIBRARY = {"pandas": HOST, "cudf": DEVICE}


def engine_name(data: Any) -> str | None:
    """Name of the engine that takes a frame, a column or a partial; None if none does."""
    if isinstance(data, dict):
        data = next(iter(data.values()))
    return _BY_LIBRARY.get(type(data).__module__.partition(".")[0])


def engine_of(data: Any) -> Engine:
    """The engine of a frame, a column or a partial."""
    result: Engine = _device("engine") if engine_name(data) == DEVICE else engine
    return result


def _device(name: str) -> Any:
    """A module of the device engine. It imports cuDF, which only users of cuDF have."""
    # not from sys.modules: a module is there while another thread still imports it
    return importlib.import_module(f"dask_gpuagg.engines.device.{name}")


def dtypes_of(frame: Any) -> list[tuple[Hashable, Any]]:
    """Label and dtype of each column of a DataFrame, in their order."""
    if engine_name(frame) == DEVICE:
        # cuDF makes a pandas object of its dtypes, which takes about a millisecond
        return [(label, column.dtype) for label, column in frame._data.items()]
    return list(frame.dtypes.items())


def has_column(frame: Any, label: Any) -> bool:
    """Whether a DataFrame has a column of this label."""
    # cuDF itself makes a pandas index of the labels
    return label in (frame._data if engine_name(frame) == DEVICE else frame)


def columns_of(frame: Any, labels: Sequence[Any]) -> Sequence[Any]:
    """Columns of a frame, as Series, by their labels."""
    if engine_name(frame) == DEVICE:
        return [_device("columns").column_at(frame, label) for label in labels]
    return stacking.columns_of(frame, labels)


class Engine(Protocol):
    """The functions by which tasks reduce partitions of one library."""

    NAME: str

    def partial(
        self, keys: Sequence[Any], columns: Sequence[Any], index: Any, plan: Plan
    ) -> Partial:
        """Reduce rows to the tables of ``plan.tables``."""

    def combine(self, partials: Sequence[Partial], plan: Plan, owned: bool = False) -> Partial:
        """Merge partials into one of the same layout."""

    def regrouped(self, tables: Partial, plan: Plan) -> Partial:
        """Merge the rows of each group, where a partial has several."""

    def finalize(
        self,
        partials: Sequence[Partial],
        plan: Plan,
        meta: Any,
        bucket: tuple[int, int] | None = None,
        owned: bool = False,
    ) -> Any:
        """Merge all partials of their groups and compute the outputs.

        ``bucket`` is the number of this output and the number of outputs, where there are several:
        an unobserved category appears only in the output that its hash names.
        """

    def direct(self, parts: Sequence[Any], plan: Plan, meta: Any) -> Any | None:
        """Compute the outputs of partitions of equal dtypes in one pass, without a partial.

        None where the engine has no such pass for the plan, or memory lacks for it.
        """

    def direct_of_frame(
        self, frame: Any, by: Sequence[Any], plan: Plan, meta: Any
    ) -> tuple[Any, int] | None:
        """Run ``direct`` for a frame, without a Series for each of its columns.

        Returns the output and the bytes of the columns. None where ``direct`` would give None, or
        the frame has other columns than the plan.
        """

    def shape_of(self, meta: Any) -> Any:
        """Return metadata in the form that ``finalize`` needs, which is smaller to send."""

    def within_memory(
        self,
        what: str,
        step: Callable[[], T],
        smaller: Callable[[], T] | None = None,
        held: list[Any] | None = None,
    ) -> T:
        """Return the result of a step, or of a smaller one where memory lacks, or ``MemoryError``.

        ``what`` the step makes is for the error. ``held`` are finished partials of the task, which
        may be replaced by spilled ones; ``restored`` brings them back.
        """

    def restored(self, partials: list[Any]) -> list[Partial]:
        """Return partials, those that ``within_memory`` has spilled in memory again."""

    def divided(self, run: Sequence[Any]) -> list[Sequence[Any]]:
        """Divide partitions of equal dtypes into runs that are stacked and reduced at once."""

    def filtered(
        self, keys: Sequence[Any], columns: Sequence[Any], index: Any, mask: Any, plan: Plan
    ) -> tuple[Sequence[Any], Sequence[Any], Any]:
        """Return a partition's keys, columns and row labels without the rows that leave.

        ``mask`` is a Series of bool; null is false. Rows may stay whose key becomes null instead.
        Where no state reads labels, ``index`` may be row numbers.
        """

    def derived(self, frame: Any, columns: Derived) -> Any:
        """Return the columns of a partition that a group-by reads, without the rows that leave.

        Those may stay where their key becomes null.
        """

    def stacked(self, parts: Sequence[Sequence[Any]], plan: Plan) -> list[Any]:
        """Concatenate columns of partitions by position; dtypes are equal by position."""

    def bytes_of(self, columns: Iterable[Any]) -> int:
        """Return the bytes of some columns, roughly."""

    def sampled(self, column: Any, step: int) -> Any:
        """Return every ``step``-th row of a column as a Series of pandas."""

    def common_dtype(self, dtypes: Sequence[Any]) -> Any:
        """Return the dtype that a concatenation of columns has."""

    def compatible(self, values: Any, promised: Any) -> tuple[Any, Any]:
        """Return a column and the dtype under which its partial is merged.

        The dtype is the promised one where the values can be cast to it without loss.
        """

    def of_categories(self, column: Any) -> Any:
        """Return a categorical column as its values."""

    def split(
        self, tables: Partial, plan: Plan, buckets: int, second: bool = False
    ) -> list[Partial]:
        """Divide a partial by key hash into one partial per output.

        ``second``: the partial is of one output, and is divided again by other bits of the hash.
        """

    def concatenated_outputs(self, outputs: Sequence[Any], plan: Plan, meta: Any) -> Any:
        """Concatenate outputs of disjoint groups, sorted by key if the plan says so."""

    def divided_outputs(self, output: Any, plan: Plan, outputs: int) -> list[Any]:
        """Divide an output by key hash, as ``split`` divides partials."""
