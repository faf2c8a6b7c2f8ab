"""Searchers of other projects, by ask and tell, each as its documentation puts it together.

docs/search-quality.md says which ones are not here, and why.
"""

import math

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import TrialState

from search.config.flatten import flatten

from .problems import Problem
from .simulator import Job
from .strategies import Make


class OptunaStudy:
    """An Optuna study, asked and told as its page on the ask-and-tell interface says.

    What it delivers is that of `Study.best_trial`, which is among the completed trials. Their value is the last one, as
    in the tutorial on pruning.
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
            if math.isnan(value):  # what `Study.optimize` makes of it
                self._study.tell(trial, state=TrialState.FAIL)
            else:
                self._study.tell(trial, value)
        elif trial.should_prune():
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            return True
        del self._trials[job.trial]
        return False


def _build_tpe(problem: Problem, seed: int, pruner: BasePruner) -> OptunaStudy:
    return OptunaStudy(problem, seed, TPESampler(seed=seed), pruner)


PEERS: dict[str, Make] = {
    # The largest resource is told, as the documentation of HyperbandPruner recommends; all else is the default.
    "optuna-hyperband": lambda problem, seed: _build_tpe(problem, seed, HyperbandPruner(max_resource=problem.epochs)),
    "optuna-halving": lambda problem, seed: _build_tpe(problem, seed, SuccessiveHalvingPruner()),
    "optuna-gp": lambda problem, seed: OptunaStudy(problem, seed, GPSampler(seed=seed), NopPruner()),
}
