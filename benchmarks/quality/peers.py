"""Searchers of other projects with an ask-and-tell interface, each configured as its documentation says.

docs/search-quality.md lists the ones that are not here, and why. Syne Tune is not among the requirements: `pip install
syne-tune`.
"""

import logging
import math
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, HyperbandPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import TrialState

from search.config.flatten import flatten

from .problems import OBJECTIVE, Problem
from .simulator import Job
from .strategies import Make


class OptunaStudy:
    """An Optuna study, called as its page on the ask-and-tell interface says.

    It delivers `Study.best_trial`, which is one of the completed trials. Their value is the last one, as in the
    tutorial on pruning.
    """

    keeps_best = False
    only_whole = True

    def __init__(self, problem: Problem, seed: int, sampler: BaseSampler, pruner: BasePruner) -> None:
        # HyperbandPruner computes the bracket of a trial from the name of the study, which is random by default.
        self._study = optuna.create_study(study_name=f"{problem.name}-{seed}", sampler=sampler, pruner=pruner)
        self._space = problem.space
        self._epochs = problem.epochs
        self._trials: dict[int, optuna.Trial] = {}

    def suggest(self) -> Job:
        trial = self._study.ask()
        self._trials[trial.number] = trial
        return Job(str(trial.number), trial.number, flatten(self._space.suggest(trial)), 0, self._epochs)

    def report(self, job: Job, epoch: int, value: float) -> bool:
        trial = self._trials[job.trial]
        trial.report(value, epoch)
        if epoch == self._epochs:
            if math.isnan(value):  # as `Study.optimize` does
                self._study.tell(trial, state=TrialState.FAIL)
            else:
                self._study.tell(trial, value)
        elif trial.should_prune():
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            return True
        del self._trials[job.trial]
        return False


class SyneTune:
    """A scheduler of Syne Tune, called as its page on ask and tell says.

    A trial whose loss is NaN ends with an error. It delivers `Experiment.best_config`, the best of all reports. It has
    no conditional parameters, so parameters that do not apply to a config are sampled and ignored.

    Args:
        name: The name of a class in `syne_tune.optimizer.baselines`.

    Raises:
        ModuleNotFoundError: Syne Tune is not installed.
    """

    keeps_best = True
    only_whole = False

    def __init__(self, name: str, problem: Problem, seed: int) -> None:
        from syne_tune.backend import trial_status
        from syne_tune.optimizer import baselines, scheduler

        np.random.seed(seed)  # RandomSearcher draws from it, whatever its seed is
        self._space = problem.space
        self._epochs = problem.epochs
        self._trial_class = trial_status.Trial
        self._stop = scheduler.SchedulerDecision.STOP
        space = {parameter.name: _convert_to_syne_tune(parameter.distribution) for parameter in self._space.parameters}
        self._scheduler = getattr(baselines, name)(
            space, metric=OBJECTIVE, time_attr="epoch", max_t=self._epochs, do_minimize=True, random_seed=seed
        )
        self._trials: dict[int, Any] = {}
        logging.getLogger("syne_tune").setLevel(logging.ERROR)  # it warns of every trial that fails

    def suggest(self) -> Job:
        number, config = len(self._trials), self._scheduler.suggest().config
        trial = self._trial_class(number, config, datetime.fromtimestamp(0))
        self._trials[number] = trial
        self._scheduler.on_trial_add(trial)
        values = self._space.choose(lambda parameter: config[parameter.name])
        return Job(str(number), number, flatten(values), 0, self._epochs)

    def report(self, job: Job, epoch: int, value: float) -> bool:
        trial, result = self._trials[job.trial], {OBJECTIVE: value, "epoch": epoch}
        if math.isnan(value):
            self._scheduler.on_trial_error(trial)
            return False
        if epoch == self._epochs:
            self._scheduler.on_trial_complete(trial, result)
            return False
        return bool(self._scheduler.on_trial_result(trial, result) != self._stop)


def _convert_to_syne_tune(distribution: BaseDistribution) -> Any:
    from syne_tune import config_space

    if isinstance(distribution, CategoricalDistribution):
        return config_space.choice(list(distribution.choices))
    if isinstance(distribution, FloatDistribution):
        domain = config_space.loguniform if distribution.log else config_space.uniform
    else:
        assert isinstance(distribution, IntDistribution)
        assert distribution.step == 1
        domain = config_space.lograndint if distribution.log else config_space.randint
    return domain(distribution.low, distribution.high)


def _build_tpe(problem: Problem, seed: int, pruner: BasePruner) -> OptunaStudy:
    return OptunaStudy(problem, seed, TPESampler(seed=seed), pruner)


PEERS: dict[str, Make] = {
    # With max_resource, as the documentation of HyperbandPruner recommends; all else is the default.
    "optuna-hyperband": lambda problem, seed: _build_tpe(problem, seed, HyperbandPruner(max_resource=problem.epochs)),
    "optuna-halving": lambda problem, seed: _build_tpe(problem, seed, SuccessiveHalvingPruner()),
    "optuna-gp": lambda problem, seed: OptunaStudy(problem, seed, GPSampler(seed=seed), NopPruner()),
    "syne-asha": partial(SyneTune, "ASHA"),
    "syne-bohb": partial(SyneTune, "BOHB"),
    "syne-cqr": partial(SyneTune, "ASHACQR"),
}
