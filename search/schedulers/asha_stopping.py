"""Asynchronous successive halving, the variant that only stops (Li et al. 2020, arXiv 1810.05934).

As with Ray's `ASHAScheduler`, no trial pauses. A trial that is worse than most at a rung is pruned there. No
checkpoint needs to be read, but decisions use fewer values: the first trial at a rung always continues.
"""

from collections.abc import Sequence

import numpy as np

from searchlight.search.schedulers.base import Prune, RungScheduler, Segment, TrialProgress
from searchlight.search.space.objectives import to_loss


class ASHAStoppingScheduler(RungScheduler):
    """Successive halving that prunes a trial whose value is below the others' quantile at 1 - 1/reduction_factor.

    The quantile is interpolated as in Ray. Three rules differ from Ray's. Rungs are counted down from the last one and
    not up from the first. A report that reaches several rungs at once counts in all of them. No value is NaN, since
    such a trial has diverged.
    """

    def __str__(self) -> str:
        return f"{super().__str__()}, where a trial continues or ends at once"

    def next_action(self, trials: Sequence[TrialProgress], may_start: bool) -> Segment | Prune | None:
        waiting = [trial for trial in trials if trial.state == "waiting"]
        for trial in waiting:
            rung = trial.current_rung(self.rungs)
            if rung is not None and self._is_below_cutoff(trial, rung, trials):
                return Prune(trial.number, f"not among the best at epoch {trial.epoch}")
        for trial in waiting:
            return Segment("continued", trial.number, trial.epoch, self.get_next_rung(trial.total_cost))
        return Segment("new", None, 0, self.rungs[0]) if may_start else None

    def _is_below_cutoff(self, trial: TrialProgress, rung: float, trials: Sequence[TrialProgress]) -> bool:
        others = [value for other in trials if other is not trial and (value := other.get_value_at(rung)) is not None]
        own = trial.get_value_at(rung)
        if own is None or not others:
            return False
        scores = [-to_loss(value, self.mode) for value in (own, *others)]
        return bool(scores[0] < np.percentile(scores[1:], 100 * (1 - 1 / self.reduction_factor)))
