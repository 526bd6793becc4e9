"""Operations of libcudf on columns: bits, nulls, exact means and spreads."""

from __future__ import annotations

from typing import Any

import pylibcudf as plc
from pylibcudf.types import DataType, TypeId

from dask_gpuagg.engines.device.layout import BOOL8, FLOAT64, INT64

_LIMB = 1 << 32


def reinterpreted(column: plc.Column, dtype: DataType) -> plc.Column:
    """The same bits as values of another type of the same width."""
    if column.type() == dtype:
        return column
    return plc.Column(
        dtype,
        column.size(),
        column.data(),
        column.null_mask(),
        column.null_count(),
        column.offset(),
        [],
    )


def as_key(column: plc.Column) -> plc.Column:
    """A key of which NaN is null, and -0.0 is 0.0."""
    if column.type().id() not in (TypeId.FLOAT32, TypeId.FLOAT64):
        return column
    return nans_to_nulls(plc.replace.normalize_nans_and_zeros(column))


def nans_to_nulls(column: plc.Column) -> plc.Column:
    """NaN replaced by null, in a column of floats."""
    if column.type().id() not in (TypeId.FLOAT32, TypeId.FLOAT64):
        return column
    return plc.transform.column_nans_to_nulls(column)


def take_rows(column: plc.Column, rows: plc.Column) -> plc.Column:
    """Rows of a column by number."""
    policy = plc.copying.OutOfBoundsPolicy.DONT_CHECK
    return plc.copying.gather(plc.Table([column]), rows, policy).columns()[0]


def binary(operator: str, left: Any, right: Any, dtype: DataType = FLOAT64) -> plc.Column:
    """A binary operation by the name that libcudf has for it."""
    chosen = getattr(plc.binaryop.BinaryOperator, operator)
    return plc.binaryop.binary_operation(left, right, chosen, dtype)


def scalar(value: float, like: plc.Column) -> plc.Scalar:
    """A number in the type of a column."""
    return plc.Scalar.from_py(value, like.type())


def upper_half(column: plc.Column) -> plc.Column:
    """The upper 32 bits of 64-bit integers, with their sign."""
    return binary("SHIFT_RIGHT", column, scalar(32, column), INT64)


def lower_half(column: plc.Column) -> plc.Column:
    """The lower 32 bits of 64-bit integers."""
    return binary("BITWISE_AND", column, scalar(_LIMB - 1, column), INT64)


def limb_mean(upper: plc.Column, lower: plc.Column, n: plc.Column) -> plc.Column:
    """Quotients rounded towards zero of sums in two halves, by long division."""
    first, rest = binary("FLOOR_DIV", upper, n, INT64), binary("PYMOD", upper, n, INT64)
    lower = binary("ADD", _shifted(rest), lower, INT64)
    second, rest = binary("FLOOR_DIV", lower, n, INT64), binary("PYMOD", lower, n, INT64)
    quotient = binary("ADD", _shifted(first), second, INT64)
    negative = binary("LESS", quotient, scalar(0, quotient), BOOL8)
    inexact = binary("NOT_EQUAL", rest, scalar(0, rest), BOOL8)
    up = plc.unary.cast(binary("LOGICAL_AND", negative, inexact, BOOL8), INT64)
    return keep_where(binary("ADD", quotient, up, INT64), is_positive(n))


def _shifted(column: plc.Column) -> plc.Column:
    return binary("MUL", column, scalar(_LIMB, column), INT64)


def fill_nulls(column: plc.Column, value: float) -> plc.Column:
    """A number in place of each null."""
    if not column.null_count():
        return column
    return plc.replace.replace_nulls(column, scalar(value, column))


def is_positive(column: plc.Column) -> plc.Column:
    """Which values are greater than zero."""
    return binary("GREATER", column, scalar(0, column), BOOL8)


def keep_where(column: plc.Column, condition: plc.Column) -> plc.Column:
    """Null where a condition does not hold."""
    if not column.size():
        return column
    if column.null_count():
        condition = binary("LOGICAL_AND", condition, plc.unary.is_valid(column), BOOL8)
    mask, nulls = plc.transform.bools_to_mask(condition)
    return column.with_mask(mask, nulls)


def spread_of(n: plc.Column, m2: plc.Column, ddof: int, power: int) -> plc.Column:
    """Variance (power 0), standard deviation (1) or standard error of the mean (2)."""
    free = binary("SUB", n, scalar(ddof, n))
    made = binary("TRUE_DIV", m2, free)
    if power:
        made = plc.unary.unary_operation(made, plc.unary.UnaryOperator.SQRT)
    if power == 2:
        root = plc.unary.unary_operation(plc.unary.cast(n, FLOAT64), plc.unary.UnaryOperator.SQRT)
        made = binary("TRUE_DIV", made, root)
    return keep_where(made, is_positive(free))
