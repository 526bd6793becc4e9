"""Run Dask's own DataFrame suites with the plugin on; only what it breaks is a failure.

``python -m tests.upstream`` runs all, ``python -m tests.upstream dask.dataframe.io`` a part.
Tests that fail are run again with the plugin off, for Dask's suites have failures of their own on
some machines; those that pass then are ours, and so is a share of planned group-bys below 99 %.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.running import ROOT, environment
from tests.upstream import LEAST_SHARE

SUITES = ("dask.dataframe.dask_expr.tests", "dask.dataframe.tests", "dask.dataframe.io")
RAN = (0, 1)  # pytest's exit statuses when tests passed and when some failed


def pytest_run(suites: Sequence[str], jobs: str, *options: str | Path) -> int:
    """Run suites in pytest with the counting plugin; its exit status."""
    command = [sys.executable, "-m", "pytest", "-c", "tests/upstream/pytest.ini"]
    command += ["--rootdir", "tests/upstream", "-p", "tests.upstream.plugin"]
    command += ["-p", "no:cacheprovider", "-W", "ignore", "-q", "-n", jobs]
    command += [*map(str, options), "--pyargs", *suites]
    return subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.upstream", description=__doc__)
    parser.add_argument("suites", nargs="*", default=SUITES, help=f"default: {' '.join(SUITES)}")
    parser.add_argument("-n", "--jobs", default="2", help="test processes")
    parser.add_argument("--least-share", type=float, default=LEAST_SHARE)
    parser.add_argument("--group-by", action="store_true", help="leave out tests without one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        on, off = Path(folder, "on.json"), Path(folder, "off.json")
        selection = ["--least-share", str(options.least_share)]
        selection += ["--group-by"] if options.group_by else []
        status = pytest_run(options.suites, options.jobs, "--outcome", on, *selection)
        if status not in RAN:
            sys.exit(status)
        failed = json.loads(on.read_text())["failed"]
        if not failed:
            sys.exit(status)  # 1 here says that too few group-bys were planned
        print(f"\n{len(failed)} failed: once more with the plugin off", flush=True)
        again = pytest_run(
            options.suites, options.jobs, "--stock", "--only-failed", on, "--outcome", off
        )
        if again not in RAN:
            sys.exit(again)
        ours = sorted(set(failed) - set(json.loads(off.read_text())["failed"]))
        counts = json.loads(on.read_text())
        total = counts["planned"] + sum(counts["fallbacks"].values())
    for name in ours:
        print(f"fails with the plugin on alone: {name}")
    short = 100 * counts["planned"] < options.least_share * total
    print(f"{len(failed)} failed with the plugin on, {len(ours)} of them pass with it off")
    sys.exit(1 if ours or short else 0)


if __name__ == "__main__":
    main()
