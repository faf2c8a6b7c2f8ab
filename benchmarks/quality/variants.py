"""What was tried beside our defaults: docs/search-quality.md tells what came of it.

Each differs from the default in what its name says, and `before` in all that was changed for what was measured here.
"""

import copy
import random
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import Any

from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from search.config.objectives import Objective
from search.schedulers.asha import ASHAScheduler
from search.schedulers.base import Scheduler, TrialProgress
from search.study.study import SearchStudy

from .problems import Problem
from .strategies import Make, Searchlight


class KeepsPlaces(ASHAScheduler):
    """One that diverged keeps its place at the rungs that it had passed."""

    def _rank_trials(self, trials: Sequence[TrialProgress], rung: float) -> list[TrialProgress]:
        return super()._rank_trials([replace(trial, broke_off=False) for trial in trials], rung)


class Unconstrained(SearchStudy):
    """Samplers see a diverged trial as pruned and no more."""

    def end(self, number: int, outcome: str, reason: str = "", divergence: dict[str, Any] | None = None) -> None:
        super().end(number, "interrupted" if outcome == "diverged" else outcome, reason, divergence)


class ToldComplete(SearchStudy):
    """Samplers see a trial that waits at a rung as completed with its last value, as Ray's OptunaSearch tells it."""

    def __init__(
        self,
        storage: BaseStorage,
        name: str,
        sampler: Callable[[int], BaseSampler],
        objectives: Sequence[Objective],
        earlier: Sequence[FrozenTrial] = (),
    ) -> None:
        super().__init__(storage, name, sampler, objectives, earlier)
        live = self.live

        class View(type(storage)):  # type: ignore[misc]
            def get_all_trials(
                self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
            ) -> list[FrozenTrial]:
                trials = super().get_all_trials(study_id, deepcopy=deepcopy)
                shown = [trial if trial.number in live else _as_complete(trial) for trial in trials]
                return [trial for trial in shown if states is None or trial.state in states]

        view = View.__new__(View)
        view.__dict__ = storage.__dict__
        self._study._storage = view


def _as_complete(trial: FrozenTrial) -> FrozenTrial:
    if trial.state != TrialState.RUNNING or not trial.intermediate_values:
        return trial
    shown = copy.copy(trial)
    shown.state, shown.value = TrialState.COMPLETE, trial.intermediate_values[max(trial.intermediate_values)]
    return shown


def _side(
    schedule: Callable[[int], Scheduler] | None = None, study: type[SearchStudy] = SearchStudy, **tpe: Any
) -> Make:
    def make(problem: Problem, seed: int) -> Searchlight:
        def sampler(number: int) -> TPESampler:
            own = random.Random(f"{seed}-{number}").getrandbits(31)
            options = {"multivariate": False, "constant_liar": True, **tpe}
            group = options["multivariate"] and any(p.when for p in problem.space.parameters)
            return TPESampler(seed=own, group=group, **options)

        return Searchlight(problem, seed, sampler, schedule and schedule(problem.epochs), study)

    return make


def _gp(problem: Problem, seed: int) -> Searchlight:
    """A Gaussian process, to which only completed trials say something."""
    return Searchlight(problem, seed, lambda number: GPSampler(seed=seed * 10_000 + number), study=ToldComplete)


VARIANTS: dict[str, Make] = {
    "before": _side(lambda epochs: KeepsPlaces.from_config(epochs, 3, 1, "min"), multivariate=True),
    "keeps-places": _side(lambda epochs: KeepsPlaces.from_config(epochs, 3, 1, "min")),
    "multivariate": _side(multivariate=True),
    "unconstrained": _side(study=Unconstrained),
    "told-complete": _side(study=ToldComplete),
    "grace-3": _side(lambda epochs: ASHAScheduler.from_config(epochs, 3, 3, "min")),
    "factor-4": _side(lambda epochs: ASHAScheduler.from_config(epochs, 4, 1, "min")),
    "gp": _gp,
}
