"""Sides that learn from an earlier search of another problem, as `--warm-start` lets a search do."""

from functools import cache

from benchmarks.search.problems.problems import OBJECTIVE, Problem
from benchmarks.search.simulator import simulate
from benchmarks.search.strategies import Make, Searchlight
from searchlight.search.experiment.warm_start import SourceTrial, as_sampler_trials, select_fitting
from searchlight.search.space.objectives import Objective
from searchlight.search.study.trial import get_outcome, intermediate_values
from searchlight.trainables.flatten import flatten

GANGS, TRAININGS = 8, 4  # of the earlier search: full trainings for each gang


def search_with_warm_start(problem: Problem, seed: int, sign: float = 1.0) -> Searchlight:
    """Return a search of `problem` that has a warm start from a search of its source.

    Args:
        problem: The problem to search. Without a source, there is no warm start.
        seed: The seed of both searches.
        sign: -1 reverses the order of the earlier values, so that they mislead.
    """
    if problem.source is None:
        return Searchlight(problem, seed)
    objective = Objective(OBJECTIVE, "min")
    found = [
        SourceTrial(trial.outcome, trial.config, {epoch: sign * value for epoch, value in trial.values.items()})
        for trial in _search_source(problem.source, seed)
    ]
    trials, _ = select_fitting(problem.space, found)
    judged = [trial for trial in trials if trial.outcome != "diverged" and trial.values]
    best = objective.best(judged, key=lambda trial: objective.best(trial.values.values()))
    return Searchlight(problem, seed, earlier=as_sampler_trials(trials, problem.space, objective), first=[best.point])


@cache
def _search_source(problem: Problem, seed: int) -> list[SourceTrial]:
    """Return the trials of a search of `problem` with its documented defaults."""
    side = Searchlight(problem.give_defaults("documented", seed), seed)
    simulate(side, problem, GANGS, TRAININGS * problem.seconds, seed)
    return [
        SourceTrial(get_outcome(trial), flatten(trial.user_attrs.get("config", {})), dict(intermediate_values(trial)))
        for trial in side.study.get_trials()
    ]


WARM_STARTS: dict[str, Make] = {
    "hyperband-warm": search_with_warm_start,
    "hyperband-warm-reversed": lambda problem, seed: search_with_warm_start(problem, seed, sign=-1.0),
}
