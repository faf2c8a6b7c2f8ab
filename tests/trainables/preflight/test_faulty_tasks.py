"""Audit faulty tasks: each fault is found by its name."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from searchlight.trainables.context import Context
from searchlight.trainables.preflight import modes
from searchlight.trainables.preflight.audit import Audit
from searchlight.trainables.preflight.messages import AuditRequest, AuditResult
from tests.trainables.preflight import faulty_data, user_mistakes  # noqa: F401, which add their tasks to FAULTS
from tests.trainables.preflight.faulty_data import WithoutKernel
from tests.trainables.preflight.faulty_tasks import FAULTS, HalfBuilt, SmallConfig


def audit(task: type[Any], limit_s: float = 60.0, **request: Any) -> AuditResult:
    config = task.config_class()().model_dump(mode="json")
    corners = [(where, {**config, **values}) for where, values in request.pop("corners", [])]
    reference = f"{task.__module__}:{task.__name__}" if request.get("workers", 1) > 1 else ""
    return Audit(
        lambda: task, AuditRequest(config, corners, limit_s=limit_s, **request), Context(), reference=reference
    ).run()


def take_one_second(action: Any, device: Any = None) -> float:
    action()
    return 1.0


@pytest.mark.parametrize(("kind", "task", "request_"), FAULTS, ids=[task.__name__ for _, task, _ in FAULTS])
def test_faulty_task_is_found_by_name(kind, task, request_, monkeypatch):
    monkeypatch.setattr(modes, "measure_seconds", take_one_second)
    found = audit(task, **request_).findings
    assert kind in {finding.name for finding in found}, [str(finding) for finding in found]


def test_error_of_a_half_built_task_is_told_and_not_what_it_lacks():
    (finding,) = audit(HalfBuilt).findings
    assert (finding.name, finding.figure) == ("build-fails", "ValueError: Invalid learning rate: -1.0")
    assert finding.subject.endswith(f"faulty_tasks.py, line {HalfBuilt.build.__code__.co_firstlineno + 2}, in build")


def test_precision_that_a_cpu_lacks_is_an_error_if_the_task_has_no_other():
    for modes_, severity in ((["fp32", "bf16"], "warning"), (["bf16"], "error"), (["auto"], "error")):
        assert [f.severity for f in audit(WithoutKernel, modes=modes_).findings] == [severity]


def test_memory_without_values_is_no_overflow():
    products, x = modes.Products(), torch.ones(2, dtype=torch.bfloat16)
    torch.use_deterministic_algorithms(True)  # which fills such memory with NaN
    try:
        with products:
            for make in (torch.empty_like, lambda like: like.new_empty(2)):
                products.watch(make, x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not products.overflow


@pytest.mark.parametrize(("device", "seconds", "is_found"), [("cpu", 2, False), ("cpu", 4, True), ("cuda", 4, False)])
def test_slow_precision_on_a_cpu_is_no_gain_though_it_saves_memory(device, seconds, is_found):
    task = SimpleNamespace(config=SmallConfig(), context=SimpleNamespace(device=torch.device(device)))
    fp32 = modes.ModeReport("fp32", loss=1.0, seconds=1.0, saved_bytes=100, products=1.0)
    fp16 = replace(fp32, precision="fp16", seconds=seconds, saved_bytes=50)
    found = modes._judge_mode(fp16, fp32, modes.Products(), "fp16", SimpleNamespace(task=task))
    assert [finding.name for finding in found] == ["mode-without-gain"] * is_found
