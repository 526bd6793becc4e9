"""Three group-by queries on real data, through the plugin and by stock Dask.

For each query: its result, what ran and why, then the same by stock Dask with the time of both
and the difference of the results. Run it by ``make quickstart``.
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

import dask_gpuagg
import data

RUNS = 5
# Far above the rounding of sums in another order, far below anything one would care about.
TOLERANCE = 1e-9
ROUTE = ["carrier", "origin", "dest"]


@dataclass(frozen=True, slots=True)
class Query:
    """One query in two arms.

    Attributes
    ----------
    title : str
        Heading.
    source : callable
        Makes the frame.
    build : callable
        Frame to lazy result, as a user of the plugin writes it.
    stock : callable, optional
        Frame to computed result, as a user of stock Dask has to write it; ``build`` serves
        where that is the same.
    note : str
        How the arms differ.
    """

    title: str
    source: Callable[[], dd.DataFrame]
    build: Callable[[dd.DataFrame], Any]
    stock: Callable[[dd.DataFrame], pd.DataFrame] | None = None
    note: str = "Stock Dask runs the same lines."

    def by_plugin(self, frame: dd.DataFrame) -> pd.DataFrame:
        """Result with the plugin on."""
        with dask_gpuagg.enabled():
            return self.build(frame).compute()

    def by_stock(self, frame: dd.DataFrame) -> pd.DataFrame:
        """Result with the plugin off."""
        return self.stock(frame) if self.stock else self.build(frame).compute()


def pricing_summary(lineitem: dd.DataFrame) -> dd.DataFrame:
    """TPC-H Q1: eight aggregations, four groups."""
    shipped = lineitem[lineitem.l_shipdate <= datetime.date(1998, 9, 2)]
    price = shipped.l_extendedprice * (1 - shipped.l_discount)
    rows = shipped.assign(disc_price=price, charge=price * (1 + shipped.l_tax))
    return rows.groupby(["l_returnflag", "l_linestatus"], sort=True).agg(
        sum_qty=("l_quantity", "sum"),
        sum_base_price=("l_extendedprice", "sum"),
        sum_disc_price=("disc_price", "sum"),
        sum_charge=("charge", "sum"),
        avg_qty=("l_quantity", "mean"),
        avg_price=("l_extendedprice", "mean"),
        avg_disc=("l_discount", "mean"),
        # No column of lineitem is ever null, so this is SQL's count(*).
        count_order=("l_quantity", "count"),
    )


def large_orders(lineitem: dd.DataFrame) -> dd.Series:
    """The inner query of TPC-H Q18: one group per order, few of which stay."""
    quantity = lineitem.groupby("l_orderkey").l_quantity.sum()
    return quantity[quantity > 300]


def delays(flights: dd.DataFrame) -> dd.DataFrame:
    """Arrival delays in minutes and number of planes, per carrier and route."""
    return flights.groupby(ROUTE).agg(
        mean_delay=("arr_delay", "mean"),
        std_delay=("arr_delay", "std"),
        planes=("tailnum", "nunique"),
    )


def delays_stock(flights: dd.DataFrame) -> pd.DataFrame:
    """Compute the same without ``nunique`` in ``.agg``."""
    routes = flights.groupby(ROUTE)
    delay = routes.agg(mean_delay=("arr_delay", "mean"), std_delay=("arr_delay", "std"))
    delay, planes = dask.compute(delay, routes.tailnum.nunique())
    return delay.join(planes.rename("planes"))


QUERIES = [
    Query("TPC-H Q1: pricing summary", data.lineitem, pricing_summary),
    Query("TPC-H Q18, inner part: orders of more than 300 units", data.lineitem, large_orders),
    Query(
        "Delays per carrier and route",
        data.flights,
        delays,
        delays_stock,
        "Stock Dask refuses 'nunique' in .agg (ValueError: unknown aggregate nunique): it runs "
        ".agg and .nunique() side by side, and the results are joined.",
    ),
]


def difference(ours: pd.DataFrame, stock: pd.DataFrame) -> tuple[str, bool]:
    """Say how far two results are apart, whatever the order of their rows.

    Returns
    -------
    text : str
    agree : bool
        Whether they are the same but for the last digits of floats.
    """
    a, b = (pd.DataFrame(x).sort_index() for x in (ours, stock))
    if not (a.index.equals(b.index) and a.columns.equals(b.columns)):
        return f"groups or columns DIFFER: {a.shape} and {b.shape}", False
    floats = a.select_dtypes("floating").columns
    if not a.drop(columns=floats).equals(b.drop(columns=floats)):
        return "groups equal, integer columns DIFFER", False
    x, y = (f[floats].to_numpy("float64", na_value=np.nan) for f in (a, b))
    if not np.array_equal(np.isnan(x), np.isnan(y)):
        return "groups and integer columns equal, nulls DIFFER", False
    # A group whose values are all the same has std 0 on both sides: no difference, not 0 / 0.
    scale = np.where(y == 0, 1, np.abs(y))
    worst = float(np.nanmax(np.abs(x - y) / scale, initial=0))
    text = f"groups and integer columns equal, largest relative difference {worst:.1e}"
    return text, worst < TOLERANCE


def show(query: Query) -> bool:
    """Print one query; whether its two arms agree."""
    # Held in memory, so that the clock sees the query and not the Parquet reader.
    frame = query.source().persist()
    print(f"\n=== {query.title} ===")
    print(f"{len(frame):,} rows in {frame.npartitions} partitions\n")
    # The first run of each arm warms up and gives the results to compare.
    print("with the plugin, for the first time: loops may be compiled, once ...", flush=True)
    ours = query.by_plugin(frame)
    print("by stock Dask ...\n", flush=True)
    stock = query.by_stock(frame)
    print(f"{pd.DataFrame(ours).head(6).to_string()}\n({len(ours):,} groups)\n")
    with dask_gpuagg.enabled():
        print(dask_gpuagg.explain(query.build(frame)))

    print(f"\n{RUNS} times each way, in turn, for the times ...", flush=True)
    seconds: dict[str, list[float]] = {"plugin": [], "stock": []}
    arms = [("plugin", query.by_plugin), ("stock", query.by_stock)]
    for _ in range(RUNS):
        for name, arm in arms:
            start = time.perf_counter()
            arm(frame)
            seconds[name].append(time.perf_counter() - start)
        arms.reverse()
    ratios = [s / p for s, p in zip(seconds["stock"], seconds["plugin"], strict=True)]
    print(f"\n{query.note}")
    text, agree = difference(ours, stock)
    print(f"difference  {text}")
    print(
        f"time        plugin {statistics.median(seconds['plugin']):.3f} s, "
        f"stock Dask {statistics.median(seconds['stock']):.3f} s; stock / plugin: "
        f"{statistics.median(ratios):.2f}x (median of {RUNS} pairs, "
        f"{min(ratios):.2f}x to {max(ratios):.2f}x)"
    )
    return agree


def main() -> None:
    # The stock arm has to be stock, whatever the environment says; and an arm that fell back to
    # stock Dask would be timed as if it were ours.
    dask_gpuagg.disable()
    dask.config.set({"gpuagg.fallback": "raise"})
    print(
        f"dask_gpuagg {dask_gpuagg.__version__}, dask {dask.__version__}, pandas "
        f"{pd.__version__}, pyarrow {pa.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores"
    )
    print(f"{len(QUERIES)} queries, each with the plugin and by stock Dask", flush=True)
    differ = [query.title for query in QUERIES if not show(query)]
    if differ:
        sys.exit(f"The two arms do not agree on: {', '.join(differ)}")


if __name__ == "__main__":
    main()
