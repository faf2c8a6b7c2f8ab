"""Each scheduler keeps its rules in hundreds of searches, whatever is lost and whichever trial comes first."""

import random
import statistics

import numpy as np
import pytest

from searchlight.search.schedulers.asha import ASHAScheduler
from searchlight.search.schedulers.asha_stopping import ASHAStoppingScheduler
from searchlight.search.schedulers.base import Prune
from searchlight.search.schedulers.hyperband import HyperBandScheduler
from searchlight.search.schedulers.median_stopping import MedianStoppingScheduler
from searchlight.search.schedulers.pbt import PopulationBasedTraining
from tests.search.schedulers.simulator import Simulated, running, waiting

SEARCHES = 200


def searches(make, check, lengths=()):
    """Play searches with the schedules of `make(draw, epochs, budget, seed)`, and return them."""
    played = []
    for seed in range(SEARCHES):
        draw = random.Random(-1 - seed)
        epochs, budget, gangs = draw.randint(2, 12), draw.randint(2, 18), draw.randint(1, 5)
        schedule = make(draw, epochs, budget, seed)
        own = [draw.choice(lengths) for _ in range(budget)] if lengths else ()
        played.append(Simulated(schedule, budget, gangs, seed, check, own).run())
        assert len(played[-1].trials) == budget or isinstance(schedule, PopulationBasedTraining)
    return played


def kinds(played):
    return [segment.kind for search in played for _, segment in search.stretches]


def broke_off(trial, limit):
    """Whether it diverged or failed: it holds no place at its rungs any more."""
    return trial.state == "ended" and trial.epoch < trial.epochs and trial.total_cost < limit


def bracket_of(schedule, number):
    return schedule.get_bracket(number) if isinstance(schedule, HyperBandScheduler) else schedule


def check_promotion(schedule, trials, may_start, decision):
    assert not isinstance(decision, Prune)
    if decision is None:
        assert not may_start, "a gang is idle while a trial may start"
        assert running(trials) or all(schedule.is_paused_at_rung(trial) for trial in waiting(trials))
    elif decision.kind == "promoted":
        halving, rung = bracket_of(schedule, decision.number), decision.start
        own = trials[decision.number].values[rung]
        reached = [t for t in trials if bracket_of(schedule, t.number) is halving and rung in t.values]
        better = sum(t.values[rung] < own for t in reached if not broke_off(t, halving.limit))
        of_bracket = [t for t in trials if bracket_of(schedule, t.number) is halving]
        last = not (may_start or running(of_bracket) or any(t.epoch == schedule.limit for t in of_bracket))
        assert last or better < len(reached) // halving.reduction_factor, "promoted out of turn"
        assert decision.until == halving.rungs[halving.rungs.index(rung) + 1]


@pytest.mark.parametrize("kind", [ASHAScheduler, HyperBandScheduler])
def test_halving_promotes_in_turn_and_completes_a_trial(kind):
    played = searches(
        lambda draw, epochs, budget, seed: kind.from_config(epochs, draw.choice((2, 3)), 1, "min"), check_promotion
    )
    assert kinds(played).count("promoted") > SEARCHES
    for search in played:
        complete = [trial for trial in search.trials if trial.epoch == search.schedule.limit]
        assert complete or not any(search.schedule.is_paused_at_rung(t) for t in waiting(search.trials))


def check_costs(schedule, trials, may_start, decision):
    stops = isinstance(schedule, ASHAStoppingScheduler)
    if decision is None:
        assert not may_start, "a gang is idle while a trial may start"
        assert not stops or not waiting(trials)
    elif isinstance(decision, Prune):
        assert stops
    elif decision.kind == "continued" and not stops:
        trial = trials[decision.number]
        assert trial.total_cost < decision.until, "it was interrupted on its way"
        before = trial.spent.get(trial.epoch - 1, 0.0)
        assert not [rung for rung in bracket_of(schedule, trial.number).rungs if before < rung <= trial.total_cost]
    elif decision.kind == "promoted" and isinstance(schedule, ASHAScheduler):
        trial = trials[decision.number]
        rung = max(rung for rung in schedule.rungs if rung <= trial.total_cost)
        reached = [(t, value) for t in trials if (value := t.get_value_at(rung)) is not None]
        better = sum(value < trial.get_value_at(rung) for t, value in reached if not broke_off(t, schedule.limit))
        assert not (may_start or running(trials)) or better < len(reached) // schedule.reduction_factor
        assert decision.until == next(r for r in schedule.rungs if r > trial.total_cost)


@pytest.mark.parametrize("kind", [ASHAScheduler, HyperBandScheduler, ASHAStoppingScheduler])
def test_rungs_in_seconds_hold_for_any_price_and_length(kind):
    def make(draw, *_):
        return kind.from_config(draw.choice((5.0, 9.0, 20.0)), draw.choice((2, 3)), 1.0, "min", "gpu-seconds")

    played = searches(make, check_costs, lengths=(2, 6, 100))
    for search in played:
        for trial in search.trials:
            assert trial.epoch <= search.lengths[trial.number]
            before = trial.spent.get(trial.epoch - 1, 0.0)
            assert before < search.schedule.limit, "nothing is trained after the epoch that reaches the last rung"
    if kind is ASHAStoppingScheduler:
        assert sum(not t.finished and not t.broke_off for search in played for t in search.trials) > SEARCHES / 2
    else:
        assert kinds(played).count("promoted") > SEARCHES / 2
        assert any(
            segment.kind == "continued" and segment.start for search in played for _, segment in search.stretches
        )


def test_without_a_scheduler_each_trial_has_its_own_length():
    for search in searches(lambda *_: ASHAScheduler.without_stopping(9, "min"), lambda *_: None, lengths=range(1, 10)):
        for trial in search.trials:
            assert trial.state == "ended"
            assert trial.broke_off or trial.epoch == search.lengths[trial.number]


def distance_below_quantile(trial, trials, factor):
    """Compute by how much it is worse than the quantile of the others; rounding may decide the last digits."""
    others = [t.values[trial.epoch] for t in trials if t is not trial and trial.epoch in t.values]
    return trial.values[trial.epoch] - np.quantile(others, 1 / factor) if others else 0.0


def is_below_median(trial, trials):
    others = [t.values for t in trials if t.number != trial.number and trial.epoch in t.values]
    averages = [statistics.fmean(v[e] for e in v if e <= trial.epoch) for v in others]
    return len(others) >= 3 and min(trial.values.values()) > statistics.median(averages)


def check_quantile(schedule, trials, may_start, decision):
    if isinstance(decision, Prune):
        trial = trials[decision.number]
        assert trial.epoch in schedule.rungs
        assert distance_below_quantile(trial, trials, schedule.reduction_factor) > -1e-9
    elif decision is not None and decision.kind == "continued" and decision.start in schedule.rungs:
        assert distance_below_quantile(trials[decision.number], trials, schedule.reduction_factor) < 1e-9


def check_median(schedule, trials, may_start, decision):
    if isinstance(decision, Prune):
        assert trials[decision.number].epoch >= schedule.grace_period
        assert is_below_median(trials[decision.number], trials)
    elif decision is not None and decision.kind == "continued" and decision.start >= schedule.grace_period:
        assert not is_below_median(trials[decision.number], trials)
        assert decision.until == decision.start + 1, "it is judged after each epoch"


@pytest.mark.parametrize(
    ("make", "check_rule"),
    [
        pytest.param(
            lambda draw, epochs, *_: ASHAStoppingScheduler.from_config(epochs, draw.choice((2, 3, 4)), 1, "min"),
            check_quantile,
            id="quantile at rungs",
        ),
        pytest.param(
            lambda draw, epochs, *_: MedianStoppingScheduler(epochs, draw.randint(1, epochs), "min"),
            check_median,
            id="median",
        ),
    ],
)
def test_stopping_prunes_exactly_the_trials_that_are_below(make, check_rule):
    def check(schedule, trials, may_start, decision):
        if decision is None:
            assert not waiting(trials)
            assert not may_start
        check_rule(schedule, trials, may_start, decision)

    played = searches(make, check)
    for search in played:
        assert not waiting(search.trials)
        assert search.most_at_once == min(search.gangs, search.budget), "no trial pauses"
    assert sum(not t.finished and not t.broke_off for search in played for t in search.trials) > SEARCHES


def check_population(schedule, trials, may_start, decision):
    replaced = {trial.replaces for trial in trials} - {None}
    there = [trial for trial in trials if trial.state != "ended" or trial.epoch == schedule.limit]
    members = [trial for trial in there if trial.number not in replaced]
    assert len(members) <= schedule.size
    if isinstance(decision, Prune):
        assert decision.number in replaced, "only a copy ends a member"
        return
    if may_start and (decision is None or decision.kind == "continued"):
        assert len(members) == schedule.size, "every place is taken while trials may start"
    if decision is None:
        assert not waiting(trials), "a gang is idle while a member waits"
    elif decision.kind == "continued":
        assert decision.start == min(trial.epoch for trial in waiting(trials)), "those that lag come first"
    elif decision.kind == "copied":
        parent = trials[decision.copied_from]
        assert parent.state != "ended"
        assert decision.start in parent.values, "its checkpoint existed"
        assert decision.start == parent.epoch
        if decision.replaces is not None:
            loser = trials[decision.replaces]
            known = [t for t in trials if min(t.values, default=99) <= loser.epoch]
            latest = [t.values[max(e for e in t.values if e <= loser.epoch)] for t in known]
            better = sum(value < loser.values[loser.epoch] for value in latest)
            assert better >= schedule.size - schedule.quantile_size, "it is among the worst"
            assert loser.epoch % schedule.interval == 0


def test_population_keeps_its_size_and_copies_the_best():
    def make(draw, epochs, budget, seed):
        return PopulationBasedTraining(draw.randint(2, budget), draw.randint(1, epochs - 1), epochs, "min", seed)

    restarted = []

    def check(schedule, trials, may_start, decision):
        check_population(schedule, trials, may_start, decision)
        restarted.append(isinstance(decision, Prune))

    played = searches(make, check)
    for search in played:
        assert not waiting(search.trials)
        assert len(search.trials) >= search.schedule.size
    assert kinds(played).count("copied") > SEARCHES
    assert any(restarted), "some searches died between the start of a copy and the end of the one it replaces"
