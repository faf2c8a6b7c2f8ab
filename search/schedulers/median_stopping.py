"""Median stopping (Golovin et al. 2017, Google Vizier, section 3.2.2)."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from searchlight.search.schedulers.base import EpochScheduler, Prune, SchedulerSettings, Segment, TrialProgress
from searchlight.search.space.objectives import Mode, to_loss

FEWEST = 3  # other trials that a median needs


@dataclass(frozen=True)
class MedianStoppingScheduler(EpochScheduler):
    """Prunes a trial whose best value is worse than the median of the other trials' running averages.

    A trial is compared after each epoch from `grace_period` on, with the trials that reported that epoch.
    """

    own_options: ClassVar[tuple[str, ...]] = ("grace_period",)
    epochs: int
    grace_period: int
    mode: Mode

    @classmethod
    def create(cls, settings: SchedulerSettings) -> "MedianStoppingScheduler":
        return cls(int(settings.limit), int(settings.lowest_rung), settings.mode)

    def __str__(self) -> str:
        return f"ends a trial below the median of {FEWEST} others or more, after each epoch from {self.grace_period} on"

    def next_action(self, trials: Sequence[TrialProgress], may_start: bool) -> Segment | Prune | None:
        waiting = [trial for trial in trials if trial.state == "waiting"]
        for trial in waiting:
            if reason := self._find_stop_reason(trial, trials):
                return Prune(trial.number, reason)
        for trial in waiting:
            return Segment("continued", trial.number, trial.epoch, self._get_segment_end(trial.epoch))
        return Segment("new", None, 0, self._get_segment_end(0)) if may_start else None

    def expected_cost(self, trials: int) -> float:
        """Return the total epochs if half of the trials that can be pruned end at their first comparison."""
        stopped = max(0, trials - FEWEST) / 2
        return trials * self.epochs - stopped * (self.epochs - self._get_segment_end(0))

    def _get_segment_end(self, epoch: int) -> int:
        return min(self.epochs, max(self.grace_period, epoch + 1))

    def _find_stop_reason(self, trial: TrialProgress, trials: Sequence[TrialProgress]) -> str:
        """Return the reason to prune `trial`, or an empty string."""
        epoch = trial.epoch
        if epoch < self.grace_period or not trial.values:
            return ""
        others = [other for other in trials if other is not trial and epoch in other.values]
        if len(others) < FEWEST:
            return ""
        averages = [statistics.fmean(v for e, v in other.values.items() if e <= epoch) for other in others]
        best = min(to_loss(value, self.mode) for value in trial.values.values())
        if best <= to_loss(statistics.median(averages), self.mode):
            return ""
        return f"below the median of {len(others)} trials at epoch {epoch}"
