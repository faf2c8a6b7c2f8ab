"""What samplers see of trials that violate constraints, and what they learn from them."""

import pytest
from optuna.trial import TrialState

from searchlight.search.samplers.factory import SAMPLERS, sampler_factory
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import resolve_space
from searchlight.search.study.study import create_study
from searchlight.trainables.task import TaskConfig, searchable

LOSS, SPEED = Objective("loss", "min"), Objective("speed", "max")
NAME = "latency<=20"
CONSTRAINED = ("tpe", "gp", "nsga2")


class Config(TaskConfig):
    x: float = searchable(0.5, low=0.0, high=1.0)
    y: float = searchable(0.5, low=0.0, high=1.0)


SPACE = resolve_space(Config, {"precision": "fp32"}, {})


class Played:
    """A search whose best values of x lie above 0.6, where `kind` is violated."""

    def __init__(self, folder, sampler, kind, trials, objectives=(LOSS,)):
        folder.mkdir(exist_ok=True)
        self.study, self.lock = create_study(folder, sampler_factory(sampler, 0), objectives)
        self.kind = kind
        for _ in range(trials):
            number, values = self.study.ask(SPACE)
            self.study.record_config(number, values)
            self.end(number, values["x"])

    def end(self, number, x):
        if self.kind == "memory" and x > 0.6:
            details = {"infeasibility": {"constraint": "memory", "violation": x - 0.6, "in_window": False}}
            return self.study.end(number, "infeasible", "out of memory", details)
        if self.kind == "untold" and x > 0.6:
            return self.study.end(number, "failed", "out of memory")
        violations = {"violations": {NAME: 100 * (x - 0.6)}} if self.kind == "metric" else {}
        metrics = {"loss": 1 - x, "speed": x}
        self.study.report(number, 1, 1 - x, {"metrics": metrics, "checkpoint": None, **violations})
        return self.study.end(number, "infeasible" if violations and x > 0.6 else "completed")

    def shown(self):
        """Return the trials as the sampler sees them."""
        return self.study._study.get_trials(deepcopy=False)

    def count_far_beyond(self):
        """Return how many of the later trials are clearly infeasible."""
        return sum(trial.params["x"] > 0.65 for trial in self.study.get_trials()[20:])


@pytest.mark.parametrize("kind", ["memory", "metric"])
@pytest.mark.parametrize("sampler", [*SAMPLERS])
def test_infeasible_trial_is_never_shown_as_a_good_one(tmp_path, sampler, kind):
    played = Played(tmp_path, sampler, kind, 14 if sampler == "gp" else 24)
    trials = played.shown()
    feasible = [t for t in trials if t.state == TrialState.COMPLETE and not any(v > 0 for v in t.constraints.values())]
    good = [trial for trial in feasible if trial.params["x"] > 0.6]
    worst = max(trial.value for trial in feasible)
    assert all(trial.value == worst for trial in good), "without a constraint, its value is the worst"
    if kind == "metric" and sampler in CONSTRAINED:
        assert not good
        assert {trial.value for trial in trials if trial.params["x"] > 0.6 and trial.state == TrialState.COMPLETE} <= {
            1 - trial.params["x"] for trial in trials
        }
    played.lock.close()


@pytest.mark.parametrize("kind", ["memory", "metric"])
@pytest.mark.parametrize("sampler", ["tpe", pytest.param("gp", marks=pytest.mark.slow)])
def test_sampler_learns_to_avoid_infeasible_values(tmp_path, sampler, kind):
    played, untold = (Played(tmp_path / told, sampler, told, 40) for told in (kind, "untold"))
    assert played.count_far_beyond() < untold.count_far_beyond() / 2
    played.lock.close()
    untold.lock.close()


@pytest.mark.parametrize("sampler", CONSTRAINED)
def test_all_trials_have_the_same_constraints_on_metrics(tmp_path, sampler):
    """Optuna's Gaussian process demands it, also of trials that could not be trained."""
    played = Played(tmp_path, sampler, "metric", 12)
    played.kind = "memory"
    for x in (0.9, 0.95):
        number = played.study.create_copy(SPACE, {"x": x, "y": 0.5}, {"config": {"x": x, "y": 0.5}})
        played.end(number, x)
    complete = [trial for trial in played.shown() if trial.state == TrialState.COMPLETE]
    if sampler != "tpe":
        assert {frozenset(trial.constraints) for trial in complete} == {frozenset([NAME])}
        largest = max(trial.constraints[NAME] for trial in complete)
        lacking = [trial for trial in complete if trial.params["x"] in (0.9, 0.95)]
        assert [trial.constraints[NAME] for trial in lacking] == [largest] * 2
    played.study.ask(SPACE)
    played.lock.close()


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsga2"])
@pytest.mark.parametrize("kind", ["memory", "metric"])
def test_constraints_hold_with_several_objectives(tmp_path, sampler, kind):
    played = Played(tmp_path, sampler, kind, 14, (LOSS, SPEED))
    feasible = [
        t for t in played.shown() if t.state == TrialState.COMPLETE and not any(v > 0 for v in t.constraints.values())
    ]
    worst = (max(trial.values[0] for trial in feasible), min(trial.values[1] for trial in feasible))
    assert all(tuple(trial.values) == worst for trial in feasible if trial.params["x"] > 0.6)
    played.study.ask(SPACE)
    played.lock.close()
