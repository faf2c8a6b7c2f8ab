import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchlight.trainables.command.collector import Measurement, Report, ReportCollector

VALUES = st.floats(-1e6, 1e6)
STEPS = st.lists(st.integers(0, 10_000), min_size=1, unique=True).map(sorted)


def collect(collector, *measurements, source="TensorBoard"):
    """Return all reports of (step, metrics)."""
    reports = []
    for step, metrics in measurements:
        reports += collector.add(Measurement(source, step, metrics))
    return reports + collector.finish()


@given(st.lists(VALUES))
def test_every_value_without_a_step_is_a_report(values):
    reports = collect(ReportCollector(["loss"]), *((None, {"loss": value}) for value in values))
    assert reports == [Report(None, {"loss": value}) for value in values]


@given(STEPS, st.data())
def test_objectives_of_a_step_are_one_report_in_any_order(steps, data):
    measurements = []
    for step in steps:
        pair = [(step, {"loss": step * 2.0}), (step, {"accuracy": step / 2})]
        measurements += data.draw(st.permutations(pair))
    reports = collect(ReportCollector(["loss", "accuracy"]), *measurements)
    assert reports == [Report(step, {"loss": step * 2.0, "accuracy": step / 2}) for step in steps]


def test_objective_without_the_other_one_is_no_report():
    collector = ReportCollector(["loss", "accuracy"])
    assert collect(collector, (1, {"loss": 0.5}), (2, {"loss": 0.4})) == []
    assert collector.missing == ["accuracy"]
    assert collect(collector, (2, {"accuracy": 0.9})) == [Report(2, {"loss": 0.4, "accuracy": 0.9})]
    assert collector.missing == []


def test_other_metrics_come_with_the_next_report():
    reports = collect(
        ReportCollector(["loss"]),
        (1, {"lr": 0.1, "norm": 3.0}),
        (2, {"lr": 0.2}),
        (2, {"loss": 0.5}),
        (2, {"norm": 4.0}),
        (3, {"loss": 0.4}),
    )
    assert reports == [Report(2, {"loss": 0.5, "lr": 0.2, "norm": 3.0}), Report(3, {"loss": 0.4, "norm": 4.0})]


def test_step_that_comes_again_replaces_its_report():
    # As Hugging Face's Trainer does: an evaluation after the training, at the last step.
    reports = collect(ReportCollector(["loss"]), (10, {"loss": 0.5}), (20, {"loss": 0.4}), (20, {"loss": 0.3}))
    assert reports == [Report(10, {"loss": 0.5}), Report(20, {"loss": 0.4}), Report(20, {"loss": 0.3}, replaces=True)]


def test_one_objective_that_comes_again_keeps_the_others_of_its_step():
    reports = collect(ReportCollector(["loss", "accuracy"]), (1, {"loss": 0.5, "accuracy": 0.7}), (1, {"loss": 0.4}))
    assert reports[1:] == [Report(1, {"loss": 0.4, "accuracy": 0.7}, replaces=True)]


@pytest.mark.parametrize("value", [0.5, math.nan])
def test_equal_value_of_the_same_step_is_no_report(value):
    assert len(collect(ReportCollector(["loss"]), (1, {"loss": value}), (1, {"loss": value}))) == 1


def test_diverged_objective_is_reported():
    (report,) = collect(ReportCollector(["loss"]), (1, {"loss": math.nan}))
    assert math.isnan(report.metrics["loss"])


def test_only_the_first_source_of_a_metric_counts():
    # Loggers of a trainer get the values that the trainer itself gives, often with another count of steps.
    collector = ReportCollector(["loss"])
    collector.add(Measurement("Lightning", 100, {"loss": 0.5}))
    assert collector.add(Measurement("TensorBoard", 99, {"loss": 0.5})) == []
    assert collector.seen == {"loss": (1, "Lightning", 0.5)}


def test_named_source_of_a_metric_is_the_only_one():
    collector = ReportCollector(["loss"], sources={"loss": "output"})
    assert collector.add(Measurement("TensorBoard", 1, {"loss": 0.5})) == []
    assert collector.add(Measurement("output", None, {"loss": 0.6})) == [Report(None, {"loss": 0.6})]


def test_every_metric_seen_is_counted_with_its_last_value():
    collector = ReportCollector(["loss"])
    collect(collector, (1, {"reward": 1.0}), (2, {"reward": 2.0, "loss": 0.5}))
    assert collector.seen == {"reward": (2, "TensorBoard", 2.0), "loss": (1, "TensorBoard", 0.5)}


@pytest.mark.parametrize("step", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("every", [None, 10])
def test_step_that_is_no_finite_number_counts_as_none(step, every):
    reports = collect(ReportCollector(["loss"], every), (step, {"loss": 0.5}), (step, {"loss": 0.5}))
    assert [report.metrics for report in reports] == ([{"loss": 0.5}] if every else [{"loss": 0.5}] * 2)


@given(STEPS, st.integers(1, 2000), st.data())
def test_windows_have_the_means_of_their_steps(steps, every, data):
    values = data.draw(st.lists(VALUES, min_size=len(steps), max_size=len(steps)))
    reports = collect(
        ReportCollector(["return"], every),
        *((step, {"return": value}) for step, value in zip(steps, values, strict=True)),
    )
    expected = {}
    for step, value in zip(steps, values, strict=True):
        end = every * max(-(-step // every), 1)  # the windows are (0, every], (every, 2 * every]
        expected.setdefault(end, []).append(value)
    assert [report.step for report in reports] == [*expected]
    assert [report.metrics["return"] for report in reports] == pytest.approx([fmean(v) for v in expected.values()])


def test_window_is_reported_as_soon_as_the_next_one_begins():
    collector = ReportCollector(["return"], 100)
    assert [collector.add(Measurement("", step, {"return": step})) for step in (40, 100, 101)] == [
        [],
        [],
        [Report(100, {"return": 70})],
    ]
    assert collector.finish() == [Report(200, {"return": 101})]


def test_value_of_a_window_that_is_reported_changes_nothing():
    reports = collect(
        ReportCollector(["return"], 10), (5, {"return": 1.0}), (15, {"return": 2.0}), (6, {"return": 9.0})
    )
    assert reports == [Report(10, {"return": 1.0}), Report(20, {"return": 2.0})]


def test_values_without_a_step_are_steps_of_their_own():
    reports = collect(ReportCollector(["return"], 2), *((None, {"return": value}) for value in (1.0, 3.0, 5.0)))
    assert reports == [Report(2, {"return": 2.0}), Report(4, {"return": 5.0})]


def test_window_without_one_of_the_objectives_is_left_out():
    reports = collect(
        ReportCollector(["return", "length"], 10),
        (5, {"return": 1.0}),
        (15, {"return": 2.0, "length": 20.0}),
        (25, {"return": 3.0, "length": 30.0}),
    )
    assert reports == [Report(20, {"return": 2.0, "length": 20.0}), Report(30, {"return": 3.0, "length": 30.0})]
