import pytest

from search.schedulers.asha import ASHAScheduler
from search.schedulers.base import Segment, TrialProgress
from search.schedulers.hyperband import HyperBandScheduler


def standing(number, *values, state="waiting"):
    return TrialProgress(number, dict(enumerate(values, start=1)), state)


def test_each_bracket_leaves_out_one_more_rung_at_the_bottom():
    rungs = [bracket.rungs for bracket in HyperBandScheduler.from_config(27, 3, 1, "min").brackets]
    assert rungs == [(1, 3, 9, 27), (3, 9, 27), (9, 27), (27,)]


def test_brackets_get_the_trials_of_the_paper():
    """Algorithm 1 with R = 81 and a factor of 3 starts 81, 34, 15, 8 and 5 trials (Li et al. 2018, table 1)."""
    shares = HyperBandScheduler.from_config(81, 3, 1, "min").shares
    assert [round(share * (81 + 34 + 15 + 8 + 5)) for share in shares] == [81, 34, 15, 8, 5]


@pytest.mark.parametrize("trials", [20, 100, 1000])
def test_wherever_a_search_ends_its_brackets_have_their_shares(trials):
    schedule = HyperBandScheduler.from_config(27, 3, 1, "min")
    brackets = [schedule.get_bracket(number) for number in range(trials)]
    for bracket, share in zip(schedule.brackets, schedule.shares, strict=True):
        assert brackets.count(bracket) == pytest.approx(share * trials, abs=2)


def test_a_new_trial_runs_to_the_first_rung_of_its_bracket():
    schedule = HyperBandScheduler.from_config(9, 3, 1, "min")
    for number in range(10):
        trials = [standing(n, state="running") for n in range(number)]
        until = schedule.get_bracket(number).rungs[0]
        assert schedule.next_action(trials, may_start=True) == Segment("new", None, 0, until)


def test_trials_are_compared_within_their_bracket():
    schedule = HyperBandScheduler.from_config(9, 3, 1, "min")
    first = [number for number in range(20) if schedule.get_bracket(number) is schedule.brackets[0]][:3]
    others = [number for number in range(20) if schedule.get_bracket(number) is not schedule.brackets[0]][:6]
    trials = [standing(n, 0.9 - n / 100) for n in first] + [standing(n, 0.1, state="running") for n in others]
    assert schedule.next_action(trials, may_start=True) == Segment("promoted", first[-1], 1, 3)


def test_with_few_trials_the_one_nearest_to_its_end_goes_on():
    schedule = HyperBandScheduler.from_config(9, 3, 1, "min")
    low = next(n for n in range(9) if schedule.get_bracket(n).rungs == (1, 3, 9))
    high = next(n for n in range(9) if schedule.get_bracket(n).rungs == (3, 9))
    trials = [standing(low, 0.1), standing(high, 0.5, 0.5, 0.5)]
    assert schedule.next_action(trials, may_start=False) == Segment("promoted", high, 3, 9)


def test_a_trial_rests_at_the_rungs_of_its_own_bracket_alone():
    schedule = HyperBandScheduler.from_config(9, 3, 1, "min")
    for number in range(9):
        assert schedule.is_paused_at_rung(standing(number, 0.1)) == (1 in schedule.get_bracket(number).rungs)


def test_it_takes_as_long_as_its_brackets_together():
    schedule = HyperBandScheduler.from_config(9, 3, 1, "min")
    counts = [sum(schedule.get_bracket(n) is bracket for n in range(17)) for bracket in schedule.brackets]
    assert schedule.expected_cost(17) == sum(
        bracket.expected_cost(count) for bracket, count in zip(schedule.brackets, counts, strict=True)
    )
    assert HyperBandScheduler.from_config(1, 3, 1, "min").expected_cost(4) == ASHAScheduler.without_stopping(
        1, "min"
    ).expected_cost(4)


def test_it_says_how_many_trials_stop_where():
    assert str(HyperBandScheduler.from_config(9, 3, 1, "min")) == (
        "rungs: 53% of the trials at 1,3,9; 29% of the trials at 3,9; 18% of the trials at 9 epochs"
    )
