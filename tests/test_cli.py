"""``python -m dask_gpuagg`` and the IPython extension behave as Python itself does."""

import json
import re
import sys

import dask
import pytest

import dask_gpuagg
from dask_gpuagg.cli import main
from tests.running import ROOT, run_python

QUERY = """
import dask, pandas as pd, dask.dataframe as dd
from dask_gpuagg.reporting.runs import session
dask.config.set(scheduler="synchronous")
ddf = dd.from_pandas(pd.DataFrame({"k": [1, 2, 1], "v": [1, 2, 3]}), npartitions=2)
print("sum", ddf.groupby("k").v.sum().compute().to_dict())
print("planned", len(session.planned))
"""
SHOW = "import sys; print(__name__, sys.argv)\n"


def gpuagg(*arguments, **kwargs):
    return run_python("-m", "dask_gpuagg", *arguments, **kwargs)


@pytest.fixture
def script(tmp_path):
    def write(text: str, name: str = "script.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


class TestScript:
    def test_runs_with_the_plugin_on_its_arguments_and_its_exit_code(self, script):
        path = script(f"{SHOW}{QUERY}raise SystemExit(3)\n")
        arguments = ["--flag", "-x", "1", "-m", "a", "--version", "-h", "--", "b"]
        ran = gpuagg(path, *arguments)
        shown = f"__main__ {[str(path), *arguments]}"
        assert ran.stdout.splitlines() == [shown, "sum {1: 4, 2: 2}", "planned 1"], ran.stderr
        assert ran.returncode == 3

    def test_an_error_is_shown_as_by_python(self, script):
        script("def divide():\n    return 1 / 0\n", "neighbour.py")
        path = script("from neighbour import divide\n\ndivide()\n")
        ran, python = gpuagg(path), run_python(path)
        assert "1 / 0" in ran.stderr
        assert (ran.returncode, ran.stderr) == (1, python.stderr)

    def test_a_cluster_of_processes_made_by_the_script(self, script):
        # its workers import the script again, and unpickle functions defined in it
        text = """
import pandas as pd, dask.dataframe as dd
from distributed import Client, LocalCluster
from dask_gpuagg.reporting.runs import session

def double(part):
    return part * 2

if __name__ == "__main__":
    with LocalCluster(n_workers=1, dashboard_address=None) as cluster, Client(cluster):
        ddf = dd.from_pandas(pd.DataFrame({"k": [1, 2, 1], "v": [1, 2, 3]}), npartitions=2)
        print(ddf.map_partitions(double).groupby("k").v.sum().compute().to_dict())
        print("planned", len(session.planned))
"""
        ran = gpuagg(script(text))
        assert ran.stdout.splitlines() == ["{2: 8, 4: 4}", "planned 1"], ran.stderr


def test_calibrate_without_a_gpu_says_so_once():
    ran = gpuagg("calibrate", env={"CUDA_VISIBLE_DEVICES": ""})
    assert ran.returncode == 1
    assert ran.stderr.startswith("dask-gpuagg calibrate: nothing to measure: ")
    assert ran.stderr.count("\n") == 1
    assert ran.stdout == ""


COMMANDS = ("run", "doctor", "calibrate", "warm")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "usage: dask-gpuagg"),
        (["docter"], "there is no file docter, nor such a command"),
        (["run", "-m"], "give a script, or -m and a module"),
        (["--no-such"], "unrecognized arguments: --no-such"),
        (["run", "missing.py"], "there is no file missing.py"),
        (["run", "-m", "no.such.module"], "there is no module no.such.module"),
        (["calibrate", "now"], "unrecognized arguments: now"),
        (["warm", "now"], "unrecognized arguments: now"),
    ],
    ids=" ".join,
)
def test_a_wrong_word_is_one_message_and_no_traceback(
    arguments, words, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert words in printed.err
    assert printed.out == ""
    assert not dask_gpuagg.is_enabled()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nonsense://x"])
def test_a_scheduler_that_does_not_answer(address, capsys):
    limit = dask.config.set({"distributed.comm.timeouts.connect": "1s"})
    with limit, pytest.raises(SystemExit) as ended:
        main(["doctor", "--scheduler", address])
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert printed.err.startswith(f"dask-gpuagg doctor: no scheduler answers at {address}: ")
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_a_help(command, capsys):
    for arguments in ([command, "--help"], ["--help"], ["--version"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert f"usage: dask-gpuagg {command}" in printed
    assert re.search(rf"\n +{command}\s", printed)
    assert printed.endswith(f"{dask_gpuagg.__version__}\n")


@pytest.mark.parametrize("file", ["ran.json", "-"])
def test_run_profiles(script, tmp_path, file):
    place = file if file == "-" else tmp_path / file
    ran = gpuagg("run", "--profile", place, script(QUERY))
    assert ran.stdout.splitlines() == ["sum {1: 4, 2: 2}", "planned 1"], ran.stderr
    text = ran.stderr if file == "-" else place.read_text()
    assert "sum of v by k" in text
    if file == "ran.json":
        assert [step["step"] for step in json.loads(text)["steps"]] == ["partial", "finalize"]


def test_a_profile_is_written_also_when_the_script_fails(script, tmp_path):
    ran = gpuagg("run", "--profile", tmp_path / "ran.html", script(QUERY + "\n1 / 0\n"))
    assert ran.returncode == 1
    assert "ZeroDivisionError" in ran.stderr
    text = (tmp_path / "ran.html").read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "sum of v by k" in text
    ran = gpuagg("run", "--profile", tmp_path / "no" / "ran.txt", script(QUERY))
    assert ran.returncode == 2
    assert "cannot be written" in ran.stderr


def test_a_package_of_the_working_directory_by_the_installed_command(tmp_path):
    """The console script has the folder of programs as the first on its path."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "__main__.py").write_text(f"from . import __name__\n{QUERY}")
    code = "import sys; sys.path.pop(0); from dask_gpuagg.cli import main; main(['-m', 'pack'])"
    ran = run_python("-c", code, cwd=tmp_path)
    assert ran.stdout.splitlines() == ["sum {1: 4, 2: 2}", "planned 1"], ran.stderr


def test_the_extension_of_ipython_enables_and_disables():
    pytest.importorskip("IPython")
    cells = ["%load_ext dask_gpuagg", "%reload_ext dask_gpuagg", QUERY]
    cells += ["session.reset()", "%unload_ext dask_gpuagg", QUERY]
    code = "from IPython.core.interactiveshell import InteractiveShell\n"
    code += "shell = InteractiveShell.instance()\n"
    code += "".join(f"shell.run_cell({cell!r}).raise_error()\n" for cell in cells)
    ran = run_python("-c", code, cwd=ROOT)
    lines = [line for line in ran.stdout.splitlines() if line.startswith(("sum", "planned"))]
    assert lines[::2] == ["sum {1: 4, 2: 2}"] * 2, ran.stderr
    assert lines[1::2] == ["planned 1", "planned 0"]


def test_a_forgotten_file_of_the_profile_does_not_overwrite_the_script(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text("print(1)\n")
    with pytest.raises(SystemExit):
        main(["run", "--profile", str(script)])
    assert script.read_text() == "print(1)\n"
