"""Successive halving that only stops trials."""

from types import SimpleNamespace

from hypothesis import example, given, settings
from hypothesis import strategies as st
from ray.tune.schedulers import TrialScheduler
from ray.tune.schedulers.async_hyperband import _Bracket

from searchlight.search.schedulers.asha_stopping import ASHAStoppingScheduler
from searchlight.search.schedulers.base import Prune, Segment
from tests.search.schedulers.simulator import standing


def test_first_at_a_rung_continues_and_a_worse_trial_is_pruned():
    schedule = ASHAStoppingScheduler.from_config(9, 3, 1, "min")
    assert schedule.next_action([], may_start=True) == Segment("new", None, 0, 1)
    assert schedule.next_action([standing(0, 99.0)], may_start=True) == Segment("continued", 0, 1, 3)
    others = [standing(n, 0.5, 0.1, state="ended") for n in range(4)]
    worse = [*others, standing(4, 0.6)]
    assert schedule.next_action(worse, may_start=True) == Prune(4, "not among the best at epoch 1")
    assert not schedule.is_paused_at_rung(worse[-1])
    between_rungs = [*others, standing(4, 0.4, 9.0)]
    assert schedule.next_action(between_rungs, may_start=True) == Segment("continued", 4, 2, 3)


curves = st.lists(
    st.lists(st.floats(-1e6, 1e6) | st.sampled_from([0.0, 1.0]), min_size=9, max_size=9), min_size=1, max_size=25
)


@settings(max_examples=60)
@given(curves=curves, factor=st.sampled_from([2, 3, 4]), mode=st.sampled_from(["min", "max"]))
@example(curves=[[0.1] * 9, [0.1] * 9, [0.2] * 9], factor=3, mode="min")
def test_trials_end_at_the_same_epochs_as_those_of_ray(curves, factor, mode):
    """One trial after the other: Ray judges each report when it comes."""
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
        while epoch < top and isinstance(decision, Segment):
            epoch = decision.until
            decision = schedule.next_action([*trials, standing(number, *curve[:epoch])], True) if epoch < top else None
        assert epoch == theirs
        trials.append(standing(number, *curve[:epoch], state="ended"))
