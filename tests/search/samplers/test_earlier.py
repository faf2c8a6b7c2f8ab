import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from searchlight.search.samplers.earlier import FEWEST, measure_agreement, select_trials

LR = FloatDistribution(1e-4, 1.0, log=True)
KIND = CategoricalDistribution(("sgd", "adamw"))
BETA = FloatDistribution(0.5, 0.9)


def trial(number, lr, value, kind="sgd", state=TrialState.PRUNED, **steps):
    params, distributions = {"lr": lr, "kind": kind}, {"lr": LR, "kind": KIND}
    if kind == "adamw":
        params["beta"], distributions["beta"] = 0.7, BETA
    values = {"value": value} if state == TrialState.COMPLETE else {}
    created = create_trial(state=state, params=params, distributions=distributions, **values)
    created.intermediate_values = {1: value, **{int(step[1:]): at for step, at in steps.items()}}
    created.number = number
    return created


def line(count, slope, start=0):
    """Trials whose value is `slope` times the logarithm of the learning rate."""
    rates = [10 ** (-4 + 4 * place / (count - 1)) for place in range(count)]
    return [trial(start + place, rate, slope * math.log10(rate)) for place, rate in enumerate(rates)]


EARLIER = line(10, 1.0, start=-10)


def test_every_second_proposal_ignores_earlier_trials():
    own = line(FEWEST, 1.0)
    assert select_trials([*EARLIER, *own], 6) == [*EARLIER, *own]
    assert select_trials([*EARLIER, *own], 7) == own


@pytest.mark.parametrize(("count", "used"), [(FEWEST - 1, True), (FEWEST, False)])
def test_contradicting_earlier_trials_are_ignored(count, used):
    own = line(count, -1.0)
    assert (select_trials([*EARLIER, *own], 6) != own) is used


def test_all_trials_are_used_without_earlier_ones():
    own = line(FEWEST, 1.0)
    assert select_trials(own, 6) == select_trials(own, 7) == own


@given(st.lists(st.floats(-4, 0), min_size=FEWEST, max_size=12, unique=True))
@example([0.0, -3.0, -2.9375, -2.96875, -3.25, -3.3125])  # most have the same neighbors, nearest in another order
def test_agreement_changes_sign_with_the_values(exponents):
    of = {sign: [trial(n, 10**e, sign * e) for n, e in enumerate(exponents)] for sign in (1, -1)}
    agreement = measure_agreement(EARLIER, of[1])
    reversed_agreement = measure_agreement(EARLIER, of[-1])
    assert (agreement is None) == (reversed_agreement is None)
    if agreement is not None:
        assert agreement == pytest.approx(-reversed_agreement)
        assert agreement > 0


def test_agreement_is_measured_at_the_highest_common_step():
    own = [trial(n, t.params["lr"], 0.1 * n, s3=-0.1 * n) for n, t in enumerate(line(FEWEST, 1.0))]
    assert measure_agreement(EARLIER, own) == pytest.approx(-1)
    assert measure_agreement(EARLIER, [trial(9, 0.5, 1.0), *own[1:]]) == pytest.approx(1, abs=0.3)


def test_running_trials_do_not_count():
    own = line(FEWEST, -1.0)
    own[0].state = TrialState.RUNNING
    assert measure_agreement(EARLIER, own) is None


def test_nearest_earlier_trials_have_the_same_choice():
    earlier = [trial(n - 6, 1e-2, float(n % 2), ("sgd", "adamw")[n % 2], TrialState.COMPLETE) for n in range(6)]
    own = [trial(n, 10.0 ** (-4 + n % 4), float(n % 2), ("sgd", "adamw")[n % 2]) for n in range(8)]
    assert measure_agreement(earlier, own) == pytest.approx(1)


def test_equal_values_do_not_contradict():
    own = [trial(n, 10.0**-n, 0.5) for n in range(4)] + [trial(n, 0.5, 0.5) for n in (4, 5)]
    assert measure_agreement(EARLIER, own) is None
