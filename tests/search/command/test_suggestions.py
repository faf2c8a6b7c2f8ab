import ast
import sys

import pytest

from searchlight.search.command.options import CALL_OBJECTIVE
from searchlight.search.command.suggestions import add_suggestions, read_suggestions
from searchlight.search.config import load_config
from searchlight.search.errors import UsageError

COMMAND = (sys.executable, "-m", CALL_OBJECTIVE, "train.py", "objective")


def read(*calls):
    return read_suggestions(
        [ast.parse("\n    ".join(["def objective(trial):", *(f"trial.{call}" for call in calls)]))], "objective"
    )


@pytest.mark.parametrize(
    ("call", "space"),
    [
        ("suggest_float('x', 1e-5, 1e-1, log=True)", "1e-05..0.1:log"),
        ("suggest_float('x', 0, 1)", "0.0..1.0"),
        ("suggest_float(name='x', low=-1, high=1.5, step=0.5)", "-1.0..1.5:step=0.5"),
        ("suggest_float('x', 0, 0.5, step=0.2)", "0.0..0.4:step=0.2"),
        ("suggest_uniform('x', 0, 1)", "0.0..1.0"),
        ("suggest_discrete_uniform('x', 0, 1, 0.25)", "0.0..1.0:step=0.25"),
        ("suggest_loguniform('x', 1e-5, 1)", "1e-05..1.0:log"),
        ("suggest_int('x', 4, 128)", "4..128"),
        ("suggest_int('x', 4, 128, log=True)", "4..128:log"),
        ("suggest_int('x', 1, 8, step=2)", "1..7:step=2"),
        ("suggest_categorical('x', ['adam', 'sgd'])", "adam,sgd"),
        ("suggest_categorical('x', (32, 0.5, True, None))", "32,0.5,True,null"),
        ("suggest_categorical('x', ['32', 'true', 'a.b', 'a b'])", "'32','true',a.b,'a b'"),
    ],
)
def test_literals_are_a_search_space(call, space):
    assert read(call).spaces == {"x": space}


@pytest.mark.parametrize(
    "calls",
    [
        ["suggest_int('x', 1, MOST)"],
        ["suggest_float('x', 1, 2, log=is_log)"],
        ["suggest_categorical('x', CHOICES)"],
        ["suggest_categorical('x', ['a,b', 'c'])"],
        ["suggest_categorical('x', ['only'])"],
        ["suggest_int('x', 8, 1)"],
        ["suggest_int('x', *bounds)"],
        ["suggest_int('x', 1, **further)"],
        ["suggest_int('x', 1, 8, 2)"],
        ["suggest_float('x', 1, 8, **{'log': is_log})"],
        ["suggest_int('x', 1, 8)", "suggest_int('x', 1, 9)"],
    ],
)
def test_space_that_only_the_running_code_knows_has_no_text(calls):
    assert read(*calls).spaces == {"x": ""}


CONSTANTS = """
LOW, HIGH = 1, 8
SPACE = {"x": (2, 4), "y": {"low": 1, "high": 3}, "z": ["a", "b"]}
TWICE = 1
TWICE = 2
SHADOWED = 3
CHANGED = {"high": 3}
CHANGED["high"] = 9
GROWN = ["a", "b"]
GROWN.append("c")
IMPORTED = 3
from other import IMPORTED
NOTED: int = 3
"""


@pytest.mark.parametrize(
    ("call", "space"),
    [
        ("suggest_int('x', LOW, HIGH)", "1..8"),
        ("suggest_int('x', *SPACE['x'])", "2..4"),
        ("suggest_int('x', SPACE['x'][0], 9)", "2..9"),
        ("suggest_int('x', **SPACE['y'])", "1..3"),
        ("suggest_categorical('x', SPACE['z'])", "a,b"),
        ("suggest_float('x', 1e-4, 1, **{'log': True})", "0.0001..1.0:log"),
        ("suggest_int('x', *SPACE['w'])", ""),
        ("suggest_int('x', 0, TWICE)", ""),
        ("suggest_int('x', 0, SHADOWED)", ""),
        ("suggest_int('x', 0, CHANGED['high'])", ""),
        ("suggest_categorical('x', GROWN)", ""),
        ("suggest_int('x', 0, IMPORTED)", ""),
        ("suggest_int('x', 0, NOTED)", "0..3"),
    ],
)
def test_constants_of_the_file_are_read(call, space):
    code = f"{CONSTANTS}def other(SHADOWED): ...\ndef objective(trial):\n    trial.{call}\n"
    assert read_suggestions([ast.parse(code)], "objective").spaces == {"x": space}


def test_only_what_the_objective_reaches_is_suggested(tmp_path):
    other = "def other(trial):\n    return trial.suggest_float('lr', 0.5, 1), trial.suggest_int('C', 1, 3)\n"
    (tmp_path / "nets.py").write_text(
        f"class Net:\n    def build(self, t):\n        t.suggest_int('width', 1, 8)\n{other}"
    )
    code = "import nets\ndef objective(trial):\n    nets.Net().build(trial)\n    trial.suggest_float('lr', 0, 1)\n"
    (tmp_path / "train.py").write_text(f"{code}{other}")
    assert add_suggestions(COMMAND, tmp_path, {}, []) == {"lr": "0.0..1.0", "width": "1..8"}


def test_objective_of_another_file_is_not_meant(tmp_path):
    (tmp_path / "old.py").write_text("def objective(trial):\n    trial.suggest_int('old', 1, 8)\ndef load(): ...")
    code = "from old import load\ndef objective(trial):\n    load()\n    trial.suggest_float('lr', 0, 1)\n"
    guard = "if __name__ == '__main__':\n    trial.suggest_int('asked', 1, 8)"
    (tmp_path / "train.py").write_text(f"def objective(trial):\n    trial.suggest_int('first', 1, 8)\n{code}{guard}")
    assert add_suggestions(COMMAND, tmp_path, {}, []) == {"lr": "0.0..1.0"}


def test_other_calls_suggest_nothing():
    found = read("_suggest_int('x', 1, 2)", "suggest_names('x', 1, 2)", "report(1, 2)")
    assert not found.spaces
    assert not found.patterns


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("f'n.{i}_{j}'", r"n\..+_.+"),
        ("name", ".+"),
        ("f'width{i}'", "width.+"),
        ("'width' + str(i)", "width.+"),
        ("'width%d_l' % i", "width.+_l"),
        ("'width{}_{:d}'.format(i, j)", "width.+_.+"),
    ],
)
def test_name_that_code_decides_is_a_pattern(name, pattern):
    assert read(f"suggest_int({name}, 1, 8)").patterns == {pattern: "1..8"}


CODE = """
def objective(trial):
    trial.suggest_float("lr", 1e-5, 1e-1, log=True)
    trial.suggest_int("width", 1, MOST)
    trial.suggest_int(f"size_{i}", 4, 64)
"""


def test_user_decides_before_the_code_and_where_it_says_nothing(tmp_path):
    (tmp_path / "train.py").write_text(CODE)
    given = {"width": "1..3", "size_0": "1..2"}
    assert add_suggestions(COMMAND, tmp_path, given, []) == {"lr": "1e-05..0.1:log", **given}
    assert add_suggestions(COMMAND, tmp_path, {**given, "lr": "0.1..0.2"}, []) == {**given, "lr": "0.1..0.2"}
    assert add_suggestions(COMMAND, tmp_path, {}, ["lr", "width", "size_0"]) == {}
    assert add_suggestions(("python", "train.py"), tmp_path, given, []) == given


def test_spaces_and_names_that_only_the_running_code_knows_are_asked_for(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as error:
        load_config({"task": "train.py:objective", "objective": "loss"})
    assert error.value.problems == (
        "train.py:objective suggests width by more than literals and constants: "
        "trial.suggest_int('width', 1, MOST). Give --search width=... or --set width=...",
        "train.py:objective suggests names that only its running code knows: "
        "trial.suggest_int(f'size_{i}', 4, 64). Give each that a trial can ask for, e.g. --search size_0=4..64",
    )
    config = load_config(
        {"task": "train.py:objective", "objective": "loss", "search": {"size_0": "4..8"}, "set": {"width": "8"}}
    )
    assert config.search == {"lr": "1e-05..0.1:log", "size_0": "4..8"}
