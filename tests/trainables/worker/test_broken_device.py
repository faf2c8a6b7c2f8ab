"""A kernel fails on the GPU of a worker: the trial is told, and no other trial gets that process."""

import pytest
import torch

from searchlight.trainables.isolation import resource_leaks
from searchlight.trainables.worker import segment_runner, trial_runner
from searchlight.trainables.worker.messages import Migration
from tests.trainables.toy_models import Regression
from tests.trainables.worker.local_worker import workers

ASSERT = "CUDA error: device-side assert triggered"


@pytest.fixture
def asserting(monkeypatch):
    """Let each loss raise what torch raises after a kernel's assert."""

    def loss(task, batch):
        raise torch.AcceleratorError(f"{ASSERT}\nCUDA kernel errors might be asynchronously reported")

    monkeypatch.setattr(Regression, "loss", loss)


@pytest.fixture
def broken(monkeypatch):
    """Let the GPU of this process fail in every call."""

    def fail(*_):
        raise torch.AcceleratorError(ASSERT)

    monkeypatch.setattr(segment_runner, "probe_device", lambda device: ASSERT)
    monkeypatch.setattr(resource_leaks, "is_cuda_in_use", lambda: True)
    for name in ("empty_cache", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, fail)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", fail, raising=False)
    monkeypatch.setattr(trial_runner.TrialTrainer, "close", fail)


def test_error_of_cuda_moves_its_trial_to_synchronous_workers(stretch, asserting):
    worker = workers()
    (report,) = worker.run(stretch())
    reason = f"AcceleratorError: {ASSERT}; it runs once more with CUDA_LAUNCH_BLOCKING=1, to find the line"
    assert report == Migration(reason, is_synchronous=True)
    assert worker.recycle_reason == "an error of CUDA ended the trial before"


@pytest.mark.parametrize("way", ["of the gang", "of the user"])
def test_error_of_cuda_fails_its_trial_if_synchronous(stretch, asserting, monkeypatch, way):
    if way == "of the user":
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    worker = workers(is_synchronous=way == "of the gang")
    (report,) = worker.run(stretch())
    assert (report.outcome, report.reason) == ("failed", f"AcceleratorError: {ASSERT}")
    assert "test_broken_device.py" in report.traceback
    assert worker.recycle_reason == "an error of CUDA ended the trial before"


def test_report_survives_a_device_on_which_every_call_fails(stretch, asserting, broken):
    worker = workers(is_synchronous=True)
    (report,) = worker.run(stretch())
    assert (report.outcome, report.reason) == ("failed", f"AcceleratorError: {ASSERT}")
    assert worker.training is None


def test_device_that_fails_after_a_trial_ends_the_worker(stretch, broken):
    worker = workers()
    reports = list(worker.run(stretch(until=4)))
    assert reports[-1].epoch == 4
    assert worker.recycle_reason == f"cpu fails in this process: {ASSERT}"


def test_free_memory_is_released_without_an_error_of_the_device(broken):
    resource_leaks.release_free_memory()


def test_synchronous_worker_is_replaced_after_its_trial(stretch):
    worker = workers(is_synchronous=True)
    list(worker.run(stretch(until=4)))
    assert worker.recycle_reason == "the trial before ran with CUDA_LAUNCH_BLOCKING=1"
