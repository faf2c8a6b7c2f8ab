"""A search in simulated time: gangs train the curves of a problem, and a side says what they train."""

import heapq
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from .problems import Curve, Problem

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
    """Something that searches."""

    keeps_best: bool  # whether a trial is judged by its best report, not by its last

    def suggest(self) -> Job | None:
        """What a free gang trains next, or None if it has to wait."""

    def report(self, job: Job, epoch: int, value: float) -> bool:
        """Take the report of an epoch. Whether the job goes on."""


@dataclass
class Run:
    """What came of a search.

    Attributes:
        regrets: (seconds, regret) whenever the trial that the side takes for its best is another one.
        spent, lost: Seconds of all gangs, and those that went into trials that had diverged or did later on.
        decisions: Seconds that suggestions took in reality; none of them is in the simulated time.
    """

    regrets: list[tuple[float, float]] = field(default_factory=list)
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


def simulate(side: Side, problem: Problem, gangs: int, budget: float, seed: int) -> Run:
    """Search for `budget` seconds with so many gangs."""
    run = Run()
    curves: dict[int, Curve] = {}
    scores: dict[int, float] = {}
    seen_to_diverge: set[int] = set()
    incumbent: int | None = None
    queue: list[tuple[float, int, Job, int]] = []  # (end of the epoch, order, job, epoch)
    now, order, idle = 0.0, 0, gangs
    while now < budget:
        while idle:
            start = time.perf_counter()
            job = side.suggest()
            run.decisions += time.perf_counter() - start
            run.suggestions += 1
            if job is None:
                break
            if job.trial not in curves:
                curves[job.trial] = problem.curve(job.values, np.random.default_rng((seed, job.trial)))
            order, idle = order + 1, idle - 1
            heapq.heappush(queue, (now + SWITCH_S + curves[job.trial].seconds, order, job, job.start + 1))
        if not queue:  # nothing runs, and nothing is left to do
            break
        now, _, job, epoch = heapq.heappop(queue)
        if now > budget:
            break
        curve = curves[job.trial]
        value = curve.values[epoch - 1]
        run.spent += curve.seconds
        run.lost += curve.seconds * curve.diverges
        if math.isnan(value):
            seen_to_diverge.add(job.trial)
            scores.pop(job.trial, None)
        elif side.keeps_best:
            scores[job.trial] = min(value, scores.get(job.trial, math.inf))
        else:
            scores[job.trial] = value
        run.whole += epoch == problem.epochs and not math.isnan(value)
        goes_on = side.report(job, epoch, value) and epoch < job.until
        if goes_on:
            order += 1
            heapq.heappush(queue, (now + curve.seconds, order, job, epoch + 1))
        else:
            idle += 1
        best = min(scores, key=scores.__getitem__, default=None)
        if best != incumbent and best is not None:
            incumbent = best
            run.regrets.append((now, problem.regret(curves[best])))
    run.trials, run.diverged = len(curves), len(seen_to_diverge)
    return run
