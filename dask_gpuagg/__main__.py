"""Run a script or module with the plugin enabled: ``python -m dask_gpuagg script.py [args]``.

``dask-gpuagg`` is the same command. ``dask-gpuagg calibrate`` measures the constants by which
kernels are chosen on this machine's GPU, ``dask-gpuagg warm`` compiles the kernels of common
queries.
"""

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
        description="Run a Python script with Dask's group-bys going through dask_gpuagg, or, as "
        "`calibrate`, measure what kernels cost on this machine's GPU, or, as `warm`, compile "
        "those of common queries (`warm --help`).",
    )
    parser.add_argument("--version", action="version", version=dask_gpuagg.__version__)
    # whatever follows the script or -m is the program's own, options included
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="a script and its arguments")
    options = parser.parse_args(arguments)
    program = options.module or options.script
    if not program:
        parser.error("give a script, or -m and a module")
    if options.script == ["calibrate"]:
        # imports of the GPU's libraries, which scripts may not need
        from dask_gpuagg.engines.device.calibrate import calibrate

        sys.exit(calibrate())
    if options.script[:1] == ["warm"]:
        from dask_gpuagg.cuda import warm

        sys.exit(warm.main(options.script[1:]))
    dask_gpuagg.enable()
    sys.argv = list(program)
    if options.module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        # like python itself, so that a script finds the modules beside it
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main()
