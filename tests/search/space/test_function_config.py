import shutil
import sys

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from searchlight.search.config import load_config
from searchlight.search.experiment import plan
from searchlight.search.space.function_config import build_function_config, parse_defaults, parse_fixed_values
from searchlight.search.space.search_space import resolve_space
from searchlight.search.task_source import load_task_source
from tests.conftest import TASKS
from tests.search.refusals import problems_of

GIVEN = {"objective": "loss:min", "search": {"lr": "1e-5..1e-2:log"}, "set": {"epochs": "9"}}


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Plans a search over a function in a file of its own."""
    for file in ("plain.py", "beside.py"):
        shutil.copy(TASKS / file, tmp_path)
    monkeypatch.chdir(tmp_path)

    def made(task="plain.py:train_fn", **given):
        return plan(load_config({"task": task, "storage": str(tmp_path / "runs"), **GIVEN, **given}))

    yield made
    for name in ("plain", "beside"):
        sys.modules.pop(name, None)


def space(fixed=(), searched=()):
    return resolve_space(
        build_function_config(dict(fixed), dict(searched)), parse_fixed_values(dict(fixed)), dict(searched)
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("32", 32), ("1e-3", 1e-3), ("relu", "relu"), ("true", True), ("null", None), ("12:30", "12:30"),
     ("2024-01-01", "2024-01-01"), ("[64, 64]", [64, 64]), ("'32'", "32"), ("no", "no"), ("on", "on"),
     ("'true'", "true"), ("nan", "nan"), ("a: b: c", "a: b: c"),
     ("Null", None), ("~", None), ("'a #1'", "a #1"), (7, 7), (["a", "b"], ["a", "b"]),
     *[(text, text) for text in ("", "#fff", "a #1", ">", "|", "&x", "!x", "---", "...", "- a", "a\nb", "'a' 'b'")]],
)  # fmt: skip
def test_fixed_value_is_read_as_yaml(text, value):
    found = space({"x": text}).build_config({}).model_dump(mode="json", round_trip=True)["x"]
    assert (found, type(found)) == (value, type(value))


def test_choices_keep_marks_of_yaml():
    made = space(searched={"x": "#fff,a #1,>,&x,---"})
    assert made.parameters[0].distribution.choices == ("#fff", "a #1", ">", "&x", "---")
    assert made.build_config({"x": "#fff"}).x == "#fff"


def test_choices_keep_no_as_text_and_lose_their_quotes():
    (found,) = space(searched={"mp": "no,'bf16',\"1\",2,true"}).parameters
    assert found.distribution.choices == ("no", "bf16", "1", 2, True)


@pytest.mark.parametrize("text", ["1", "true", "null", "'a'"])
def test_trial_gets_the_text_that_was_chosen(text):
    made = space(searched={"x": f'"{text}",2'})
    assert made.parameters[0].distribution.choices == (text, 2)
    assert made.build_config({"x": text}).x == text
    assert made.value_parser("x")(f'"{text}"') == text


def test_config_holds_the_named_values_and_a_seed(planned):
    found = planned().space
    assert found.build_config({"lr": 1e-3}).model_dump() == {"lr": 1e-3, "epochs": 9, "seed": 0}
    assert [parameter.name for parameter in found.parameters] == ["lr"]
    assert found.get_defaults() == {}
    config = planned(seed="4", set={"epochs": "9", "precision": "16-mixed"}).space.build_config({})
    assert (config.seed, config.precision) == (4, "16-mixed")


def test_null_among_choices_is_no_default_unless_it_is_given():
    found = space(searched={"x": "0.1,null", "m.y": "null,a"})
    assert found.get_defaults() == {}
    assert found.with_defaults({"m.y": "null"}).get_defaults() == {"m.y": None}
    assert found.parse_point({"x": None}) == {"x": None}
    searched = {"x": "0.1,null"}
    known = build_function_config([], searched, parse_defaults(space(searched=searched), {"x": "None"}))
    assert resolve_space(known, {}, searched).get_defaults() == {"x": None}


def test_dotted_name_is_a_value_in_a_group():
    made = space({"model.depth": "3", "lr": "0.1"}, {"model.width": "8..64"}).build_config({"model.width": 16})
    assert made.model_dump() == {"seed": 0, "lr": 0.1, "model": {"depth": 3, "width": 16}}


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("1e-5..1e-2:log", FloatDistribution(1e-5, 1e-2, log=True)),
        ("0..1:step=0.25", FloatDistribution(0.0, 1.0, step=0.25)),
        ("8..64:step=8", IntDistribution(8, 64, step=8)),
        ("16,32", CategoricalDistribution((16, 32))),
        ("adam,sgd", CategoricalDistribution(("adam", "sgd"))),
        ("true,false", CategoricalDistribution((True, False))),
        ("0.1,null", CategoricalDistribution((0.1, None))),
    ],
    ids=str,
)
def test_searched_parameter_has_the_type_of_its_bounds(text, distribution):
    (parameter,) = space({}, {"x": text}).parameters
    assert parameter.distribution == distribution
    choices = getattr(distribution, "choices", ())
    assert [type(choice) for choice in getattr(parameter.distribution, "choices", ())] == list(map(type, choices))


def test_schedule_follows_the_epochs_and_the_given_mode(planned):
    found = planned(objective="accuracy:max", scheduler="asha")
    assert (found.schedule.rungs, found.schedule.mode) == ((1, 3, 9), "max")
    assert (str(found.objective), found.space.epochs) == ("accuracy:max", 9)
    unlimited = planned(scheduler="none", set={})
    assert (unlimited.space.epochs, len(unlimited.schedule.rungs), unlimited.is_limited) == (None, 1, False)
    timed = planned(fidelity="gpu-seconds", max_fidelity="9m", set={})
    assert timed.schedule.rungs == pytest.approx((60.0, 180.0, 540.0))
    assert timed.is_limited


@pytest.mark.parametrize(
    ("given", "problems"),
    [
        ({"objective": "", "set": {}},
         ["--objective must be given, e.g. val/loss:min: the metric that train_fn reports and is judged by.",
          "--set epochs=N must be given with --scheduler hyperband: how many reports a trial makes. "
          "Or give --scheduler none: then it ends when the function returns, also without a report."]),
        ({"set": {"epochs": "0"}}, ["--set epochs must be greater than or equal to 1, but got 0."]),
        ({"search": {"epochs": "3..9"}, "set": {}},
         ["--search epochs must come with --scheduler none: the scheduler decides the number of epochs."]),
        ({"set": {"epochs": "9", "copy": "1", "weight-decay": "0", "lr.x": "1", "lr": "2"}},
         ["--set copy must not be a name that pydantic keeps, but got 'copy'. Rename it.",
          "--set weight-decay must be a parameter's name, like lr or model.depth. Rename it.",
          "--set lr must be a value or a group of them, but there is lr.x too."]),
        ({"search": {"lr": "1e-2..1e-5"}}, ["--search lr must have low < high, but got 1e-2..1e-5. Swap the bounds."]),
        ({"search": {"lr": "1e-2"}}, ["--search lr must be a range low..high or at least two different choices, "
                                      "but got '1e-2'. Fix one value with --set lr=1e-2."]),
        ({"search": {}}, ["a parameter must be searched to try 16 trials, but all are fixed. Use --once."]),
        ({"register": "my-model"},
         ["--register must come with a task class, but train_fn is a function, which does not say what it predicts. "
          "Log its checkpoint with mlflow yourself, or make it a task: docs/tasks.md."]),
        ({"fidelity": "samples", "max_fidelity": "900"},
         ["--fidelity must be epochs or gpu-seconds with a function, but got samples: "
          "a function does not say how many it takes."]),
    ],
)  # fmt: skip
def test_mistakes_are_all_refused_at_once(planned, given, problems):
    assert sorted(problems_of(planned, **given)) == sorted(problems)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file with a function, a class that is no task, and what it imports from elsewhere."""
    path = tmp_path / "functions_of_a_user.py"
    path.write_text(
        "from shutil import rmtree\n"
        "class Model: ...\n"
        "def train(config): ...\n"
        "def plain(): ...\n"
        "def two(config, data): ...\n"
        "def more(config, verbose=False, *rest, **options): ...\n"
        "number = 3\n"
    )
    yield path
    sys.modules.pop("functions_of_a_user", None)


@pytest.mark.parametrize("name", ["train", "plain", "more"])
def test_function_of_a_config_is_found_in_its_file(file, name):
    source = load_task_source(f"{file}:{name}")
    assert source.task_class is None
    assert (source.reference, source.modules) == (f"functions_of_a_user:{name}", {file.name: file})


def test_function_that_needs_more_than_a_config_is_refused(file):
    assert problems_of(load_task_source, f"{file}:two") == [
        f"{file}:two must be a function of a config alone, but needs data, too. Give it a default, or name a function "
        "that has it. Choose from more, plain, train."
    ]


@pytest.mark.parametrize("name", ["Model", "number"])
def test_name_of_no_task_is_refused_with_the_candidates(file, name):
    assert problems_of(load_task_source, f"{file}:{name}") == [
        f"{file}:{name} must be a class that derives from Task, or a function of a config, but is neither. "
        "Choose from more, plain, train."
    ]


def test_points_to_try_are_all_the_trials_of_a_function_without_defaults(planned):
    points = [{"lr": "1e-3"}, {"lr": "1e-4"}]
    assert [point["lr"] for point in planned(**{"try": points}, trials="2").first] == [1e-3, 1e-4]
    assert problems_of(planned, **{"try": points}, trials="1") == [
        "--trials must be at least 2 for 2 points to try, but got 1. Raise it or leave out a --try."
    ]
