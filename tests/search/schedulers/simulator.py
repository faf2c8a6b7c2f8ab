"""Build trials for schedulers, and play whole searches without training: losses and crashes come from one seed."""

import math
import random
from dataclasses import replace

from searchlight.search.schedulers.base import Prune, TrialProgress


class Simulated:
    """A search. `check` gets the schedule, what it was asked and what it answered.

    Where fidelity is not in epochs, a trial has a length and a price of its own; `lengths` gives trials theirs.
    """

    def __init__(self, schedule, budget, gangs, seed, check=lambda *_: None, lengths=()):
        self.schedule, self.budget, self.gangs, self.seed = schedule, budget, gangs, seed
        self.check, self.lengths = check, lengths
        self.trials, self.stretches, self.live = [], [], {}
        self.most_at_once = 0

    def run(self):
        draw = random.Random(self.seed)
        mischief = draw.choice((0.0, 0.02, 0.1))
        self.quality = [draw.random() for _ in range(self.budget)]
        self.prices = [draw.choice((0.3, 1.0, 2.5)) for _ in range(self.budget)]
        for _ in range(200 * self.budget * max(int(self.schedule.limit), *self.lengths, 1)):
            if len(self.live) < self.gangs and self._decide(draw, mischief):
                continue
            if not self.live:
                return self
            self._report(draw, mischief)
            if draw.random() < mischief / 10:
                self._crash()
        raise AssertionError("the search does not end")

    def _decide(self, draw, mischief):
        """Ask once; whether there was anything to do."""
        may_start = len(self.trials) < self.budget
        decision = self.schedule.next_action(self.trials, may_start)
        fresh = replace(self.schedule)
        assert fresh.next_action([replace(t, values=dict(t.values)) for t in self.trials], may_start) == decision
        self.check(self.schedule, self.trials, may_start, decision)
        if isinstance(decision, Prune):
            assert self.trials[decision.number].state == "waiting"
            self._change(decision.number, state="ended")
        elif decision is not None:
            self._begin(decision, may_start)
            if draw.random() < mischief:
                self._crash()  # perhaps between the start of a copy and the end of the one that it replaces
            elif decision.replaces is not None:
                self._change(decision.replaces, state="ended")
        return decision is not None

    def _begin(self, stretch, may_start):
        number = stretch.number
        if number is None:
            assert may_start, "no trial beyond the budget"
            number = len(self.trials)
            copy = (stretch.start, stretch.copied_from, stretch.replaces)
            spent = None if self.schedule.unit == "epochs" else {}
            length = self.lengths[number] if self.lengths else math.inf
            self.trials.append(TrialProgress(number, {}, "waiting", *copy, epochs=length, spent=spent))
        trial = self.trials[number]
        assert trial.state == "waiting", "nothing runs twice at once, and nothing goes on that has ended"
        assert trial.epoch == stretch.start
        assert trial.total_cost < stretch.until <= self.schedule.limit
        assert not trial.is_complete(self.schedule.limit)
        self._change(number, state="running")
        self.live[number] = stretch
        self.stretches.append((number, stretch))
        self.most_at_once = max(self.most_at_once, len(self.live))

    def _report(self, draw, mischief):
        number = draw.choice(list(self.live))
        trial, until = self.trials[number], self.live[number].until
        event = draw.random()
        if event < mischief:  # it diverges or fails
            del self.live[number]
            self._change(number, state="ended", broke_off=True)
        elif event < 2 * mischief:  # its gang is lost
            del self.live[number]
            self._change(number, state="waiting")
        else:
            epoch = trial.epoch + 1
            value = self.quality[number] + draw.random() / epoch
            self._change(number, values={**trial.values, epoch: round(value, draw.choice((1, 6)))})
            if trial.spent is not None:
                self._change(number, spent={**trial.spent, epoch: trial.total_cost + self.prices[number]})
            trial = self.trials[number]
            over = trial.is_complete(self.schedule.limit)
            if over or trial.total_cost >= until:
                del self.live[number]
                self._change(number, state="ended" if over else "waiting", finished=over)

    def _crash(self):
        for number in self.live:
            self._change(number, state="waiting")
        self.live.clear()

    def _change(self, number, **changes):
        self.trials[number] = replace(self.trials[number], **changes)


def standing(number, *values, state="waiting", **more):
    """A trial with the objective of each of its epochs."""
    return TrialProgress(number, dict(enumerate(values, start=more.get("start", 0) + 1)), state, **more)


def waiting(trials):
    return [trial for trial in trials if trial.state == "waiting"]


def running(trials):
    return any(trial.state == "running" for trial in trials)
