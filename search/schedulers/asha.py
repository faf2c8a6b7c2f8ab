"""Asynchronous successive halving (Li et al. 2020, arXiv 1810.05934, algorithm 2), the variant that promotes.

A trial pauses at each rung. It continues once it is among the best 1/reduction_factor of the trials that reached the
rung.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

from searchlight.search.schedulers.base import RungScheduler, SchedulerSettings, Segment, TrialProgress
from searchlight.search.space.fidelity import Unit
from searchlight.search.space.objectives import Mode, to_loss


class ASHAScheduler(RungScheduler):
    """Asynchronous successive halving, which pauses trials at rungs and promotes the best ones."""

    pauses: ClassVar[bool] = True

    @classmethod
    def without_stopping(cls, limit: float, mode: Mode, unit: Unit = "epochs") -> Self:
        """Return a scheduler that trains each trial to its end."""
        return cls((limit,), 2, mode, unit)

    def next_action(self, trials: Sequence[TrialProgress], may_start: bool) -> Segment | None:
        """Return the segment to run now. No trial is pruned before the search ends."""
        if segment := self.find_segment(trials):
            return segment
        if may_start:
            return Segment("new", None, 0, self.rungs[0])
        return self.promote_to_finish_one(trials) or self.promote_leader(trials)

    def is_paused_at_rung(self, trial: TrialProgress) -> bool:
        return trial.current_rung(self.rungs) is not None

    def find_segment(self, trials: Sequence[TrialProgress]) -> Segment | None:
        """Return a segment of a trial that was interrupted between two rungs, else one of a trial to promote."""
        for trial in trials:
            if trial.state == "waiting" and trial.current_rung(self.rungs) is None:
                return Segment("continued", trial.number, trial.epoch, self.get_next_rung(trial.total_cost))
        return self._promote_best(trials, lambda reached: reached // self.reduction_factor)

    def promote_to_finish_one(self, trials: Sequence[TrialProgress]) -> Segment | None:
        """Promote the best trial at the highest rung with a waiting trial, so that one trial completes.

        Return None if a trial is running or any trial has completed.
        """
        if any(t.state == "running" or t.finished or t.is_complete(self.limit) for t in trials):
            return None
        return self._promote_best(trials, lambda reached: reached)

    def promote_leader(self, trials: Sequence[TrialProgress]) -> Segment | None:
        """Promote a trial that waits at a rung and is the best of all that reached it, the highest rung first.

        So no search ends before the end of what may be its best trial, although too few trials have reached the rung.
        Return None if a trial is running.
        """
        if any(trial.state == "running" for trial in trials):
            return None
        return self._promote_best(trials, lambda reached: 1)

    def _promote_best(self, trials: Sequence[TrialProgress], count: Callable[[int], int]) -> Segment | None:
        """Promote the best trial that waits at a rung, the highest rung first.

        Args:
            trials: All trials.
            count: Returns how many of the trials that reached a rung, the best ones, may continue.
        """
        for rung, above in self._list_rung_pairs():
            ranked = self.rank_trials(trials, rung)
            for trial in ranked[: count(len(ranked))]:
                if trial.state == "waiting" and trial.current_rung(self.rungs) == rung:
                    return Segment("promoted", trial.number, trial.epoch, above)
        return None

    def _list_rung_pairs(self) -> list[tuple[float, float]]:
        """Return each rung but the last with the rung above it, highest first."""
        return list(itertools.pairwise(self.rungs))[::-1]

    def rank_trials(self, trials: Sequence[TrialProgress], rung: float) -> list[TrialProgress]:
        """Return the trials that reached `rung`, best first. Trials that diverged or failed later come last.

        Otherwise, configs just beyond the limit of divergence would take the places of stable ones.
        """
        values = {trial.number: value for trial in trials if (value := trial.get_value_at(rung)) is not None}
        reached = (trial for trial in trials if trial.number in values)
        return sorted(reached, key=lambda t: (t.broke_off, to_loss(values[t.number], self.mode), t.number))


class FullTraining(ASHAScheduler):
    """The scheduler "none", which trains each trial to its end."""

    pauses: ClassVar[bool] = False
    own_options: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def create(cls, settings: SchedulerSettings) -> Self:
        return cls.without_stopping(settings.limit, settings.mode, settings.unit)
