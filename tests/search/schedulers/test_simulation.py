"""Each scheduler keeps its rules in thousands of searches, whatever is lost and whoever comes first."""

import random
import statistics

import pytest

from search.schedulers.asha import ASHAScheduler
from search.schedulers.asha_stopping import ASHAStoppingScheduler
from search.schedulers.base import Prune, Segment
from search.schedulers.hyperband import HyperBandScheduler
from search.schedulers.median_stopping import MedianStoppingScheduler
from search.schedulers.pbt import PopulationBasedTraining
from tests.search.schedulers.simulator import Simulated, running, waiting

SEARCHES = 1500


def drawn(seed):
    """Epochs, budget and gangs of a search, and a source for the rest."""
    draw = random.Random(-1 - seed)
    return draw, draw.randint(2, 12), draw.randint(2, 18), draw.randint(1, 5)


def broke_off(trial, limit):
    """Whether it diverged or failed: it holds no place at its rungs any more."""
    return trial.state == "ended" and trial.epoch < trial.epochs and trial.total_cost < limit


def check_promotion(halving, bracket, stretch, out_of_turn_allowed):
    """Checks the promotion of one of the trials of `bracket`."""
    rung, (trial,) = stretch.start, [t for t in bracket if t.number == stretch.number]
    reached = [t for t in bracket if rung in t.values]
    better = sum(t.values[rung] < trial.values[rung] for t in reached if not broke_off(t, halving.limit))
    assert out_of_turn_allowed or better < len(reached) // halving.reduction_factor, "promoted out of turn"
    assert stretch.until == halving.rungs[halving.rungs.index(rung) + 1]


@pytest.mark.parametrize("kind", [ASHAScheduler, HyperBandScheduler])
def test_halving_promotes_in_turn_and_brings_a_trial_to_its_end(kind):
    promoted = 0
    for seed in range(SEARCHES):
        draw, epochs, budget, gangs = drawn(seed)
        schedule = kind.from_config(epochs, draw.choice((2, 3)), 1, "min")

        def bracket_of(number, schedule=schedule):
            return schedule.get_bracket(number) if kind is HyperBandScheduler else schedule

        def check(trials, may_start, decision, schedule=schedule, bracket_of=bracket_of):
            assert not isinstance(decision, Prune)
            if decision is None:
                assert not may_start, "a gang is idle while a trial may start"
                assert running(trials) or all(schedule.is_paused_at_rung(trial) for trial in waiting(trials))
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
        assert whole or not any(schedule.is_paused_at_rung(t) for t in waiting(search.trials)), (
            "the best runs to its end"
        )
    assert promoted > SEARCHES


def value_at(trial, rung):
    """The rule of rungs that lie in samples or seconds, said once more."""
    reached = [epoch for epoch in sorted(trial.values) if trial.spent[epoch] >= rung]
    if not reached and trial.state == "ended" and trial.epoch == trial.epochs:
        return trial.values[trial.epoch]
    return trial.values[reached[0]] if reached else None


@pytest.mark.parametrize("kind", [ASHAScheduler, HyperBandScheduler, ASHAStoppingScheduler])
def test_rungs_may_lie_in_samples_or_seconds_and_trials_may_cost_and_last_as_they_like(kind):
    ends = promoted = between = 0
    for seed in range(SEARCHES // 5):
        draw, _, budget, gangs = drawn(seed)
        schedule = kind.from_config(draw.choice((5.0, 9.0, 20.0)), draw.choice((2, 3)), 1.0, "min", "gpu-seconds")
        lengths = [draw.choice((2, 6, 100)) for _ in range(budget)]

        def check(trials, may_start, decision, schedule=schedule):
            nonlocal ends, promoted, between
            if decision is None:
                assert not may_start, "a gang is idle while a trial may start"
                assert kind is not ASHAStoppingScheduler or not waiting(trials)
            elif isinstance(decision, Prune):
                ends += 1
            elif decision.kind == "continued" and kind is not ASHAStoppingScheduler:
                trial = trials[decision.number]
                between += trial.epoch > 0
                assert trial.total_cost < decision.until, "it was cut off on its way"
                own = schedule.get_bracket(trial.number).rungs if kind is HyperBandScheduler else schedule.rungs
                last = trial.total_cost - trial.spent.get(trial.epoch - 1, 0.0)
                assert not [rung for rung in own if trial.total_cost - last < rung <= trial.total_cost]
            elif decision.kind == "promoted" and kind is ASHAScheduler:
                promoted += 1
                trial = trials[decision.number]
                rung = max(rung for rung in schedule.rungs if rung <= trial.total_cost)
                known = [(t, value) for t in trials if (value := value_at(t, rung)) is not None]
                held = [value for t, value in known if not broke_off(t, schedule.limit)]
                better = sum(value < value_at(trial, rung) for value in held)
                if may_start or running(trials):
                    assert better < len(known) // schedule.reduction_factor
                assert decision.until == next(r for r in schedule.rungs if r > trial.total_cost)

        search = Simulated(schedule, budget, gangs, seed, check, lengths)
        search.run()
        assert len(search.trials) == budget
        for trial in search.trials:
            assert trial.epoch <= lengths[trial.number]
            before = trial.spent.get(trial.epoch - 1, 0.0)
            assert before < schedule.limit, "nothing is trained beyond the last rung but the epoch that reaches it"
    assert (kind is not ASHAStoppingScheduler) or ends > SEARCHES / 5
    assert (kind is not ASHAScheduler) or promoted > SEARCHES / 5
    assert (kind is ASHAStoppingScheduler) or between > 0


def test_without_a_scheduler_every_trial_has_its_own_length():
    for seed in range(SEARCHES // 10):
        draw, _, budget, gangs = drawn(seed)
        lengths = [draw.randint(1, 9) for _ in range(budget)]
        schedule = ASHAScheduler.without_stopping(9, "min")
        search = Simulated(schedule, budget, gangs, seed, lengths=lengths).run()
        assert any(trial.finished for trial in search.trials) or search.trials
        for trial in search.trials:
            assert trial.state == "ended"
            assert not trial.finished or trial.epoch == lengths[trial.number]
            assert trial.epoch <= lengths[trial.number]


def test_the_stopping_variant_ends_exactly_those_below_the_quantile_of_the_others():
    ended = 0
    for seed in range(SEARCHES):
        draw, epochs, budget, gangs = drawn(seed)
        factor = draw.choice((2, 3, 4))
        schedule = ASHAStoppingScheduler.from_config(epochs, factor, 1, "min")

        def behind(trial, trials, factor=factor):
            """By how much it is worse than the quantile; rounding may decide within the last digits."""
            others = sorted(t.values[trial.epoch] for t in trials if t is not trial and trial.epoch in t.values)
            if not others:
                return 0.0
            place = (len(others) - 1) / factor  # counted from the best
            low, share = int(place), place % 1
            cutoff = others[low] + share * (others[min(low + 1, len(others) - 1)] - others[low])
            return trial.values[trial.epoch] - cutoff

        def check(trials, may_start, decision, schedule=schedule, behind=behind):
            if decision is None:
                assert not waiting(trials)
                assert not may_start
            elif isinstance(decision, Prune):
                trial = trials[decision.number]
                assert trial.epoch in schedule.rungs
                assert behind(trial, trials) > -1e-9
            elif decision.kind == "continued" and decision.start in schedule.rungs:
                assert behind(trials[decision.number], trials) < 1e-9

        search = Simulated(schedule, budget, gangs, seed, check).run()
        assert len(search.trials) == budget
        assert not waiting(search.trials)
        assert search.most_at_once == min(gangs, budget), "nobody pauses"
        ended += sum(not trial.finished for trial in search.trials)
    assert ended > SEARCHES


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
        schedule = MedianStoppingScheduler(epochs, grace, "min")

        def check(trials, may_start, decision, grace=grace):
            if decision is None:
                assert not waiting(trials)
                assert not may_start
            elif isinstance(decision, Prune):
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
    if isinstance(decision, Prune):
        assert decision.number in replaced, "only a copy ends a member"
    elif may_start and (decision is None or decision.kind == "continued"):
        assert len(members) == schedule.size, "every place is taken while trials may start"
    if decision is None:
        assert not waiting(trials), "a gang is idle while a member waits"
    elif isinstance(decision, Segment) and decision.kind == "continued":
        assert decision.start == min(trial.epoch for trial in waiting(trials)), "those that lag come first"
    elif isinstance(decision, Segment) and decision.kind == "copied":
        parent = trials[decision.copied_from]
        assert parent.state != "ended"
        assert decision.start in parent.values, "its checkpoint existed"
        assert decision.start == parent.epoch
        if decision.replaces is not None:
            loser = trials[decision.replaces]
            better = [t for t in trials if min(t.values, default=99) <= loser.epoch]
            latest = [t.values[max(e for e in t.values if e <= loser.epoch)] for t in better]
            worse = sum(value < loser.values[loser.epoch] for value in latest)
            assert worse >= schedule.size - schedule.quantile_size, "it is among the worst"
            assert loser.epoch % schedule.interval == 0


def test_a_population_keeps_its_size_and_copies_the_best_in_place_of_the_worst():
    copies = restarted = 0
    for seed in range(SEARCHES):
        draw, epochs, budget, gangs = drawn(seed)
        schedule = PopulationBasedTraining(draw.randint(2, budget), draw.randint(1, epochs - 1), epochs, "min", seed)

        def check(trials, may_start, decision, schedule=schedule):
            nonlocal restarted
            check_population(schedule, trials, may_start, decision)
            restarted += isinstance(decision, Prune)

        search = Simulated(schedule, budget, gangs, seed, check).run()
        assert not waiting(search.trials)
        assert len(search.trials) >= schedule.size
        copies += sum(trial.copied_from is not None for trial in search.trials)
    assert copies > SEARCHES
    assert restarted > 0, "some searches died between the start of a copy and the end of the one it replaces"


@pytest.mark.parametrize(
    "schedule",
    [
        ASHAScheduler.from_config(9, 3, 1, "min"),
        ASHAStoppingScheduler.from_config(9, 3, 1, "min"),
        HyperBandScheduler.from_config(9, 3, 1, "min"),
        MedianStoppingScheduler(9, 1, "min"),
        PopulationBasedTraining(4, 2, 9, "min", 0),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
def test_the_same_history_gives_the_same_decisions(schedule):
    for seed in range(20):
        first, second = (Simulated(schedule, 12, 3, seed).run() for _ in range(2))
        assert first.stretches == second.stretches
        assert first.trials == second.trials
