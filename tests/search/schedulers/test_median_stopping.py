import pytest

from search.schedulers.base import Prune, Segment, TrialProgress
from search.schedulers.median_stopping import MedianStoppingScheduler


def standing(number, *values, state="waiting"):
    return TrialProgress(number, dict(enumerate(values, start=1)), state)


def others(*histories):
    return [standing(n, *values, state="ended") for n, values in enumerate(histories, start=10)]


def test_a_trial_trains_to_the_first_epoch_at_which_it_is_judged_and_then_one_at_a_time():
    schedule = MedianStoppingScheduler(9, 3, "min")
    assert schedule.next_action([], may_start=True) == Segment("new", None, 0, 3)
    assert schedule.next_action([standing(0, 1, 1, 1)], may_start=True) == Segment("continued", 0, 3, 4)
    assert schedule.next_action([standing(0, 1)], may_start=True) == Segment("continued", 0, 1, 3)
    assert MedianStoppingScheduler(2, 5, "min").next_action([], may_start=True) == Segment("new", None, 0, 2)


@pytest.mark.parametrize(("mode", "factor"), [("min", 1), ("max", -1)])
def test_a_trial_below_the_median_of_the_others_ends(mode, factor):
    schedule = MedianStoppingScheduler(9, 1, mode)
    rest = others(*([factor * value] for value in (0.1, 0.2, 0.3)))
    assert schedule.next_action([standing(0, factor * 0.21), *rest], False) == Prune(
        0, "below the median of 3 trials at epoch 1"
    )
    assert schedule.next_action([standing(0, factor * 0.2), *rest], False) == Segment("continued", 0, 1, 2)


def test_what_counts_is_its_best_and_what_the_others_had_on_average_until_then():
    rest = others([0.9, 0.1, 0.0], [0.9, 0.1], [0.9, 0.1])  # 0.5 on average
    schedule = MedianStoppingScheduler(9, 1, "min")
    assert isinstance(schedule.next_action([standing(0, 0.6, 0.6), *rest], False), Prune)
    assert schedule.next_action([standing(0, 0.4, 3.0), *rest], False) == Segment("continued", 0, 2, 3)


def test_without_three_others_that_came_so_far_there_is_no_median():
    rest = others([0.1, 0.1], [0.1, 0.1], [0.1])
    assert MedianStoppingScheduler(9, 1, "min").next_action([standing(0, 0.9, 0.9), *rest], False) == Segment(
        "continued", 0, 2, 3
    )


def test_it_ends_before_anything_else_runs():
    trials = [standing(0, 0.1), *others([0.1], [0.2], [0.3]), standing(20, 0.9)]
    assert MedianStoppingScheduler(9, 1, "min").next_action(trials, may_start=True) == Prune(
        20, "below the median of 4 trials at epoch 1"
    )


def test_nobody_loses_because_the_search_ends():
    assert not MedianStoppingScheduler(9, 1, "min").is_paused_at_rung(standing(0, 0.1))


def test_it_is_expected_to_stop_half_of_those_that_have_enough_others():
    assert MedianStoppingScheduler(9, 1, "min").expected_cost(3) == 27
    assert MedianStoppingScheduler(9, 1, "min").expected_cost(13) == 13 * 9 - 5 * 8
