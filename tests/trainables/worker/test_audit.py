"""Audit a task in the worker that runs the first trial of a search."""

from dataclasses import replace

from tests.trainables.worker.local_worker import CONFIG, TASK, metrics, straight, workers

FAULTY = "tests.trainables.preflight.faulty_tasks:FrozenPrompt"


def auditor(task=TASK, config=CONFIG):
    runner, audits = workers(task=task, audit={"config": config, "modes": ["fp32"], "is_quick": True}), []
    runner.is_auditor, runner.on_audit = True, audits.append
    return runner, audits


def test_trial_after_an_audit_is_bit_for_bit_that_without(stretch):
    runner, audits = auditor()
    assert metrics([*runner.run(stretch(until=2))]) == straight(2)
    assert [audit["has_errors"] for audit in audits] == [False]
    assert {*audits[0]["seconds"]} == {"flow", "exactness", "modes"}
    assert [*runner.run(stretch(trial=1, until=1))][-1].done
    assert len(audits) == 1


def test_trial_of_a_faulty_task_fails_with_the_first_finding(stretch):
    runner, audits = auditor(FAULTY, {})
    (end,) = runner.run(replace(stretch(until=1), config={}))
    assert (end.outcome, audits[0]["has_errors"]) == ("failed", True)
    assert "preflight found error module-under-no-grad: model.prompt: no gradient in" in end.reason


def test_audit_counts_as_progress_and_hears_of_a_stop(stretch):
    runner, audits = auditor()
    runner.stopping.set()
    assert [report.outcome for report in runner.run(stretch(until=1))] == ["interrupted"]
    assert runner.progress > 1
    assert audits
