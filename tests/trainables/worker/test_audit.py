"""Audit a task in the worker that runs the first trial of a search."""

import os
from dataclasses import asdict, replace

import pytest

from searchlight.trainables.context import Context
from searchlight.trainables.preflight import process
from searchlight.trainables.preflight.messages import AuditRequest
from tests.trainables.preflight.faulty_tasks import BrokenLoss, FrozenPrompt
from tests.trainables.preflight.test_faulty_tasks import audit
from tests.trainables.toy_models import Regression
from tests.trainables.worker.local_worker import CONFIG, TASK, metrics, straight, stretch_in, workers

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


def test_trial_of_a_faulty_task_is_interrupted_and_not_failed(stretch):
    runner, audits = auditor(FAULTY, {})
    (end,) = runner.run(replace(stretch(until=1), config={}))
    assert (end.outcome, audits[0]["has_errors"]) == ("interrupted", True)
    assert "preflight found error module-under-no-grad: model.prompt: no gradient in" in end.reason


def test_audit_that_breaks_off_is_told_so_that_nobody_waits_for_it(stretch):
    runner, audits = auditor("tests.not_there:Task")
    (end,) = runner.run(stretch(until=1))
    assert (end.outcome, audits) == ("failed", [None])


def test_audit_counts_as_progress_and_hears_of_a_stop(stretch):
    runner, audits = auditor()
    runner.stopping.set()
    assert [report.outcome for report in runner.run(stretch(until=1))] == ["interrupted"]
    assert runner.progress > 1
    assert audits
    runner.is_auditor, runner.migrate_reason = True, "node 10.0.0.3 is going away"
    assert [report.reason for report in runner.run(stretch(until=1))] == ["node 10.0.0.3 is going away"]
    assert len(audits) == 1, "other workers audit anew"


def test_audit_is_whole_although_its_first_trial_is_halted(stretch):
    runner, audits = auditor(FAULTY, {})
    runner.halted_turn = runner.turn
    (end,) = runner.run(replace(stretch(), config={}))
    assert (end.outcome, audits[0]["has_errors"]) == ("interrupted", True)
    assert "module-under-no-grad" in end.reason


def test_audit_in_a_worn_process_leaves_no_settings_behind(stretch, monkeypatch):
    build, seen = Regression.build, []

    def change_environment(task):
        seen.append(os.environ.get("OF_AN_AUDIT"))
        os.environ["OF_AN_AUDIT"] = "1"
        build(task)

    monkeypatch.setattr(Regression, "build", change_environment)
    runner, _ = auditor()
    runner.recycle_reason = "the audit left a thread behind"
    list(runner.run(stretch(until=1)))
    assert seen[-1] is None
    assert runner.recycle_reason == "the audit left a thread behind"


def run_audited_gang(rank, folder):
    """The audits that this rank told, and how its segment ended."""
    process.ONE_RANK_S = 300.0  # on a machine with other work to do
    request = asdict(AuditRequest(CONFIG, modes=["fp32"], workers=2, is_quick=True))
    runner, audits = workers(task="tests.trainables.toy_models:Collecting", rank=rank, world_size=2, audit=request), []
    runner.is_auditor, runner.on_audit = True, audits.append
    return audits, [report.done for report in runner.run(stretch_in(folder, until=1))]


def test_gang_whose_loss_has_collectives_is_audited_by_one_rank(pair, tmp_path):
    (audits, first), (none, second) = pair.run(run_audited_gang, tmp_path)
    assert not none
    assert first == second == [True]
    (audit,) = audits
    assert {*audit["seconds"]} == {"flow", "exactness", "modes"}, audit["findings"]
    assert not audit["has_errors"]


def test_rank_that_is_not_done_in_time_is_not_audited(monkeypatch):
    monkeypatch.setattr(process, "ONE_RANK_S", 0.0)
    found = process.audit_one_rank(TASK, {"config": CONFIG, "workers": 2}, Context(world_size=2), lambda: False)
    (finding,) = found["findings"]
    assert (finding["name"], finding["figure"]) == ("not-audited", "not ended within 0 s")


@pytest.mark.parametrize(
    ("task", "found"), [(BrokenLoss, ("not-audited", "note")), (FrozenPrompt, ("module-under-no-grad", "warning"))]
)
def test_what_one_rank_alone_finds_is_no_error(task, found):
    findings = audit(task, workers=2, is_quick=True).findings
    assert (findings[0].name, findings[0].severity) == found
