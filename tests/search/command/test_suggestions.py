import ast
import sys

import pytest

from searchlight.search.command.options import CALL_OBJECTIVE
from searchlight.search.command.suggestions import add_suggestions, read_suggestions
from searchlight.search.config import load_config
from searchlight.search.errors import UsageError

COMMAND = (sys.executable, "-m", CALL_OBJECTIVE, "train.py", "objective")


def read(*calls):
    return read_suggestions([ast.parse("\n".join(f"x = trial.{call}" for call in calls))])


@pytest.mark.parametrize(
    ("call", "space"),
    [
        ("suggest_float('x', 1e-5, 1e-1, log=True)", "1e-05..0.1:log"),
        ("suggest_float('x', 0, 1)", "0.0..1.0"),
        ("suggest_float(name='x', low=-1, high=1.5, step=0.5)", "-1.0..1.5:step=0.5"),
        ("suggest_float('x', 0, 0.5, step=0.2)", "0.0..0.4:step=0.2"),
        ("suggest_uniform('x', 0, 1)", "0.0..1.0"),
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
        ["suggest_int('x', 1, 8)", "suggest_int('x', 1, 9)"],
    ],
)
def test_space_that_only_the_running_code_knows_has_no_text(calls):
    assert read(*calls).spaces == {"x": ""}


def test_other_calls_suggest_nothing():
    found = read("suggest_int('x')", "suggest_names('x', 1, 2)", "report(1, 2)")
    assert not found.spaces
    assert not found.patterns


@pytest.mark.parametrize(
    ("name", "pattern"), [("f'n.{i}_{j}'", r"n\..+_.+"), ("name", ".+"), ("f'width{i}'", "width.+")]
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
        "train.py:objective suggests width in a way that only its running code knows: "
        "trial.suggest_int('width', 1, MOST). Give --search width=... or --set width=...",
        "train.py:objective suggests names that only its running code knows: "
        "trial.suggest_int(f'size_{i}', 4, 64). Give each of them, e.g. --search size_0=4..64",
    )
    config = load_config(
        {"task": "train.py:objective", "objective": "loss", "search": {"size_0": "4..8"}, "set": {"width": "8"}}
    )
    assert config.search == {"lr": "1e-05..0.1:log", "size_0": "4..8"}
