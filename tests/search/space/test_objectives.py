import pytest

from searchlight.search.config import load_config
from searchlight.search.config.loading import to_yaml
from searchlight.search.experiment import plan
from searchlight.search.space.objectives import Objective
from tests.search.refusals import problems_of

SPEED = "time/samples_per_s:max"


def planned(tmp_path, **given):
    return plan(load_config({"task": "arc", "storage": str(tmp_path / "runs"), **given}))


@pytest.fixture(scope="module")
def function(tmp_path_factory):
    file = tmp_path_factory.mktemp("user") / "mine_to_plan.py"
    file.write_text("def train_fn(config): ...\n")
    return {"task": f"{file}:train_fn", "search": {"lr": "1e-5..1e-2"}, "scheduler": "none"}


def test_objective_of_the_task_comes_before_others(tmp_path):
    own = Objective("val/score", "max")
    assert planned(tmp_path).objectives == planned(tmp_path, objective=["val/score:max"]).objectives == (own,)
    both = planned(tmp_path, objective=["val/score", SPEED])
    assert both.objectives == (own, Objective("time/samples_per_s", "max"))
    assert (both.objective, {bracket.mode for bracket in both.schedule.brackets}) == (own, {"max"})


def test_mode_of_a_function_follows_the_colon(tmp_path, function):
    expected = (Objective("loss", "min"),)
    assert planned(tmp_path, **function, objective="loss:min").objectives == expected
    assert planned(tmp_path, **function, objective="loss", mode="min").objectives == expected, "a retired key"
    several = planned(tmp_path, **function, objective=["loss:min", "val:loss:min"]).objectives
    assert several == (*expected, Objective("val:loss", "min"))


def test_objectives_of_a_file_survive_yaml(tmp_path):
    file = tmp_path / "search.yaml"
    for text, objectives in (("val/score", ("val/score",)), (f"[val/score, '{SPEED}']", ("val/score", SPEED))):
        file.write_text(f"task: arc\nobjective: {text}\n")
        config = load_config({}, file)
        file.write_text(to_yaml(config))
        assert config.objective == load_config({}, file).objective == objectives


@pytest.mark.parametrize(
    ("given", "problems"),
    [
        ({"objective": [SPEED, "val/score"]},
         ["--objective must begin with that of arc, 'val/score', but got 'time/samples_per_s'. Put it first.",
          "--objective val/score must say which values are better, but does not. "
          "Use val/score:max or val/score:min."]),
        ({"objective": ["val/score:min"]},
         ["--objective val/score must be max in arc, but got min. Leave it out."]),
        ({"objective": ["val/score", "time/epoch_s"]},
         ["--objective time/epoch_s must say which values are better, but does not. "
          "Use time/epoch_s:max or time/epoch_s:min."]),
        ({"objective": ["val/score", "time/epoch_s:minimize"]},
         ["--objective time/epoch_s:minimize must say which values are better, but does not. Use time/epoch_s:min."]),
        ({"objective": ["val/score", SPEED, SPEED]},
         ["--objective time/samples_per_s must be given once, but got it 2 times."]),
        ({"objective": ["val/score", "time/epoch_s:mn"]},
         ["--objective time/epoch_s:mn must say which values are better, but does not. Use time/epoch_s:min."]),
        ({"objective": ["val/score", ":max"]}, ["--objective must name a metric, but got ''."]),
        ({"objective": "loss"}, ["--objective must be that of arc, 'val/score', but got 'loss'. Leave it out."]),
        ({"objective": ["val/score", SPEED], "sampler": "cmaes"},
         ["--sampler must be mixture, tpe, gp, qmc, nsga2 or random with 2 objectives, but got cmaes."]),
    ],
)  # fmt: skip
def test_objectives_that_contradict_the_task_are_refused(tmp_path, given, problems):
    assert problems_of(planned, tmp_path, **given) == problems
    assert not (tmp_path / "runs").exists()


def test_unclear_objectives_of_a_function_are_refused(tmp_path, function):
    assert problems_of(planned, tmp_path, **function, objective=["loss", "seconds"]) == [
        "--objective loss must say which values are better, but does not. Use loss:max or loss:min.",
        "--objective seconds must say which values are better, but does not. Use seconds:max or seconds:min.",
    ]


def test_no_more_trials_are_planned_than_combinations(tmp_path):
    defaults = planned(tmp_path).space.get_defaults()
    given = {"set": {name: value for name, value in defaults.items() if name != "precision"}}
    given["search"] = {"precision": "fp32,bf16"}
    few = planned(tmp_path, **given)
    assert (few.config.trials, few.trials) == (16, 2)
    assert few.expected_cost == few.schedule.expected_cost(2)
    assert planned(tmp_path).trials == 16
    assert planned(tmp_path, **given, scheduler="pbt").trials == 16, "a copy differs from the other by its weights"
