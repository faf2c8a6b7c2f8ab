"""HyperBand (Li et al. 2018, arXiv 1603.06560), asynchronous as in Li et al. 2020.

Successive halving stops trials that start slowly. HyperBand runs several brackets of halving and compares only some
trials at the lowest rung. Each further bracket omits one more rung at the bottom. The last bracket trains its trials
to the end. Then the first bracket is filled again. So a search with few trials compares all of them at the lowest rung.

The first trial has the task's defaults, which are usually good. So it continues while it is in the better half.
"""

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from searchlight.search.schedulers.asha import ASHAScheduler
from searchlight.search.schedulers.base import SchedulerSettings, SchedulerTraits, Segment, TrialProgress
from searchlight.search.space.fidelity import Unit, format_amount, unit_label
from searchlight.search.space.objectives import Mode

FEWEST = 4  # other trials at the lowest rung, before the defaults may continue
FEWEST_ABOVE = 2  # other trials at a rung above, before the defaults are compared there


@dataclass(frozen=True)
class HyperBandScheduler(SchedulerTraits):
    """Brackets of successive halving, the one with most rungs first.

    Attributes:
        starts_with_defaults: Whether the first trial has the task's defaults.
    """

    pauses: ClassVar[bool] = True
    own_options: ClassVar[tuple[str, ...]] = ASHAScheduler.own_options
    brackets: tuple[ASHAScheduler, ...]
    starts_with_defaults: bool = False

    @classmethod
    def create(cls, settings: SchedulerSettings) -> "HyperBandScheduler":
        schedule = cls.from_config(
            settings.limit, settings.reduction_factor, settings.lowest_rung, settings.mode, settings.unit
        )
        return replace(schedule, starts_with_defaults=settings.starts_with_defaults)

    @classmethod
    def from_config(
        cls, limit: float, reduction_factor: int, grace_period: float, mode: Mode, unit: Unit = "epochs"
    ) -> "HyperBandScheduler":
        """Return a scheduler with one bracket per rung of halving, which starts at that rung."""
        rungs = ASHAScheduler.from_config(limit, reduction_factor, grace_period, mode, unit).rungs
        return cls(tuple(ASHAScheduler(rungs[first:], reduction_factor, mode, unit) for first in range(len(rungs))))

    def __str__(self) -> str:
        if len(self.brackets) == 1:
            return str(self.brackets[0])
        rungs = (",".join(format_amount(rung) for rung in bracket.rungs) for bracket in self.brackets)
        descriptions = (f"{size} trials at {of_one}" for size, of_one in zip(self.sizes, rungs, strict=True))
        return f"rungs, in turn: {'; '.join(descriptions)} {unit_label(self.unit)}"

    @property
    def unit(self) -> Unit:
        return self.brackets[0].unit

    @property
    def limit(self) -> float:
        return self.brackets[0].limit

    @property
    def rungs(self) -> tuple[float, ...]:
        return self.brackets[0].rungs

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return how many trials fill each bracket, so that all get the same budget (n of the paper's algorithm 1)."""
        factor, count = self.brackets[0].reduction_factor, len(self.brackets)
        return tuple(math.ceil(count / (s + 1) * factor**s) for s in reversed(range(count)))

    def get_bracket(self, index: int) -> ASHAScheduler:
        """Return the bracket of the trial that started after `index` others. The brackets are filled in turn."""
        filled = list(itertools.accumulate(self.sizes))
        return self.brackets[bisect.bisect_right(filled, index % filled[-1])]

    def next_action(self, trials: Sequence[TrialProgress], may_start: bool) -> Segment | None:
        """Return the segment to run now. No trial is pruned before the search ends."""
        if self.starts_with_defaults and (segment := self._continue_defaults(trials)):
            return segment
        brackets: list[tuple[ASHAScheduler, list[TrialProgress]]] = [(bracket, []) for bracket in self.brackets]
        of_bracket = {id(bracket): own for bracket, own in brackets}
        for trial in trials:
            of_bracket[id(self.get_bracket(trial.index))].append(trial)
        for bracket, own in brackets:
            if segment := bracket.find_segment(own):
                return segment
        if may_start:
            return Segment("new", None, 0, self.get_bracket(len(trials)).rungs[0])
        for bracket, own in brackets:  # a trial that another bracket trained fully was selected among fewer trials
            if segment := bracket.promote_to_finish_one(own):
                return segment
        return self.brackets[0].promote_leader(trials)  # of all brackets, since each alone may have too few trials

    def _continue_defaults(self, trials: Sequence[TrialProgress]) -> Segment | None:
        """Return the next segment of the first trial if it waits at a rung and is in the better half, or None.

        The trials of all brackets are compared, at the highest rung up to its own that enough of them have reached.
        """
        first, others = trials[:1], trials[1:]
        if not first or first[0].state != "waiting" or first[0].total_cost >= self.limit:
            return None
        (defaults,) = first
        at_lowest = sum(t.broke_off or t.get_value_at(self.rungs[0]) is not None for t in others)
        if defaults.current_rung(self.rungs) is None or at_lowest < FEWEST:
            return None
        for rung in reversed(self.rungs):
            ranked = self.brackets[0].rank_trials(trials, rung)
            if defaults in ranked and len(ranked) > FEWEST_ABOVE:
                if ranked.index(defaults) > (len(ranked) - 1) / 2:
                    return None
                break
        above = self.brackets[0].get_next_rung(defaults.total_cost)
        return Segment("promoted", defaults.number, defaults.epoch, above)

    def is_paused_at_rung(self, trial: TrialProgress) -> bool:
        return self.get_bracket(trial.index).is_paused_at_rung(trial)

    def expected_cost(self, trials: int) -> float:
        brackets = [self.get_bracket(number) for number in range(trials)]
        return sum(bracket.expected_cost(brackets.count(bracket)) for bracket in self.brackets)
