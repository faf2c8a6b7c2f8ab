"""What a search improves, as a user says it."""

import pytest

from search.config import load_config
from search.config.loading import to_yaml
from search.config.objectives import Objective
from search.errors import UsageError
from search.experiment import plan

SPEED = "time/samples_per_s:max"


def planned(tmp_path, **given):
    return plan(load_config({"task": "arc", "storage": str(tmp_path / "runs"), **given}))


@pytest.fixture(scope="module")
def function(tmp_path_factory):
    file = tmp_path_factory.mktemp("user") / "mine_to_plan.py"
    file.write_text("def train_fn(config): ...\n")
    return {"task": f"{file}:train_fn", "search": {"lr": "1e-5..1e-2"}, "scheduler": "none"}


def test_a_task_has_its_own_objective_and_others_come_after_it(tmp_path):
    assert planned(tmp_path).objectives == (Objective("val/score", "max"),)
    assert planned(tmp_path, objective=["val/score:max"]).objectives == (Objective("val/score", "max"),)
    both = planned(tmp_path, objective=["val/score", SPEED])
    assert both.objectives == (Objective("val/score", "max"), Objective("time/samples_per_s", "max"))
    assert (both.objective, both.schedule.mode) == (Objective("val/score", "max"), "max")


def test_the_mode_of_a_functions_objective_is_said_behind_it_or_by_itself(tmp_path, function):
    expected = (Objective("loss", "min"),)
    assert planned(tmp_path, **function, objective="loss:min").objectives == expected
    assert planned(tmp_path, **function, objective="loss", mode="min").objectives == expected
    several = planned(tmp_path, **function, objective=["loss:min", "seconds:min"]).objectives
    assert several == (*expected, Objective("seconds", "min"))


def test_a_colon_may_be_part_of_a_metrics_name(tmp_path, function):
    found = planned(tmp_path, **function, objective="val:loss:min")
    assert found.objectives == (Objective("val:loss", "min"),)


def test_objectives_are_a_text_or_a_list_in_the_file_and_come_back_from_it(tmp_path):
    file = tmp_path / "search.yaml"
    file.write_text("task: arc\nobjective: [val/score, 'time/samples_per_s:max']\n")
    config = load_config({}, file)
    assert config.objective == ("val/score", SPEED)
    file.write_text(to_yaml(config))
    assert load_config({}, file).objective == config.objective
    file.write_text("task: arc\nobjective: val/score\n")
    assert load_config({}, file).objective == ("val/score",)


@pytest.mark.parametrize(
    ("given", "problems"),
    [
        ({"objective": ["loss"]}, ["--objective must be that of arc, 'val/score', but got 'loss'. Leave it out."]),
        ({"objective": [SPEED, "val/score"]},
         ["--objective must begin with that of arc, 'val/score', but got 'time/samples_per_s'. Put it first.",
          "--objective val/score must say which values are better, but does not. "
          "Say val/score:max or val/score:min."]),
        ({"objective": ["val/score:min"]},
         ["--objective val/score must be max in arc, but got min. Leave it out."]),
        ({"objective": ["val/score", "time/epoch_s"]},
         ["--objective time/epoch_s must say which values are better, but does not. "
          "Say time/epoch_s:max or time/epoch_s:min."]),
        ({"objective": ["val/score", SPEED, SPEED]},
         ["--objective time/samples_per_s must be given once, but got it 2 times."]),
        ({"objective": ["val/score", ":max"]}, ["--objective must name a metric, but got ''."]),
        ({"mode": "min"}, ["--mode must be that of arc, 'max', but got 'min'. Leave it out."]),
        ({"objective": ["val/score", SPEED], "sampler": "cmaes"},
         ["--sampler must be tpe, gp, nsga2, qmc or random with 2 objectives, but got cmaes."]),
    ],
)  # fmt: skip
def test_objectives_that_contradict_the_task_or_say_too_little_are_refused(tmp_path, given, problems):
    with pytest.raises(UsageError) as caught:
        planned(tmp_path, **given)
    assert list(caught.value.problems) == problems
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("given", "problems"),
    [
        ({"objective": "loss:min", "mode": "max"},
         ["--mode must be that of --objective loss:min, but got max. Leave it out."]),
        ({"objective": ["loss", "seconds"]},
         ["--mode must be given with a function: min or max.",
          "--objective seconds must say which values are better, but does not. Say seconds:max or seconds:min."]),
    ],
)  # fmt: skip
def test_objectives_of_a_function_that_are_not_clear_are_refused(tmp_path, function, given, problems):
    with pytest.raises(UsageError) as caught:
        planned(tmp_path, **function, **given)
    assert list(caught.value.problems) == problems


def test_no_more_trials_are_planned_than_there_are_combinations(tmp_path):
    fixed = {
        "set": {name: value for name, value in planned(tmp_path).space.get_defaults().items() if name != "precision"}
    }
    few = planned(tmp_path, **fixed, search={"precision": "fp32,bf16"})
    assert (few.config.trials, few.trials) == (16, 2)
    assert few.expected_cost == few.schedule.expected_cost(2)
    assert planned(tmp_path).trials == 16
    copies = planned(tmp_path, **fixed, search={"precision": "fp32,bf16"}, scheduler="pbt")
    assert copies.trials == 16, "a copy differs from the other by its weights"
