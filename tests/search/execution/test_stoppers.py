"""When a search ends: rules over what is reported, without a search."""

import operator
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.config.objectives import Objective
from search.config.stop_condition import StopCondition
from search.execution.stoppers import HOUR, GpuTimeMeter, PatienceStopper, RepeatedFailureStopper, Stoppers

LOSS = Objective("loss", "min")

NUMBERS = st.integers(0, 5)
VALUES = st.floats(-1e6, 1e6)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Stopped(list):
    """The reasons for which a search was stopped."""

    def __call__(self, reason):
        self.append(reason)


# The target


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("val/score>=0.4", StopCondition("val/score", ">=", 0.4)),
        (" loss < 1e-3 ", StopCondition("loss", "<", 1e-3)),
        ("time/samples per s<=-2", StopCondition("time/samples per s", "<=", -2.0)),
        ("accuracy>=0.99999999", StopCondition("accuracy", ">=", 0.99999999)),
        ("time/steps>1234567", StopCondition("time/steps", ">", 1234567.0)),
    ],
)
def test_a_target_is_a_metric_a_relation_and_a_number(text, expected):
    assert StopCondition.from_text(text) == expected
    assert StopCondition.from_text(str(expected)) == expected


@pytest.mark.parametrize("text", ["", "loss", "loss=1", "loss==1", "loss>=", ">=1", "loss>=x", "loss>nan", "1<loss<2"])
def test_a_target_of_another_form_is_refused(text):
    with pytest.raises(ValueError, match=r"must be like val/score>=0\.4, with one of >= > <= <, but got"):
        StopCondition.from_text(text)


@given(value=VALUES, bound=VALUES, relation=st.sampled_from([">=", "<=", ">", "<"]))
def test_a_target_is_met_as_its_relation_says(value, bound, relation):
    named = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
    assert StopCondition("m", relation, bound).is_met({"m": value}) == named[relation](value, bound)


@pytest.mark.parametrize("relation", [">=", "<=", ">", "<"])
def test_a_target_is_not_met_by_nan_or_by_what_is_not_reported(relation):
    assert not StopCondition("m", relation, 1.0).is_met({"m": float("nan")})
    assert not StopCondition("m", relation, 1.0).is_met({"n": 1.0})


# The plateau


@given(
    events=st.lists(st.tuples(NUMBERS, VALUES), max_size=40),
    patience=st.integers(1, 5),
    mode=st.sampled_from(["min", "max"]),
)
def test_a_plateau_is_reached_when_so_many_others_rested_since_the_best(events, patience, mode):
    """Each event is a trial that reports and then rests."""
    plateau = PatienceStopper(patience, Objective("loss", mode))
    for number, value in events:
        plateau.record_report(number, value)
        plateau.record_segment_end(number)
    if not events:
        assert not plateau.is_triggered
        return
    values = [value if mode == "min" else -value for _, value in events]
    best = values.index(min(values))
    others = {number for number, _ in events[best + 1 :]} - {events[best][0]}
    assert plateau.is_triggered == (len(others) >= patience)


def test_reports_alone_are_no_plateau_and_neither_are_trials_before_the_first_report():
    plateau = PatienceStopper(2, LOSS)
    for number in range(9):
        plateau.record_segment_end(number)  # diverged in the first epoch
    plateau.record_report(9, 0.5)
    for number in range(10, 20):
        plateau.record_report(number, 0.6)
    assert not plateau.is_triggered


# Failures


@given(
    numbers=st.permutations(range(6)),
    alike=st.lists(st.booleans(), min_size=6, max_size=6),
    many=st.integers(2, 5),
)
def test_trials_fail_alike_when_the_first_to_begin_all_have_the_same_error(numbers, alike, many):
    rule = RepeatedFailureStopper(many)
    for number in range(6):
        rule.record_segment_start(number)
    for done, number in enumerate(numbers, start=1):
        rule.record_failure(number, f"RuntimeError: no file {number}" if alike[number] else "KeyError: 'x'")
        failed = set(numbers[:done])
        assert rule.is_triggered == (set(range(many)) <= failed and len(set(alike[:many])) == 1)


def test_a_first_trial_that_still_trains_keeps_the_hope():
    rule = RepeatedFailureStopper(2)
    for number in range(9):
        rule.record_segment_start(number)
        if number:
            rule.record_failure(number, "KeyError: 'x'")
    assert not rule.is_triggered


# What is held


@given(stretches=st.lists(st.tuples(NUMBERS, st.integers(0, 50), st.booleans()), max_size=30))
def test_what_trials_hold_adds_up_over_stretches_and_what_found_no_room_is_nothing(stretches):
    clock = Clock()
    meter = GpuTimeMeter(clock=clock)
    expected = dict.fromkeys(range(6), 0)
    for number, seconds, placed in stretches:
        meter.begin(number)
        clock.now += seconds
        if placed:
            expected[number] += seconds
            assert meter.end(number) == expected[number]
        else:
            meter.cancel(number)
    assert {number: meter.get_gpu_seconds(number) for number in expected} == expected
    assert meter.total == sum(expected.values())


def test_trials_that_hold_gangs_at_the_same_time_are_all_counted_while_they_do():
    clock = Clock()
    meter = GpuTimeMeter(clock=clock)
    meter.restore(7, 100.0)
    meter.begin(0)
    clock.now += 10
    meter.begin(1)
    clock.now += 10
    assert (meter.get_gpu_seconds(0), meter.get_gpu_seconds(1), meter.total) == (20, 10, 130)


def test_a_trial_that_stops_holding_while_another_thread_adds_up_is_not_counted_twice():
    """What `check` does between any two steps of `end`."""
    clock = Clock()
    meter = GpuTimeMeter(clock=clock)
    meter.begin(0)
    clock.now += 10
    seen = []

    def look(frame, event, argument):
        seen.append(meter.total)
        return look

    sys.settrace(lambda frame, event, argument: look if frame.f_code is GpuTimeMeter.end.__code__ else None)
    try:
        meter.end(0)
    finally:
        sys.settrace(None)
    assert len(seen) > 2
    assert max(seen) == 10


# All of them together


def test_a_search_is_stopped_by_the_report_that_meets_its_target():
    stopped = Stopped()
    budget = Stoppers(LOSS, target=StopCondition.from_text("acc>0.5"), stop=stopped)
    budget.record_report(0, {"loss": 1.0, "acc": 0.5})
    assert stopped == []
    budget.record_report(3, {"loss": 1.0, "acc": 0.6})
    assert stopped == ["acc>0.5 in trial 3"]
    assert budget.winners == {3}


def test_a_target_that_no_report_has_is_said_once_and_with_the_nearest_name():
    said = Stopped()
    budget = Stoppers(LOSS, target=StopCondition.from_text("val/acc>0.5"), say=said)
    for _ in range(3):
        budget.record_report(2, {"loss": 1.0, "val/accuracy": 0.5})
    assert said == [
        "--stop-when must name a metric that trials report, but trial 2 reports no 'val/acc'. "
        "Did you mean 'val/accuracy'?"
    ]


def test_a_search_is_stopped_when_its_best_gets_no_better():
    stopped = Stopped()
    budget = Stoppers(LOSS, patience=2, stop=stopped)
    for number, loss in enumerate([0.5, 0.3, 0.4, 0.35]):
        assert stopped == []
        budget.record_report(number, {"loss": loss})
        budget.record_segment_end(number)
    assert stopped == ["no better loss in 2 trials"]


def test_a_search_is_stopped_when_its_first_five_trials_fail_alike():
    stopped = Stopped()
    budget = Stoppers(LOSS, trials=100, stop=stopped)
    for number in range(5):
        budget.record_segment_start(number)
        budget.record_failure(number, f"RuntimeError: {number} is broken")
    assert stopped == ["the first 5 trials failed alike: RuntimeError: 4 is broken"]


@pytest.mark.parametrize("gpus", [0.5, 1.0, 8.0])
def test_a_search_is_stopped_when_its_gangs_have_held_their_gpus_for_so_long(gpus):
    stopped, clock = Stopped(), Clock()
    budget = Stoppers(LOSS, gpu_hours=2.0, gpus=gpus, stop=stopped)
    budget.meter = GpuTimeMeter(gpus, clock)
    budget.record_segment_start(0)
    budget.record_segment_start(1)
    clock.now += HOUR / gpus - 1
    budget.check_gpu_hours()
    assert stopped == []
    clock.now += 1
    budget.check_gpu_hours()
    assert stopped == ["2 GPU-hours"]


def test_a_search_without_budgets_is_never_stopped():
    stopped = Stopped()
    budget = Stoppers(LOSS, stop=stopped)
    for number in range(50):
        budget.record_segment_start(number)
        budget.record_report(number, {"loss": 1.0})
        budget.record_segment_end(number)
    budget.check_gpu_hours()
    assert stopped == []
