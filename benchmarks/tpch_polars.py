"""Some of TPC-H's queries by Polars' GPU engine, with joins and without."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def is_installed() -> bool:
    """Whether Polars and its GPU engine are there."""
    return all(map(find_spec, ("polars", "cudf_polars")))


def queries(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return the queries on the tables in a folder, by name: calls that return how many rows."""
    import polars as pl

    col = pl.col

    def table(name: str) -> pl.LazyFrame:
        return pl.scan_parquet(f"{folder / name}/*.parquet")

    def lines() -> pl.LazyFrame:
        revenue = col("l_extendedprice") * (1 - col("l_discount"))
        return table("lineitem").with_columns(revenue=revenue)

    def orders(start: datetime, end: datetime) -> pl.LazyFrame:
        day = col("o_orderdate")
        return table("orders").filter((day >= start) & (day < end))

    def by_customer(some_orders: pl.LazyFrame, customers: pl.LazyFrame) -> pl.LazyFrame:
        return customers.join(some_orders, left_on="c_custkey", right_on="o_custkey")

    def first(frame: pl.LazyFrame, rows: int, by: str) -> pl.LazyFrame:
        return frame.sort(by, descending=True).head(rows)

    def q1() -> pl.LazyFrame:
        rows = lines().filter(col("l_shipdate") <= datetime(1998, 9, 2))
        rows = rows.with_columns(charge=col("revenue") * (1 + col("l_tax")))
        sums = [col(name).sum() for name in ("l_quantity", "l_extendedprice", "revenue", "charge")]
        averaged = ("l_quantity", "l_extendedprice", "l_discount")
        means = [col(name).mean().alias(f"mean_{name}") for name in averaged]
        return rows.group_by("l_returnflag", "l_linestatus").agg(*sums, *means, pl.len())

    def q3() -> pl.LazyFrame:
        day = datetime(1995, 3, 15)
        customers = table("customer").filter(col("c_mktsegment") == "BUILDING")
        joined = by_customer(table("orders").filter(col("o_orderdate") < day), customers)
        later = lines().filter(col("l_shipdate") > day)
        joined = joined.join(later, left_on="o_orderkey", right_on="l_orderkey")
        keys = ("o_orderkey", "o_orderdate", "o_shippriority")
        return first(joined.group_by(*keys).agg(col("revenue").sum()), 10, "revenue")

    def q5() -> pl.LazyFrame:
        year = orders(datetime(1994, 1, 1), datetime(1995, 1, 1))
        sold = by_customer(year, table("customer"))
        sold = sold.join(lines(), left_on="o_orderkey", right_on="l_orderkey")
        asia = table("region").filter(col("r_name") == "ASIA")
        nations = table("nation").join(asia, left_on="n_regionkey", right_on="r_regionkey")
        suppliers = table("supplier").join(nations, left_on="s_nationkey", right_on="n_nationkey")
        local = sold.join(
            suppliers,
            left_on=["l_suppkey", "c_nationkey"],
            right_on=["s_suppkey", "s_nationkey"],
        )
        return local.group_by("n_name").agg(col("revenue").sum())

    def q10() -> pl.LazyFrame:
        quarter = orders(datetime(1993, 10, 1), datetime(1994, 1, 1))
        returned = lines().filter(col("l_returnflag") == "R")
        joined = by_customer(quarter, table("customer"))
        joined = joined.join(returned, left_on="o_orderkey", right_on="l_orderkey")
        joined = joined.join(table("nation"), left_on="c_nationkey", right_on="n_nationkey")
        of_customer = ("custkey", "name", "acctbal", "phone", "address", "comment")
        keys = [f"c_{name}" for name in of_customer] + ["n_name"]
        return first(joined.group_by(*keys).agg(col("revenue").sum()), 20, "revenue")

    def q13() -> pl.LazyFrame:
        plain = table("orders").filter(~col("o_comment").str.contains("special.*requests"))
        joined = table("customer").join(
            plain, left_on="c_custkey", right_on="o_custkey", how="left"
        )
        counted = joined.group_by("c_custkey").agg(col("o_orderkey").count().alias("number"))
        return counted.group_by("number").agg(pl.len())

    def q18() -> pl.LazyFrame:
        large = table("lineitem").group_by("l_orderkey").agg(col("l_quantity").sum())
        large = large.filter(col("l_quantity") > 300)
        joined = large.join(table("orders"), left_on="l_orderkey", right_on="o_orderkey")
        joined = joined.join(table("customer"), left_on="o_custkey", right_on="c_custkey")
        keys = ("c_name", "o_custkey", "l_orderkey", "o_orderdate", "o_totalprice")
        return first(joined.group_by(*keys).agg(col("l_quantity").sum()), 100, "o_totalprice")

    engine = pl.GPUEngine(executor="streaming", raise_on_fail=True)

    def run(query: Callable[[], pl.LazyFrame]) -> int:
        return int(query().collect(engine=engine).height)

    return {one.__name__: partial(run, one) for one in (q1, q3, q5, q10, q13, q18)}
