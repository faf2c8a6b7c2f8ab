import ast
import os
import subprocess
import sys

import pytest

from searchlight.trainables.command.listener import HOOK
from tests.trainables.command.programs import ROOT, run_program


def test_report_is_heard(tmp_path):
    text = """
import searchlight
searchlight.report(step=1, **{"val/loss": 0.5, "accuracy": 1})
searchlight.report(loss=0.25)
"""
    outcome = run_program(tmp_path, text)
    assert outcome.heard == [
        ("searchlight.report", 1, {"val/loss": 0.5, "accuracy": 1}),
        ("searchlight.report", None, {"loss": 0.25}),
    ]
    assert (outcome.code, outcome.output) == (0, "")


def test_report_is_heard_without_an_installed_package(tmp_path):
    text = """
import sys
sys.path = [path for path in sys.path if "python" in path and "site-packages" not in path]
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
import searchlight
searchlight.report(loss=0.5)
print(searchlight.params(), hasattr(searchlight, "__file__"))
"""
    outcome = run_program(tmp_path, text, SEARCHLIGHT_PARAMS='{"lr": 0.5}')
    assert outcome.output == "{'lr': 0.5} False\n"
    assert outcome.heard == [("searchlight.report", None, {"loss": 0.5})]


def test_elements_of_arrays_are_heard_and_other_values_are_named(tmp_path):
    text = """
import numpy, searchlight
for _ in range(2):
    searchlight.report(step=numpy.int64(2), loss=numpy.array([0.5]), text="high", array=numpy.zeros(3))
"""
    outcome = run_program(tmp_path, text)
    assert outcome.heard == [("searchlight.report", 2, {"loss": 0.5})] * 2
    assert outcome.output.splitlines() == [
        "searchlight: text of searchlight.report must be a number, but got str. It is left out.",
        "searchlight: array of searchlight.report must be a number, but got ndarray. It is left out.",
    ]


def test_nothing_happens_outside_a_search(tmp_path):
    text = """
import searchlight, sys
searchlight.report(step="x", loss="y")
print(searchlight.params(), searchlight.should_stop())
print([name for name in ("torch", "ray", "optuna", "socket", "searchlight_patches") if name in sys.modules])
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEARCHLIGHT")}
    environment["PYTHONPATH"] = f"{HOOK}:{ROOT}"
    run = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("{} False\n[]\n", "")


def test_program_is_told_to_stop(tmp_path):
    text = """
import searchlight, time
print(searchlight.should_stop())
searchlight.report(loss=1)
while not searchlight.should_stop():
    time.sleep(0.01)
print("saved")
"""
    outcome = run_program(tmp_path, text, stop_after=1)
    assert (outcome.code, outcome.output, outcome.could_stop) == (0, "False\nsaved\n", True)


@pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK", "NODE_RANK"])
def test_only_rank_0_is_heard(tmp_path, variable):
    text = "import searchlight; searchlight.report(loss=1); print(searchlight.should_stop())"
    assert len(run_program(tmp_path, text, **{variable: "0"}).heard) == 1
    outcome = run_program(tmp_path, text, **{variable: "1"})
    assert (outcome.heard, outcome.modules, outcome.output) == ([], [], "False\n")


def test_child_process_of_the_program_is_heard(tmp_path):
    text = """
import subprocess, sys, searchlight
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"], check=True)
searchlight.report(loss=len(sys.argv))
"""
    assert [metrics for *_, metrics in run_program(tmp_path, text).heard] == [{"loss": 2}, {"loss": 1}]


def test_forked_process_sends_on_its_own(tmp_path):
    text = """
import os, searchlight
searchlight.report(loss=0)
if child := os.fork():
    for step in range(1000):
        searchlight.report(step=step, loss=1)
    os.waitpid(child, 0)
else:
    for step in range(1000):
        searchlight.report(step=step, loss=2)
    os._exit(0)
"""
    values = [metrics["loss"] for *_, metrics in run_program(tmp_path, text).heard]
    assert [values.count(value) for value in (0, 1, 2)] == [1, 1000, 1000]


def test_reports_of_threads_are_not_mixed(tmp_path):
    text = """
import threading, searchlight
def work(number):
    for step in range(500):
        searchlight.report(step=step, **{f"loss{number}": number})
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    outcome = run_program(tmp_path, text)
    for number in range(4):
        steps = [step for _, step, metrics in outcome.heard if metrics == {f"loss{number}": number}]
        assert steps == [*range(500)]


def test_program_goes_on_if_nobody_listens(tmp_path):
    text = """
import os, searchlight
os.environ["SEARCHLIGHT_SOCKET"] += "-gone"
for step in range(3):
    searchlight.report(step=step, loss=1)
print(searchlight.should_stop())
"""
    outcome = run_program(tmp_path, text)
    assert outcome.code == 0
    first, second = outcome.output.splitlines()
    assert first.startswith("searchlight: metrics are not heard any more: ")
    assert second == "False"


def test_modules_of_site_packages_are_said_in_the_order_of_import(tmp_path):
    (tmp_path / "mine.py").write_text("")
    outcome = run_program(tmp_path, "import mine, yaml, click, json")
    assert "mine" not in outcome.modules
    assert "json" not in outcome.modules
    assert outcome.modules.index("yaml.nodes") < outcome.modules.index("yaml") < outcome.modules.index("click")


def test_process_that_is_asked_says_its_modules_once(tmp_path):
    text = """
import os, signal, yaml
for _ in range(2):
    os.kill(os.getpid(), signal.SIGURG)
import click
os._exit(0)
"""
    outcome = run_program(tmp_path, text)
    assert (outcome.code, outcome.output) == (0, "")
    assert "yaml" in outcome.modules
    assert "click" not in outcome.modules


def test_handler_of_the_program_is_its_own(tmp_path):
    text = """
import os, signal
signal.signal(signal.SIGURG, lambda *_: print("mine"))
os.kill(os.getpid(), signal.SIGURG)
"""
    assert run_program(tmp_path, text).output == "mine\n"


def test_sitecustomize_of_the_user_runs(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys; sys.marker = 'mine'; NAME = __file__")
    text = "import os, sys, sitecustomize; print(sys.marker, sitecustomize.NAME); print(os.environ['PYTHONPATH'])"
    outcome = run_program(tmp_path, text, PYTHONPATH=f"{folder}:{ROOT}")
    assert outcome.output.splitlines() == [f"mine {folder / 'sitecustomize.py'}", f"{HOOK}:{folder}:{ROOT}"]


def test_wrong_sitecustomize_of_the_user_is_told_as_ever(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("1 / 0")
    outcome = run_program(tmp_path, "import searchlight; searchlight.report(loss=1)", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (outcome.code, len(outcome.heard)) == (0, 1)
    assert outcome.output.startswith("Error in sitecustomize; set PYTHONVERBOSE for traceback:\nZeroDivisionError")


def test_hook_hides_no_module_of_the_user(tmp_path):
    text = "import sys; print(any('command/hook' in path for path in sys.path), 'socket' in sys.modules)"
    assert run_program(tmp_path, text).output == "False False\n"


def test_hook_has_the_syntax_of_python_3_8():
    for file in HOOK.glob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 8))


RANKS_THAT_PRINT = """
import os, subprocess, sys
if "RANK" not in os.environ:
    environments = [{**os.environ, "RANK": str(rank)} for rank in range(2)]
    ranks = [subprocess.Popen([sys.executable, __file__], env=environment) for environment in environments]
    sys.exit(sum(rank.wait() for rank in ranks))
for step in range(2000):
    print("step", step, "of rank", os.environ["RANK"])
"""


def test_lines_of_ranks_do_not_mix(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    outcome = run_program(tmp_path, RANKS_THAT_PRINT)
    assert outcome.code == 0
    expected = [f"step {step} of rank {rank}" for rank in range(2) for step in range(2000)]
    assert sorted(outcome.output.splitlines()) == sorted(expected)


LAST_WORDS = """
import os, sys
print("loss", 0.5, end="")
os._exit(0)
"""


@pytest.mark.parametrize(
    ("options", "variables"), [((), {}), ((), {"PYTHONUNBUFFERED": "1", "RANK": "0"}), (("-u",), {"RANK": "0"})]
)
def test_unfinished_line_is_printed_unless_a_rank_leaves_the_buffer_to_the_search(
    tmp_path, monkeypatch, options, variables
):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    outcome = run_program(tmp_path, LAST_WORDS, python=options, **variables)
    assert (outcome.code, outcome.output) == (0, "loss 0.5")
