import pytest

from searchlight.search.schedulers.base import Prune, Segment
from searchlight.search.schedulers.pbt import PopulationBasedTraining
from tests.search.schedulers.simulator import standing

VALUES = (0.4, 0.1, 0.2, 0.3)
FOUR = [standing(n, value) for n, value in enumerate(VALUES)]
COPY = standing(4, start=1, copied_from=1, replaces=0)
CONTINUED = Segment("continued", 0, 1, 2)


def population(size=4, interval=1, epochs=9, mode="min", seed=0, judged_from=1):
    return PopulationBasedTraining(size, interval, epochs, mode, seed, judged_from)


def running(*numbers, values=()):
    return [standing(n, *values, state="running") for n in numbers]


def copied(parent, replaces, start=1, until=2):
    return Segment("copied", None, start, until, copied_from=parent, replaces=replaces, draw="0-4")


DONE = standing(1, *[0.1] * 9, state="ended")
CASES = {
    "the worst is replaced by a copy of the best": (FOUR, copied(1, 0)),
    "too few are known to be better": ([*FOUR[:3], *running(3)], CONTINUED),
    "equal members stay": ([standing(n, 0.5) for n in range(4)], CONTINUED),
    "better members that lag count": ([standing(0, 0.4, 0.4), *running(1, 2, 3, values=[0.1])], copied(1, 0)),
    "members that lag come first": (
        [standing(0, 0.1, 0.1), standing(1, 0.2), standing(2, 0.1, 0.1), *running(3, values=[0.3])],
        Segment("continued", 1, 1, 2),
    ),
    "a failed member is replaced": (
        [standing(0, state="ended"), *(standing(n, n / 10, state="running") for n in (1, 2, 3))],
        copied(1, None),
    ),
    "there is nothing to copy": ([standing(0, state="ended"), *running(1, 2, 3)], Segment("new", None, 0, 1)),
    "a complete member keeps its place and is not copied": (
        [standing(0, 0.4, 0.4), DONE, *running(2, values=[0.2, 0.2]), *running(3, values=[0.3, 0.3])],
        copied(2, 0, 2, 3),
    ),
    "the search died after the copy began": ([*FOUR, COPY], Prune(0, "replaced by a copy of 1")),
}


@pytest.mark.parametrize(("trials", "expected"), CASES.values(), ids=CASES)
def test_next_action_copies_continues_or_prunes(trials, expected):
    assert population().next_action(trials, may_start=True) == expected


def test_mode_max_copies_the_highest_value():
    trials = [standing(n, -value) for n, value in enumerate(VALUES)]
    assert population(mode="max").next_action(trials, may_start=True) == copied(1, 0)
    assert population(mode="max").next_action(trials, may_start=False) == CONTINUED, "the budget is spent"


def test_population_begins_with_as_many_trials_as_members():
    schedule = population(2, interval=3)
    assert schedule.next_action(running(0), may_start=True) == Segment("new", None, 0, 3)
    assert schedule.next_action(running(0, 1), may_start=True) is None


@pytest.mark.parametrize(("judged_from", "kind"), [(2, "copied"), (3, "continued")])
def test_members_are_not_replaced_before_judged_from(judged_from, kind):
    trials = [standing(n, 0.5, value) for n, value in enumerate(VALUES)]
    assert population(judged_from=judged_from).next_action(trials, may_start=True).kind == kind


def test_interval_bounds_comparisons_and_segments():
    trials = [standing(0, 0.4, 0.4), *running(1, values=[0.1] * 3), *running(2, 3, values=[0.2, 0.2])]
    assert population(interval=2).next_action(trials, may_start=True) == copied(1, 0, 3, 4)
    between = [standing(0, 0.4, 0.4, 0.4), *running(1, 2, 3, values=[0.1] * 6)]
    assert population(interval=2).next_action(between, may_start=True) == Segment("continued", 0, 3, 4)


def test_replaced_member_does_not_make_the_next_one_the_worst():
    trials = [standing(0, 0.4, state="ended"), *FOUR[1:], COPY]
    for _ in range(4):
        decision = population().next_action(trials, may_start=True)
        assert decision.kind == "continued"
        trials[decision.number] = standing(decision.number, state="running")


def test_seed_chooses_which_of_the_best_is_copied():
    trials = [standing(n, n / 10, state="running") for n in range(7)] + [standing(7, 0.9)]
    chosen = [population(8, seed=seed).next_action(trials, may_start=True).copied_from for seed in range(30)]
    assert set(chosen) == {0, 1}
    assert chosen == [population(8, seed=seed).next_action(trials, may_start=True).copied_from for seed in range(30)]


def test_expected_cost_counts_the_members_alone():
    assert population(4).expected_cost(20) == 36
    assert population(4).expected_cost(2) == 18
