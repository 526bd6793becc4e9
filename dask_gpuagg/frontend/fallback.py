"""What stock Dask has for a node of ours: its own expression for the result, or its error."""

from __future__ import annotations

from typing import Any

from dask.dataframe.dask_expr._groupby import GroupByBase
from dask.dataframe.dask_expr._repartition import Repartition

from dask_gpuagg.plan import short


class Refusal:
    """The error with which stock Dask refuses a specification; no part of what is asked.

    Parameters
    ----------
    error : Exception
    """

    def __init__(self, error: Exception) -> None:
        # not the error itself, which keeps the frames that it passed
        lines = str(error).splitlines()
        self.text = ": ".join([type(error).__name__, *(short(line) for line in lines[:1])])

    def __dask_tokenize__(self) -> Any:
        return "dask_gpuagg.Refusal"

    def __repr__(self) -> str:
        return f"Refusal({self.text})"


class Stock:
    """Another expression for the same result, which is no part of the one it is kept in.

    Parameters
    ----------
    expr : Expr
    """

    def __init__(self, expr: Any) -> None:
        # not called `expr`: Dask treats any object with that attribute as a collection, and would
        # make its expression an input of this node
        self.kept = expr

    def lowered(self, split_out: Any, npartitions: int) -> Any:
        """The expression with Dask's physical nodes and the number of outputs planned for ours.

        Parameters
        ----------
        split_out : int, bool, callable or None
        npartitions : int
            The number that nodes above were built with.

        Returns
        -------
        Expr
        """
        # it was not part of the query when that was simplified
        expr: Any = self.kept.simplify()
        group_by: Any = next(n for n in expr.walk() if isinstance(n, GroupByBase))
        stock = group_by
        if "split_out" in group_by._parameters:
            stock = group_by.substitute_parameters({"split_out": split_out})
        # lowered at once, so that it is not offered to the planner again
        physical = stock._lower()
        expr = expr.substitute(group_by, stock if physical is None else physical)
        if expr.npartitions != npartitions:
            return Repartition(expr, new_partitions=npartitions)
        return expr

    def __dask_tokenize__(self) -> Any:
        return ("dask_gpuagg.Stock", self.kept._name)

    def __repr__(self) -> str:
        return f"Stock({self.kept._name})"
