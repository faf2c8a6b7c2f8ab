"""Measure what an epoch takes of its machine."""

import multiprocessing
import os
import threading
import time
from types import SimpleNamespace

import pynvml
import pytest
import torch

from searchlight.trainables.isolation.resource_leaks import allocate_workspaces, release_free_memory
from searchlight.trainables.training import resource_usage
from searchlight.trainables.training.resource_usage import (
    CLEAR,
    CPU,
    GPU,
    GPU_MEMORY,
    MEMORY,
    ResourceUsage,
    aggregate_usage,
    limit_gpu_memory,
    measure_usable_memory,
)
from tests.trainables.training.trials import FakeClock

on_linux = pytest.mark.skipif(not CLEAR.exists(), reason="the system does not tell the peak of a process")


@pytest.fixture(autouse=True)
def no_others(monkeypatch):
    """Leaves out the processes of other tests, which may go on."""
    others = multiprocessing.active_children()

    def find_own():
        return [child for child in multiprocessing.active_children() if child not in others]

    monkeypatch.setattr(resource_usage, "multiprocessing", SimpleNamespace(active_children=find_own))


@on_linux
def test_memory_is_the_peak_since_the_beginning():
    usage = ResourceUsage(torch.device("cpu"))
    before = usage.measure()[MEMORY]
    block = torch.ones(2**26, device="cpu")  # 256 MiB
    del block
    assert usage.measure()[MEMORY] > before + 0.2
    usage.begin()
    assert usage.measure()[MEMORY] < before + 0.1


def spend_in_process(seconds, spent, end):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    spent.set()
    end.wait(30)


def test_cpu_includes_the_processes_that_were_started(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(
        resource_usage, "time", SimpleNamespace(perf_counter=clock.perf_counter, process_time=lambda: 0.0)
    )
    usage = ResourceUsage(torch.device("cpu"))
    before = usage.measure()[CPU]
    fork = multiprocessing.get_context("fork")
    spent, end = fork.Event(), fork.Event()
    child = fork.Process(target=spend_in_process, args=(0.1, spent, end))
    child.start()
    assert spent.wait(30)
    clock.sleep(10.0)
    while_it_runs = usage.measure()[CPU]
    end.set()
    child.join(30)
    assert before == 0.0
    assert while_it_runs >= 100 * 0.08 / 10  # the system counts in ticks of 10 ms
    assert usage.measure()[CPU] >= while_it_runs
    usage.begin()
    clock.sleep(1.0)
    assert usage.measure()[CPU] == 0.0


def test_process_that_has_ended_before_counts_for_no_epoch(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(
        resource_usage, "time", SimpleNamespace(perf_counter=clock.perf_counter, process_time=lambda: 0.0)
    )
    fork = multiprocessing.get_context("fork")
    spent, end = fork.Event(), fork.Event()
    end.set()
    child = fork.Process(target=spend_in_process, args=(0.1, spent, end))
    child.start()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # as if nobody had waited for it
    usage = ResourceUsage(torch.device("cpu"))
    clock.sleep(1.0)
    assert usage.measure()[CPU] == 0.0


def test_memory_peak_that_cannot_be_reset_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(resource_usage, "CLEAR", tmp_path)  # a folder: it cannot be written to
    assert {*ResourceUsage(torch.device("cpu")).measure()} == {CPU}


def test_gpu_utilization_that_is_unknown_is_left_out(monkeypatch):
    def refuse(device):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)  # as a slice of a GPU does

    monkeypatch.setattr(torch.cuda, "utilization", refuse)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 2**30)
    metrics = ResourceUsage(torch.device("cuda", 0)).measure()
    assert metrics[GPU_MEMORY] == 1.0
    assert GPU not in metrics


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_memory_is_that_of_its_tensors():
    device = torch.device("cuda", 0)
    torch.cuda.init()  # as a worker has done
    usage = ResourceUsage(device)
    before = usage.measure()[GPU_MEMORY]
    block = torch.ones(2**26, device=device)
    del block
    assert usage.measure()[GPU_MEMORY] == pytest.approx(before + 0.25, abs=0.01)
    assert 0 <= usage.measure()[GPU] <= 100


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_that_a_trial_freed_is_released_from_under_a_workspace_of_cublas():
    """A thread that first multiplies, as backward does, gets its workspace in the block that was freed."""
    device = torch.device("cuda", 0)
    release_free_memory()
    before = torch.cuda.memory_reserved()
    block = torch.empty(2**30, dtype=torch.uint8, device=device)
    del block
    square = torch.ones(64, 64, device=device)
    thread = threading.Thread(target=lambda: square @ square)
    thread.start()
    thread.join()
    release_free_memory()
    assert torch.cuda.memory_reserved() < before + 2**29


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_block_that_is_freed_between_updates_fits_in_its_place_again():
    device = torch.device("cuda", 0)
    release_free_memory()
    allocate_workspaces(device)
    before = torch.cuda.memory_reserved()
    weight = torch.ones(64, 64, device=device, requires_grad=True)
    for _ in range(3):
        block = torch.empty(2**30, dtype=torch.uint8, device=device)
        del block
        (weight @ weight).sum().backward()
    assert torch.cuda.memory_reserved() < before + 2**30 + 2**28


def test_ranks_add_up_cpu_and_take_the_largest_memory():
    ranks = [
        {CPU: 150.0, MEMORY: 2.0, GPU: 90.0, GPU_MEMORY: 5.0},
        {CPU: 50.0, MEMORY: 3.0, GPU: 70.0, GPU_MEMORY: 4.0},
    ]
    assert aggregate_usage(ranks) == {CPU: 200.0, MEMORY: 3.0, GPU: 80.0, GPU_MEMORY: 5.0}
    assert aggregate_usage([{CPU: 1.0}, {CPU: 2.0, MEMORY: 1.0}]) == {CPU: 3.0, MEMORY: 1.0}


GPU_BYTES = 80 * 2**30


@pytest.mark.parametrize(
    ("gpus", "free", "usable"),
    [
        (1.0, GPU_BYTES - 2**30, 0.9 * GPU_BYTES),  # the GiB that is not free is reserved by this process
        (1.0, GPU_BYTES / 2, 0.9 * (GPU_BYTES / 2 + 2**30)),  # others have the rest
        (0.5, GPU_BYTES - 2**30, 0.45 * GPU_BYTES),
        (0.25, GPU_BYTES / 8, 0.9 * (GPU_BYTES / 8 + 2**30)),
        (2.0, GPU_BYTES - 2**30, 0.9 * GPU_BYTES),
    ],
)
def test_part_of_a_gpu_limits_its_memory_with_a_margin(monkeypatch, gpus, free, usable):
    limits = {"cuda:0": 1.0}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, GPU_BYTES))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2**30)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: limits.update({str(device): share})
    )
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: limits[str(device)])
    device = torch.device("cuda", 0)
    limit_gpu_memory(device, gpus)
    assert measure_usable_memory(device) == pytest.approx(usable, abs=1)


def test_process_without_a_gpu_is_not_limited(monkeypatch):
    monkeypatch.delattr(torch.cuda, "set_per_process_memory_fraction")
    limit_gpu_memory(torch.device("cpu"), 0.5)
