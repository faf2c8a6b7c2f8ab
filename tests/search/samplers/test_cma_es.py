"""CMA-ES without a stored optimizer proposes what Optuna's own does."""

import math

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.samplers import CmaEsSampler
from optuna.storages import InMemoryStorage
from optuna.trial import create_trial

from searchlight.search.samplers.cma_es import ReplayedCmaEsSampler
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import resolve_space
from searchlight.search.study.study import SearchStudy
from tests.search.samplers.test_tpe import Config
from tests.search.study.played_studies import play_trials

SPACE = resolve_space(Config, {"precision": "fp32"}, {})


def play(sampler, mode, parallel=1, storage=None):
    """The study of 60 trials, some of which fail, and their values."""
    study = SearchStudy(storage or InMemoryStorage(), "study", sampler, [Objective("loss", mode)])

    def tell(number, values):
        loss = abs(math.log10(values["lr"]) + 3) + values["dropout"] + 1 / values["depth"]
        study.report(number, 1, loss, {"metrics": {"loss": loss}, "checkpoint": None})
        study.end(number, "failed" if number % 7 == 4 else "completed")

    return study, play_trials(study, SPACE, 60, tell, parallel)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_proposals_are_those_of_optuna_if_one_trial_runs_at_a_time(mode):
    _, own = play(ReplayedCmaEsSampler, mode)
    _, expected = play(lambda number: CmaEsSampler(seed=number, warn_independent_sampling=False), mode)
    for mine, theirs in zip(own, expected, strict=True):
        assert mine.pop("optimizer") == theirs.pop("optimizer")
        assert mine == pytest.approx(theirs, rel=1e-9), "Optuna's pickle rounds a matrix to a symmetric one"


def test_study_keeps_the_generations_alone():
    study, proposed = play(ReplayedCmaEsSampler, "min", parallel=4)
    attributes = [trial.system_attrs for trial in study.get_trials()]
    assert {key for each in attributes for key in each} == {"cma:generation"}
    assert max(each.get("cma:generation", 0) for each in attributes) >= 4
    assert proposed == play(ReplayedCmaEsSampler, "min", parallel=4)[1]


@pytest.mark.parametrize(
    ("value", "lr", "generation"),
    [(math.nan, 0.5, 0), (-1.0, 7.0, 0), (-1.0, math.nan, 0), (-1.0, None, 0), (-1.0, 0.5, "0"), (-1.0, 0.5, True)],
)
def test_trial_that_no_optimizer_has_drawn_is_not_learned_from(value, lr, generation):
    space = {"lr": FloatDistribution(0.0, 1.0)}

    def propose(*values):
        trials = []
        for value, lr, generation in [*values, *((each / 8, each / 8, 0) for each in range(8))]:
            trials.append(create_trial(value=0.0, system_attrs={"cma:generation": generation}))
            trials[-1].values, trials[-1].params = [value], {"lr": lr} if lr is not None else {}
        study = optuna.create_study()
        running = study.ask()
        study.get_trials = lambda **_: trials
        return ReplayedCmaEsSampler(0).sample_relative(study, running, space)["lr"]

    assert propose((value, lr, generation)) == propose() != propose((-1.0, 0.5, 0))
