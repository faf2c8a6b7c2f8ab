"""The faster TPE proposes what Optuna's own does."""

import math

import numpy as np
import pytest
from optuna.samplers import TPESampler
from optuna.storages import InMemoryStorage
from optuna.trial import create_trial

from search.config.objectives import Objective
from search.config.search_space import resolve_space
from search.samplers.tpe import FastTPESampler
from search.study.study import SearchStudy
from tests.search.study.played_studies import play_trials
from trainables.private_api import optuna_truncnorm
from trainables.task import TaskConfig, searchable


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


def log_ndtr(values):
    """Compute the logarithm of the normal distribution function as Optuna does."""
    return np.frompyfunc(optuna_truncnorm._log_ndtr_single, 1, 1)(values).astype(float)


def rounded(values):
    return {name: f"{value:.9g}" if isinstance(value, float) else value for name, value in values.items()}


@pytest.mark.parametrize("others", [(), (Objective("size", "max"),)], ids=["one objective", "two"])
def test_fast_tpe_proposes_what_the_tpe_of_optuna_does(others, monkeypatch):
    own = proposed(FastTPESampler, others)
    monkeypatch.setattr(optuna_truncnorm, "_log_ndtr", log_ndtr)
    theirs = proposed(lambda number: TPESampler(seed=number, multivariate=False, constant_liar=True), others)
    assert [rounded(values) for values in own] == [rounded(values) for values in theirs]


def test_fast_normal_distribution_is_that_of_optuna():
    values = np.linspace(-100, 100, 20_001)
    np.testing.assert_allclose(optuna_truncnorm._log_ndtr(values), log_ndtr(values), rtol=1e-12, atol=1e-11)


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
