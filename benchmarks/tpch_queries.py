"""TPC-H's 22 queries on Dask DataFrame, whole, with the substitution values of validation runs.

A query takes the tables and returns a lazy result: a frame without an index to speak of, or a
scalar. Rows come in any order except where the query asks for the first of many.

Money may be decimal or float64; dates are ``date32[pyarrow]``, whatever the metadata says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import dask.dataframe as dd
import pandas as pd


@dataclass(frozen=True, slots=True)
class Tables:
    """The eight tables and the scale factor at which they were made."""

    scale: float
    customer: dd.DataFrame
    lineitem: dd.DataFrame
    nation: dd.DataFrame
    orders: dd.DataFrame
    part: dd.DataFrame
    partsupp: dd.DataFrame
    region: dd.DataFrame
    supplier: dd.DataFrame


def _between(days: dd.Series, start: date, end: date) -> dd.Series:
    """Whether days lie in a period without its end."""
    return (days >= start) & (days < end)


def _year(days: dd.Series) -> dd.Series:
    # the metadata may say object, which has no `.dt`
    return days.astype("datetime64[us]").dt.year


def _first(frame: dd.DataFrame, n: int, by: list[str], ascending: list[bool]) -> dd.DataFrame:
    """The first rows by several columns, each in its own direction."""
    return frame.repartition(npartitions=1).map_partitions(_head, n, by, ascending)


def _head(frame: pd.DataFrame, n: int, by: list[str], ascending: list[bool]) -> pd.DataFrame:
    return frame.sort_values(by, ascending=ascending).head(n)


def _revenue(rows: dd.DataFrame) -> dd.DataFrame:
    return rows.assign(revenue=rows.l_extendedprice * (1 - rows.l_discount))


def _nations_of(tables: Tables, region: str) -> dd.DataFrame:
    chosen = tables.region[tables.region.r_name == region]
    return chosen.merge(tables.nation, left_on="r_regionkey", right_on="n_regionkey")


def q1(t: Tables) -> dd.DataFrame:
    """Pricing summary report."""
    rows = _revenue(t.lineitem[t.lineitem.l_shipdate <= date(1998, 9, 2)])
    rows = rows.assign(charge=rows.revenue * (1 + rows.l_tax))
    groups = rows.groupby(["l_returnflag", "l_linestatus"], sort=True)
    return groups.agg(
        sum_qty=("l_quantity", "sum"),
        sum_base_price=("l_extendedprice", "sum"),
        sum_disc_price=("revenue", "sum"),
        sum_charge=("charge", "sum"),
        avg_qty=("l_quantity", "mean"),
        avg_price=("l_extendedprice", "mean"),
        avg_disc=("l_discount", "mean"),
        count_order=("l_quantity", "count"),
    ).reset_index()


def q2(t: Tables) -> dd.DataFrame:
    """Minimum cost supplier."""
    europe = _nations_of(t, "EUROPE")
    suppliers = t.supplier.merge(europe, left_on="s_nationkey", right_on="n_nationkey")
    parts = t.part[(t.part.p_size == 15) & t.part.p_type.str.endswith("BRASS")]
    offers = parts.merge(t.partsupp, left_on="p_partkey", right_on="ps_partkey")
    offers = offers.merge(suppliers, left_on="ps_suppkey", right_on="s_suppkey")
    least = offers.groupby("p_partkey").ps_supplycost.min().rename("least").reset_index()
    best = offers.merge(least, on="p_partkey")
    best = best[best.ps_supplycost == best.least]
    columns = ["s_acctbal", "s_name", "n_name", "p_partkey", "p_mfgr"]
    best = best[[*columns, "s_address", "s_phone", "s_comment"]]
    by = ["s_acctbal", "n_name", "s_name", "p_partkey"]
    return _first(best, 100, by, [False, True, True, True])


def q3(t: Tables) -> dd.DataFrame:
    """Shipping priority."""
    customers = t.customer[t.customer.c_mktsegment == "BUILDING"]
    orders = t.orders[t.orders.o_orderdate < date(1995, 3, 15)]
    lines = _revenue(t.lineitem[t.lineitem.l_shipdate > date(1995, 3, 15)])
    rows = customers.merge(orders, left_on="c_custkey", right_on="o_custkey")
    rows = rows.merge(lines, left_on="o_orderkey", right_on="l_orderkey")
    keys = ["l_orderkey", "o_orderdate", "o_shippriority"]
    return _first(rows.groupby(keys).revenue.sum().reset_index(), 10, ["revenue"], [False])


def q4(t: Tables) -> dd.DataFrame:
    """Order priority checking."""
    late = t.lineitem[t.lineitem.l_commitdate < t.lineitem.l_receiptdate]
    orders = t.orders[_between(t.orders.o_orderdate, date(1993, 7, 1), date(1993, 10, 1))]
    # one of many late lines will do
    keys = late[["l_orderkey"]].drop_duplicates()
    rows = orders.merge(keys, left_on="o_orderkey", right_on="l_orderkey")
    return rows.groupby("o_orderpriority").size().rename("order_count").reset_index()


def q5(t: Tables) -> dd.DataFrame:
    """Local supplier volume."""
    orders = t.orders[_between(t.orders.o_orderdate, date(1994, 1, 1), date(1995, 1, 1))]
    asia = _nations_of(t, "ASIA")
    suppliers = t.supplier.merge(asia, left_on="s_nationkey", right_on="n_nationkey")
    rows = t.customer.merge(orders, left_on="c_custkey", right_on="o_custkey")
    rows = rows.merge(_revenue(t.lineitem), left_on="o_orderkey", right_on="l_orderkey")
    keys = ["l_suppkey", "c_nationkey"]
    rows = rows.merge(suppliers, left_on=keys, right_on=["s_suppkey", "s_nationkey"])
    return rows.groupby("n_name").revenue.sum().reset_index()


def q6(t: Tables) -> Any:
    """Forecasting revenue change; no group-by."""
    rows = t.lineitem[_between(t.lineitem.l_shipdate, date(1994, 1, 1), date(1995, 1, 1))]
    discount = rows.l_discount.astype("float64").round(2)
    rows = rows[(discount >= 0.05) & (discount <= 0.07) & (rows.l_quantity < 24)]
    return (rows.l_extendedprice * rows.l_discount).sum()


def q7(t: Tables) -> dd.DataFrame:
    """Volume shipping."""
    nations = t.nation[t.nation.n_name.isin(["FRANCE", "GERMANY"])][["n_nationkey", "n_name"]]
    sellers = nations.rename(columns={"n_nationkey": "s_nationkey", "n_name": "supp_nation"})
    buyers = nations.rename(columns={"n_nationkey": "c_nationkey", "n_name": "cust_nation"})
    days = t.lineitem.l_shipdate
    lines = _revenue(t.lineitem[(days >= date(1995, 1, 1)) & (days <= date(1996, 12, 31))])
    suppliers = t.supplier.merge(sellers, on="s_nationkey")
    customers = t.customer.merge(buyers, on="c_nationkey")
    orders = t.orders.merge(customers, left_on="o_custkey", right_on="c_custkey")
    rows = lines.merge(suppliers, left_on="l_suppkey", right_on="s_suppkey")
    rows = rows.merge(orders, left_on="l_orderkey", right_on="o_orderkey")
    rows = rows[rows.supp_nation != rows.cust_nation]
    rows = rows.assign(l_year=_year(rows.l_shipdate))
    return rows.groupby(["supp_nation", "cust_nation", "l_year"]).revenue.sum().reset_index()


def q8(t: Tables) -> dd.DataFrame:
    """National market share."""
    america = _nations_of(t, "AMERICA")[["n_nationkey"]]
    customers = t.customer.merge(america, left_on="c_nationkey", right_on="n_nationkey")
    days = t.orders.o_orderdate
    orders = t.orders[(days >= date(1995, 1, 1)) & (days <= date(1996, 12, 31))]
    orders = orders.merge(customers[["c_custkey"]], left_on="o_custkey", right_on="c_custkey")
    parts = t.part[t.part.p_type == "ECONOMY ANODIZED STEEL"][["p_partkey"]]
    rows = parts.merge(_revenue(t.lineitem), left_on="p_partkey", right_on="l_partkey")
    rows = rows.merge(orders, left_on="l_orderkey", right_on="o_orderkey")
    sellers = t.supplier.merge(t.nation, left_on="s_nationkey", right_on="n_nationkey")
    rows = rows.merge(sellers, left_on="l_suppkey", right_on="s_suppkey")
    ours = rows.revenue.where(rows.n_name == "BRAZIL", 0)
    rows = rows.assign(o_year=_year(rows.o_orderdate), ours=ours)
    sums = rows.groupby("o_year")[["ours", "revenue"]].sum()
    return sums.assign(mkt_share=sums.ours / sums.revenue)[["mkt_share"]].reset_index()


def q9(t: Tables) -> dd.DataFrame:
    """Product type profit measure."""
    parts = t.part[t.part.p_name.str.contains("green")][["p_partkey"]]
    rows = parts.merge(_revenue(t.lineitem), left_on="p_partkey", right_on="l_partkey")
    keys = ["l_partkey", "l_suppkey"]
    rows = rows.merge(t.partsupp, left_on=keys, right_on=["ps_partkey", "ps_suppkey"])
    suppliers = t.supplier.merge(t.nation, left_on="s_nationkey", right_on="n_nationkey")
    rows = rows.merge(suppliers, left_on="l_suppkey", right_on="s_suppkey")
    rows = rows.merge(t.orders, left_on="l_orderkey", right_on="o_orderkey")
    profit = rows.revenue - rows.ps_supplycost * rows.l_quantity
    rows = rows.assign(o_year=_year(rows.o_orderdate), profit=profit)
    return rows.groupby(["n_name", "o_year"]).profit.sum().reset_index()


def q10(t: Tables) -> dd.DataFrame:
    """Returned item reporting."""
    orders = t.orders[_between(t.orders.o_orderdate, date(1993, 10, 1), date(1994, 1, 1))]
    returned = _revenue(t.lineitem[t.lineitem.l_returnflag == "R"])
    rows = t.customer.merge(orders, left_on="c_custkey", right_on="o_custkey")
    rows = rows.merge(returned, left_on="o_orderkey", right_on="l_orderkey")
    rows = rows.merge(t.nation, left_on="c_nationkey", right_on="n_nationkey")
    keys = ["c_custkey", "c_name", "c_acctbal", "c_phone", "n_name", "c_address", "c_comment"]
    return _first(rows.groupby(keys).revenue.sum().reset_index(), 20, ["revenue"], [False])


def q11(t: Tables) -> dd.DataFrame:
    """Important stock identification."""
    germany = t.nation[t.nation.n_name == "GERMANY"]
    suppliers = t.supplier.merge(germany, left_on="s_nationkey", right_on="n_nationkey")
    rows = t.partsupp.merge(suppliers, left_on="ps_suppkey", right_on="s_suppkey")
    rows = rows.assign(value=rows.ps_supplycost * rows.ps_availqty)
    value = rows.groupby("ps_partkey").value.sum()
    threshold = rows.value.astype("float64").sum() * (0.0001 / t.scale)
    return value[value.astype("float64") > threshold].reset_index()


def q12(t: Tables) -> dd.DataFrame:
    """Shipping modes and order priority."""
    lines = t.lineitem[t.lineitem.l_shipmode.isin(["MAIL", "SHIP"])]
    lines = lines[_between(lines.l_receiptdate, date(1994, 1, 1), date(1995, 1, 1))]
    in_time = lines.l_shipdate < lines.l_commitdate
    lines = lines[in_time & (lines.l_commitdate < lines.l_receiptdate)]
    rows = t.orders.merge(lines, left_on="o_orderkey", right_on="l_orderkey")
    high = rows.o_orderpriority.isin(["1-URGENT", "2-HIGH"])
    rows = rows.assign(high_line_count=high.astype("int64"), low_line_count=(~high).astype("int64"))
    return rows.groupby("l_shipmode")[["high_line_count", "low_line_count"]].sum().reset_index()


def q13(t: Tables) -> dd.DataFrame:
    """Customer distribution: customers without orders are in the left join alone."""
    orders = t.orders[~t.orders.o_comment.str.contains("special.*requests")]
    rows = t.customer.merge(orders, left_on="c_custkey", right_on="o_custkey", how="left")
    counts = rows.groupby("c_custkey").o_orderkey.count().rename("c_count").reset_index()
    return counts.groupby("c_count").size().rename("custdist").reset_index()


def q14(t: Tables) -> Any:
    """Promotion effect; no group-by."""
    days = t.lineitem.l_shipdate
    lines = _revenue(t.lineitem[_between(days, date(1995, 9, 1), date(1995, 10, 1))])
    rows = lines.merge(t.part, left_on="l_partkey", right_on="p_partkey")
    revenue = rows.revenue.astype("float64")
    return 100 * revenue.where(rows.p_type.str.startswith("PROMO"), 0.0).sum() / revenue.sum()


def q15(t: Tables) -> dd.DataFrame:
    """Top supplier."""
    days = t.lineitem.l_shipdate
    lines = _revenue(t.lineitem[_between(days, date(1996, 1, 1), date(1996, 4, 1))])
    revenue = lines.groupby("l_suppkey").revenue.sum()
    best = revenue[revenue == revenue.max()].reset_index()
    rows = t.supplier.merge(best, left_on="s_suppkey", right_on="l_suppkey")
    return rows[["s_suppkey", "s_name", "s_address", "s_phone", "revenue"]]


def q16(t: Tables) -> dd.DataFrame:
    """Parts/supplier relationship: suppliers whom nobody complained of."""
    parts = t.part[
        (t.part.p_brand != "Brand#45") & ~t.part.p_type.str.startswith("MEDIUM POLISHED")
    ]
    parts = parts[parts.p_size.isin([49, 14, 23, 45, 19, 3, 36, 9])]
    bad = t.supplier[t.supplier.s_comment.str.contains("Customer.*Complaints")]
    bad = bad[["s_suppkey"]].assign(complaints=1)
    rows = t.partsupp.merge(parts, left_on="ps_partkey", right_on="p_partkey")
    rows = rows.merge(bad, left_on="ps_suppkey", right_on="s_suppkey", how="left")
    groups = rows[rows.complaints.isna()].groupby(["p_brand", "p_type", "p_size"])
    return groups.ps_suppkey.nunique().rename("supplier_cnt").reset_index()


def q17(t: Tables) -> Any:
    """Small-quantity-order revenue."""
    parts = t.part[(t.part.p_brand == "Brand#23") & (t.part.p_container == "MED BOX")]
    average = t.lineitem.groupby("l_partkey").l_quantity.mean().rename("average").reset_index()
    rows = parts.merge(t.lineitem, left_on="p_partkey", right_on="l_partkey")
    rows = rows.merge(average, on="l_partkey")
    small = rows[rows.l_quantity.astype("float64") < 0.2 * rows.average.astype("float64")]
    return small.l_extendedprice.astype("float64").sum() / 7.0


def q18(t: Tables) -> dd.DataFrame:
    """Large volume customer."""
    quantity = t.lineitem.groupby("l_orderkey").l_quantity.sum()
    large = quantity[quantity > 300].rename("quantity").reset_index()
    rows = t.orders.merge(large, left_on="o_orderkey", right_on="l_orderkey")
    rows = rows.merge(t.customer, left_on="o_custkey", right_on="c_custkey")
    keys = ["c_name", "c_custkey", "o_orderkey", "o_orderdate", "o_totalprice"]
    result = rows.groupby(keys).quantity.sum().reset_index()
    return _first(result, 100, ["o_totalprice", "o_orderdate"], [False, True])


def q19(t: Tables) -> Any:
    """Discounted revenue; no group-by."""
    lines = t.lineitem[t.lineitem.l_shipmode.isin(["AIR", "AIR REG"])]
    lines = _revenue(lines[lines.l_shipinstruct == "DELIVER IN PERSON"])
    rows = lines.merge(t.part, left_on="l_partkey", right_on="p_partkey")
    small = rows.p_container.isin(["SM CASE", "SM BOX", "SM PACK", "SM PKG"])
    small &= (rows.p_brand == "Brand#12") & rows.p_size.between(1, 5)
    small &= (rows.l_quantity >= 1) & (rows.l_quantity <= 11)
    middle = rows.p_container.isin(["MED BAG", "MED BOX", "MED PKG", "MED PACK"])
    middle &= (rows.p_brand == "Brand#23") & rows.p_size.between(1, 10)
    middle &= (rows.l_quantity >= 10) & (rows.l_quantity <= 20)
    large = rows.p_container.isin(["LG CASE", "LG BOX", "LG PACK", "LG PKG"])
    large &= (rows.p_brand == "Brand#34") & rows.p_size.between(1, 15)
    large &= (rows.l_quantity >= 20) & (rows.l_quantity <= 30)
    return rows[small | middle | large].revenue.sum()


def q20(t: Tables) -> dd.DataFrame:
    """Potential part promotion."""
    parts = t.part[t.part.p_name.str.startswith("forest")][["p_partkey"]]
    days = t.lineitem.l_shipdate
    lines = t.lineitem[_between(days, date(1994, 1, 1), date(1995, 1, 1))]
    keys = ["l_partkey", "l_suppkey"]
    sold = lines.groupby(keys).l_quantity.sum().rename("sold").reset_index()
    stock = t.partsupp.merge(parts, left_on="ps_partkey", right_on="p_partkey")
    stock = stock.merge(sold, left_on=["ps_partkey", "ps_suppkey"], right_on=keys)
    stock = stock[stock.ps_availqty > 0.5 * stock.sold.astype("float64")]
    canada = t.nation[t.nation.n_name == "CANADA"]
    suppliers = t.supplier.merge(canada, left_on="s_nationkey", right_on="n_nationkey")
    chosen = stock[["ps_suppkey"]].drop_duplicates()
    rows = suppliers.merge(chosen, left_on="s_suppkey", right_on="ps_suppkey")
    return rows[["s_name", "s_address"]]


def q21(t: Tables) -> dd.DataFrame:
    """Suppliers who kept orders waiting: the only late one of several."""
    late = t.lineitem[t.lineitem.l_receiptdate > t.lineitem.l_commitdate]
    several = t.lineitem.groupby("l_orderkey").l_suppkey.nunique()
    one_late = late.groupby("l_orderkey").l_suppkey.nunique()
    several = several[several > 1].rename("suppliers").reset_index()
    one_late = one_late[one_late == 1].rename("late_suppliers").reset_index()
    orders = t.orders[t.orders.o_orderstatus == "F"][["o_orderkey"]]
    arabia = t.nation[t.nation.n_name == "SAUDI ARABIA"]
    suppliers = t.supplier.merge(arabia, left_on="s_nationkey", right_on="n_nationkey")
    rows = late.merge(several, on="l_orderkey").merge(one_late, on="l_orderkey")
    rows = rows.merge(orders, left_on="l_orderkey", right_on="o_orderkey")
    rows = rows.merge(suppliers, left_on="l_suppkey", right_on="s_suppkey")
    waits = rows.groupby("s_name").size().rename("numwait").reset_index()
    return _first(waits, 100, ["numwait", "s_name"], [False, True])


def q22(t: Tables) -> dd.DataFrame:
    """Global sales opportunity: customers in credit without an order."""
    code = t.customer.c_phone.str.slice(0, 2)
    customers = t.customer.assign(cntrycode=code, balance=t.customer.c_acctbal.astype("float64"))
    customers = customers[code.isin(["13", "31", "23", "29", "30", "18", "17"])]
    average = customers[customers.balance > 0].balance.mean()
    customers = customers[customers.balance > average]
    ordered = t.orders[["o_custkey"]].drop_duplicates()
    rows = customers.merge(ordered, left_on="c_custkey", right_on="o_custkey", how="left")
    groups = rows[rows.o_custkey.isna()].groupby("cntrycode")
    return groups.agg(numcust=("c_custkey", "count"), totacctbal=("c_acctbal", "sum")).reset_index()


QUERIES: dict[str, Callable[[Tables], Any]] = {
    f.__name__: f
    for f in (
        q1, q2, q3, q4, q5, q6, q7, q8, q9, q10, q11,
        q12, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22,
    )
}  # fmt: skip
WITHOUT_GROUPBY = frozenset(("q6", "q14", "q19"))
