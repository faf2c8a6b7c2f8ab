"""Check tasks on a simulated GPU: what CUDA would refuse is found with its line, and nothing else."""

import re
import time

import pytest
import torch

from searchlight.trainables.context import Context
from searchlight.trainables.preflight.audit import Audit
from searchlight.trainables.preflight.messages import AuditRequest
from searchlight.trainables.preflight.shadow_device.check import find_gpu_problems
from tests.trainables.preflight.faulty_tasks import Small
from tests.trainables.preflight.healthy_tasks import HEALTHY
from tests.trainables.preflight.shadow_device.gpu_faults import FAULTS
from tests.trainables.preflight.shadow_device.gpu_ready import READY


def check(task, severity=None):
    return find_gpu_problems(lambda: task, task.config_class()(), Context(), severity)


@pytest.mark.parametrize(("message", "function", "task"), FAULTS, ids=[task.__name__ for *_, task in FAULTS])
def test_task_that_fails_on_a_gpu_is_found_with_its_line(message, function, task):
    (found,) = (finding for finding in check(task) if finding.name != "waits-for-gpu")
    assert (found.name, found.severity) == ("wrong-device", "warning"), str(found)
    assert re.search(message, found.figure), str(found)
    assert found.subject.endswith(f"in {function}" if function else ""), str(found)


@pytest.mark.parametrize("task", [*READY, *HEALTHY], ids=lambda task: task.__name__)
def test_task_that_runs_on_a_gpu_has_at_most_waits(task):
    start = time.process_time()
    assert [str(finding) for finding in check(task) if finding.name != "waits-for-gpu"] == []
    assert time.process_time() - start < 5.0


class WaitsTwice(Small):
    def loss(self, batch):
        loss, weight = super().loss(batch)
        self.shown = loss.item()
        chosen = batch[0][batch[0][:, 0] > 9]
        return loss + chosen.sum(), weight


def test_waits_are_told_with_line_and_count_per_window():
    found = [finding for finding in check(WaitsTwice) if finding.name == "waits-for-gpu"]
    line = WaitsTwice.loss.__code__.co_firstlineno
    assert {(finding.subject, finding.figure) for finding in found} == {
        (f"test_check.py, line {line + 2}, in loss", "item(), float(), bool() or an if: 2 times per window"),
        (f"test_check.py, line {line + 3}, in loss", "a boolean mask as an index: 2 times per window"),
    }  # each window has two micro-batches
    assert {finding.severity for finding in found} == {"note"}


class AsksForAFile(Small):
    def build(self):
        raise FileNotFoundError(2, "No such file", "data.csv")


class Compiles(Small):
    def make_model(self):
        return torch.compile(super().make_model())


class CannotBeSaved(Small):
    def state_dict(self):
        return {"handle": object()}


class NeedsNccl(Small):
    def build(self):
        super().build()
        if self.context.device.type == "cuda":
            raise ValueError("no NCCL")


@pytest.mark.parametrize(
    ("task", "kind", "figure"),
    [
        (AsksForAFile, "build-fails", "No such file"),
        (Compiles, "not-audited", "torch.compile"),
        (CannotBeSaved, "training-fails", "but got task/handle (object)"),
        (NeedsNccl, "not-audited", "ValueError: no NCCL"),
    ],
)
def test_what_the_simulation_cannot_judge_is_no_wrong_device(task, kind, figure):
    (found,) = check(task)
    assert found.name == kind
    assert figure in found.figure


def test_check_takes_only_the_gpu_of_a_search_for_an_error():
    task = FAULTS[0][-1]
    for wants_gpu, severity in ((True, "error"), (False, "warning")):
        request = AuditRequest(task.config_class()().model_dump(mode="json"), wants_gpu=wants_gpu, is_gpu_only=True)
        (found,) = Audit(lambda: task, request, Context()).run().findings
        assert (found.name, found.severity) == ("wrong-device", severity)


def test_whole_audit_without_a_gpu_has_the_check():
    task = FAULTS[0][-1]
    request = AuditRequest(task.config_class()().model_dump(mode="json"), limit_s=60.0)
    audit = Audit(lambda: task, request, Context()).run()
    assert "wrong-device" in {finding.name for finding in audit.findings}
    assert "gpu" in audit.seconds
