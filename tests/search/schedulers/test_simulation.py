"""Each scheduler keeps its rules in thousands of searches, whatever is lost and whoever comes first."""

import random
import statistics

import pytest

from search.schedule import End, Stretch
from search.schedulers.halving import Halving
from search.schedulers.hyperband import HyperBand
from search.schedulers.median import Median
from search.schedulers.pbt import Population
from tests.search.schedulers.simulator import Simulated, running, waiting

SEARCHES = 1500


def drawn(seed):
    """Epochs, budget and gangs of a search, and a source for the rest."""
    draw = random.Random(-1 - seed)
    return draw, draw.randint(2, 12), draw.randint(2, 18), draw.randint(1, 5)


def check_promotion(halving, bracket, stretch, out_of_turn_allowed):
    """Checks the promotion of one of the trials of `bracket`."""
    rung, (trial,) = stretch.start, [t for t in bracket if t.number == stretch.number]
    values = [t.values[rung] for t in bracket if rung in t.values]
    better = sum(value < trial.values[rung] for value in values)
    assert out_of_turn_allowed or better < len(values) // halving.reduction_factor, "promoted out of turn"
    assert stretch.until == halving.rungs[halving.rungs.index(rung) + 1]


@pytest.mark.parametrize("kind", [Halving, HyperBand])
def test_halving_promotes_in_turn_and_brings_a_trial_to_its_end(kind):
    promoted = 0
    for seed in range(SEARCHES):
        draw, epochs, budget, gangs = drawn(seed)
        schedule = kind.over(epochs, draw.choice((2, 3)), 1, "min")

        def bracket_of(number, schedule=schedule):
            return schedule.bracket_of(number) if kind is HyperBand else schedule

        def check(trials, may_start, decision, schedule=schedule, bracket_of=bracket_of):
            assert not isinstance(decision, End)
            if decision is None:
                assert not may_start, "a gang is idle while a trial may start"
                assert running(trials) or all(schedule.rests(trial) for trial in waiting(trials))
                return
            if decision.kind == "promoted":
                halving = bracket_of(decision.number)
                bracket = [trial for trial in trials if bracket_of(trial.number) is halving]
                last = not (may_start or running(trials) or any(t.epoch == schedule.limit for t in trials))
                check_promotion(halving, bracket, decision, out_of_turn_allowed=last)

        search = Simulated(schedule, budget, gangs, seed, check).run()
        promoted += sum(stretch.kind == "promoted" for _, stretch in search.stretches)
        assert len(search.trials) == budget
        whole = [trial for trial in search.trials if trial.epoch == epochs]
        assert whole or not any(schedule.rests(t) for t in waiting(search.trials)), "the best runs to its end"
    assert promoted > SEARCHES


def below(trial, trials):
    """The rule of median stopping, said once more."""
    others = [t.values for t in trials if t.number != trial.number and trial.epoch in t.values]
    if len(others) < 3:
        return False
    averages = [statistics.fmean(v[e] for e in v if e <= trial.epoch) for v in others]
    return min(trial.values.values()) > statistics.median(averages)


def test_median_stopping_ends_exactly_the_trials_that_are_below():
    ended = 0
    for seed in range(SEARCHES):
        draw, epochs, budget, gangs = drawn(seed)
        grace = draw.randint(1, epochs)
        schedule = Median(epochs, grace, "min")

        def check(trials, may_start, decision, grace=grace):
            if decision is None:
                assert not waiting(trials)
                assert not may_start
            elif isinstance(decision, End):
                trial = trials[decision.number]
                assert trial.epoch >= grace
                assert below(trial, trials)
            elif decision.kind == "continued" and decision.start >= grace:
                assert not below(trials[decision.number], trials)
                assert decision.until == decision.start + 1, "it is judged after each epoch"

        search = Simulated(schedule, budget, gangs, seed, check).run()
        assert len(search.trials) == budget
        assert not waiting(search.trials)
        assert search.most_at_once == min(gangs, budget)
        ended += sum(trial.epoch < epochs for trial in search.trials)
    assert ended > SEARCHES


def check_population(schedule, trials, may_start, decision):
    replaced = {trial.replaces for trial in trials} - {None}
    there = [trial for trial in trials if trial.state != "ended" or trial.epoch == schedule.limit]
    members = [trial for trial in there if trial.number not in replaced]
    assert len(members) <= schedule.size
    if isinstance(decision, End):
        assert decision.number in replaced, "only a copy ends a member"
    elif may_start and (decision is None or decision.kind == "continued"):
        assert len(members) == schedule.size, "every place is taken while trials may start"
    if decision is None:
        assert not waiting(trials), "a gang is idle while a member waits"
    elif isinstance(decision, Stretch) and decision.kind == "continued":
        assert decision.start == min(trial.epoch for trial in waiting(trials)), "those that lag come first"
    elif isinstance(decision, Stretch) and decision.kind == "copied":
        parent = trials[decision.copied_from]
        assert parent.state != "ended"
        assert decision.start in parent.values, "its checkpoint existed"
        assert decision.start == parent.epoch
        if decision.replaces is not None:
            loser = trials[decision.replaces]
            better = [t for t in trials if min(t.values, default=99) <= loser.epoch]
            latest = [t.values[max(e for e in t.values if e <= loser.epoch)] for t in better]
            worse = sum(value < loser.values[loser.epoch] for value in latest)
            assert worse >= schedule.size - schedule.quarter, "it is among the worst"
            assert loser.epoch % schedule.interval == 0


def test_a_population_keeps_its_size_and_copies_the_best_in_place_of_the_worst():
    copies = restarted = 0
    for seed in range(SEARCHES):
        draw, epochs, budget, gangs = drawn(seed)
        schedule = Population(draw.randint(2, budget), draw.randint(1, epochs - 1), epochs, "min", seed)

        def check(trials, may_start, decision, schedule=schedule):
            nonlocal restarted
            check_population(schedule, trials, may_start, decision)
            restarted += isinstance(decision, End)

        search = Simulated(schedule, budget, gangs, seed, check).run()
        assert not waiting(search.trials)
        assert len(search.trials) >= schedule.size
        copies += sum(trial.copied_from is not None for trial in search.trials)
    assert copies > SEARCHES
    assert restarted > 0, "some searches died between the start of a copy and the end of the one it replaces"


@pytest.mark.parametrize(
    "schedule",
    [Halving.over(9, 3, 1, "min"), HyperBand.over(9, 3, 1, "min"), Median(9, 1, "min"), Population(4, 2, 9, "min", 0)],
    ids=lambda schedule: type(schedule).__name__,
)
def test_the_same_history_gives_the_same_decisions(schedule):
    for seed in range(20):
        first, second = (Simulated(schedule, 12, 3, seed).run() for _ in range(2))
        assert first.stretches == second.stretches
        assert first.trials == second.trials
