"""How much of its training a trial has got, and what it is worth at a rung."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from searchlight.search.schedulers.base import TrialProgress
from searchlight.search.space.fidelity import cumulative_cost
from tests.search.schedulers.simulator import standing

prices = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=30)


def trial(costs, **more):
    spent = dict(enumerate(itertools.accumulate(costs), start=1))
    return TrialProgress(0, {epoch: float(-epoch) for epoch in spent}, "waiting", spent=spent, **more)


@given(prices, st.floats(0.01, 3000.0))
def test_value_at_a_rung_is_that_of_the_first_report_beyond(costs, rung):
    measured = trial(costs)
    value = measured.get_value_at(rung)
    if value is None:
        assert measured.total_cost < rung
    else:
        epoch = int(-value)
        assert measured.spent[epoch] >= rung
        assert epoch == 1 or measured.spent[epoch - 1] < rung


@given(prices)
def test_current_rung_is_set_by_the_report_that_reaches_it(costs):
    rungs = (1.0, 10.0, 100.0, 1000.0)
    stood = [trial(costs[:count]).current_rung(rungs) for count in range(1, len(costs) + 1)]
    known = [rung for rung in stood if rung is not None]
    reached = [rung for rung in rungs if sum(costs) >= rung]
    assert known == sorted({*known})
    assert {*known} <= {*reached}
    assert not reached or reached[-1] in stood
    assert trial([]).current_rung(rungs) is None


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30))
def test_cost_in_epochs_is_the_number_of_epochs(values):
    measured = standing(0, *values)
    assert measured.total_cost == len(values)
    assert [measured.get_value_at(epoch) for epoch in range(1, len(values) + 2)] == [*values, None]
    assert measured.current_rung((3, 9, 27)) == (len(values) if len(values) in (3, 9, 27) else None)


def test_finished_trial_has_its_last_value_at_later_rungs():
    assert trial([1.0, 1.0], finished=True).get_value_at(10.0) == -2.0
    assert standing(0, 0.5, state="ended", finished=True).get_value_at(3) == 0.5
    assert standing(0, state="ended", finished=True).get_value_at(3) is None


def test_values_by_rung_do_not_depend_on_the_price_of_an_epoch():
    assert trial([2.0] * 5).values_by_rung((2.0, 6.0, 18.0)) == {1: -1.0, 2: -3.0}
    assert trial([1.0] * 10).values_by_rung((2.0, 6.0, 18.0)) == {1: -2.0, 2: -6.0}
    assert trial([0.5]).values_by_rung((2.0, 6.0)) == {0: -1.0}
    assert trial([]).values_by_rung((2.0,)) == {}


def test_trial_is_complete_at_its_own_end_or_at_the_limit():
    assert trial([1.0] * 3, epochs=3).is_complete(100.0)
    assert trial([1.0] * 3, epochs=9).is_complete(3.0)
    assert not trial([1.0] * 3, epochs=9).is_complete(3.5)


def test_cumulative_cost_is_summed_in_the_order_of_epochs():
    reports = {2: {"samples": 10.0, "gpu_seconds": 0.5}, 1: {"samples": 5.0, "gpu_seconds": 0.25}, 3: {}}
    assert list(cumulative_cost(reports, "samples").items()) == [(1, 5.0), (2, 15.0), (3, 15.0)]
    assert cumulative_cost(reports, "gpu-seconds")[2] == 0.75
