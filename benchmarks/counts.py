"""Counts of the cost model beside those of the GPU's hardware, kernel by kernel.

``python -m benchmarks.counts`` groups rows by each kernel under Nsight Compute (``ncu``) and writes
for each launch the model's bytes, accesses of a global table and updates in shared memory beside
the bytes of device memory, the atomics and reads of the L2 cache and the atomics of shared memory
that were counted. A term of the model alone is what it expects where all other constants cost
nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import report_head
from benchmarks.kernel_inputs import TWO_VALUES, grouped, input_of
from benchmarks.report import write
from dask_gpuagg.cuda.choice.cost_model import Observation, plain
from dask_gpuagg.cuda.choice.costs import Costs
from dask_gpuagg.engines.device.calibrate import EXPERIMENTS, Experiment, aggregator_of

ROWS = 1 << 25
# Counters of Nsight Compute, by what they are called here; ``sum`` over all units.
COUNTERS = {
    "memory_read": "dram__bytes_read",
    "memory_written": "dram__bytes_write",
    "l2_atomics": "lts__t_sectors_op_atom",
    "l2_reductions": "lts__t_sectors_op_red",
    "l2_reads": "lts__t_sectors_op_read",
    "l2_writes": "lts__t_sectors_op_write",
    "shared_atomics": "smsp__inst_executed_op_shared_atom",
    "shared_swaps": "smsp__inst_executed_op_shared_atom_dot_cas",
    "shared_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared",
}
_UNIT = {"byte": 1, "Kbyte": 10**3, "Mbyte": 10**6, "Gbyte": 10**9, "inst": 1, "sector": 1, "": 1}
# Each experiment is launched behind one kernel that none of ours is.
_MARK = "gpuagg_benchmark_mark"
_LINE = "experiment "


def term(seen: Observation, **constants: float) -> dict[str, float]:
    """Milliseconds that the model expects of each kernel where only these constants cost."""
    free = {field.name: 0.0 for field in fields(Costs)}
    free |= {"bandwidth": math.inf, "table_bandwidth": math.inf, "l2_megabytes": 50.0}
    return seen.expected(Costs(**(free | constants)))


def expected(seen: Observation) -> dict[str, dict[str, float]]:
    """Bytes, accesses, misses and updates that the model counts, by kernel and term."""
    terms = {
        # GB/s and milliseconds
        "bytes": (1e6, {"bandwidth": 1.0, "table_bandwidth": 1.0}),
        # picoseconds and milliseconds
        "accesses": (1e9, {"access_ps": 1.0}),
        "misses": (1e9, {"miss_ps": 1.0}),
        "sums": (1e9, {"add_ps": 1.0}),
        "comparisons": (1e9, {"compare_ps": 1.0}),
        "searches": (1e9, {"find_ps": 1.0}),
        "runs": (1e9, {"run_ps": 1.0}),
        "gathers": (1e9, {"gather_ps": 1.0}),
    }
    found: dict[str, dict[str, float]] = {name: {} for name in seen.kernel_ms}
    for what, (scale, constants) in terms.items():
        for name, ms in term(seen, **constants).items():
            if ms:
                found[name][what] = scale * ms
    return found


def launch(rows: int) -> None:
    """Run the experiments for the profiler, and print what the model counts of each."""
    import cupy as cp

    from dask_gpuagg.cuda.runtime.driver import Stopwatch, current_device

    mark = cp.RawKernel(f'extern "C" __global__ void {_MARK}() {{}}', _MARK)
    device, held = current_device(), {}
    for number, experiment in enumerate(EXPERIMENTS):
        kind = (experiment.groups, experiment.dense)
        if kind not in held:
            keys = "int64" if experiment.dense else "random"
            of_groups = partial(grouped, keys, experiment.groups, 0.0)
            held = {kind: input_of("", of_groups, TWO_VALUES).make(rows)}
        k, v, w = (held[kind][c].to_pylibcudf()[0] for c in ("k0", "v", "w"))
        aggregator = aggregator_of((k, v, w), experiment.five)
        aggregator.run(experiment.kernel)
        stopwatch = Stopwatch()
        run = aggregator.run(experiment.kernel, stopwatch)[2]
        times = {plain(name): ms for name, ms in stopwatch.milliseconds().items()}
        if run.restarted or run.decision.kernel != experiment.kernel:
            continue  # its table does not fit this device
        cp.cuda.runtime.profilerStart()
        mark((1,), (1,), ())
        aggregator.run(experiment.kernel)
        cp.cuda.runtime.deviceSynchronize()
        cp.cuda.runtime.profilerStop()
        seen = Observation(aggregator.query, rows, run.decision, device, times)
        print(_LINE + json.dumps([number, expected(seen)]), flush=True)


def available() -> list[str]:
    """Those of the counters that this GPU has."""
    listed = subprocess.run(["ncu", "--query-metrics"], capture_output=True, text=True, check=True)
    known = {line.split()[0] for line in listed.stdout.splitlines() if line.strip()}
    return [name for name in COUNTERS.values() if name in known]


def counted(rows: int) -> Iterator[dict[str, Any]]:
    """The cells: a launch of a kernel each."""
    metrics = ",".join(f"{name}.sum" for name in available())
    child = [sys.executable, "-m", "benchmarks.counts", "--launch", "--rows", str(rows)]
    ncu = ["ncu", "--csv", "--profile-from-start", "off", "--print-kernel-base", "function"]
    command = [*ncu, "--clock-control", "none", "--metrics", metrics, *child]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ncu failed: {(done.stdout + done.stderr)[-2000:]}")
    lines = done.stdout.splitlines()
    told = [json.loads(line.removeprefix(_LINE)) for line in lines if line.startswith(_LINE)]
    found = by_launch(line for line in lines if line.startswith('"'))
    if len(found) != len(told):
        raise RuntimeError(f"{len(told)} experiments, of which ncu saw {len(found)}")
    for (number, model), kernels in zip(told, found, strict=True):
        yield from cells(EXPERIMENTS[number], model, kernels)


def by_launch(lines: Iterator[str]) -> list[dict[str, dict[str, float]]]:
    """Counters by kernel of each experiment, of the lines that ``ncu --csv`` prints.

    Variants of a kernel, and its launches, are added up.
    """
    found: list[dict[str, dict[str, float]]] = []
    names = {f"{metric}.sum": name for name, metric in COUNTERS.items()}
    marked = None
    for row in csv.DictReader(lines):
        kernel, metric = row["Kernel Name"].rpartition("::")[2], names[row["Metric Name"]]
        if kernel == _MARK:
            if row["ID"] != marked:
                found.append({})
                marked = row["ID"]
            continue
        counts = found[-1].setdefault(plain(kernel), {})
        value = float(row["Metric Value"].replace(",", "")) * _UNIT[row["Metric Unit"]]
        counts[metric] = counts.get(metric, 0.0) + value
    return found


def cells(
    experiment: Experiment,
    model: dict[str, dict[str, float]],
    kernels: dict[str, dict[str, float]],
) -> Iterator[dict[str, Any]]:
    """A cell for each kernel that the model describes."""
    for name, terms in model.items():
        if name in kernels:
            yield {
                "chosen": experiment.kernel,
                "groups": experiment.groups,
                "dense": experiment.dense,
                "query": "five" if experiment.five else "sum",
                "kernel": name,
                "model": terms,
                "counted": kernels[name],
            }


def main() -> None:
    """Count, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--launch", action="store_true", help="what ncu runs")
    parser.add_argument("--commit", help="where the tree is no git checkout")
    parser.add_argument("--out", type=Path, default=Path("counts.json"))
    args = parser.parse_args()
    if args.launch:
        launch(args.rows)
        return
    head = report_head(args.commit) | {"rows": args.rows}
    found = list(counted(args.rows))
    write(head | {"cells": found}, args.out)
    for cell in found:
        about = f"{cell['chosen']:8} {cell['groups']:10,} {cell['query']:4} {cell['kernel']:12}"
        print(about, *(f"{k} {v:.3g}" for k, v in (cell["model"] | cell["counted"]).items()))


if __name__ == "__main__":
    main()
