"""The sides: our searcher as in a search, and Ray's objects as in its documentation."""

import logging
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import optuna
from optuna.samplers import BaseSampler, RandomSampler
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch, optuna_search

from benchmarks.search.problems.problems import OBJECTIVE, Problem, Values
from benchmarks.search.simulator import Job, Side
from searchlight.search.config import SearchConfig
from searchlight.search.execution.report_handler import SearchLimits
from searchlight.search.execution.searcher import StudySearcher
from searchlight.search.samplers.belief import RunningBelief
from searchlight.search.samplers.factory import sampler_factory
from searchlight.search.samplers.mixture import Belief
from searchlight.search.schedulers.asha import ASHAScheduler as Halving
from searchlight.search.schedulers.base import Scheduler
from searchlight.search.schedulers.factory import create_scheduler
from searchlight.search.schedulers.hyperband import HyperBandScheduler
from searchlight.search.space.objectives import Objective
from searchlight.search.study.study import SearchStudy
from searchlight.trainables.flatten import flatten
from searchlight.trainables.worker.messages import EpochReport, GangResult, SegmentEnd, to_json

UNLIMITED = 10**9  # trials, since time ends a search here
GOLDEN = (math.sqrt(5) - 1) / 2

optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
optuna_search.logger.setLevel(logging.ERROR)  # it warns of every NaN that it cannot report to the study


class EvenBrackets(HyperBandScheduler):
    """HyperBand as it was before 26 November 2026: few trials, too, are spread over all brackets.

    Multiples of the golden ratio, modulo 1, fill the unit interval evenly at every length. The lowest rung may be
    nearer to the next one than the others are.
    """

    @classmethod
    def spread(cls, schedule: Scheduler) -> Self:
        """Return a scheduler with the settings of `schedule`, a HyperBandScheduler."""
        assert isinstance(schedule, HyperBandScheduler)
        first = schedule.brackets[0]
        lower = round(schedule.rungs[0] / first.reduction_factor)
        rungs = [*([lower] if lower >= 1 and lower < schedule.rungs[0] else []), *schedule.rungs]
        brackets = tuple(replace(first, rungs=tuple(rungs[start:])) for start in range(len(rungs)))
        return cls(brackets, schedule.starts_with_defaults)

    def get_bracket(self, index: int) -> Halving:
        ends = np.cumsum(self.sizes) / sum(self.sizes)
        return self.brackets[int(np.searchsorted(ends, index * GOLDEN % 1, side="right"))]


class Searchlight:
    """StudySearcher with a study in memory. A promoted trial resumes from its checkpoint.

    It has no confirming runs.

    Args:
        problem: The problem to search.
        seed: The seed of the search.
        trials: The largest number of trials.
        prefers_defaults: Whether the scheduler knows that the first trial has the defaults, and TPE compares trials
            where enough of them have been.
        earlier: Trials of an earlier search, which the sampler learns from.
        first: Configs that are tried after the defaults.
        remake: Makes another scheduler of that of the options.
        options: Options of the search.
    """

    keeps_best = True
    only_whole = False

    def __init__(
        self,
        problem: Problem,
        seed: int,
        trials: int = UNLIMITED,
        prefers_defaults: bool = True,
        earlier: Sequence[FrozenTrial] = (),
        first: Sequence[Values] = (),
        remake: Callable[[Scheduler], Scheduler] = lambda schedule: schedule,
        **options: Any,
    ) -> None:
        config = SearchConfig(task="simulated", seed=seed, **{"scheduler": "hyperband", **options})
        beliefs = {name: Belief(value, "medium") for name, value in (problem.defaults or {}).items()}
        sampler = sampler_factory(config.sampler, seed, beliefs)
        has_defaults = problem.defaults is not None and prefers_defaults
        schedule = remake(create_scheduler(config, problem.epochs, "min", seed=seed, starts_with_defaults=has_defaults))
        study = SearchStudy(InMemoryStorage(), "search", sampler, [Objective(OBJECTIVE, "min")], earlier)
        limits = SearchLimits(trials)
        for config in (*([] if problem.defaults is None else [problem.defaults]), *first):
            study.enqueue(dict(config))
        self.study = study
        self._searcher = StudySearcher(study, problem.space, schedule, limits, Path("nowhere"), attempt="1")
        if not prefers_defaults:
            study.fewest_at_rung = 1
        self._asked = 0

    def suggest(self) -> Job | None:
        self._asked += 1
        name = str(self._asked)
        given = self._searcher.suggest(name)
        if self._searcher.error is not None:
            raise self._searcher.error
        if given is None or given == Searcher.FINISHED:
            return None
        segment = given["segment"]
        return Job(name, segment.trial, flatten(segment.config), segment.epoch, segment.until)

    def report(self, job: Job, epoch: int, value: float) -> bool:
        done = math.isnan(value) or epoch == job.until
        message: SegmentEnd | EpochReport = EpochReport(epoch, {OBJECTIVE: value}, None, {}, done)
        if math.isnan(value):
            message = self.build_end(job, epoch)
        result = {"is_held": False, "reports": to_json(GangResult("simulated", [message]))}
        if done:
            self._searcher.on_trial_complete(job.name, result)
        else:
            self._searcher.on_trial_result(job.name, result)
        return not math.isnan(value)

    def build_end(self, job: Job, epoch: int) -> SegmentEnd:
        """Return the end of a trial whose loss is NaN."""
        return SegmentEnd("diverged", f"{OBJECTIVE} is nan after epoch {epoch}")


class Believing(Searchlight):
    """Searchlight whose user believes at the start in points that are `shifts` off the optimum.

    As in a search, a belief that results contradict is dropped.
    """

    def __init__(self, problem: Problem, seed: int, *shifts: float) -> None:
        super().__init__(problem, seed, sampler="tpe")
        points = [problem.find_point(shift, seed) for shift in shifts]
        self._study = self._searcher.study
        self._study.beliefs = {
            name: [RunningBelief(value, 0) for value in dict.fromkeys(point[name] for point in points)]
            for name in points[0]
        }

    def report(self, job: Job, epoch: int, value: float) -> bool:
        goes_on = super().report(job, epoch, value)
        if not goes_on or epoch == job.until:
            dropped = [(name, belief) for name, belief, _ in self._study.find_contradictions()]
            left = {
                name: tuple(belief for belief in held if (name, belief) not in dropped)
                for name, held in self._study.beliefs.items()
            }
            self._study.beliefs = {name: held for name, held in left.items() if held}
        return goes_on


@dataclass(frozen=True)
class TuneTrial:
    """The attributes of a trial that Tune's schedulers read."""

    trial_id: str


class RayTune:
    """OptunaSearch and a scheduler of Ray Tune, called as its controller calls them.

    A trial whose loss is NaN reports it and continues, since nothing in the documented recipe stops it.
    """

    only_whole = False
    keeps_best = False  # ResultGrid.get_best_result(scope="last", filter_nan_and_inf=True) and Result.checkpoint

    def __init__(self, problem: Problem, seed: int, sampler: BaseSampler | None, scheduler: FIFOScheduler) -> None:
        space = problem.space
        if any(p.when for p in space.parameters):  # parameters that depend on others need a function
            given: Any = space.suggest
        else:
            given = {p.name: p.distribution for p in space.parameters}
        options: dict[str, Any] = {"seed": seed} if sampler is None else {"sampler": sampler}
        if problem.defaults is not None:
            options["points_to_evaluate"] = [dict(problem.defaults)]
        self._search = OptunaSearch(given, metric=OBJECTIVE, mode="min", **options)
        self._scheduler = scheduler
        self._scheduler.set_search_properties(OBJECTIVE, "min")
        self._epochs = problem.epochs
        self._started = 0

    def suggest(self) -> Job | None:
        name = str(self._started)
        values = self._search.suggest(name)
        assert values is not None
        self._scheduler.on_trial_add(None, TuneTrial(name))  # type: ignore[arg-type]
        self._started += 1
        return Job(name, self._started - 1, flatten(values), 0, self._epochs)

    def report(self, job: Job, epoch: int, value: float) -> bool:
        trial: Any = TuneTrial(job.name)
        result = {"training_iteration": epoch, OBJECTIVE: value}
        controller: Any = None
        decision = self._scheduler.on_trial_result(controller, trial, result)
        if decision == TrialScheduler.STOP:
            self._search.on_trial_complete(job.name, result)
            return False
        self._search.on_trial_result(job.name, result)
        if epoch == self._epochs:  # the function returns
            self._scheduler.on_trial_complete(controller, trial, result)
            self._search.on_trial_complete(job.name, result)
        return True


Make = Callable[[Problem, int], Side]


def create_asha(problem: Problem) -> ASHAScheduler:
    """Create Ray's ASHA with the documented defaults: grace_period=1, reduction_factor=4."""
    return ASHAScheduler(max_t=problem.epochs)


SIDES: dict[str, Make] = {
    "hyperband": lambda problem, seed: Searchlight(problem, seed, sampler="tpe"),
    "hyperband-even": lambda problem, seed: Searchlight(problem, seed, sampler="tpe", remake=EvenBrackets.spread),
    "hyperband-plain": lambda problem, seed: Searchlight(
        problem, seed, sampler="tpe", prefers_defaults=False, remake=EvenBrackets.spread
    ),
    "hyperband-mixture": lambda problem, seed: Searchlight(problem, seed, sampler="mixture"),
    "believe-optimum": lambda problem, seed: Believing(problem, seed, 0.0),
    "believe-near": lambda problem, seed: Believing(problem, seed, 0.1),
    "believe-wrong": lambda problem, seed: Believing(problem, seed, 0.5),
    "believe-both": lambda problem, seed: Believing(problem, seed, 0.1, 0.5),  # one near, and one wrong
    "asha": lambda problem, seed: Searchlight(problem, seed, scheduler="asha"),
    "asha-stop": lambda problem, seed: Searchlight(problem, seed, scheduler="asha-stop"),
    "median": lambda problem, seed: Searchlight(problem, seed, scheduler="median"),
    "ray": lambda problem, seed: RayTune(problem, seed, None, create_asha(problem)),
    "random": lambda problem, seed: RayTune(problem, seed, RandomSampler(seed), create_asha(problem)),
    "tpe": lambda problem, seed: RayTune(problem, seed, None, FIFOScheduler()),
}
