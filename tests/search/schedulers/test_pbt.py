import pytest

from search.schedulers.base import Prune, Segment, TrialProgress
from search.schedulers.pbt import PopulationBasedTraining


def standing(number, *values, state="waiting", **more):
    return TrialProgress(number, dict(enumerate(values, start=more.get("start", 0) + 1)), state, **more)


def population(size=4, interval=1, epochs=9, mode="min", seed=0, judged_from=1):
    return PopulationBasedTraining(size, interval, epochs, mode, seed, judged_from)


def test_it_begins_with_as_many_trials_as_it_has_members():
    schedule = population(2, interval=3)
    assert schedule.next_action([standing(0, state="running")], may_start=True) == Segment("new", None, 0, 3)
    assert schedule.next_action([standing(0, state="running"), standing(1, state="running")], may_start=True) is None


def test_members_that_lag_go_first_so_that_all_move_together():
    trials = [standing(0, 0.1, 0.1), standing(1, 0.2), standing(2, 0.1, 0.1), standing(3, 0.3, state="running")]
    assert population().next_action(trials, may_start=False) == Segment("continued", 1, 1, 2)


@pytest.mark.parametrize(("mode", "factor"), [("min", 1), ("max", -1)])
def test_the_worst_ends_and_a_copy_of_the_best_goes_on_in_its_place(mode, factor):
    values = (0.4, 0.1, 0.2, 0.3)
    trials = [standing(n, factor * value) for n, value in enumerate(values)]
    decision = population(mode=mode).next_action(trials, may_start=True)
    assert decision == Segment("copied", None, 1, 2, copied_from=1, replaces=0, draw="0-4")


@pytest.mark.parametrize(("judged_from", "kind"), [(2, "copied"), (3, "continued")])
def test_nobody_is_replaced_before_an_epoch_that_says_something_of_the_end(judged_from, kind):
    trials = [standing(n, 0.5, value) for n, value in enumerate((0.4, 0.1, 0.2, 0.3))]
    assert population(judged_from=judged_from).next_action(trials, may_start=True).kind == kind


def test_a_copy_begins_where_the_one_that_it_copies_stands():
    trials = [standing(0, 0.4, 0.4), standing(1, 0.1, 0.1, 0.1, state="running")]
    trials += [standing(n, 0.2, 0.2, state="running") for n in (2, 3)]
    decision = population(interval=2).next_action(trials, may_start=True)
    assert (decision.copied_from, decision.start, decision.until) == (1, 3, 4)


def test_nobody_is_replaced_before_it_is_certain_that_enough_are_better():
    trials = [standing(0, 0.4), standing(1, 0.1), standing(2, 0.2), standing(3, state="running")]
    assert population().next_action(trials, may_start=True) == Segment("continued", 0, 1, 2)


def test_a_member_that_lags_and_is_better_all_the_same_counts():
    trials = [standing(0, 0.4, 0.4), *(standing(n, 0.1, state="running") for n in (1, 2, 3))]
    assert population().next_action(trials, may_start=True).kind == "copied"


def test_one_that_was_replaced_does_not_make_the_next_one_the_worst():
    ended = standing(0, 0.4, state="ended")
    trials = [ended, standing(1, 0.1), standing(2, 0.2), standing(3, 0.3)]
    trials.append(standing(4, start=1, copied_from=1, replaces=0))
    for _ in range(4):
        decision = population().next_action(trials, may_start=True)
        assert decision.kind == "continued"
        trials[decision.number] = standing(decision.number, state="running")


def test_a_member_is_compared_only_where_its_interval_ends():
    trials = [standing(0, 0.4, 0.4, 0.4), *(standing(n, *[0.1] * 6, state="running") for n in (1, 2, 3))]
    assert population(interval=2).next_action(trials, may_start=True) == Segment("continued", 0, 3, 4)


def test_members_that_are_alike_replace_each_other_not():
    trials = [standing(n, 0.5) for n in range(4)]
    assert population().next_action(trials, may_start=True) == Segment("continued", 0, 1, 2)


def test_when_the_budget_is_spent_nobody_is_replaced():
    trials = [standing(n, value) for n, value in enumerate((0.4, 0.1, 0.2, 0.3))]
    assert population().next_action(trials, may_start=False) == Segment("continued", 0, 1, 2)


def test_the_place_of_a_member_that_failed_is_taken_by_a_copy_of_the_best():
    trials = [standing(0, state="ended"), *(standing(n, n / 10, state="running") for n in (1, 2, 3))]
    decision = population().next_action(trials, may_start=True)
    assert decision == Segment("copied", None, 1, 2, copied_from=1, replaces=None, draw="0-4")


def test_with_nobody_to_copy_the_place_is_taken_by_a_new_trial():
    trials = [standing(0, state="ended"), *(standing(n, state="running") for n in (1, 2, 3))]
    assert population().next_action(trials, may_start=True) == Segment("new", None, 0, 1)


def test_one_that_has_run_to_its_end_keeps_its_place_and_is_not_copied():
    done = standing(1, *[0.1] * 9, state="ended")
    trials = [
        standing(0, 0.4, 0.4),
        done,
        standing(2, 0.2, 0.2, state="running"),
        standing(3, 0.3, 0.3, state="running"),
    ]
    assert population().next_action(trials, may_start=True).copied_from == 2


def test_a_search_that_died_after_the_copy_began_ends_the_one_that_was_replaced():
    trials = [standing(n, value) for n, value in enumerate((0.4, 0.1, 0.2, 0.3))]
    trials.append(standing(4, start=1, copied_from=1, replaces=0))
    assert population().next_action(trials, may_start=True) == Prune(0, "replaced by a copy of 1")


def test_which_of_the_best_is_copied_follows_from_the_seed():
    trials = [standing(n, n / 10, state="running") for n in range(7)] + [standing(7, 0.9)]
    chosen = [population(8, seed=seed).next_action(trials, may_start=True).copied_from for seed in range(30)]
    assert set(chosen) == {0, 1}
    assert chosen == [population(8, seed=seed).next_action(trials, may_start=True).copied_from for seed in range(30)]


def test_it_takes_as_long_as_its_members_train():
    assert population(4).expected_cost(20) == 36
    assert population(4).expected_cost(2) == 18


def test_it_says_what_it_does():
    assert str(population(8, interval=2)) == (
        "a population of 8, compared after every 2 epochs: copies of the best 2 replace the worst 2"
    )
