from searchlight.search.schedulers.base import Prune, Segment
from searchlight.search.schedulers.median_stopping import MedianStoppingScheduler
from tests.search.schedulers.simulator import standing


def others(*histories):
    return [standing(n, *values, state="ended") for n, values in enumerate(histories, start=10)]


BELOW = "below the median of {} trials at epoch {}"


def test_trial_below_the_median_is_pruned_before_others_continue():
    schedule = MedianStoppingScheduler(9, 1, "min")
    trials = [standing(0, 0.2), *others([0.1], [0.2], [0.3]), standing(20, 0.9)]
    assert schedule.next_action(trials, may_start=True) == Prune(20, BELOW.format(4, 1))
    assert schedule.next_action(trials[:-1], may_start=True) == Segment("continued", 0, 1, 2), "it is at the median"
    assert not schedule.is_paused_at_rung(trials[0])


def test_mode_max_prunes_the_lower_value():
    trials = [standing(0, -0.21), *others([-0.1], [-0.2], [-0.3])]
    assert MedianStoppingScheduler(9, 1, "max").next_action(trials, False) == Prune(0, BELOW.format(3, 1))
    assert isinstance(MedianStoppingScheduler(9, 1, "min").next_action(trials, False), Segment)


def test_segments_end_at_the_grace_period_and_then_each_epoch():
    schedule = MedianStoppingScheduler(9, 3, "min")
    assert schedule.next_action([], may_start=True) == Segment("new", None, 0, 3)
    assert schedule.next_action([standing(0, 1, 1, 1)], may_start=True) == Segment("continued", 0, 3, 4)
    assert schedule.next_action([standing(0, 1)], may_start=True) == Segment("continued", 0, 1, 3)
    assert MedianStoppingScheduler(2, 5, "min").next_action([], may_start=True) == Segment("new", None, 0, 2)


def test_expected_cost_stops_half_of_the_judged_trials():
    assert MedianStoppingScheduler(9, 1, "min").expected_cost(3) == 27
    assert MedianStoppingScheduler(9, 1, "min").expected_cost(13) == 13 * 9 - 5 * 8
