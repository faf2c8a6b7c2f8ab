"""The space of a training function is what the user names."""

import shutil
import sys

import optuna
import pytest

from search.config import load_config
from search.config.function_config import build_function_config, parse_fixed_values
from search.config.search_space import resolve_space
from search.config.task_source import load_task_source
from search.errors import UsageError
from search.experiment import plan
from tests.conftest import TASKS

GIVEN = {"objective": "loss", "mode": "min", "search": {"lr": "1e-5..1e-2:log"}, "set": {"epochs": "9"}}


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


def config(**fixed):
    return space(fixed).build_config({}).model_dump(mode="json", round_trip=True)


# Values


@pytest.mark.parametrize(
    ("text", "value"),
    [("32", 32), ("1e-3", 1e-3), ("-0.5", -0.5), ("relu", "relu"), ("true", True), ("null", None), ("12:30", "12:30"),
     ("2024-01-01", "2024-01-01"), ("[64, 64]", [64, 64]), ("'32'", "32"), ("nan", "nan"), ("a: b: c", "a: b: c"),
     (7, 7), (["a", "b"], ["a", "b"])],
)  # fmt: skip
def test_a_fixed_value_is_read_as_yaml_reads_it(text, value):
    found = config(x=text)["x"]
    assert (found, type(found)) == (value, type(value))


def test_a_config_holds_what_is_named_and_a_seed(planned):
    assert planned().space.build_config({"lr": 1e-3}).model_dump() == {"lr": 1e-3, "epochs": 9, "seed": 0}
    assert planned(seed="4").space.build_config({"lr": 1e-3}).model_dump()["seed"] == 4


def test_a_dotted_name_is_a_value_in_a_group():
    made = space({"model.depth": "3", "lr": "0.1"}, {"model.width": "8..64"})
    assert made.build_config({"model.width": 16}).model_dump() == {
        "seed": 0,
        "lr": 0.1,
        "model": {"depth": 3, "width": 16},
    }


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("1e-5..1e-2:log", optuna.distributions.FloatDistribution, {"low": 1e-5, "high": 1e-2, "log": True}),
        ("0..1:step=0.25", optuna.distributions.FloatDistribution, {"low": 0.0, "high": 1.0, "step": 0.25}),
        ("8..64:step=8", optuna.distributions.IntDistribution, {"low": 8, "high": 64, "step": 8}),
        ("16,32", optuna.distributions.CategoricalDistribution, {"choices": (16, 32)}),
        ("adam,sgd", optuna.distributions.CategoricalDistribution, {"choices": ("adam", "sgd")}),
        ("true,false", optuna.distributions.CategoricalDistribution, {"choices": (True, False)}),
        ("0.1,null", optuna.distributions.CategoricalDistribution, {"choices": (0.1, None)}),
    ],
)
def test_what_is_searched_has_the_type_of_its_bounds_or_choices(text, kind, values):
    (parameter,) = space({}, {"x": text}).parameters
    assert isinstance(parameter.distribution, kind)
    assert {name: getattr(parameter.distribution, name) for name in values} == values


def test_nothing_is_searched_or_tried_that_was_not_named(planned):
    found = planned()
    assert [parameter.name for parameter in found.space.parameters] == ["lr"]
    assert found.space.get_defaults() == {}


def test_a_precision_of_a_function_is_its_own_affair(planned):
    assert planned(set={"epochs": "9", "precision": "16-mixed"}).space.build_config({}).precision == "16-mixed"


# Objective, epochs, schedule


def test_the_schedule_follows_from_epochs_and_from_the_mode_that_was_said(planned):
    found = planned(mode="max", objective="accuracy")
    assert (found.schedule.rungs, found.schedule.mode) == ((1, 3, 9), "max")
    assert (str(found.objective), found.space.epochs) == ("accuracy:max", 9)


def test_without_a_scheduler_the_function_alone_knows_when_it_ends(planned):
    found = planned(scheduler="none", set={})
    assert found.space.epochs is None
    assert len(found.schedule.rungs) == 1
    assert not found.is_limited


def test_a_function_that_is_measured_in_gpu_seconds_needs_no_number_of_epochs(planned):
    found = planned(fidelity="gpu-seconds", max_fidelity="9m", set={})
    assert found.schedule.rungs == pytest.approx((60.0, 180.0, 540.0))
    assert found.is_limited


def test_of_a_function_nobody_knows_the_samples(planned):
    with pytest.raises(UsageError) as caught:
        planned(fidelity="samples", max_fidelity="900")
    assert caught.value.problems == (
        "--fidelity must be epochs or gpu-seconds with a function, but got samples: "
        "a function does not say how many it takes.",
    )


@pytest.mark.parametrize(
    ("given", "problems"),
    [
        ({"objective": "", "mode": None, "set": {}},
         ["--objective must be given with a function: the metric that train_fn reports and is judged by.",
          "--mode must be given with a function: min or max.",
          "--set epochs=N must be given with --scheduler asha: how many reports a trial makes. "
          "With --scheduler none it ends when the function returns."]),
        ({"set": {"epochs": "0"}}, ["--set epochs must be greater than or equal to 1, but got 0."]),
        ({"search": {"epochs": "3..9"}, "set": {}},
         ["--search epochs must come with --scheduler none: it is what the scheduler decides on."]),
        ({"set": {"epochs": "9", "copy": "1", "weight-decay": "0", "lr.x": "1", "lr": "2"}},
         ["--set copy must not be a name that pydantic keeps, but got 'copy'. Rename it.",
          "--set weight-decay must be a parameter's name, like lr or model.depth. Rename it.",
          "--set lr must be a value or a group of them, but there is lr.x too."]),
        ({"search": {"lr": "1e-2..1e-5"}}, ["--search lr must have low < high, but got 1e-2..1e-5. Swap the bounds."]),
        ({"search": {"lr": "1e-2"}}, ["--search lr must be a range low..high or at least two different choices, "
                                      "but got '1e-2'. Fix one value with --set lr=1e-2."]),
        ({"search": {}}, ["a parameter must be searched to try 16 trials, but all are fixed. Say --once."]),
        ({"register": "my-model"},
         ["--register must come with a task class, but train_fn is a function, which does not say what it predicts. "
          "Log its checkpoint with mlflow yourself, or make it a task: docs/tasks.md."]),
        ({"mode": "best"}, ["--mode must be 'min' or 'max', but got 'best'."]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_at_once(planned, given, problems):
    with pytest.raises(UsageError) as caught:
        planned(**given)
    assert sorted(caught.value.problems) == sorted(problems)


def test_a_task_class_has_an_objective_of_its_own(tmp_path):
    with pytest.raises(UsageError) as caught:
        plan(load_config({"task": "arc", "storage": str(tmp_path), "objective": "loss", "mode": "min"}))
    assert caught.value.problems == (
        "--objective must be that of arc, 'val/score', but got 'loss'. Leave it out.",
        "--mode must be that of arc, 'max', but got 'min'. Leave it out.",
    )


# Where a function is found


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
def test_a_function_of_a_config_is_found_with_the_files_beside_it(file, name):
    source = load_task_source(f"{file}:{name}")
    assert source.task_class is None
    assert source.reference == f"functions_of_a_user:{name}"
    assert source.modules == (file,)


@pytest.mark.parametrize("name", ["Model", "two", "number"])
def test_what_is_neither_a_task_nor_a_function_of_a_config_is_refused_with_what_there_is(file, name):
    with pytest.raises(UsageError) as caught:
        load_task_source(f"{file}:{name}")
    assert str(caught.value) == (
        f"{file}:{name} must be a class that derives from Task, or a function of a config, but is neither. "
        "Choose from more, plain, train."
    )


def test_a_name_that_is_not_in_the_file_is_refused_with_the_nearest(file):
    with pytest.raises(UsageError, match=r"must define 'trian', but does not\. Did you mean 'train'\?"):
        load_task_source(f"{file}:trian")
