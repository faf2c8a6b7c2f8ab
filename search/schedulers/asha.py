"""Asynchronous successive halving (Li et al. 2020, arXiv 1810.05934, algorithm 2), the variant that promotes.

A trial pauses at each rung, and goes on once it is among the best 1/reduction of those that reached the rung.
"""

import itertools
from collections.abc import Sequence

from search.config.fidelity import Unit
from search.config.objectives import Mode, to_loss
from search.schedulers.base import RungScheduler, Segment, TrialProgress


class ASHAScheduler(RungScheduler):
    """When trials pause and who goes on."""

    @classmethod
    def without_stopping(cls, limit: float, mode: Mode, unit: Unit = "epochs") -> "ASHAScheduler":
        """Every trial runs to its end."""
        return cls((limit,), 2, mode, unit)

    def next_action(self, trials: Sequence[TrialProgress], may_start: bool) -> Segment | None:
        """The stretch to run now; nobody is ended before the search is."""
        if stretch := self.find_segment(trials):
            return stretch
        if may_start:
            return Segment("new", None, 0, self.rungs[0])
        return self.promote_to_finish_one(trials)

    def is_paused_at_rung(self, trial: TrialProgress) -> bool:
        return trial.current_rung(self.rungs) is not None

    def find_segment(self, trials: Sequence[TrialProgress]) -> Segment | None:
        """A trial that was cut off on its way to a rung, else one that is to be promoted."""
        for trial in trials:
            if trial.state == "waiting" and trial.current_rung(self.rungs) is None:
                return Segment("continued", trial.number, trial.epoch, self.get_next_rung(trial.total_cost))
        for rung, above in self._list_rung_pairs():
            ranked = self._rank_trials(trials, rung)
            for trial in ranked[: len(ranked) // self.reduction_factor]:
                if trial.state == "waiting" and trial.current_rung(self.rungs) == rung:
                    return Segment("promoted", trial.number, trial.epoch, above)
        return None

    def promote_to_finish_one(self, trials: Sequence[TrialProgress]) -> Segment | None:
        """The best of the highest rung at which one waits, if nothing else will come and no trial ran to its end."""
        if any(t.state == "running" or t.finished or t.is_complete(self.limit) for t in trials):
            return None
        for rung, above in self._list_rung_pairs():
            for trial in self._rank_trials(trials, rung):
                if trial.state == "waiting" and trial.current_rung(self.rungs) == rung:
                    return Segment("promoted", trial.number, trial.epoch, above)
        return None

    def _list_rung_pairs(self) -> list[tuple[float, float]]:
        """Each rung but the last with the one above it, highest first."""
        return list(itertools.pairwise(self.rungs))[::-1]

    def _rank_trials(self, trials: Sequence[TrialProgress], rung: float) -> list[TrialProgress]:
        """Those that reached `rung`, best first. One that broke off later comes last, however good it looked there.

        Else what lies just beyond a cliff holds the places of what lies safely before it.
        """
        values = {trial.number: value for trial in trials if (value := trial.get_value_at(rung)) is not None}
        reached = (trial for trial in trials if trial.number in values)
        return sorted(reached, key=lambda t: (t.broke_off, to_loss(values[t.number], self.mode), t.number))
