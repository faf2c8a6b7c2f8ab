"""A search in simulated time: gangs train the curves of a problem, and a side says what they train."""

import heapq
import math
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from .problems import EPOCH_S, Curve, Problem

SWITCH_S = 0.1  # a gang takes another trial, or one from a checkpoint: benchmarks/results/trial_turnaround.txt


@dataclass(frozen=True)
class Job:
    """What a gang is to train: a trial from the end of epoch `start` to that of epoch `until`, under Tune's name."""

    name: str
    trial: int
    values: Mapping[str, Any]
    start: int
    until: int


class Side(Protocol):
    """Something that searches.

    Attributes:
        keeps_best: Whether it judges a trial by its best report and delivers that report's checkpoint, or judges by the
            last report and delivers the last checkpoint.
        only_whole: Whether only trials count that were trained to their end.
    """

    keeps_best: bool
    only_whole: bool

    def suggest(self) -> Job | None:
        """What a free gang trains next, or None if it has to wait."""

    def report(self, job: Job, epoch: int, value: float) -> bool:
        """Take the report of an epoch. Whether the job goes on."""


class Incumbent:
    """The report whose checkpoint a side delivers if it ends now: of the best trial by its best or last report.

    A trial counts from its first report on, while it trains and while it waits at a rung, and no more once a report of
    it was NaN. A trial whose config cannot be delivered does not count: see `Problem.can_deliver`. With `only_whole`,
    a trial counts once it was trained to its end.
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
        """Return the regret of what is delivered, or that of nothing if no trial counts but those `without`."""
        reports = [report for trial, report in self._reports.items() if trial not in without]
        if not reports:
            return self._problem.worst - self._problem.best
        _, epoch, curve = min(reports, key=lambda report: report[0])
        return self._problem.regret(curve, epoch)


@dataclass
class Run:
    """What came of a search.

    Attributes:
        regrets: (seconds, regret) whenever the regret of what the side delivers has changed.
        by_best_report: The regret in the end if trials are judged by their best reports, whatever the side does.
        at_rest: The regret in the end if no trial counts that trains then, as in a search that its time budget ends
            and that has no confirming runs.
        spent, lost: Seconds of all gangs, and those that went into trials that had diverged or did later on.
        whole: Trials that were trained to their end.
        decisions: CPU seconds that suggestions took in reality.
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
        """The regret at a moment; `before` until there is a first report."""
        found = before
        for moment, regret in self.regrets:
            if moment > seconds:
                break
            found = regret
        return found


def simulate(side: Side, problem: Problem, gangs: int, budget: float, seed: int, epoch_s: float | None = None) -> Run:
    """Search for `budget` simulated seconds with so many gangs.

    Args:
        epoch_s: The real seconds of an epoch that takes EPOCH_S simulated ones. The driver makes one suggestion after
            another, and each takes the CPU time that it really takes. The result is then not the same each time. None:
            suggestions take no time, and an epoch EPOCH_S.
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
