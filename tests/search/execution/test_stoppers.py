"""When a search ends: rules over what is reported, without a search."""

import operator
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.config.stop_condition import Target
from search.execution.stoppers import HOUR, Alike, Budget, Meter, Plateau

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
        ("val/score>=0.4", Target("val/score", ">=", 0.4)),
        (" loss < 1e-3 ", Target("loss", "<", 1e-3)),
        ("time/samples per s<=-2", Target("time/samples per s", "<=", -2.0)),
        ("accuracy>=0.99999999", Target("accuracy", ">=", 0.99999999)),
        ("time/steps>1234567", Target("time/steps", ">", 1234567.0)),
    ],
)
def test_a_target_is_a_metric_a_relation_and_a_number(text, expected):
    assert Target.read(text) == expected
    assert Target.read(str(expected)) == expected


@pytest.mark.parametrize("text", ["", "loss", "loss=1", "loss==1", "loss>=", ">=1", "loss>=x", "loss>nan", "1<loss<2"])
def test_a_target_of_another_form_is_refused(text):
    with pytest.raises(ValueError, match=r"must be like val/score>=0\.4, with one of >= > <= <, but got"):
        Target.read(text)


@given(value=VALUES, bound=VALUES, relation=st.sampled_from([">=", "<=", ">", "<"]))
def test_a_target_is_met_as_its_relation_says(value, bound, relation):
    named = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
    assert Target("m", relation, bound).met({"m": value}) == named[relation](value, bound)


@pytest.mark.parametrize("relation", [">=", "<=", ">", "<"])
def test_a_target_is_not_met_by_nan_or_by_what_is_not_reported(relation):
    assert not Target("m", relation, 1.0).met({"m": float("nan")})
    assert not Target("m", relation, 1.0).met({"n": 1.0})


# The plateau


@given(
    events=st.lists(st.tuples(NUMBERS, VALUES), max_size=40),
    patience=st.integers(1, 5),
    mode=st.sampled_from(["min", "max"]),
)
def test_a_plateau_is_reached_when_so_many_others_rested_since_the_best(events, patience, mode):
    """Each event is a trial that reports and then rests."""
    plateau = Plateau(patience, mode)
    for number, value in events:
        plateau.reported(number, value)
        plateau.rested(number)
    if not events:
        assert not plateau.reached
        return
    values = [value if mode == "min" else -value for _, value in events]
    best = values.index(min(values))
    others = {number for number, _ in events[best + 1 :]} - {events[best][0]}
    assert plateau.reached == (len(others) >= patience)


def test_reports_alone_are_no_plateau_and_neither_are_trials_before_the_first_report():
    plateau = Plateau(2, "min")
    for number in range(9):
        plateau.rested(number)  # diverged in the first epoch
    plateau.reported(9, 0.5)
    for number in range(10, 20):
        plateau.reported(number, 0.6)
    assert not plateau.reached


# Failures


@given(
    numbers=st.permutations(range(6)),
    alike=st.lists(st.booleans(), min_size=6, max_size=6),
    many=st.integers(2, 5),
)
def test_trials_fail_alike_when_the_first_to_begin_all_have_the_same_error(numbers, alike, many):
    rule = Alike(many)
    for number in range(6):
        rule.began(number)
    for done, number in enumerate(numbers, start=1):
        rule.failed(number, f"RuntimeError: no file {number}" if alike[number] else "KeyError: 'x'")
        failed = set(numbers[:done])
        assert rule.reached == (set(range(many)) <= failed and len(set(alike[:many])) == 1)


def test_a_first_trial_that_still_trains_keeps_the_hope():
    rule = Alike(2)
    for number in range(9):
        rule.began(number)
        if number:
            rule.failed(number, "KeyError: 'x'")
    assert not rule.reached


# What is held


@given(stretches=st.lists(st.tuples(NUMBERS, st.integers(0, 50), st.booleans()), max_size=30))
def test_what_trials_hold_adds_up_over_stretches_and_what_found_no_room_is_nothing(stretches):
    clock = Clock()
    meter = Meter(clock=clock)
    expected = dict.fromkeys(range(6), 0)
    for number, seconds, placed in stretches:
        meter.begin(number)
        clock.now += seconds
        if placed:
            expected[number] += seconds
            assert meter.end(number) == expected[number]
        else:
            meter.cancel(number)
    assert {number: meter.held(number) for number in expected} == expected
    assert meter.total == sum(expected.values())


def test_trials_that_hold_gangs_at_the_same_time_are_all_counted_while_they_do():
    clock = Clock()
    meter = Meter(clock=clock)
    meter.take(7, 100.0)
    meter.begin(0)
    clock.now += 10
    meter.begin(1)
    clock.now += 10
    assert (meter.held(0), meter.held(1), meter.total) == (20, 10, 130)


def test_a_trial_that_stops_holding_while_another_thread_adds_up_is_not_counted_twice():
    """What `check` does between any two steps of `end`."""
    clock = Clock()
    meter = Meter(clock=clock)
    meter.begin(0)
    clock.now += 10
    seen = []

    def look(frame, event, argument):
        seen.append(meter.total)
        return look

    sys.settrace(lambda frame, event, argument: look if frame.f_code is Meter.end.__code__ else None)
    try:
        meter.end(0)
    finally:
        sys.settrace(None)
    assert len(seen) > 2
    assert max(seen) == 10


# All of them together


def test_a_search_is_stopped_by_the_report_that_meets_its_target():
    stopped = Stopped()
    budget = Budget("loss", target=Target.read("acc>0.5"), stop=stopped)
    budget.reported(0, {"loss": 1.0, "acc": 0.5})
    assert stopped == []
    budget.reported(3, {"loss": 1.0, "acc": 0.6})
    assert stopped == ["acc>0.5 in trial 3"]
    assert budget.winners == {3}


def test_a_target_that_no_report_has_is_said_once_and_with_the_nearest_name():
    said = Stopped()
    budget = Budget("loss", target=Target.read("val/acc>0.5"), say=said)
    for _ in range(3):
        budget.reported(2, {"loss": 1.0, "val/accuracy": 0.5})
    assert said == [
        "--stop-when must name a metric that trials report, but trial 2 reports no 'val/acc'. "
        "Did you mean 'val/accuracy'?"
    ]


def test_a_search_is_stopped_when_its_best_gets_no_better():
    stopped = Stopped()
    budget = Budget("loss", "min", patience=2, stop=stopped)
    for number, loss in enumerate([0.5, 0.3, 0.4, 0.35]):
        assert stopped == []
        budget.reported(number, {"loss": loss})
        budget.rested(number)
    assert stopped == ["no better loss in 2 trials"]


def test_a_search_is_stopped_when_its_first_five_trials_fail_alike():
    stopped = Stopped()
    budget = Budget("loss", trials=100, stop=stopped)
    for number in range(5):
        budget.began(number)
        budget.failed(number, f"RuntimeError: {number} is broken")
    assert stopped == ["the first 5 trials failed alike: RuntimeError: 4 is broken"]


@pytest.mark.parametrize("gpus", [0.5, 1.0, 8.0])
def test_a_search_is_stopped_when_its_gangs_have_held_their_gpus_for_so_long(gpus):
    stopped, clock = Stopped(), Clock()
    budget = Budget("loss", gpu_hours=2.0, gpus=gpus, stop=stopped)
    budget.meter = Meter(gpus, clock)
    budget.began(0)
    budget.began(1)
    clock.now += HOUR / gpus - 1
    budget.check()
    assert stopped == []
    clock.now += 1
    budget.check()
    assert stopped == ["2 GPU-hours"]


def test_a_search_without_budgets_is_never_stopped():
    stopped = Stopped()
    budget = Budget("loss", stop=stopped)
    for number in range(50):
        budget.began(number)
        budget.reported(number, {"loss": 1.0})
        budget.rested(number)
    budget.check()
    assert stopped == []
