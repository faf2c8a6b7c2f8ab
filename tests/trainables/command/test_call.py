import json
import sys

import pytest

from searchlight.trainables.command.call import CALL_FUNCTION
from tests.trainables.command.programs import run_command

CODE = """
import sys
import searchlight
from helper import double

def give(result):
    return result

def evaluate(lr, width=8, *, seed):
    print(sys.argv, lr, width, seed, __name__, double(width))
    return lr

def evaluate_all(**config):
    print(sorted(config))
    return {"names": sorted(config), "loss": config["lr"], "epoch": 3}

def evaluate_epochs(lr):
    for epoch in range(2):
        searchlight.report(step=epoch, loss=lr)
    return 9.0

if __name__ == "__main__":
    raise SystemExit("it is no script")
"""


@pytest.fixture
def call(tmp_path):
    """Calls a function of a file as a search does."""
    (tmp_path / "helper.py").write_text("def double(value):\n    return 2 * value")
    (tmp_path / "my-train.py").write_text(CODE)
    (tmp_path / "train.py").write_text(CODE)

    def call(name, path="train.py", objectives=("loss",), **parameters):
        variables = {"SEARCHLIGHT_PARAMS": json.dumps(parameters), "SEARCHLIGHT_OBJECTIVES": json.dumps(objectives)}
        return run_command(tmp_path, [sys.executable, "-m", CALL_FUNCTION, path, name], **variables)

    return call


@pytest.mark.parametrize(("path", "module"), [("my-train.py", "my-train"), ("train", "train")])
def test_function_gets_the_parameters_that_it_takes(call, path, module):
    outcome = call("evaluate", path, lr=0.5, seed=7, epochs=3)
    assert outcome.output == f"['{path}'] 0.5 8 7 {module} 16\n"
    assert outcome.heard == [("what evaluate returned", None, {"loss": 0.5})]


def test_file_of_a_package_finds_its_relative_imports(call, tmp_path):
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "net.py").write_text("SIZE = 8")
    (package / "train.py").write_text("from .net import SIZE\ndef evaluate(lr):\n    return lr * SIZE")
    assert call("evaluate", "src/package/train.py", lr=0.5).heard == [("what evaluate returned", None, {"loss": 4.0})]


def test_function_may_take_all_parameters_and_return_several_metrics(call):
    outcome = call("evaluate_all", lr=0.5, width=3, seed=7)
    assert outcome.output == "['lr', 'width']\n"
    assert outcome.heard == [("what evaluate_all returned", None, {"loss": 0.5, "epoch": 3})]


def test_function_reports_epochs_itself(call):
    heard = call("evaluate_epochs", lr=0.5, seed=7).heard
    assert heard[:2] == [("searchlight.report", epoch, {"loss": 0.5}) for epoch in (0, 1)]
    assert heard[2:] == [("what evaluate_epochs returned", None, {"loss": 9.0})]  # of another source, so it is left out


@pytest.mark.parametrize(
    ("objectives", "result", "metrics"),
    [
        (["loss"], 2, {"loss": 2}),
        ([], 2, {"returned": 2}),
        (["loss", "size"], [2, 3], {"loss": 2, "size": 3}),
        (["loss", "size"], 2, {"loss": 2}),
        (["loss"], {"error": 2}, {"error": 2}),
        (["loss"], None, None),
    ],
)
def test_returned_numbers_are_the_objectives(call, objectives, result, metrics):
    outcome = call("give", objectives=objectives, result=result)
    assert [each for _, _, each in outcome.heard] == ([metrics] if metrics else [])
    assert outcome.output == ""


@pytest.mark.parametrize("result", ["high", [1, 2], {"loss": "high"}])
def test_other_results_are_told(call, result):
    outcome = call("give", result=result)
    rule = "searchlight: give must return a number, a number for each objective or a dict of numbers"
    told = f"{rule}, but returned {result!r}. It is left out.\n"
    assert (outcome.code, outcome.output, outcome.heard) == (0, told, [])
