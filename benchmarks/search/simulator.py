"""A search in simulated time: gangs train the curves of a problem, and a side decides what they train."""

import heapq
import math
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from benchmarks.search.problems.problems import EPOCH_S, Curve, Problem

SWITCH_S = 0.1  # of a gang to another trial or checkpoint; see benchmarks/results/trial_turnaround.json


@dataclass(frozen=True)
class Job:
    """A segment for a gang: a trial from the end of epoch `start` to that of epoch `until`, under Tune's name."""

    name: str
    trial: int
    values: Mapping[str, Any]
    start: int
    until: int


class Side(Protocol):
    """A searcher with its scheduler.

    Attributes:
        keeps_best: Whether it judges a trial by its best report and delivers that checkpoint. Otherwise it uses the
            last report and checkpoint.
        only_whole: Whether only trials count that were trained to their end.
    """

    keeps_best: bool
    only_whole: bool

    def suggest(self) -> Job | None:
        """Return the next job of a free gang, or None if the gang has to wait."""

    def report(self, job: Job, epoch: int, value: float) -> bool:
        """Record the value of an epoch. Return whether the job continues."""


class Incumbent:
    """The report whose checkpoint a side would deliver now: that of the best trial, by its best or last report.

    A trial counts from its first report on, in training and at a rung, until it reports NaN. A trial whose config
    cannot be delivered does not count; see `Problem.can_deliver`. With `only_whole`, a trial counts once it was trained
    to its end.
    """

    def __init__(self, problem: Problem, keeps_best: bool, only_whole: bool = False) -> None:
        self._problem = problem
        self._keeps_best = keeps_best
        self._only_whole = only_whole
        self._reports: dict[int, tuple[float, int, Curve]] = {}  # by trial: value, epoch and curve

    def record_report(self, trial: int, epoch: int, value: float, curve: Curve) -> None:
        if math.isnan(value):
            self._reports.pop(trial, None)
        elif self._problem.can_deliver(curve) and (epoch == self._problem.epochs or not self._only_whole):
            known = self._reports.get(trial)
            if known is None or not self._keeps_best or value < known[0]:
                self._reports[trial] = (value, epoch, curve)

    def get_regret(self, without: Container[int] = ()) -> float:
        """Return the regret of the delivered report among trials not in `without`, the worst if there is none."""
        reports = [report for trial, report in self._reports.items() if trial not in without]
        if not reports:
            return self._problem.worst - self._problem.best
        _, epoch, curve = min(reports, key=lambda report: report[0])
        return self._problem.regret(curve, epoch)


@dataclass
class Run:
    """The result of a search.

    Attributes:
        regrets: (seconds, regret) at each change of the regret.
        by_best_report: The final regret if trials are judged by their best reports, for any side.
        at_rest: The final regret without the trials in training, as in a search that its time budget ends and that has
            no confirming runs.
        spent, lost: The seconds of all gangs, and those of trials that diverged at any time.
        whole: The number of trials that were trained to their end.
        decisions: The real CPU seconds of suggestions.
    """

    regrets: list[tuple[float, float]] = field(default_factory=list)
    by_best_report: float = math.inf
    at_rest: float = math.inf
    trials: int = 0
    diverged: int = 0
    spent: float = 0.0
    lost: float = 0.0
    suggestions: int = 0
    decisions: float = 0.0
    whole: int = 0

    def regret_at(self, seconds: float, before: float) -> float:
        """Return the regret after `seconds`, or `before` if there is no report yet."""
        found = before
        for moment, regret in self.regrets:
            if moment > seconds:
                break
            found = regret
        return found


def simulate(side: Side, problem: Problem, gangs: int, budget: float, seed: int, epoch_s: float | None = None) -> Run:
    """Search for `budget` simulated seconds with `gangs` gangs.

    Args:
        epoch_s: The real seconds of an epoch that takes EPOCH_S simulated seconds. The driver makes one suggestion at a
            time, and each takes its real CPU time. Results then vary between runs. None: suggestions take no time.
    """
    cost, slower = (0.0, 1.0) if epoch_s is None else (EPOCH_S / epoch_s, EPOCH_S / epoch_s)
    run = Run()
    curves: dict[int, Curve] = {}
    told, best = Incumbent(problem, side.keeps_best, side.only_whole), Incumbent(problem, True)
    seen_to_diverge: set[int] = set()
    queue: list[tuple[float, int, Job, int]] = []  # (end of the epoch, order, job, epoch)
    now, driver_free, order, idle = 0.0, 0.0, 0, gangs
    while now < budget:
        while idle:
            start = time.process_time()
            job = side.suggest()
            took = time.process_time() - start
            driver_free = max(now, driver_free) + cost * took
            run.decisions += took
            run.suggestions += 1
            if job is None:
                break
            if job.trial not in curves:
                curves[job.trial] = problem.curve(job.values, np.random.default_rng((seed, job.trial)))
            order, idle = order + 1, idle - 1
            heapq.heappush(
                queue, (driver_free + slower * SWITCH_S + curves[job.trial].seconds, order, job, job.start + 1)
            )
        if not queue or queue[0][0] > budget:  # nothing is left to do, or no time
            break
        now, _, job, epoch = heapq.heappop(queue)
        curve = curves[job.trial]
        value = curve.values[epoch - 1]
        run.spent += curve.seconds
        run.lost += curve.seconds * curve.diverges
        if math.isnan(value):
            seen_to_diverge.add(job.trial)
        run.whole += epoch == problem.epochs and not math.isnan(value)
        for incumbent in (told, best):
            incumbent.record_report(job.trial, epoch, value, curve)
        goes_on = side.report(job, epoch, value) and epoch < job.until
        if goes_on:
            order += 1
            heapq.heappush(queue, (now + curve.seconds, order, job, epoch + 1))
        else:
            idle += 1
        regret = told.get_regret()
        if not run.regrets or regret != run.regrets[-1][1]:
            run.regrets.append((now, regret))
    run.by_best_report = best.get_regret()
    run.at_rest = told.get_regret(without={job.trial for _, _, job, _ in queue})
    run.trials, run.diverged = len(curves), len(seen_to_diverge)
    return run
