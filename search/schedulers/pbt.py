"""Population based training (Jaderberg et al. 2017, arXiv 1711.09846), asynchronous.

A population trains together. From time to time a member that is among the worst ends, and a new trial goes on in its
place from the weights of one of the best, with hyperparameters near to those of that one.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from search.config.objectives import Mode, to_loss
from search.schedulers.base import EpochScheduler, Prune, Segment, TrialProgress


@dataclass(frozen=True)
class PopulationBasedTraining(EpochScheduler):
    """A member is a trial that has not been replaced, diverged or failed.

    Attributes:
        size: How many members there are, as long as trials may start.
        interval: Epochs after which a member is compared with the others.
        seed: Of the choice among the best, and of the new hyperparameters.
        judged_from: The first epoch at which a member may be replaced.
    """

    size: int
    interval: int
    epochs: int
    mode: Mode
    seed: int
    judged_from: int = 1

    def __str__(self) -> str:
        when = "each epoch" if self.interval == 1 else f"every {self.interval} epochs"
        when += f" from epoch {self.judged_from} on" if self.judged_from > self.interval else ""
        many = f"copies of the best {self.quantile_size} replace the worst {self.quantile_size}"
        who = many if self.quantile_size > 1 else "a copy of the best replaces the worst"
        return f"a population of {self.size}, compared after {when}: {who}"

    @property
    def quantile_size(self) -> int:
        """How many are the best, and the worst."""
        return max(1, self.size // 4)

    def next_action(self, trials: Sequence[TrialProgress], may_start: bool) -> Segment | Prune | None:
        waiting = sorted((t for t in trials if t.state == "waiting"), key=lambda t: (t.epoch, t.number))
        copies = {trial.replaces: trial for trial in trials if trial.replaces is not None}
        for trial in waiting:  # a copy began, and its search died before the one that it replaces was ended
            if trial.number in copies:
                return Prune(trial.number, format_replacement_reason(copies[trial.number].copied_from))
        if may_start and sum(self._is_member(trial) for trial in trials) < self.size:
            best = self._find_best(trials, self.epochs) if len(trials) >= self.size else []
            return self._create_copy(best, trials, None) if best else Segment("new", None, 0, self._get_segment_end(0))
        for trial in waiting:  # those that lag come first, so that the population moves together
            if may_start and self._is_in_bottom_quantile(trial, trials):
                best = [t for t in self._find_best(trials, trial.epoch) if self._is_better(t, trial)]
                if best:
                    return self._create_copy(best, trials, trial.number)
            return Segment("continued", trial.number, trial.epoch, self._get_segment_end(trial.epoch))
        return None

    def expected_cost(self, trials: int) -> float:
        """A copy goes on about where the trial stood that it replaces."""
        return float(min(trials, self.size) * self.epochs)

    def _create_copy(self, best: list[TrialProgress], trials: Sequence[TrialProgress], replaces: int | None) -> Segment:
        draw = f"{self.seed}-{len(trials)}"
        parent = random.Random(draw).choice(best)
        return Segment("copied", None, parent.epoch, self._get_segment_end(parent.epoch), parent.number, replaces, draw)

    def _is_in_bottom_quantile(self, trial: TrialProgress, trials: Sequence[TrialProgress]) -> bool:
        """Whether it certainly is, whatever those report that have not come so far.

        Compared are the values of its epoch, and the latest of members that lag. One that was replaced at this epoch
        still counts: else each one that is replaced would make the next one the worst.
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
        """Those of the members still training that were best at `epoch`, or before it if they lag."""
        scored = [(self._get_latest_value(t, epoch), t) for t in trials if t.state != "ended" and t.epoch < self.epochs]
        ranked = sorted(((value, t) for value, t in scored if value is not None), key=lambda p: (p[0], p[1].number))
        return [trial for _, trial in ranked[: self.quantile_size]]

    def _is_better(self, other: TrialProgress, trial: TrialProgress) -> bool:
        own, value = self._get_latest_value(trial, trial.epoch), self._get_latest_value(other, trial.epoch)
        return own is not None and value is not None and value < own

    def _get_latest_value(self, trial: TrialProgress, epoch: int) -> float | None:
        """The latest objective of `trial` up to `epoch`, the smaller the better."""
        known = max((e for e in trial.values if e <= epoch), default=None)
        return None if known is None else to_loss(trial.values[known], self.mode)

    def _is_member(self, trial: TrialProgress) -> bool:
        return trial.state != "ended" or trial.epoch >= self.epochs

    def _get_segment_end(self, epoch: int) -> int:
        """The next epoch at which it is compared, or its last."""
        return min(self.epochs, (epoch // self.interval + 1) * self.interval)


def format_replacement_reason(copied_from: int | None) -> str:
    """The reason of a trial whose place a copy takes."""
    return f"replaced by a copy of {copied_from}"
