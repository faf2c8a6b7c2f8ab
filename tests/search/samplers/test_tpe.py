"""The faster TPE proposes what Optuna's own does."""

import math

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.storages import InMemoryStorage
from optuna.trial import create_trial

from searchlight.search.private_api import ParzenEstimator
from searchlight.search.samplers.tpe import FastTPESampler, TrialTable, compute_log_density
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import resolve_space
from searchlight.search.study.study import SearchStudy
from searchlight.trainables.task import TaskConfig, searchable
from tests.search.study.played_studies import play_trials


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)
    dropout: float = searchable(0.1, low=0.0, high=0.5, step=0.1)
    depth: int = searchable(3, low=1, high=9)
    width: int = searchable(64, low=16, high=512, log=True)
    optimizer: str = searchable("adamw", choices=["adamw", "sgd"])
    beta: float = searchable(0.9, low=0.5, high=0.999, when={"optimizer": "adamw"})


SPACE = resolve_space(Config, {}, {})


def proposed(sampler, others):
    """The values of 60 trials, eight at a time: some are completed, some wait at a rung, some diverge, some fail."""
    study = SearchStudy(InMemoryStorage(), "study", sampler, [Objective("loss", "min"), *others])

    def tell(number, values):
        loss = abs(math.log10(values["lr"]) + 3) + values["dropout"] + 1 / values["depth"]
        if number % 5 < 3:
            metrics = {"loss": loss, "size": float(values["width"])}
            study.report(number, 1, loss, {"metrics": metrics, "checkpoint": None})
        if number % 5 != 2:
            study.end(number, ("completed", "pruned", "", "diverged", "failed")[number % 5])

    return play_trials(study, SPACE, 60, tell, parallel=8)


@pytest.mark.parametrize("others", [(), (Objective("size", "max"),)], ids=["one objective", "two"])
def test_fast_tpe_proposes_what_the_tpe_of_optuna_does(others):
    table = TrialTable()
    own = proposed(lambda number: FastTPESampler(number, table), others)
    assert own == proposed(lambda number: TPESampler(seed=number, multivariate=False, constant_liar=True), others)


@pytest.mark.parametrize(
    "distribution",
    [
        FloatDistribution(1e-5, 1e-1, log=True),
        FloatDistribution(0.0, 0.5),
        FloatDistribution(0.0, 0.5, step=0.1),
        IntDistribution(16, 512, log=True),
        IntDistribution(1, 9),
        CategoricalDistribution(["a", "b", "c"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("observed", [0, 1, 200])
def test_log_density_is_that_of_optuna_but_for_a_summand(distribution, observed):
    space, draw = {"x": distribution}, np.random.RandomState(0)
    parameters = TPESampler()._parzen_estimator_parameters
    prior = ParzenEstimator({"x": np.empty(0)}, space, parameters)
    estimator = ParzenEstimator(prior.sample(draw, observed), space, parameters)
    samples = prior.sample(draw, 50)
    differences = compute_log_density(estimator, "x", samples["x"]) - estimator.log_pdf(samples)
    np.testing.assert_allclose(differences, differences[0], atol=1e-9)


def test_tpe_proposes_odd_trials_as_without_earlier_ones():
    best = {"lr": 0.1, "dropout": 0.5, "depth": 9}
    distributions = {p.name: p.distribution for p in SPACE.parameters if p.name in best}
    earlier = [create_trial(params=best, distributions=distributions, value=0.0) for _ in range(12)]
    for number, trial in enumerate(earlier):
        trial.number = number - len(earlier)
    asked = []
    for known in ([], earlier):
        study = SearchStudy(InMemoryStorage(), "study", FastTPESampler, [Objective("loss", "min")], known)
        asked.append([study.ask(SPACE)[1] for _ in range(2)])
    assert asked[0][1] == asked[1][1]
    assert asked[0][0] != asked[1][0]
