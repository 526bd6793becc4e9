"""Expressions below a group-by as CUDA C++."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dask_gpuagg.expressions import (
    OPERATIONS,
    Derived,
    Read,
    Step,
    Tree,
    common_dtype,
    inputs_of,
    ticks,
)

_CTYPES = {"b": "bool", "i": "i{}", "u": "u{}", "f": "f{}", "M": "i64"}


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
