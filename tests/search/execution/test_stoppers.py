"""The rules by which a search ends, over what is reported, without a search."""

import operator
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchlight.search.execution.stoppers import HOUR, GpuTimeMeter, PatienceStopper, RepeatedFailureStopper, Stoppers
from searchlight.search.space.objectives import Objective
from searchlight.search.space.stop_condition import StopCondition
from searchlight.search.study.study import create_study
from tests.search.objectives import VAL_LOSS
from tests.search.stored_studies import SPACE, always_random

LOSS = Objective("loss", "min")

NUMBERS = st.integers(0, 5)
VALUES = st.floats(-1e6, 1e6)
RELATIONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


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
def test_target_is_a_metric_a_relation_and_a_number(text, expected):
    assert StopCondition.from_text(text) == expected
    assert StopCondition.from_text(str(expected)) == expected


@pytest.mark.parametrize("text", ["", "loss", "loss=1", "loss>=", ">=1", "loss>=x", "loss>nan", "1<loss<2"])
def test_target_of_another_form_is_refused(text):
    with pytest.raises(ValueError, match=r"must be like val/score>=0\.4, with one of >= > <= <, but got"):
        StopCondition.from_text(text)


@given(value=NUMBERS | VALUES, bound=NUMBERS | VALUES, relation=st.sampled_from(sorted(RELATIONS)))
def test_target_is_met_as_its_relation_says(value, bound, relation):
    condition = StopCondition("m", relation, bound)
    assert condition.is_met({"m": value}) == RELATIONS[relation](value, bound)
    assert not condition.is_met({"m": float("nan")})
    assert not condition.is_met({"n": value})


@given(
    events=st.lists(st.tuples(NUMBERS, VALUES, st.booleans()), max_size=40),
    patience=st.integers(1, 5),
    mode=st.sampled_from(["min", "max"]),
)
def test_patience_ends_when_enough_others_rested_since_the_best(events, patience, mode):
    """Each event is a trial that reports, and whether it then rests."""
    stopper = PatienceStopper(patience, Objective("loss", mode))
    for number, value, rests in events:
        stopper.record_report(number, value)
        if rests:
            stopper.record_segment_end(number)
    values = [value if mode == "min" else -value for _, value, _ in events]
    best = values.index(min(values)) if events else 0
    others = {number for number, _, rests in events[best + 1 :] if rests} - {event[0] for event in events[best:][:1]}
    assert stopper.is_triggered == (len(others) >= patience)


@given(
    numbers=st.permutations(range(6)),
    errors=st.lists(st.sampled_from(["RuntimeError: no file {}", "KeyError: 'x'", None]), min_size=6, max_size=6),
    many=st.integers(2, 5),
)
def test_repeated_failure_needs_the_first_ends_to_be_alike(numbers, errors, many):
    rule = RepeatedFailureStopper(many)
    for ended, (number, error) in enumerate(zip(numbers, errors, strict=True), start=1):
        rule.record_end(number, error and error.format(number))
        assert rule.is_triggered == (ended >= many and errors[:many] == [errors[0] or "none"] * many)


@given(stretches=st.lists(st.tuples(NUMBERS, st.integers(0, 50), st.booleans()), max_size=30))
def test_gpu_time_adds_up_without_trials_that_found_no_room(stretches):
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


def test_gpu_time_is_not_counted_twice_by_another_thread():
    """A tracer reads the total between any two steps of `end`."""
    clock = Clock()
    meter = GpuTimeMeter(clock=clock)
    meter.begin(0)
    clock.now += 10
    seen = []

    def look(frame, event, argument):
        seen.append(meter.total)
        return look

    tracer = sys.gettrace()
    sys.settrace(lambda frame, event, argument: look if frame.f_code is GpuTimeMeter.end.__code__ else None)
    try:
        meter.end(0)
    finally:
        sys.settrace(tracer)
    assert len(seen) > 2
    assert max(seen) == 10


def make_stoppers(**given):
    """The stoppers of a search, and the reasons for which they stop it."""
    stopped = []
    return Stoppers(LOSS, stop=stopped.append, **given), stopped


def test_report_that_meets_the_target_stops_the_search():
    said = []
    stoppers, stopped = make_stoppers(target=StopCondition.from_text("acc>0.5"), say=said.append)
    for number, metrics in enumerate([{"accu": 0.7}, {"accu": 0.7}, {"acc": 0.5}]):
        stoppers.record_report(number, {"loss": 1.0, **metrics})
    assert said == [
        "--stop-when must name a metric that trials report, but trial 0 reports no 'acc'. Did you mean 'accu'?"
    ]
    assert stopped == []
    stoppers.record_report(3, {"loss": 1.0, "acc": 0.6})
    assert (stopped, stoppers.winners) == (["acc>0.5 in trial 3"], {3})


@pytest.mark.parametrize(
    ("given", "reason"), [({"patience": 2}, "no better loss in 2 trials"), ({}, None)], ids=["patience", "no budget"]
)
def test_patience_stops_the_search_after_trials_without_progress(given, reason):
    stoppers, stopped = make_stoppers(**given)
    stoppers.record_segment_end(9)  # diverged in the first epoch
    for number, loss in enumerate([0.5, 0.3, 0.4, 0.35]):
        stoppers.record_segment_start(number)
        stoppers.record_report(number, {"loss": loss})
        assert stopped == []
        stoppers.record_segment_end(number)
    stoppers.check_gpu_hours()
    assert stopped == ([reason] if reason else [])


def test_five_equal_failures_stop_the_search():
    """Also while the first trial of all still waits for its workers."""
    stoppers, stopped = make_stoppers(trials=100)
    stoppers.record_segment_start(0)
    for number in range(1, 6):
        assert stopped == []
        stoppers.record_segment_start(number)
        stoppers.record_failure(
            number, f"RuntimeError: {number} is broken", f", at task.py, line 7, in {'abcde'[-number]}"
        )
    assert stopped == [
        "the first 5 trials failed with the same error: RuntimeError: 5 is broken, at task.py, line 7, in a"
    ]


@pytest.mark.parametrize("ending", ["a report", "a divergence"])
def test_trial_that_trained_allows_equal_failures(ending):
    stoppers, stopped = make_stoppers(trials=100)
    if ending == "a report":
        stoppers.record_report(0, {"loss": 1.0})
    else:
        stoppers.record_segment_end(0)
    for number in range(1, 9):
        stoppers.record_failure(number, "RuntimeError: it is broken")
    assert stopped == []


@pytest.mark.parametrize("gpus", [0.5, 8.0])
def test_spent_gpu_hours_stop_the_search(gpus):
    clock = Clock()
    stoppers, stopped = make_stoppers(gpu_hours=2.0, gpus=gpus)
    stoppers.meter = GpuTimeMeter(gpus, clock)
    stoppers.meter.restore(7, HOUR)
    stoppers.record_segment_start(0)
    clock.now += HOUR / gpus - 10
    stoppers.record_segment_start(1)
    clock.now += 4
    assert [stoppers.meter.get_gpu_seconds(n) for n in (1, 7)] == [4 * gpus, HOUR]
    stoppers.check_gpu_hours()
    assert stopped == []
    clock.now += 1  # and they have held exactly as much
    stoppers.check_gpu_hours()
    assert stopped == ["2 GPU-hours"]


def test_part_of_the_gpu_hours_is_kept_for_confirming_runs():
    clock, over = Clock(), []
    stoppers, stopped = make_stoppers(gpu_hours=1.0, reserve=0.25, end_search=over.append)
    stoppers.meter = GpuTimeMeter(1.0, clock)
    stoppers.record_segment_start(0)
    for minutes, ended, stops in ((40, [], []), (5, ["1 GPU-hours"], []), (15, ["1 GPU-hours"], ["1 GPU-hours"])):
        clock.now += 60 * minutes
        stoppers.check_gpu_hours()
        assert (over, stopped) == (ended, stops)


@pytest.fixture(params=[(), (Objective("speed", "max"),)], ids=["one objective", "two objectives"])
def earlier(tmp_path, request):
    """Four trials as the study has them: the second one reported the best, then the others went on."""
    study, lock = create_study(tmp_path, always_random, [VAL_LOSS, *request.param])
    for number in range(4):
        study.ask(SPACE)
        study.record_config(number, {})
    for at, (number, epoch, loss) in enumerate([(0, 1, 0.5), (1, 1, 0.2), (0, 2, 0.4), (2, 1, 0.3)]):
        report = {"metrics": {"val/loss": loss, "speed": 1.0}, "checkpoint": None}
        study.report(number, epoch, loss, {**report, "time": float(at), "held_gpu_s": 10.0 * epoch})
    study.record_segment(0, {"began": 0.0, "ended": 1.0, "held_gpu_s": 25.0})
    study.end(0, "completed")
    study.end(3, "diverged", "val/loss is nan after epoch 1")
    yield study.get_trials()
    lock.close()


def at_a_rung(*numbers):
    return lambda trial: trial.number in numbers


def test_resumed_search_knows_the_gpu_time_of_its_trials(earlier):
    stopped = []
    budget = Stoppers(VAL_LOSS, gpus=8)
    budget.restore(earlier, at_a_rung())
    assert [budget.meter.get_gpu_seconds(number) for number in range(3)] == [25.0, 10.0, 10.0]
    assert budget.meter.total == 45, "whatever its gangs hold now"
    Stoppers(VAL_LOSS, gpu_hours=45 / HOUR, stop=stopped.append).restore(earlier, at_a_rung())
    assert stopped == ["0.0125 GPU-hours"], "before a trial begins"


@pytest.mark.parametrize(
    ("waiting", "patience", "reached"), [((2,), 3, True), ((2,), 4, False), ((), 2, True), ((), 3, False)]
)
def test_resumed_search_knows_the_age_of_its_best(earlier, waiting, patience, reached):
    stopped = []
    Stoppers(VAL_LOSS, patience=patience, stop=stopped.append).restore(earlier, at_a_rung(*waiting))
    assert stopped == ([f"no better val/loss in {patience} trials"] if reached else [])


def test_resumed_search_knows_that_its_target_was_met(earlier):
    stopped = []
    budget = Stoppers(VAL_LOSS, target=StopCondition.from_text("val/loss<0.25"), stop=stopped.append)
    budget.restore(earlier, at_a_rung())
    assert budget.winners == {1}
    assert stopped == ["val/loss<0.25 in trial 1"]
