"""Run a script or module with the plugin enabled: ``python -m dask_gpuagg script.py [args]``."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

import dask_gpuagg


def main(arguments: list[str] | None = None) -> None:
    """Enable the plugin, then run a script or a module as ``__main__``.

    Parameters
    ----------
    arguments : list of str, optional
        ``sys.argv[1:]`` by default.
    """
    parser = argparse.ArgumentParser(
        prog="python -m dask_gpuagg",
        description="Run a Python script with Dask's group-bys going through dask_gpuagg.",
    )
    parser.add_argument("--version", action="version", version=dask_gpuagg.__version__)
    parser.add_argument("-m", dest="module", help="run a module instead of a script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the script and its arguments")
    options = parser.parse_args(arguments)
    if options.module is None and not options.args:
        parser.error("give a script, or -m and a module")
    dask_gpuagg.enable()
    if options.module is not None:
        sys.argv = [options.module, *options.args]
        runpy.run_module(options.module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(options.args)
        # like python itself, so that a script finds the modules beside it
        sys.path.insert(0, str(Path(options.args[0]).resolve().parent))
        runpy.run_path(options.args[0], run_name="__main__")


if __name__ == "__main__":
    main()
