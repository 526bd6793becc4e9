"""The command line: ``dask-gpuagg run|doctor|warm|calibrate``."""

import argparse
import importlib.util
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import dask_gpuagg

PROG = "dask-gpuagg"


class Command(argparse.ArgumentParser):
    """The parser of one command."""

    def give_up(self, message: str) -> NoReturn:
        """End with status 2 and one line."""
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: list[str] | None = None) -> None:
    """Run the command that the arguments name, or a script, or ``-m`` and a module."""
    words = sys.argv[1:] if arguments is None else arguments
    first = words[0] if words else ""
    if first == "warm":  # it has a parser of its own
        from dask_gpuagg.cuda import warm

        sys.exit(warm.main(words[1:]))
    parser, commands = _parsers()
    if first == "-m" or (first[:1] not in ("", "-") and first not in commands):
        words = ["run", *words]
    options = parser.parse_args(words)
    if "command" not in options:
        parser.error(f"give a command ({', '.join(commands)}), a script, or -m and a module")
    status = options.run(options.command, options)
    if status:
        sys.exit(status)


def _parsers() -> tuple[Command, list[str]]:
    """The parser of all commands, and their names."""
    parser = Command(
        prog=PROG,
        usage=f"{PROG} [-h] [--version] COMMAND ...\n       {PROG} SCRIPT ...\n"
        f"       {PROG} -m MODULE ...",
        epilog=f"`{PROG} COMMAND --help` lists the options of a command. A script, or -m and a "
        "module, are run as by `run`.",
    )
    parser.add_argument("--version", action="version", version=dask_gpuagg.__version__)
    commands = parser.add_subparsers(prog=PROG, title="commands", metavar="COMMAND")

    def add(name: str, run: Callable[[Command, argparse.Namespace], int], text: str) -> Command:
        command: Command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run, command=command)
        return command

    run = add("run", _run, "Run a script or module with Dask's group-bys through the plugin.")
    text = "write what ran to FILE, as HTML, JSON or text by its name; - is standard error"
    run.add_argument("--profile", metavar="FILE", help=text)
    # whatever follows the script or -m is the program's own, options included
    run.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module")
    run.add_argument("script", nargs=argparse.REMAINDER, help="a script and its arguments")
    text = "Look at Python, Dask, RAPIDS, GPU, caches and workers, and say what to do."
    doctor = add("doctor", _doctor, text)
    doctor.add_argument("--scheduler", metavar="ADDRESS", help="look at its workers too")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    text = "Measure the constants by which kernels are chosen on this machine's GPU."
    add("calibrate", _calibrate, text)
    commands.add_parser("warm", help="Compile the kernels of common queries into the kernel cache.")
    return parser, list(commands.choices)


def _run(command: Command, options: argparse.Namespace) -> int:
    if not (options.module or options.script):
        # no profile is written: its file may be meant as the script
        command.error("give a script, or -m and a module")
    if not options.profile:
        return _program(command, options)
    profile = dask_gpuagg.profile()
    try:
        with profile:
            return _program(command, options)
    finally:
        _write(command, profile, options.profile)


def _write(command: Command, profile: dask_gpuagg.profile, file: str) -> None:
    text = str(profile)
    if file == "-":
        print(text, file=sys.stderr)
        return
    if file.endswith(".html"):
        text = f"<!DOCTYPE html><meta charset=utf-8>{profile._repr_html_()}"
    elif file.endswith(".json"):
        text = profile.to_json()
    try:
        Path(file).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        command.give_up(f"{file} cannot be written: {error.strerror}")


def _program(command: Command, options: argparse.Namespace) -> int:
    """Run a script or a module as ``__main__``, with the plugin on."""
    program = options.module or options.script
    if options.module:
        # as python -m does; the command's own folder is the first otherwise
        sys.path.insert(0, str(Path.cwd()))
        if not _has_module(program[0]):
            command.give_up(f"there is no module {program[0]}")
    elif not Path(program[0]).exists():
        command.give_up(f"there is no file {program[0]}, nor such a command")
    dask_gpuagg.enable()
    sys.argv = list(program)
    try:
        if options.module:
            runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        else:
            # like python itself, so that a script finds the modules beside it
            sys.path.insert(0, str(Path(program[0]).resolve().parent))
            runpy.run_path(program[0], run_name="__main__")
    except Exception as error:
        # as Python shows it: from the program's own first frame on
        trace = error.__traceback__
        while trace and trace.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):  # of a parent that is missing, or a bad name
        return False


def _doctor(command: Command, options: argparse.Namespace) -> int:
    from dask_gpuagg.doctor import doctor

    if options.scheduler:
        from distributed import Client
        from distributed.comm.registry import get_backend

        from dask_gpuagg.cluster import patience

        address = options.scheduler
        try:
            if "://" in address:  # a client of an unknown protocol cannot be closed
                get_backend(address.partition("://")[0])
            with Client(address, timeout=patience()):
                report = doctor()
        except (OSError, ValueError, TimeoutError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            command.give_up(f"no scheduler answers at {address}: {text}")
    else:
        report = doctor()
    print(json.dumps(report.to_dict(), indent=1) if options.json else report)
    return 0 if report.healthy else 1


def _calibrate(command: Command, options: argparse.Namespace) -> int:
    # imports of the GPU's libraries, which scripts may not need
    from dask_gpuagg.engines.device.calibrate import calibrate

    return calibrate()
