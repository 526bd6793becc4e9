"""Two queries of TPC-H at scale 1 on one GPU, through the plugin and by stock dask-cudf.

For each query: its result, what ran and why, then the same by stock dask-cudf with the time of
both and the difference of the results. Needs a GPU and the extra ``cu12`` or ``cu13``, and says
what is missing where there is none; run it by ``python examples/gpu_quickstart.py``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np

import dask_gpuagg
import data
import machine

RUNS = 5
TOLERANCE = 1e-9
SUMS = ["l_quantity", "l_extendedprice", "disc_price", "charge"]
MEANS = ["l_quantity", "l_extendedprice", "l_discount"]


def lineitem() -> Any:
    """The table, in device memory."""
    import cudf

    files = sorted(data.lineitem_files("1").glob("*.parquet"))
    # dask_cudf.read_parquet 26.10 refuses files with dates: "cuDF does not yet support date32"
    frame = dd.from_map(cudf.read_parquet, files, columns=data.LINEITEM)
    money = ["l_quantity", "l_extendedprice", "l_discount", "l_tax"]
    return frame.astype(dict.fromkeys(money, "float64")).persist()


def pricing_summary(frame: Any) -> Any:
    """TPC-H Q1: eight aggregations, four groups."""
    shipped = frame[frame.l_shipdate <= np.datetime64("1998-09-02")]
    price = shipped.l_extendedprice * (1 - shipped.l_discount)
    rows = shipped.assign(disc_price=price, charge=price * (1 + shipped.l_tax))
    spec: dict[str, list[str]] = {c: ["sum"] for c in SUMS}
    for column in MEANS:
        spec[column] = [*spec.get(column, []), "mean"]
    spec["l_quantity"].append("count")
    return rows.groupby(["l_returnflag", "l_linestatus"], sort=True).agg(spec)


def large_orders(frame: Any) -> Any:
    """The inner query of TPC-H Q18: one group per order, few of which stay."""
    quantity = frame.groupby("l_orderkey").agg({"l_quantity": "sum"})
    return quantity[quantity.l_quantity > 300]


def compared(ours: Any, stock: Any) -> float:
    """Largest relative difference; infinite where groups or columns differ."""
    a, b = (x.to_pandas().sort_index() for x in (ours, stock))
    if not (a.index.equals(b.index) and a.columns.equals(b.columns)):
        return float("inf")
    x, y = (f.to_numpy("float64") for f in (a, b))
    return float(np.max(np.abs(x - y) / np.where(y == 0, 1, np.abs(y)), initial=0))


def show(title: str, frame: Any, build: Callable[[Any], Any]) -> bool:
    """Print one query; whether its two arms agree."""

    def by_plugin() -> Any:
        with dask_gpuagg.enabled():
            return build(frame).compute()

    def by_stock() -> Any:
        return build(frame).compute()

    print(f"\n=== {title} ===\n{len(frame):,} rows in {frame.npartitions} partitions\n")
    print(f"running it once each way, then {RUNS} times each way for the times ...\n", flush=True)
    ours, stock = by_plugin(), by_stock()
    print(f"{ours.head(6).to_pandas().to_string()}\n({len(ours):,} groups)\n")
    with dask_gpuagg.enabled():
        print(dask_gpuagg.explain(build(frame)))
    run = dask_gpuagg.last_runs()[-1]
    print(f"  kernel   {run.decision.kernel}: {run.decision.why}")
    seconds: dict[str, list[float]] = {"plugin": [], "stock": []}
    for _ in range(RUNS):
        for name, arm in (("plugin", by_plugin), ("stock", by_stock)):
            start = time.perf_counter()
            arm()
            seconds[name].append(time.perf_counter() - start)
    difference = compared(ours, stock)
    plugin, other = (statistics.median(seconds[name]) for name in ("plugin", "stock"))
    print(f"\ndifference  {difference:.1e}")
    print(
        f"time        plugin {plugin:.4f} s, stock {other:.4f} s: {other / plugin:.2f}x "
        f"(medians of {RUNS})"
    )
    return difference < TOLERANCE


def main() -> None:
    missing = machine.without_gpu()
    if missing is not None:
        sys.exit(f"This example needs a GPU, and there is none that it can use.\n\n{missing}")
    import cudf
    import rmm

    dask_gpuagg.disable()
    dask.config.set({"gpuagg.fallback": "raise"})
    rmm.reinitialize(pool_allocator=True)
    print(
        f"dask_gpuagg {dask_gpuagg.__version__}, dask {dask.__version__}, cudf {cudf.__version__}"
    )
    print(
        "reading TPC-H's lineitem at scale 1 into device memory; the first time it is made ...",
        flush=True,
    )
    frame = lineitem()
    agreed = [
        show("TPC-H Q1: pricing summary", frame, pricing_summary),
        show("TPC-H Q18, inner part: orders of more than 300 units", frame, large_orders),
    ]
    if not all(agreed):
        sys.exit("The two arms do not agree.")


if __name__ == "__main__":
    main()
