"""Stock Dask and the plugin in turns, and the noise that the same rounds show.

A difference of a few percent between two arms says nothing unless it is known how much an arm
differs from itself. So one of them may run twice in each round, under two names, and the order of
the arms is then shifted by one from round to round.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import dask

from benchmarks import machine
from benchmarks.compare import compare

STOCK, PLUGIN, EXACT = "stock", "plugin", "exact"
ARMS = (STOCK, PLUGIN, EXACT)
AGAIN = "stock again"
"""Stock Dask under another name: what it differs from ``STOCK`` by is noise."""
CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """One query: its short name, and what it computes.

    ``build`` makes the lazy result of a Dask DataFrame, or of TPC-H from all tables. It is called
    anew for every run: an expression that was computed once keeps what it derived. ``stock`` is the
    same as stock Dask needs it, if it needs other lines. ``support`` is ``stock`` for what is no
    aggregation, where the ratio says nothing.
    """

    name: str
    title: str
    build: Callable[[Any], Any]
    support: Literal["plan", "stock"] = "plan"
    stock: Callable[[Any], Any] | None = None


def prepare(names: Sequence[str]) -> None:
    """Import the plugin if an arm needs it, and switch it off whatever the configuration says."""
    if not {PLUGIN, EXACT}.isdisjoint(names):
        import dask_gpuagg

        dask_gpuagg.disable()


@contextlib.contextmanager
def arm(name: str) -> Iterator[None]:
    """Switch to an arm for the duration of a ``with`` block."""
    if name in (STOCK, AGAIN):
        yield
        return
    import dask_gpuagg

    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.deterministic": name == EXACT}):
        yield


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One run: seconds by the wall clock and on all cores, and the result; or the error alone."""

    seconds: float | None
    result: Any
    error: str | None
    cpu: float | None = None


def run(query: Query, source: Any, name: str) -> Run:
    """Build and compute a query once in an arm, timed.

    A failure is a result too ("completed or not"), so it is returned, not raised.
    """
    build = query.stock if query.stock and name in (STOCK, AGAIN) else query.build
    with arm(name):
        done = timed(lambda: build(source).compute())
    if hasattr(done.result, "to_pandas"):
        # answers are compared on the host
        return dataclasses.replace(done, result=done.result.to_pandas())
    return done


def timed(call: Callable[[], Any]) -> Run:
    """Time a call."""
    gc.collect()
    start, busy = time.perf_counter(), time.process_time()
    try:
        result = call()
    except Exception as error:
        return Run(None, None, describe_error(error))
    return Run(time.perf_counter() - start, result, None, time.process_time() - busy)


def describe_error(error: BaseException) -> str:
    """Return the type and the first line of an exception."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def report(query: Query, source: Any) -> dict[str, Any]:
    """Explanation by the plugin; ``by_plan``: whether it runs every group-by, if known."""
    import dask_gpuagg

    try:
        with arm(PLUGIN), dask.config.set({"gpuagg.fallback": "silent"}):
            explanation = dask_gpuagg.explain(query.build(source))
    except Exception as error:
        return {"by_plan": None, "fallback": [], "plan": [], "error": describe_error(error)}
    reasons = [str(reason) for found in explanation.groupbys for reason in found.reasons]
    return {
        "by_plan": bool(explanation.groupbys) and not reasons,
        "fallback": reasons,
        "plan": str(explanation).splitlines(),
        "error": None,
    }


@dataclasses.dataclass(slots=True)
class Timed:
    """Seconds of the rounds of one arm: by the wall clock, and of all cores together."""

    name: str
    wall: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)
    error: str | None = None


def rounds(
    names: Sequence[str],
    run: Callable[[str], Run],
    count: int,
    is_over: Callable[[], bool],
    shifted: bool = True,
) -> list[Timed]:
    """Run arms in turns; one that fails runs no more.

    A further round begins unless there ``is_over`` time; where ``shifted`` with another arm.
    """
    timed = [Timed(name) for name in names]
    for number in range(count):
        if number and is_over():
            break
        shift = number % len(timed) if shifted else 0
        for one in (*timed[shift:], *timed[:shift]):
            if one.error is not None:
                continue
            done = run(one.name)
            one.error = done.error
            if done.seconds is not None and done.cpu is not None:
                one.wall.append(done.seconds)
                one.cpu.append(done.cpu)
            # the next run has the memory
            del done
    return timed


def compared(base: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """Times of one arm divided by another's, round by round; their median and its interval."""
    ratios = [a / b for a, b in zip(base, other, strict=False)]
    return {
        "ratios": ratios,
        "ratio": statistics.median(ratios) if ratios else None,
        "interval": interval(ratios),
    }


def interval(values: Sequence[float]) -> list[float] | None:
    """A confidence interval of the median by order statistics, whatever the distribution.

    A value lies below the median with a probability of one half, so how many do is binomial (Hahn
    and Meeker, Statistical Intervals, 1991). Of fewer than six values it is their range, which is
    less certain than ``CONFIDENCE``.
    """
    ordered = sorted(values)
    if not ordered:
        return None
    n, outside, tail = len(ordered), 0, 0.0
    while outside < (n - 1) // 2:
        tail += math.comb(n, outside) / 2**n
        if tail > (1 - CONFIDENCE) / 2:
            break
        outside += 1
    cut = max(outside - 1, 0)
    return [ordered[cut], ordered[n - 1 - cut]]


def is_slower(found: dict[str, Any], noise: dict[str, Any]) -> bool | None:
    """Tell whether an arm is slower than the noise explains; ``None`` without a round."""
    mine, band = found["interval"], noise["interval"]
    return None if mine is None or band is None else bool(mine[1] < min(1.0, band[0]))


def measure(
    query: Query,
    source: Any,
    options: argparse.Namespace,
    again: bool = False,
    memory: Callable[[Query, str], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Run one query in all arms, and return everything that was seen, ready for JSON.

    ``arms`` holds, per arm, the first run's time (``cold``), those of the others (``warm``
    and ``cpu``), their median, peak memory and error; ``ratios`` the quotient of each round. With
    ``again`` stock Dask runs twice in each round: ``noise`` is its ratio to itself, ``cpu`` has
    both in CPU time, and ``slower`` says whether it is beyond noise by either clock.
    """
    start = time.perf_counter()
    cold = [run(query, source, name) for name in options.arms]
    failed = any(done.error for done in cold)
    answer = None if failed else dataclasses.asdict(compare(cold[0].result, cold[1].result))
    first = [(done.seconds, done.error) for done in cold] + [(None, None)] * again
    del cold  # results can be as large as the data: the timed runs do not carry them
    timed = rounds(
        [*options.arms, *([AGAIN] if again else [])],
        lambda name: run(query, source, name),
        0 if failed else options.repeats,
        lambda: time.perf_counter() - start > options.budget,
        shifted=again,
    )
    entry = {
        "name": query.name,
        "title": query.title,
        "support": query.support,
        "arms": [],
        **compared(timed[0].wall, timed[1].wall),
        "answer": answer,
    }
    for one, (seconds, cold_error) in zip(timed, first, strict=True):
        error = cold_error or one.error
        taken = []
        if memory is not None and error is None:
            taken = [memory(query, one.name) for _ in range(options.memory_runs)]
        peaks = [found["peak_bytes"] for found in taken if found["error"] is None]
        entry["arms"].append(
            {
                "arm": one.name,
                "cold": seconds,
                "warm": one.wall,
                "cpu": one.cpu,
                "median": statistics.median(one.wall) if one.wall else None,
                "memory": taken,
                "peak": statistics.median(peaks) if peaks else None,
                "error": error,
            }
        )
    if again:
        noise = compared(timed[0].wall, timed[2].wall)
        busy = compared(timed[0].cpu, timed[1].cpu)
        noise_of_cpu = compared(timed[0].cpu, timed[2].cpu)
        entry |= {
            "noise": noise,
            "cpu": {**busy, "noise": noise_of_cpu},
            "slower": {"wall": is_slower(entry, noise), "cpu": is_slower(busy, noise_of_cpu)},
        }
    if PLUGIN in options.arms:
        entry["plugin"] = report(query, source)
    return entry


# ---- what the command lines have in common -------------------------------------------------------


def results_of(options: argparse.Namespace, data: dict[str, Any]) -> dict[str, Any]:
    """A results file without queries."""
    return {
        "schema": 1,
        **machine.provenance(options.commit),
        "arms": list(options.arms),
        "data": data,
        "repeats": options.repeats,
        "schedulers": {},
    }


def list_of(allowed: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return the type of an option that takes some of these names, separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(allowed)}")
        return names

    return parse


def add_arguments(parser: argparse.ArgumentParser, repeats: int, budget: float) -> None:
    """Add the options that :func:`measure` takes."""
    parser.add_argument(
        "--arms",
        type=list_of(ARMS),
        default=("stock", "plugin"),
        help="two of them; 'stock,stock' shows how much the ratio of equal things varies",
    )
    parser.add_argument("--repeats", type=int, default=repeats, help="warm runs of each arm")
    parser.add_argument(
        "--budget", type=float, default=budget, help="seconds after which a query gets no more"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="tiny: does it all run?")


def parsed(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    out: Path,
    trial: str,
    **quick: Any,
) -> argparse.Namespace:
    """The options; a trial has those of ``quick``, and does not overwrite the results kept."""
    options = parser.parse_args(argv)
    if len(options.arms) != 2:
        parser.error("--arms takes two arms")
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    if options.quick:
        vars(options).update(quick)
    if options.out is None:
        options.out = options.data / trial if options.quick else out
    return options


def run_and_print(
    options: argparse.Namespace, run: Callable[[argparse.Namespace], dict[str, Any]]
) -> None:
    """Run the benchmark and print a line for each query."""
    # Dask warns that shuffled tasks carry a large graph, pandas of its future: not ours to fix.
    warnings.filterwarnings("ignore", category=FutureWarning)
    for scheduler in run(options)["schedulers"].values():
        print(scheduler["title"], *map(line, scheduler["queries"].values()), sep="\n")


def line(entry: dict[str, Any]) -> str:
    """A query as one line: seconds of the arms, their ratio, and what went wrong."""
    medians = {one["arm"]: one["median"] for one in entry["arms"]}
    said = [f"{name} {median:.3f} s" for name, median in medians.items() if median is not None]
    if entry["ratio"] is not None:
        said.append(f"ratio {entry['ratio']:.2f}")
    said += [f"{one['arm']} failed: {one['error']}" for one in entry["arms"] if one["error"]]
    if entry["answer"] is not None and not entry["answer"]["equal"]:
        said.append(f"answers DIFFER: {entry['answer']['detail']}")
    said += [f"SLOWER by {clock} time" for clock, is_so in entry.get("slower", {}).items() if is_so]
    return f"{entry['name']}: {', '.join(said)}"
