"""The variant of halving that only stops."""

from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ray.tune.schedulers import TrialScheduler
from ray.tune.schedulers.async_hyperband import _Bracket

from search.schedulers.asha_stopping import ASHAStoppingScheduler
from search.schedulers.base import Prune, Segment, TrialProgress


def standing(number, *values, state="waiting"):
    return TrialProgress(number, dict(enumerate(values, start=1)), state)


def test_whoever_comes_first_to_a_rung_goes_on():
    schedule = ASHAStoppingScheduler.from_config(9, 3, 1, "min")
    assert schedule.next_action([], may_start=True) == Segment("new", None, 0, 1)
    assert schedule.next_action([standing(0, 99.0)], may_start=True) == Segment("continued", 0, 1, 3)


@pytest.mark.parametrize(("mode", "value"), [("min", 0.4), ("max", 0.6)])
def test_one_that_is_worse_than_most_ends_at_once_and_for_good(mode, value):
    others = [standing(n, 0.5, state="ended") for n in range(4)]
    worse = 1.0 - value
    schedule = ASHAStoppingScheduler.from_config(9, 3, 1, mode)
    assert schedule.next_action([*others, standing(4, worse)], True) == Prune(4, "not among the best at epoch 1")
    assert schedule.next_action([*others, standing(4, value)], True) == Segment("continued", 4, 1, 3)


def test_between_two_rungs_nobody_is_judged():
    trials = [standing(0, 0.1, 0.1, 0.1), standing(1, 0.2, 9.0)]
    ended = [standing(2, 0.1, 0.1, state="ended")]
    assert ASHAStoppingScheduler.from_config(9, 3, 1, "min").next_action([*trials[1:], *ended], True) == Segment(
        "continued", 1, 2, 3
    )


def test_nobody_waits_for_another():
    assert not ASHAStoppingScheduler.from_config(9, 3, 1, "min").is_paused_at_rung(standing(0, 0.1))


curves = st.lists(
    st.lists(st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1.0]), min_size=9, max_size=9), min_size=1, max_size=25
)


@settings(max_examples=200, deadline=None)
@given(curves=curves, factor=st.sampled_from([2, 3, 4]), mode=st.sampled_from(["min", "max"]))
@example(curves=[[0.1] * 9, [0.1] * 9, [0.2] * 9], factor=3, mode="min")
def test_trials_end_where_those_of_ray_end(curves, factor, mode):
    """One trial after the other: Ray judges when a report comes, and so do we."""
    top = factor**2
    schedule, trials = ASHAStoppingScheduler.from_config(top, factor, 1, mode), []
    bracket = _Bracket(1, top, factor, 0)
    for number, curve in enumerate(curves):
        curve = (curve * 2)[:top]
        theirs = top
        for epoch, value in enumerate(curve[: top - 1], start=1):
            trial, reward = SimpleNamespace(trial_id=number), value if mode == "max" else -value
            if bracket.on_result(trial, epoch, reward) == TrialScheduler.STOP:
                theirs = epoch
                break
        epoch, decision = 0, schedule.next_action(trials, True)
        while isinstance(decision, Segment):
            epoch = decision.until
            over = epoch == top
            mine = TrialProgress(number, dict(enumerate(curve[:epoch], start=1)), "ended" if over else "waiting")
            if over:
                break
            decision = schedule.next_action([*trials, mine], True)
        assert epoch == theirs
        trials.append(TrialProgress(number, mine.values, "ended"))
