"""Every sampler over small studies with a closed form, with one objective and with two, several trials at a time."""

import math

import pytest
from optuna.trial import TrialState

from searchlight.search.analysis.best_trials import select_pareto_trials
from searchlight.search.samplers.factory import sampler_factory
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import resolve_space
from searchlight.search.study.record import load_search
from searchlight.search.study.study import create_study
from searchlight.search.study.trial import get_best_value, get_outcome, objective_values
from searchlight.trainables.task import TaskConfig, searchable
from tests.search.study.played_studies import SAMPLERS, play_trials

LOSS, SPEED = Objective("loss", "min"), Objective("speed", "max")
BOTH = (LOSS, SPEED)
SEEDS = range(3)


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)
    width: float = searchable(0.5, low=0.0, high=1.0)
    beta: float = searchable(0.5, low=0.0, high=1.0, when={"precision": "fp16"})


PLAIN = resolve_space(Config, {"precision": "fp32"}, {})
CONDITIONAL = resolve_space(Config, {}, {"precision": "fp32,fp16"})


def worth(values):
    """The best learning rate is 1e-3; a wide model loses less and is slower."""
    off = abs(math.log10(values["lr"]) + 3)
    return off + (1 - values["width"]) ** 2, 1 - values["width"] ** 2 - 0.2 * off


class Played:
    """A search, four trials at a time: most are pruned, some fail, and those above `cliff` diverge."""

    def __init__(self, folder, sampler, objectives, space=PLAIN, seed=0, trials=60, cliff=math.inf):
        folder.mkdir()
        self.folder, self.cliff = folder, cliff
        self.study, lock = create_study(folder, sampler_factory(sampler, seed), objectives)
        play_trials(self.study, space, trials, self.end, parallel=4)
        lock.close()
        self.trials = self.study.get_trials()

    def end(self, number, values):
        loss, speed = worth(values)
        if number % 10 == 9:
            self.study.end(number, "failed", "it was to")
        elif values["lr"] > self.cliff:
            self.study.end(number, "diverged", "it was to")
        else:
            self.report(number, 1, loss + 0.1, speed)
            if number % 3 == 0:
                self.report(number, 3, loss, speed)
                self.study.end(number, "completed")
            elif number % 3 == 1:
                self.study.end(number, "pruned")

    def report(self, number, epoch, loss, speed):
        self.study.report(number, epoch, loss, {"metrics": {"loss": loss, "speed": speed}, "checkpoint": None})

    def area(self):
        """Of what the front dominates, above a loss of 3 and a speed of 0."""
        area, reached = 0.0, 0.0
        ended = [trial for trial in self.trials if get_outcome(trial) in ("completed", "pruned")]
        for loss, speed in sorted(point for trial in ended if (point := objective_values(trial, BOTH))):
            if loss < 3 and speed > reached:
                area += (3 - loss) * (speed - reached)
                reached = speed
        return area


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_another_seed_proposes_other_points(tmp_path, sampler):
    searches = [Played(tmp_path / str(seed), sampler, (LOSS,), seed=seed, trials=8) for seed in (0, 1)]
    rates = [[trial.params["lr"] for trial in search.trials] for search in searches]
    assert not {*rates[0]} & {*rates[1]}


@pytest.mark.parametrize(
    ("sampler", "objectives"),
    [(name, (LOSS,)) for name in SAMPLERS] + [(name, BOTH) for name in SAMPLERS if name != "cmaes"],
    ids=lambda given: given if isinstance(given, str) else "and".join(objective.metric for objective in given),
)
def test_samplers_work_with_conditions_and_divergence(tmp_path, sampler, objectives):
    trials = 18 if len(objectives) == 2 else 40
    played = Played(tmp_path / "study", sampler, objectives, CONDITIONAL, trials=trials, cliff=3e-3)
    assert {"completed", "pruned", "diverged", "failed"} <= {get_outcome(trial) for trial in played.trials}
    assert len({tuple(trial.params.items()) for trial in played.trials}) == trials
    for trial in played.trials:
        assert ("beta" in trial.params) == (trial.params["precision"] == "fp16")
    if objectives == BOTH:
        assert all(objective_values(trial, BOTH) for trial in select_pareto_trials(played.trials, BOTH))
    else:
        assert min(get_best_value(t, LOSS) for t in played.trials if get_outcome(t) == "completed") < 1


def test_tpe_avoids_divergence_with_two_objectives(tmp_path):
    def count_diverged(sampler, seed):
        played = Played(tmp_path / f"{sampler}-{seed}", sampler, BOTH, seed=seed, cliff=2e-3)
        return sum(get_outcome(trial) == "diverged" for trial in played.trials)

    assert sum(count_diverged("tpe", s) for s in SEEDS) < 0.8 * sum(count_diverged("random", s) for s in SEEDS)


def test_stored_study_has_states_values_and_constraints(tmp_path):
    searched = load_search(Played(tmp_path / "study", "tpe", BOTH, trials=20, cliff=1e-2).folder)
    assert searched.objectives == BOTH
    states = {"completed": TrialState.COMPLETE, "failed": TrialState.FAIL, "interrupted": TrialState.RUNNING}
    for trial in searched.trials:
        assert trial.state == states.get(get_outcome(trial), TrialState.PRUNED)
        if get_outcome(trial) == "completed":
            assert tuple(trial.values) == objective_values(trial, BOTH) == pytest.approx(worth(trial.params))
        assert trial.constraints == ({"diverged": 1.0} if get_outcome(trial) == "diverged" else {})
