"""What an epoch takes of its machine."""

import multiprocessing
import threading
import time

import pynvml
import pytest
import torch

from trainables.context import Context
from trainables.training import resource_usage
from trainables.training.resource_usage import CLEAR, CPU, GPU, GPU_MEMORY, MEMORY, ResourceUsage, aggregate_usage
from trainables.worker.messages import SegmentAssignment, WorkerSettings
from trainables.worker.worker import TrialRunner

on_linux = pytest.mark.skipif(not CLEAR.exists(), reason="the system does not tell the peak of a process")


def keep_busy(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


@on_linux
def test_memory_is_the_peak_of_what_came_since_the_beginning():
    usage = ResourceUsage(torch.device("cpu"))
    before = usage.measure()[MEMORY]
    block = torch.ones(2**26)  # 256 MiB
    del block
    assert usage.measure()[MEMORY] > before + 0.2
    usage.begin()
    assert usage.measure()[MEMORY] < before + 0.1


def test_the_cpu_is_that_of_the_process_and_of_those_that_it_started():
    usage = ResourceUsage(torch.device("cpu"))
    start = time.perf_counter()
    keep_busy(0.2)
    percent, most = usage.measure()[CPU], 100 * (time.process_time()) / (time.perf_counter() - start)
    assert 100 * 0.2 / (time.perf_counter() - start) <= percent <= most
    usage.begin()
    child = multiprocessing.get_context("fork").Process(target=keep_busy, args=(0.5,))
    child.start()
    time.sleep(0.4)
    while_it_runs = usage.measure()[CPU]
    child.join(30)
    assert while_it_runs > 10
    assert usage.measure()[CPU] > 0


def test_where_the_peak_of_a_process_cannot_be_set_back_it_is_not_told(tmp_path, monkeypatch):
    monkeypatch.setattr(resource_usage, "CLEAR", tmp_path)  # a folder: it cannot be written to
    assert {*ResourceUsage(torch.device("cpu")).measure()} == {CPU}


def test_a_gpu_that_does_not_tell_how_busy_it_is_fails_no_trial(monkeypatch):
    def refuse(device):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)  # as a slice of a GPU does

    monkeypatch.setattr(torch.cuda, "utilization", refuse)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 2**30)
    metrics = ResourceUsage(torch.device("cuda", 0)).measure()
    assert metrics[GPU_MEMORY] == 1.0
    assert GPU not in metrics


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_memory_is_what_tensors_took_there():
    device = torch.device("cuda", 0)
    usage = ResourceUsage(device)
    before = usage.measure()[GPU_MEMORY]
    block = torch.ones(2**26, device=device)
    del block
    assert usage.measure()[GPU_MEMORY] == pytest.approx(before + 0.25, abs=0.01)
    assert 0 <= usage.measure()[GPU] <= 100


def test_of_several_ranks_the_cpu_is_added_up_and_memory_is_that_of_the_largest():
    ranks = [
        {CPU: 150.0, MEMORY: 2.0, GPU: 90.0, GPU_MEMORY: 5.0},
        {CPU: 50.0, MEMORY: 3.0, GPU: 70.0, GPU_MEMORY: 4.0},
    ]
    assert aggregate_usage(ranks) == {CPU: 200.0, MEMORY: 3.0, GPU: 80.0, GPU_MEMORY: 5.0}
    assert aggregate_usage([{CPU: 1.0}, {CPU: 2.0, MEMORY: 1.0}]) == {CPU: 3.0, MEMORY: 1.0}


@on_linux
def test_each_report_of_a_trial_has_it(tmp_path):
    worker = TrialRunner(WorkerSettings("tests.trainables.toy_models:Regression"), Context(), threading.Event())
    reports = list(worker.run(SegmentAssignment(0, {"epochs": 2}, 0, 2, str(tmp_path), "a")))
    assert [report.epoch for report in reports] == [1, 2]
    for report in reports:
        assert 0.01 < report.metrics[MEMORY] < 64
        assert report.metrics[CPU] > 0
