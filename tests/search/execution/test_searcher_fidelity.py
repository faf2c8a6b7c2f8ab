"""The searcher where trials are measured in samples or GPU-seconds, or have lengths of their own."""

import pytest

from searchlight.search.schedulers.asha import ASHAScheduler
from searchlight.search.study.trial import get_reports
from searchlight.trainables.worker.messages import SegmentBudget


def test_segment_carries_its_budget_beside_its_epochs(gangs):
    made = gangs(ASHAScheduler((20.0, 60.0), 3, "min", "samples"), precision="bf16", epochs=9)
    first = made.ask()
    assert (first[1].until, first[1].budget) == (9, SegmentBudget("samples", 0, 0.0, 20.0))
    for asked in (first, made.ask(), made.ask()):
        made.spend(asked)
    _, segment = made.ask()
    assert (segment.epoch, segment.checkpoints[0]) == (2, "/nowhere/2.pt")
    assert segment.budget == SegmentBudget("samples", 2, 20.0, 60.0)
    reports = get_reports(made.study.get_trial(0))
    assert [(report["samples"], report["gpu_seconds"]) for report in reports.values()] == [(10.0, 1.0)] * 2
    assert made.searcher.reports.spent == 60.0


@pytest.mark.parametrize(("limit", "epochs"), [(50.0, 5), (55.0, 6), (1e9, 9)])
def test_trial_is_completed_at_the_limit_or_its_last_epoch(gangs, limit, epochs):
    made = gangs(ASHAScheduler.without_stopping(limit, "min", "samples"), trials=1, precision="fp32", epochs=9)
    assert (made.run(), made.outcomes) == ([epochs], ["completed"])


def test_faster_precision_has_twice_the_epochs_at_each_rung(gangs):
    schedule = ASHAScheduler((4.0, 12.0), 3, "min", "gpu-seconds")
    made = gangs(schedule, trials=12, searched={"precision": "fp32,bf16"}, epochs=99)
    epochs = made.run()
    reached = set(zip([trial.params["precision"] for trial in made.study.get_trials()], epochs, strict=True))
    assert {("fp32", 2), ("bf16", 4)} <= reached <= {("fp32", 2), ("bf16", 4), ("fp32", 6), ("bf16", 12)}
    assert {outcome for outcome, last in zip(made.outcomes, epochs, strict=True) if last in (6, 12)} == {"completed"}


def test_samplers_compare_trials_at_the_same_rung(gangs):
    schedule = ASHAScheduler((4.0, 12.0), 3, "min", "gpu-seconds")
    made = gangs(schedule, 2, {"precision": "fp32,bf16"}, epochs=99, lr=0.5)
    for _ in range(2):
        made.spend(made.ask())
    shown = made.study._study.get_trials()
    assert [trial.intermediate_values for trial in made.study.get_trials()] != [t.intermediate_values for t in shown]
    assert [max(trial.intermediate_values) for trial in shown] == [1, 1]


def test_interrupted_trial_continues_to_its_rung_in_a_new_driver(gangs):
    made = gangs(ASHAScheduler((30.0, 60.0), 3, "min", "samples"), trials=1, precision="fp32", epochs=9)
    made.spend(made.ask(), most=2)
    made.begin("b")
    _, segment = asked = made.ask()
    assert (segment.epoch, segment.budget) == (2, SegmentBudget("samples", 2, 20.0, 30.0))
    made.spend(asked)
    assert made.ask()[1].budget == SegmentBudget("samples", 3, 30.0, 60.0)


def test_trial_whose_last_report_was_written_last_is_completed(gangs):
    made = gangs(ASHAScheduler((30.0,), 3, "min", "samples"), trials=1, precision="fp32", epochs=9)
    made.ask()
    for epoch in (1, 2, 3):
        report = {"metrics": {"val/loss": 0.5}, "checkpoint": None, "time": 0.0, "samples": 10.0, "gpu_seconds": 1.0}
        made.study.report(0, epoch, 0.5, report)
    made.begin("b")
    assert made.ask() is None
    assert made.outcomes == ["completed"]


def test_searched_length_is_that_of_each_trial(gangs):
    made = gangs(ASHAScheduler.without_stopping(9, "min"), trials=12, searched={"epochs": "2..9"}, precision="fp32")
    assert made.space.epochs == 9
    lengths = made.run()
    assert lengths == [trial.params["epochs"] for trial in made.study.get_trials()]
    assert len(set(lengths)) > 1
    assert set(made.outcomes) == {"completed"}
