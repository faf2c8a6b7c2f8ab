"""Every sampler over small studies with a closed form, with one objective and with two, several trials at a time."""

import math
from functools import partial

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from search.analysis.best_trials import select_pareto_trials
from search.config.objectives import Objective
from search.config.search_space import resolve_space
from search.samplers.factory import create_sampler
from search.study.record import load_search
from search.study.study import create_study
from search.study.trial import get_best_value, get_outcome, objective_values
from trainables.task import TaskConfig, searchable

LOSS, SPEED = Objective("loss", "min"), Objective("speed", "max")
BOTH = (LOSS, SPEED)
TRIALS = {"gp": 20, "nsga2": 150}


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

    def __init__(self, folder, sampler, objectives, space=PLAIN, seed=0, trials=None, cliff=math.inf):
        folder.mkdir()
        self.folder = folder
        make = partial(create_sampler, sampler, seed)
        self.study, lock = create_study(folder, make, objectives)
        running = []
        for _ in range(trials or TRIALS.get(sampler, 60)):
            number, values = self.study.ask(space)
            self.study.live.add(number)
            running.append((number, values))
            if len(running) == 4:
                self.end(*running.pop(0), cliff)
        lock.close()
        self.trials = self.study.get_trials()

    def end(self, number, values, cliff):
        loss, speed = worth(values)
        if number % 10 == 9:
            self.study.end(number, "failed", "it was to")
        elif values["lr"] > cliff:
            self.study.end(number, "diverged", "it was to")
        else:
            self.report(number, 1, loss + 0.1, speed)
            if number % 3 == 0:
                self.report(number, 3, loss, speed)
                self.study.end(number, "completed")
            elif number % 3 == 1:
                self.study.end(number, "pruned")
        self.study.live.discard(number)  # the others wait at their rung

    def report(self, number, epoch, loss, speed):
        report = {"metrics": {"loss": loss, "speed": speed}, "checkpoint": None}
        self.study.report(number, epoch, loss, report)

    def area(self):
        """Of what the front dominates, above a loss of 3 and a speed of 0."""
        area, reached = 0.0, 0.0
        ended = [trial for trial in self.trials if get_outcome(trial) in ("completed", "pruned")]
        for loss, speed in sorted(point for trial in ended if (point := objective_values(trial, BOTH))):
            if loss < 3 and speed > reached:
                area += (3 - loss) * (speed - reached)
                reached = speed
        return area


SEEDS = range(3)


@pytest.fixture(scope="module")
def at_random(tmp_path_factory):
    """By how many trials there are, the mean of what random search comes to."""
    known = {}

    def mean(trials):
        if trials not in known:
            folder = tmp_path_factory.mktemp("random")
            played = [Played(folder / str(s), "random", BOTH, seed=s, trials=trials) for s in SEEDS]
            known[trials] = sum(each.area() for each in played) / len(SEEDS)
        return known[trials]

    return mean


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsga2"])
def test_with_two_objectives_a_sampler_that_learns_finds_a_better_front_than_random_search(
    tmp_path, sampler, at_random
):
    seeds = SEEDS[:1] if sampler == "gp" else SEEDS  # it takes its time
    played = [Played(tmp_path / str(seed), sampler, BOTH, seed=seed) for seed in seeds]
    assert sum(each.area() for each in played) / len(seeds) > at_random(len(played[0].trials))
    for each in played:
        assert len({tuple(trial.params.items()) for trial in each.trials}) == len(each.trials)
        assert all(objective_values(trial, BOTH) for trial in select_pareto_trials(each.trials, BOTH))


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsga2", "qmc", "random"])
def test_two_objectives_go_with_parameters_that_depend_on_others_and_with_divergence(tmp_path, sampler):
    played = Played(tmp_path / "study", sampler, BOTH, CONDITIONAL, trials=18, cliff=1e-2)
    assert {"completed", "pruned", "diverged", "failed"} <= {get_outcome(trial) for trial in played.trials}
    for trial in played.trials:
        assert ("beta" in trial.params) == (trial.params["precision"] == "fp16")


@pytest.mark.parametrize("sampler", ["tpe", "gp", "cmaes", "nsga2", "qmc", "random"])
def test_one_objective_goes_with_them_too(tmp_path, sampler):
    played = Played(tmp_path / "study", sampler, (LOSS,), CONDITIONAL, trials=40, cliff=1e-2)
    assert len({tuple(trial.params.items()) for trial in played.trials}) == 40
    assert min(get_best_value(t, LOSS) for t in played.trials if get_outcome(t) == "completed") < 1


def test_a_sampler_learns_from_two_objectives_where_trials_diverge(tmp_path):
    def diverged(sampler, seed):
        played = Played(tmp_path / f"{sampler}-{seed}", sampler, BOTH, seed=seed, cliff=2e-3)
        return sum(get_outcome(trial) == "diverged" for trial in played.trials)

    assert sum(diverged("tpe", s) for s in SEEDS) < 0.8 * sum(diverged("random", s) for s in SEEDS)


def test_the_study_says_the_truth_and_keeps_it_valid_for_optuna(tmp_path):
    played = Played(tmp_path / "study", "tpe", BOTH, trials=20, cliff=1e-2)
    searched = load_search(played.folder)
    trials, objectives = searched.trials, searched.objectives
    assert objectives == BOTH
    states = {"completed": TrialState.COMPLETE, "failed": TrialState.FAIL, "interrupted": TrialState.RUNNING}
    for trial in trials:
        assert trial.state == states.get(get_outcome(trial), TrialState.PRUNED)
        if get_outcome(trial) == "completed":
            assert tuple(trial.values) == objective_values(trial, BOTH) == pytest.approx(worth(trial.params))
        assert trial.constraints == ({"diverged": 1.0} if get_outcome(trial) == "diverged" else {})
    (played.folder / "study.journal.lock").unlink()  # Optuna takes it for a lock of its own, and waits
    storage = JournalStorage(JournalFileBackend(str(played.folder / "study.journal")))
    loaded = optuna.load_study(study_name="study", storage=storage, sampler=optuna.samplers.TPESampler(seed=0))
    assert [d.name for d in loaded.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert 0 < loaded.ask().suggest_float("lr", 1e-5, 1e-1, log=True) < 1, "it can be gone on with in Optuna itself"
