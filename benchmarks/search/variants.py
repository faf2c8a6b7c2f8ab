"""Variants of our defaults, whose results are in docs/search-quality.md.

Each differs from the default as its name says. `before` differs in all changes that these measurements led to.
"""

import copy
import random
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import optuna
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from benchmarks.search.problems.problems import Problem
from benchmarks.search.strategies import Make, Searchlight
from searchlight.search.samplers.factory import sampler_factory
from searchlight.search.schedulers.asha import ASHAScheduler
from searchlight.search.schedulers.base import Scheduler, TrialProgress
from searchlight.search.space.objectives import Objective
from searchlight.search.study.study import SearchStudy


class KeepsPlaces(ASHAScheduler):
    """ASHA in which a diverged trial keeps its rank at the rungs that it passed."""

    def _rank_trials(self, trials: Sequence[TrialProgress], rung: float) -> list[TrialProgress]:
        return super()._rank_trials([replace(trial, broke_off=False) for trial in trials], rung)


class Unconstrained(SearchStudy):
    """A study in which samplers see a diverged trial as pruned only."""

    def end(self, number: int, outcome: str, reason: str = "", divergence: dict[str, Any] | None = None) -> None:
        super().end(number, "interrupted" if outcome == "diverged" else outcome, reason, divergence)


class ToldComplete(SearchStudy):
    """A study that shows a trial at a rung as completed with its last value, as Ray's OptunaSearch does."""

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

        return Searchlight(problem, seed, sampler, schedule and schedule(problem.epochs), study, "asha")

    return make


def _sampler(name: str, extrapolates: bool = True) -> Make:
    def make(problem: Problem, seed: int) -> Searchlight:
        side = Searchlight(problem, seed, sampler_factory(name, seed))
        side.study.extrapolates &= extrapolates
        return side

    return make


def _rank_random_configs(problem: Problem, seed: int) -> list[tuple[float, dict[str, Any]]]:
    """Return the values and configs of 20 random configs after all epochs, best first."""
    draw = np.random.default_rng((seed, 1))
    configs = [problem.draw(draw) for _ in range(20)]
    finals = [min(problem.curve(config, draw).final, problem.worst) for config in configs]
    return sorted(zip(finals, configs, strict=True), key=lambda pair: pair[0])


def _try_first(place: int) -> Make:
    """Return the default that first tries a known config: that at `place` in the ranking of 20 random ones."""

    def make(problem: Problem, seed: int) -> Searchlight:
        side = Searchlight(problem, seed)
        side.study.enqueue(_rank_random_configs(problem, seed)[place][1])
        return side

    return make


def _warm_start(sign: int) -> Make:
    """Return the default whose sampler knows 20 random configs, with reversed values if `sign` is -1."""

    def make(problem: Problem, seed: int) -> Searchlight:
        distributions = {p.name: p.distribution for p in problem.space.parameters}
        known = _rank_random_configs(problem, seed)
        middle = known[len(known) // 2][0]
        earlier = [
            optuna.trial.create_trial(
                value=middle + sign * (final - middle),
                params=config,
                distributions={name: distributions[name] for name in config},
            )
            for final, config in known
        ]
        return Searchlight(problem, seed, study=partial(SearchStudy, earlier=earlier))

    return make


VARIANTS: dict[str, Make] = {
    "before": _side(lambda epochs: KeepsPlaces.from_config(epochs, 3, 1, "min"), multivariate=True),
    "keeps-places": _side(lambda epochs: KeepsPlaces.from_config(epochs, 3, 1, "min")),
    "multivariate": _side(multivariate=True),
    "unconstrained": _side(study=Unconstrained),
    "told-complete": _side(study=ToldComplete),
    "grace-3": _side(lambda epochs: ASHAScheduler.from_config(epochs, 3, 3, "min")),
    "factor-4": _side(lambda epochs: ASHAScheduler.from_config(epochs, 4, 1, "min")),
    **{name: _sampler(name) for name in ("gp", "cmaes", "nsga2")},
    **{f"{name}-complete": _sampler(name, extrapolates=False) for name in ("cmaes", "nsga2")},
    "try-good": _try_first(0),
    "try-wrong": _try_first(-1),
    "warm-good": _warm_start(1),
    "warm-wrong": _warm_start(-1),
}
