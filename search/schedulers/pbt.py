"""Population based training (Jaderberg et al. 2017, arXiv 1711.09846), asynchronous.

A population of trials trains in parallel. At intervals, a new trial replaces a member among the worst. It starts from
the weights of one of the best members, with perturbed hyperparameters of that member.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from searchlight.search.errors import UsageError
from searchlight.search.schedulers.base import EpochScheduler, Prune, SchedulerSettings, Segment, TrialProgress
from searchlight.search.space.objectives import Mode, to_loss


@dataclass(frozen=True)
class PopulationBasedTraining(EpochScheduler):
    """Population based training, whose members are the trials that were not replaced and did not diverge or fail.

    Attributes:
        size: The number of members, as long as trials may start.
        interval: Epochs after which a member is compared with the others.
        seed: The seed of the choice among the best, and of the new hyperparameters.
        judged_from: The first epoch at which a member may be replaced.
    """

    own_options: ClassVar[tuple[str, ...]] = ("population", "exploit_every")
    makes_copies = True
    size: int
    interval: int
    epochs: int
    mode: Mode
    seed: int
    judged_from: int = 1

    @classmethod
    def create(cls, settings: SchedulerSettings) -> "PopulationBasedTraining":
        epochs, judged_from = int(settings.limit), settings.judged_from
        interval = settings.exploit_every or max(1, epochs // 8)
        if interval >= epochs:
            raise UsageError(
                f"--exploit-every must be below the epochs of a trial, {epochs}, but got {interval}. "
                "Set more epochs, as in --set epochs=9."
            )
        if -(-judged_from // interval) * interval >= epochs:
            raise UsageError(
                f"--scheduler must not be pbt if trials of {epochs} epochs are compared from epoch {judged_from} on: "
                "no member would be compared. Set more epochs."
            )
        assert settings.population is not None, "it was resolved when the options were"
        return cls(settings.population, interval, epochs, settings.mode, settings.seed, judged_from)

    @property
    def max_fresh_trials(self) -> int:
        return self.size

    def __str__(self) -> str:
        when = "each epoch" if self.interval == 1 else f"every {self.interval} epochs"
        when += f" from epoch {self.judged_from} on" if self.judged_from > self.interval else ""
        many = f"copies of the best {self.quantile_size} replace the worst {self.quantile_size}"
        who = many if self.quantile_size > 1 else "a copy of the best replaces the worst"
        return f"a population of {self.size}, compared after {when}: {who}"

    @property
    def quantile_size(self) -> int:
        """Return the number of members that count as the best, and as the worst."""
        return max(1, self.size // 4)

    def next_action(self, trials: Sequence[TrialProgress], may_start: bool) -> Segment | Prune | None:
        waiting = sorted((t for t in trials if t.state == "waiting"), key=lambda t: (t.epoch, t.number))
        copies = {trial.replaces: trial for trial in trials if trial.replaces is not None}
        for trial in waiting:  # the search died after a copy started and before its original was pruned
            if trial.number in copies:
                return Prune(trial.number, format_replacement_reason(copies[trial.number].copied_from))
        if may_start and sum(self._is_member(trial) for trial in trials) < self.size:
            best = self._find_best(trials, self.epochs) if len(trials) >= self.size else []
            return self._create_copy(best, trials, None) if best else Segment("new", None, 0, self._get_segment_end(0))
        for trial in waiting:  # the least trained come first, so that members stay at similar epochs
            if may_start and self._is_in_bottom_quantile(trial, trials):
                best = [t for t in self._find_best(trials, trial.epoch) if self._is_better(t, trial)]
                if best:
                    return self._create_copy(best, trials, trial.number)
            return Segment("continued", trial.number, trial.epoch, self._get_segment_end(trial.epoch))
        return None

    def expected_cost(self, trials: int) -> float:
        """Return the total epochs, where a copy continues about where the replaced trial ended."""
        return float(min(trials, self.size) * self.epochs)

    def _create_copy(self, best: list[TrialProgress], trials: Sequence[TrialProgress], replaces: int | None) -> Segment:
        draw = f"{self.seed}-{len(trials)}"
        parent = random.Random(draw).choice(best)
        return Segment("copied", None, parent.epoch, self._get_segment_end(parent.epoch), parent.number, replaces, draw)

    def _is_in_bottom_quantile(self, trial: TrialProgress, trials: Sequence[TrialProgress]) -> bool:
        """Return whether `trial` is among the worst, whatever the members behind it will report.

        It is compared with values of its epoch, and with the latest values of members behind it. A member that was
        replaced at this epoch still counts. Otherwise each replacement would make the next member the worst.
        """
        epoch = trial.epoch
        if epoch < self.judged_from or epoch % self.interval or epoch not in trial.values:
            return False
        known = [
            t
            for t in trials
            if epoch in t.values or (self._is_member(t) and self._get_latest_value(t, epoch) is not None)
        ]
        better = sum(self._is_better(other, trial) for other in known)
        return better >= max(self.size, len(known)) - self.quantile_size

    def _find_best(self, trials: Sequence[TrialProgress], epoch: int) -> list[TrialProgress]:
        """Return the best members in training at `epoch`, or at their latest epoch before it."""
        scored = [(self._get_latest_value(t, epoch), t) for t in trials if t.state != "ended" and t.epoch < self.epochs]
        ranked = sorted(((value, t) for value, t in scored if value is not None), key=lambda p: (p[0], p[1].number))
        return [trial for _, trial in ranked[: self.quantile_size]]

    def _is_better(self, other: TrialProgress, trial: TrialProgress) -> bool:
        own, value = self._get_latest_value(trial, trial.epoch), self._get_latest_value(other, trial.epoch)
        return own is not None and value is not None and value < own

    def _get_latest_value(self, trial: TrialProgress, epoch: int) -> float | None:
        """Return the latest objective of `trial` up to `epoch` as a loss, or None if there is none."""
        known = max((e for e in trial.values if e <= epoch), default=None)
        return None if known is None else to_loss(trial.values[known], self.mode)

    def _is_member(self, trial: TrialProgress) -> bool:
        return trial.state != "ended" or trial.epoch >= self.epochs

    def _get_segment_end(self, epoch: int) -> int:
        """Return the next epoch at which a member is compared, or its last epoch."""
        return min(self.epochs, (epoch // self.interval + 1) * self.interval)


def format_replacement_reason(copied_from: int | None) -> str:
    """Return the reason to prune a trial that a copy of trial `copied_from` replaces."""
    return f"replaced by a copy of {copied_from}"


def default_population(trials: int) -> int:
    """Return the size of the population of a search over `trials` trials."""
    return max(2, min(20, trials // 2))
