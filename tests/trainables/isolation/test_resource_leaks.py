"""What a trial leaves in its process, and nobody can take back, wears the process out."""

import gc
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from tests.trainables.toy_models import Regression
from trainables.context import Context
from trainables.worker import worker as worker_module
from trainables.worker.messages import EpochReport, SegmentAssignment, SegmentEnd, WorkerSettings
from trainables.worker.worker import TrialRunner

HERE = "tests.trainables.isolation.test_resource_leaks"
MIB = 2**20
LEFT: list[Any] = []  # as a library's own list would hold on to it
ENDED = threading.Event()


def leave_thread() -> None:
    threading.Thread(target=ENDED.wait, args=(30,), name="prefetch", daemon=True).start()


def leave_file() -> None:
    LEFT.append(open(__file__))  # noqa: SIM115


def leave_socket() -> None:
    LEFT.append(socket.create_server(("127.0.0.1", 0)))


def leave_process() -> None:
    LEFT.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))


def make_group() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def leave_memory() -> None:
    LEFT.append(torch.ones(16 * MIB))  # 64 MiB


def end_late() -> None:
    threading.Thread(target=time.sleep, args=(0.1,), name="late").start()


def leave_pool() -> None:
    ThreadPoolExecutor(2).submit(time.sleep, 0.01)


def leave_file_to_the_collector() -> None:
    both: list[Any] = [open(__file__)]  # noqa: SIM115
    both.append(both)


LEAVES: dict[str, tuple[Callable[[], None], str]] = {
    "a thread": (leave_thread, "the trial left 1 thread running: prefetch"),
    "two threads": (lambda: (leave_thread(), leave_thread()), "the trial left 2 threads running: prefetch, prefetch"),
    "a file": (leave_file, f"the trial left 1 file open: {os.path.realpath(__file__)}"),
    "a socket": (leave_socket, "the trial left 1 socket open: ('127.0.0.1', "),
    "a process": (leave_process, f"the trial left 1 process running: {sys.executable} -c import time"),
    "a process group": (make_group, "the trial left 1 process group: 1 ranks"),
}
ENDS: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "a thread that ends soon": end_late,
    "a pool of threads that nobody holds": leave_pool,
    "a file that nobody holds": leave_file_to_the_collector,
    "a process that has ended": lambda: LEFT.append(subprocess.Popen([sys.executable, "-c", ""])),
}


class Leaving(Regression):
    """Leaves behind what its `fault` names."""

    def build(self) -> None:
        super().build()
        if self.config.fault in LEAVES:
            LEAVES[self.config.fault][0]()
        if self.config.fault in ENDS:
            ENDS[self.config.fault]()
        if self.config.fault == "memory":
            leave_memory()
        if self.config.fault == "cache":
            self.context.cache("ones", lambda: torch.ones(32 * MIB))
        if self.config.fault == "no group":
            dist.destroy_process_group()


class Loaded(Regression):
    """Its batches come from a process that a data loader keeps."""

    def build(self) -> None:
        super().build()
        data = TensorDataset(self.inputs, self.targets)
        self.loader = DataLoader(data, batch_size=4, num_workers=1, persistent_workers=True)
        self.own = self  # a cycle: only the collector finds it

    def train_batches(self, epoch):
        yield from self.loader


@pytest.fixture(autouse=True)
def _nothing_is_left_of_these_tests():
    ENDED.clear()
    yield
    ENDED.set()
    for left in LEFT:
        if isinstance(left, subprocess.Popen):
            left.kill()
            left.wait(10)
        elif not isinstance(left, torch.Tensor):
            left.close()
    LEFT.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.unfreeze()


@pytest.fixture
def run(tmp_path):
    """Runs a trial of one epoch; its last report."""

    def run(worker: TrialRunner, trial: int = 0, until: int = 1, **config: Any) -> EpochReport | SegmentEnd:
        folder = str(tmp_path / f"trial-{trial}")
        return list(worker.run(SegmentAssignment(trial, {"epochs": 1, **config}, 0, until, folder, "a")))[-1]

    return run


def workers(task: str = "Leaving", **limits: Any) -> TrialRunner:
    return TrialRunner(WorkerSettings(f"{HERE}:{task}", **limits), Context(), threading.Event())


@pytest.mark.parametrize("left", LEAVES)
def test_what_a_trial_left_running_or_open_wears_the_process(run, left):
    worker = workers()
    report = run(worker, fault=left)
    assert not isinstance(report, SegmentEnd)
    assert worker.recycle_reason.startswith(LEAVES[left][1])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("ends", ENDS)
def test_what_ends_with_the_trial_or_soon_after_does_not(run, ends):
    worker = workers()
    report = run(worker, fault=ends)
    assert worker.recycle_reason == ""
    assert not report.notes


def test_the_process_of_a_data_loader_ends_with_its_trial(run):
    worker = workers("Loaded")
    others = set(multiprocessing.active_children())
    start = time.monotonic()
    for trial in range(2):
        assert run(worker, trial, epochs=1).epoch == 1
        assert worker.recycle_reason == ""
    assert time.monotonic() - start < 5, "the collector waited for them"
    assert set(multiprocessing.active_children()) == others


def test_a_trial_that_failed_holds_on_to_nothing(run):
    """Its error knows every frame that it came through."""
    worker = workers("Loaded")
    report = run(worker, fault="raises in evaluate")
    assert report.outcome == "failed"
    assert worker.recycle_reason == ""


def test_a_trial_that_destroys_the_process_group_wears_the_process(run):
    make_group()
    worker = workers()
    run(worker, fault="no group")
    assert worker.recycle_reason == "the trial destroyed the process group"


def test_the_first_reason_stays(run):
    worker = workers(recycle_after=2)
    run(worker, 0, fault="a thread")
    reason = worker.recycle_reason
    assert not run(worker, 1).notes
    assert worker.recycle_reason == reason


def test_a_process_is_worn_after_so_many_trials(run):
    worker = workers(recycle_after=3)
    reports = []
    for trial in range(3):
        assert worker.recycle_reason == ""
        reports.append(run(worker, trial))
    assert worker.recycle_reason == "3 trials"
    assert not any(report.notes for report in reports)  # the gang says it, of the trial that begins in new workers


def test_a_trial_that_can_go_on_is_no_end_of_one(run):
    worker = workers(recycle_after=1)
    run(worker, 0, epochs=2, fault="a thread")
    assert (worker.recycle_reason, worker.held) == ("", (0, 1))
    worker.drop_trial_unless_continued(SegmentAssignment(0, {}, 1, 2, "", "a"))
    assert (worker.recycle_reason, worker.held) == ("", (0, 1))
    worker.drop_trial_unless_continued(SegmentAssignment(1, {}, 0, 1, "", "a"))
    assert worker.held is None
    assert worker.recycle_reason == LEAVES["a thread"][1]


def test_growth_above_the_limit_wears_the_process(run, monkeypatch):
    monkeypatch.setattr(worker_module, "MEMORY_GROWTH_GIB", 0.1)
    worker = workers()
    worn = []
    for trial in range(4):
        run(worker, trial, fault="memory")
        worn.append(worker.recycle_reason)
    assert worn == ["", "", "memory grew by 0.1 GiB over 3 trials", worn[2]]


def test_growth_below_the_limit_does_not(run, monkeypatch):
    monkeypatch.setattr(worker_module, "MEMORY_GROWTH_GIB", 0.1)
    worker = workers()
    for trial in range(6):
        run(worker, trial)
    assert worker.recycle_reason == ""


def test_what_the_cache_keeps_is_no_growth(run, monkeypatch):
    monkeypatch.setattr(worker_module, "MEMORY_GROWTH_GIB", 0.1)
    worker = workers()
    run(worker, 0)
    run(worker, 1, fault="cache")  # 128 MiB
    assert worker.context.cache_store.get_size("cpu") >= 128 * MIB
    assert worker.recycle_reason == ""
