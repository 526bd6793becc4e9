"""Columns computed row by row below a group-by, as data: what one kernel of the device computes.

Each operation has two implementations: on Series, and the text of a CUDA C++ expression on values
without nulls. There ``{T}`` is the type of the result and ``{U}`` that of all operands together.
"""

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd


class Operation(NamedTuple):
    """An operation on rows."""

    on_series: Callable[..., Any]
    on_values: str


_COMPARED = "static_cast<{{U}}>({{0}}) {} static_cast<{{U}}>({{1}})"
_ADDED = "static_cast<{{T}}>({{0}}) {} static_cast<{{T}}>({{1}})"

OPERATIONS: dict[str, Operation] = {
    "add": Operation(operator.add, _ADDED.format("+")),
    "sub": Operation(operator.sub, _ADDED.format("-")),
    "mul": Operation(operator.mul, "product(static_cast<{T}>({0}), static_cast<{T}>({1}))"),
    "div": Operation(operator.truediv, _ADDED.format("/")),
    "mod": Operation(operator.mod, "modulo<{T}>({0}, {1})"),
    "floordiv": Operation(operator.floordiv, "floor_divide<{T}>({0}, {1})"),
    "neg": Operation(operator.neg, "-{0}"),
    "abs": Operation(abs, "absolute({0})"),
    "lt": Operation(operator.lt, _COMPARED.format("<")),
    "le": Operation(operator.le, _COMPARED.format("<=")),
    "gt": Operation(operator.gt, _COMPARED.format(">")),
    "ge": Operation(operator.ge, _COMPARED.format(">=")),
    "eq": Operation(operator.eq, _COMPARED.format("==")),
    "ne": Operation(operator.ne, _COMPARED.format("!=")),
    "and": Operation(operator.and_, "{0} && {1}"),
    "or": Operation(operator.or_, "{0} || {1}"),
    "xor": Operation(operator.xor, "{0} != {1}"),
    "invert": Operation(operator.invert, "!{0}"),
    "where": Operation(lambda a, rows, b: a.where(rows, b), "{1} ? {0} : static_cast<{T}>({2})"),
    "mask": Operation(lambda a, rows, b: a.mask(rows, b), "{1} ? static_cast<{T}>({2}) : {0}"),
    "fillna": Operation(lambda a, b: a.fillna(b), "is_nan({0}) ? static_cast<{T}>({1}) : {0}"),
    "isna": Operation(lambda a: a.isna(), "is_nan({0})"),
    "notnull": Operation(lambda a: a.notna(), "!is_nan({0})"),
    "floor": Operation(lambda a, by: a.dt.floor(by), "floor_divide<{T}>({0}, {1}) * {1}"),
}
# NumPy's kinds as types of CUDA C++
_CTYPES = {"b": "bool", "i": "i{}", "u": "u{}", "f": "f{}", "M": "i64"}


@dataclass(frozen=True, slots=True)
class Read:
    """A column of the input; ``dtype`` is NumPy's name, empty for others."""

    label: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Step:
    """An operation of ``OPERATIONS``, the name of its result's dtype, and its operands."""

    operation: str
    dtype: str
    operands: tuple[Any, ...]


Tree = Read | Step


@dataclass(frozen=True, slots=True)
class Derived:
    """The columns of a partition that a group-by reads, by label, and which of its rows.

    Where the key ``nullable`` may be null instead, rows that leave are not taken out.
    """

    columns: tuple[tuple[str, Tree], ...]
    predicate: Tree | None
    nullable: str | None

    def __dask_tokenize__(self) -> str:
        return repr(self)

    @property
    def steps(self) -> dict[str, Step]:
        """The columns that are computed."""
        return {label: tree for label, tree in self.columns if isinstance(tree, Step)}


def evaluate(tree: Any, frame: Any) -> Any:
    """A computed column of a frame, as a Series; an operand that is no tree as it is."""
    if isinstance(tree, Read):
        return frame[tree.label]
    if not isinstance(tree, Step):
        return tree
    return OPERATIONS[tree.operation].on_series(*(evaluate(op, frame) for op in tree.operands))


def derived(frame: Any, columns: Derived) -> Any:
    """The rows and columns of a frame that a group-by reads, by operations on Series."""
    result = type(frame)({label: evaluate(tree, frame) for label, tree in columns.columns})
    if columns.predicate is None:
        return result
    return result[evaluate(columns.predicate, frame).fillna(False)]


def common_dtype(step: Step) -> np.dtype[Any]:
    """The dtype in which operands meet: numbers of Python take that of columns."""
    dtypes = [np.dtype(op.dtype) if isinstance(op, Read | Step) else op for op in step.operands]
    if any(isinstance(dtype, pd.Timestamp | str) for dtype in dtypes):
        return next(dtype for dtype in dtypes if isinstance(dtype, np.dtype))
    return np.result_type(*dtypes)


def ticks(operand: Any, dtype: str) -> int:
    """A time, or a frequency such as ``D``, in the unit of a column; ``ValueError`` between two."""
    unit = np.datetime_data(np.dtype(dtype))[0]
    time = pd.Timedelta(1, operand) if isinstance(operand, str) else operand
    count = time.as_unit("ns").value
    of_unit = pd.Timedelta(1, unit).as_unit("ns").value
    if count % of_unit:
        raise ValueError(f"{operand!r} is no multiple of a {unit}")
    return int(count // of_unit)


def inputs_of(trees: Iterable[Any]) -> list[Read]:
    """The columns that some trees read, each once."""
    reads: dict[Read, None] = {}
    stack = list(trees)
    while stack:
        tree = stack.pop()
        if isinstance(tree, Read):
            reads[tree] = None
        elif isinstance(tree, Step):
            stack += tree.operands
    return list(reads)


def text_of(derived: Derived) -> str:
    """The struct ``Columns`` of ``derive`` (kernels/derive/derive.cuh), in CUDA C++."""
    trees = [*derived.steps.values(), derived.predicate]
    reads = inputs_of(trees)
    names: dict[Tree, str] = {read: f"x{i}" for i, read in enumerate(reads)}
    members = [f"const {_stored(read.dtype)}* in{i};" for i, read in enumerate(reads)]
    lines = [f"const auto x{i} = load_input(in{i} + row);" for i in range(len(reads))]
    for i, step in enumerate(derived.steps.values()):
        members.append(f"{_stored(step.dtype)}* out{i};")
        lines.append(f"out{i}[row] = {_value(step, names, lines)};")
    stays = "true" if derived.predicate is None else _value(derived.predicate, names, lines)
    body = "\n        ".join([*lines, f"return {stays};"])
    inside = "\n    ".join(members)
    return (
        f"struct Columns {{\n    {inside}\n"
        f"    GPUAGG_INLINE bool row(u64 row) const {{\n        {body}\n    }}\n}};"
    )


def _value(operand: Any, names: dict[Tree, str], lines: list[str], dtype: str = "") -> str:
    """The name of a value, whose statement is added to the lines, or a literal."""
    if isinstance(operand, pd.Timestamp | str):
        return f"{ticks(operand, dtype)}ll"
    if not isinstance(operand, Read | Step):
        return f"{operand}ll" if isinstance(operand, int) else float(operand).hex()
    if operand not in names:
        assert isinstance(operand, Step)
        of_column = next(op.dtype for op in operand.operands if isinstance(op, Read | Step))
        values = [_value(op, names, lines, of_column) for op in operand.operands]
        result, common = _ctype(operand.dtype), _ctype(str(common_dtype(operand)))
        text = OPERATIONS[operand.operation].on_values.format(*values, T=result, U=common)
        names[operand] = f"x{len(names)}"
        lines.append(f"const {result} {names[operand]} = static_cast<{result}>({text});")
    return names[operand]


def _ctype(dtype: str) -> str:
    of = np.dtype(dtype)
    return _CTYPES[of.kind].format(8 * of.itemsize)


def _stored(dtype: str) -> str:
    return "u8" if dtype == "bool" else _ctype(dtype)
