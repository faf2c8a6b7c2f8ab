"""How much of its training a trial has got, and what it was worth at a rung."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from search.config.fidelity import cumulative_cost
from search.schedulers.base import TrialProgress

prices = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=30)


def trial(costs, **more):
    spent = dict(enumerate(itertools.accumulate(costs), start=1))
    return TrialProgress(0, {epoch: float(-epoch) for epoch in spent}, "waiting", spent=spent, **more)


@given(prices, st.floats(0.01, 3000.0))
def test_the_value_at_a_rung_is_that_of_the_first_report_by_which_so_much_was_spent(costs, rung):
    standing = trial(costs)
    value = standing.get_value_at(rung)
    if value is None:
        assert standing.total_cost < rung
    else:
        epoch = int(-value)
        assert sum(costs[:epoch]) >= rung - 1e-9
        assert epoch == 1 or standing.spent[epoch - 1] < rung


@given(prices)
def test_a_trial_stands_at_a_rung_with_the_report_that_reaches_it_and_with_no_other(costs):
    rungs = (1.0, 10.0, 100.0, 1000.0)
    stood = [trial(costs[:count]).current_rung(rungs) for count in range(1, len(costs) + 1)]
    reached = [rung for rung in rungs if sum(costs) >= rung]
    assert [rung for rung in stood if rung is not None] == sorted({rung for rung in stood if rung is not None})
    assert {rung for rung in stood if rung is not None} <= set(reached)
    assert not reached or reached[-1] in stood
    assert trial([]).current_rung(rungs) is None


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30))
def test_epochs_are_rungs_of_their_own_where_fidelity_is_in_epochs(values):
    standing = TrialProgress(0, dict(enumerate(values, start=1)), "waiting")
    assert standing.total_cost == len(values)
    assert [standing.get_value_at(epoch) for epoch in range(1, len(values) + 2)] == [*values, None]
    assert standing.current_rung((3, 9, 27)) == (len(values) if len(values) in (3, 9, 27) else None)


def test_a_trial_of_half_the_price_has_twice_the_epochs_at_a_rung():
    slow, fast = trial([2.0] * 10), trial([1.0] * 10)
    assert (slow.get_value_at(6.0), fast.get_value_at(6.0)) == (-3.0, -6.0)


def test_a_trial_that_came_to_its_end_before_a_rung_is_there_with_its_last_value():
    assert trial([1.0, 1.0], finished=True).get_value_at(10.0) == -2.0
    assert TrialProgress(0, {1: 0.5}, "ended", finished=True).get_value_at(3) == 0.5
    assert trial([1.0, 1.0]).get_value_at(10.0) is None
    assert TrialProgress(0, {}, "ended", finished=True).get_value_at(3) is None


def test_two_trials_are_compared_at_the_same_rung_whatever_epoch_it_was():
    slow, fast = trial([2.0] * 5), trial([1.0] * 10)
    assert slow.values_by_rung((2.0, 6.0, 18.0)) == {1: -1.0, 2: -3.0}
    assert fast.values_by_rung((2.0, 6.0, 18.0)) == {1: -2.0, 2: -6.0}
    assert trial([0.5]).values_by_rung((2.0, 6.0)) == {0: -1.0}
    assert trial([]).values_by_rung((2.0,)) == {}


def test_a_trial_is_over_at_its_own_end_or_where_it_has_got_all_that_it_gets():
    assert trial([1.0] * 3, epochs=3).is_complete(100.0)
    assert trial([1.0] * 3, epochs=9).is_complete(3.0)
    assert not trial([1.0] * 3, epochs=9).is_complete(3.5)


def test_what_was_spent_is_summed_in_the_order_of_epochs():
    reports = {2: {"samples": 10.0, "gpu_seconds": 0.5}, 1: {"samples": 5.0, "gpu_seconds": 0.25}, 3: {}}
    assert list(cumulative_cost(reports, "samples").items()) == [(1, 5.0), (2, 15.0), (3, 15.0)]
    assert cumulative_cost(reports, "gpu-seconds")[2] == 0.75
