from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.schedulers.asha import ASHAScheduler
from search.schedulers.base import Segment, TrialProgress


def standing(number, *values, state="waiting"):
    return TrialProgress(number, dict(enumerate(values, start=1)), state)


@pytest.mark.parametrize(
    ("epochs", "factor", "grace", "rungs"),
    [
        (9, 3, 1, (1, 3, 9)),
        (27, 3, 1, (1, 3, 9, 27)),
        (27, 3, 3, (3, 9, 27)),
        (10, 3, 1, (1, 3, 10)),
        (8, 2, 1, (1, 2, 4, 8)),
        (1, 3, 1, (1,)),
        (5, 3, 4, (5,)),
    ],
)
def test_rungs_go_down_from_the_full_length(epochs, factor, grace, rungs):
    assert ASHAScheduler.from_config(epochs, factor, grace, "min").rungs == rungs


def test_a_new_trial_runs_to_the_first_rung():
    assert ASHAScheduler.from_config(9, 3, 1, "min").next_action([], may_start=True) == Segment("new", None, 0, 1)


@pytest.mark.parametrize(("mode", "best"), [("min", 1), ("max", 2)])
def test_the_best_third_of_a_rung_goes_on(mode, best):
    trials = [standing(0, 0.5), standing(1, 0.1), standing(2, 0.9)]
    schedule = ASHAScheduler.from_config(9, 3, 1, mode)
    assert schedule.next_action(trials, may_start=True) == Segment("promoted", best, 1, 3)


def test_the_higher_rung_goes_first():
    low = [standing(n, n) for n in range(3)]
    high = [standing(n, n, n, n) for n in range(3, 6)]
    assert ASHAScheduler.from_config(9, 3, 1, "min").next_action(low + high, may_start=True) == Segment(
        "promoted", 3, 3, 9
    )


def test_a_trial_that_diverged_counts_in_its_rung():
    trials = [standing(0, 0.1), standing(1, 0.2), standing(2, 0.3, state="ended")]
    assert ASHAScheduler.from_config(9, 3, 1, "min").next_action(trials, may_start=True) == Segment("promoted", 0, 1, 3)
    assert ASHAScheduler.from_config(9, 3, 1, "min").next_action(trials[:2], may_start=True) == Segment(
        "new", None, 0, 1
    )


def test_a_trial_that_diverged_leaves_its_place_to_the_next_best():
    best = standing(0, 0.1, 0.1, 0.1, 0.1, state="running")
    waiting = [standing(1, 0.2), standing(2, 0.3)]
    schedule = ASHAScheduler.from_config(9, 3, 1, "min")
    assert schedule.next_action([best, *waiting], may_start=True) == Segment("new", None, 0, 1)
    diverged = replace(best, state="ended", broke_off=True)
    assert schedule.next_action([diverged, *waiting], may_start=True) == Segment("promoted", 1, 1, 3)


def test_a_trial_that_ran_to_its_end_keeps_its_place():
    waiting = [standing(1, 0.2), standing(2, 0.3)]
    whole = standing(0, *[0.1] * 9, state="ended")
    short = replace(standing(0, *[0.1] * 5, state="ended"), finished=True)  # of a function that ends before its time
    for best in (whole, short):
        assert ASHAScheduler.from_config(9, 3, 1, "min").next_action([best, *waiting], may_start=True) == Segment(
            "new", None, 0, 1
        )


def test_a_trial_that_was_pruned_when_the_search_ended_keeps_its_place():
    pruned = [standing(n, 0.1, state="ended") for n in range(3)]
    new = [standing(n, 0.9) for n in range(3, 6)]  # of the search that is taken up with more trials: none is as good
    assert ASHAScheduler.from_config(9, 3, 1, "min").next_action([*pruned, *new], may_start=True) == Segment(
        "new", None, 0, 1
    )


def test_a_trial_that_was_cut_off_between_rungs_goes_on_before_anything_else():
    trials = [standing(0, 1.0, 1.0), *(standing(n, 0.1) for n in range(1, 7))]
    assert ASHAScheduler.from_config(9, 3, 1, "min").next_action(trials, may_start=True) == Segment(
        "continued", 0, 2, 3
    )


def test_a_trial_that_was_cut_off_before_its_first_report_starts_again():
    assert ASHAScheduler.from_config(9, 3, 1, "min").next_action([standing(0)], may_start=True) == Segment(
        "continued", 0, 0, 1
    )


def test_with_no_trial_to_come_the_best_runs_to_its_end():
    schedule = ASHAScheduler.from_config(9, 3, 1, "min")
    assert schedule.next_action([standing(0, 0.2), standing(1, 0.1)], may_start=False) == Segment("promoted", 1, 1, 3)
    assert schedule.next_action([standing(0, 0.2), standing(1, 0.1, 0.1, 0.1)], False) == Segment("promoted", 1, 3, 9)


def test_a_trial_that_diverged_does_not_keep_the_best_from_its_end():
    trials = [standing(0, 0.2), standing(1, state="ended")]
    assert ASHAScheduler.from_config(9, 3, 1, "min").next_action(trials, may_start=False) == Segment(
        "promoted", 0, 1, 3
    )


def test_a_promoted_trial_that_diverged_leaves_the_way_to_the_end_to_the_next_best():
    trials = [standing(0, 0.1, state="ended"), standing(1, 0.3), standing(2, 0.2)]
    assert ASHAScheduler.from_config(9, 3, 1, "min").next_action(trials, may_start=False) == Segment(
        "promoted", 2, 1, 3
    )


def test_once_a_trial_has_run_to_its_end_the_others_need_not():
    trials = [standing(0, *[0.1] * 9, state="ended"), standing(1, 0.3)]
    assert ASHAScheduler.from_config(9, 3, 1, "min").next_action(trials, may_start=False) is None


def test_while_others_run_a_gang_waits_rather_than_go_on_with_a_worse_trial():
    trials = [standing(0, 0.2), standing(1, state="running")]
    assert ASHAScheduler.from_config(9, 3, 1, "min").next_action(trials, may_start=False) is None


def simulate(schedule, budget, gangs, value):
    """Run a whole search on `gangs` gangs; returns the trials' values by epoch and the stretches in order."""
    values, running, stretches = {}, [], []
    while True:
        standings = [
            TrialProgress(n, v, "running" if any(s[0] == n for s in running) else
                     "ended" if max(v, default=0) == schedule.rungs[-1] else "waiting")
            for n, v in values.items()
        ]  # fmt: skip
        stretch = schedule.next_action(standings, len(values) < budget) if len(running) < gangs else None
        if stretch is not None:
            number = len(values) if stretch.number is None else stretch.number
            values.setdefault(number, {})
            running.append((number, stretch))
            stretches.append((number, stretch))
        elif running:
            number, stretch = running.pop(0)
            for epoch in range(stretch.start + 1, stretch.until + 1):
                values[number][epoch] = value(number, epoch)
        else:
            return values, stretches


@settings(max_examples=60, deadline=None)
@given(
    budget=st.integers(1, 40),
    gangs=st.integers(1, 5),
    epochs=st.integers(1, 30),
    factor=st.integers(2, 4),
    data=st.randoms(use_true_random=False),
)
def test_any_search_spends_its_budget_and_brings_a_trial_to_its_end(budget, gangs, epochs, factor, data):
    schedule = ASHAScheduler.from_config(epochs, factor, 1, "min")
    values, stretches = simulate(schedule, budget, gangs, lambda number, epoch: data.random())
    assert len(values) == budget
    assert any(max(v) == epochs for v in values.values())
    for number, v in values.items():
        assert list(v) == list(range(1, max(v) + 1)), "every epoch once, in order"
        assert max(v) in schedule.rungs
        starts = [s.start for n, s in stretches if n == number]
        assert starts == [0, *schedule.rungs][: len(starts)]
    for below, above in zip(schedule.rungs, schedule.rungs[1:], strict=False):
        reached = sum(below in v for v in values.values())
        promoted = sum(above in v for v in values.values())
        # Promotion is final: of the first k that reach a rung, one in `factor` goes on for each k.
        assert promoted <= max(1, sum(1 for k in range(1, reached + 1) if k >= factor))


def test_expected_epochs_of_a_search_without_stopping_is_all_of_them():
    assert ASHAScheduler.without_stopping(9, "min").expected_cost(4) == 36
    assert ASHAScheduler.from_config(9, 3, 1, "min").expected_cost(9) == 9 + 3 * 2 + 1 * 6
