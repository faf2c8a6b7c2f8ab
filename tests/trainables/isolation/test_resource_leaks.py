"""Show that what a trial leaves in its process, and nobody can take back, recycles the process."""

import _thread
import gc
import io
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from searchlight.trainables.isolation import resource_leaks
from searchlight.trainables.isolation.resource_leaks import GIB, Memory, measure_gpu_memory
from searchlight.trainables.worker import segment_runner
from searchlight.trainables.worker.messages import SegmentAssignment, SegmentEnd
from tests.trainables.isolation.trials import run_in, worker_of
from tests.trainables.toy_models import Regression

HERE = "tests.trainables.isolation.test_resource_leaks"
MIB = 2**20
LEFT = ExitStack()
hold = LEFT.enter_context  # as a library's own list would
GRACE_BEGAN, ENDED = threading.Event(), threading.Event()


class GraceClock:
    """Passes time without waiting; threads named "late" end while it does."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        GRACE_BEGAN.set()
        for thread in threading.enumerate():
            if thread.name.startswith("late"):
                thread.join(30)


def start_thread(name: str, until: threading.Event) -> None:
    threading.Thread(target=until.wait, name=name, daemon=True).start()


def start_process(code: str) -> int:
    process = subprocess.Popen([sys.executable, "-c", code])
    LEFT.callback(process.wait)
    LEFT.callback(process.kill)
    return process.pid


def make_group() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def leave_file_to_the_collector() -> None:
    both: list[Any] = [io.FileIO(__file__)]
    both.append(both)


LOCAL = ("127.0.0.1", 0)
PAUSE = "import signal; signal.pause()"
leave_thread = partial(start_thread, "prefetch", ENDED)
LEAVES: dict[str, tuple[Callable[[], Any], str]] = {
    "a thread": (leave_thread, "the trial left 1 thread running: prefetch"),
    "two threads": (lambda: (leave_thread(), leave_thread()), "the trial left 2 threads running: prefetch, prefetch"),
    "a file": (lambda: hold(io.FileIO(__file__)), f"the trial left 1 file open: {os.path.realpath(__file__)}"),
    "a socket": (lambda: hold(socket.create_server(LOCAL)), "the trial left 1 socket open: ('127.0.0.1', "),
    "a process": (partial(start_process, PAUSE), f"the trial left 1 process running: {sys.executable} -c import"),
    "a process group": (make_group, "the trial left 1 process group: 1 ranks"),
}


def run_python_in_a_thread_of_c() -> None:
    """As backward does on a GPU, in whose thread logging asks for the current thread."""
    ended = threading.Event()
    _thread.start_new_thread(lambda: (threading.current_thread(), ended.set()), ())
    ended.wait()


ENDS: dict[str, Callable[[], Any]] = {
    "": lambda: None,
    "a thread that ends soon": partial(start_thread, "late", GRACE_BEGAN),
    "a thread of C++ that ran Python": run_python_in_a_thread_of_c,
    "a pool of threads that nobody holds": lambda: ThreadPoolExecutor(2, "late").submit(int),
    "a file that nobody holds": leave_file_to_the_collector,
    "a process that has ended": lambda: os.waitid(os.P_PID, start_process(""), os.WEXITED | os.WNOWAIT),
}
OTHERS = {"memory": lambda: LEFT.callback(torch.ones(16 * MIB).numel), "no group": dist.destroy_process_group}


class Leaving(Regression):
    """Leaves behind what its `fault` names."""

    def build(self) -> None:
        super().build()
        fault = self.config.fault
        if fault == "cache":
            self.context.cache("ones", lambda: torch.ones(32 * MIB))
        elif fault in LEAVES:
            LEAVES[fault][0]()
        elif fault:
            (ENDS | OTHERS)[fault]()


class Loaded(Regression):
    """Its batches come from a process that a data loader keeps."""

    def train_batches(self, epoch):
        self.own = self  # a cycle: only the collector finds it
        data = TensorDataset(self.inputs, self.targets)
        self.loader = DataLoader(data, batch_size=4, num_workers=1, persistent_workers=True)
        return self.loader


@pytest.fixture(autouse=True)
def _nothing_is_left_of_these_tests(monkeypatch):
    monkeypatch.setattr(resource_leaks, "time", GraceClock())
    GRACE_BEGAN.clear()
    ENDED.clear()
    yield
    ENDED.set()
    LEFT.close()
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.unfreeze()


@pytest.fixture
def run(tmp_path):
    """Runs a trial and returns its last report."""
    return lambda *arguments, **config: run_in(tmp_path, *arguments, **config)[-1]


leaving = partial(worker_of, f"{HERE}:Leaving")


@pytest.mark.parametrize("left", LEAVES)
def test_resource_left_running_or_open_recycles_process(run, left):
    worker = leaving()
    assert not isinstance(run(worker, fault=left), SegmentEnd)
    assert worker.recycle_reason.startswith(LEAVES[left][1])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("ends", ENDS)
def test_resource_that_ends_with_its_trial_is_no_leak(run, ends):
    worker = leaving()
    report = run(worker, fault=ends)
    assert worker.recycle_reason == ""
    assert not report.notes


def test_data_loader_ends_before_the_collector_runs(run, monkeypatch):
    """The collector would wait five seconds for its process."""
    worker, others, running = worker_of(f"{HERE}:Loaded"), set(multiprocessing.active_children()), []
    monkeypatch.setattr(worker._process, "restore", lambda: running.append(set(multiprocessing.active_children())))
    assert run(worker).epoch == 1
    assert running == [others]


def test_failed_trial_holds_on_to_nothing(run):
    """Its error knows every frame that it came through."""
    worker = worker_of(f"{HERE}:Loaded")
    assert run(worker, fault="raises in evaluate").outcome == "failed"
    assert worker.recycle_reason == ""


def test_destroyed_process_group_recycles_process(run):
    make_group()
    worker = leaving()
    run(worker, fault="no group")
    assert worker.recycle_reason == "the trial destroyed the process group"


def test_number_of_trials_recycles_process_and_stays_the_reason(run):
    worker = leaving(recycle_after=3)
    for trial in range(3):
        assert worker.recycle_reason == ""
        assert not run(worker, trial).notes  # the gang says it, of the trial that begins in new workers
    assert worker.recycle_reason == "3 trials"
    run(worker, 3, fault="a thread")
    assert worker.recycle_reason == "3 trials"


def test_trial_that_can_continue_is_not_released(run):
    worker = leaving(recycle_after=1)
    run(worker, 0, epochs=2, fault="a thread")
    assert (worker.recycle_reason, worker.held) == ("", (0, 1))
    worker.drop_trial_unless_continued(SegmentAssignment(0, {}, 1, 2, "", "a"))
    assert (worker.recycle_reason, worker.held) == ("", (0, 1))
    worker.drop_trial_unless_continued(SegmentAssignment(1, {}, 0, 1, "", "a"))
    assert worker.held is None
    assert worker.recycle_reason == LEAVES["a thread"][1]


@pytest.mark.parametrize(
    ("fault", "reason"), [("memory", "memory grew by 0.1 GiB over 3 trials"), ("cache", "")], ids=["kept", "cached"]
)
def test_memory_growth_beyond_the_cache_recycles_process(run, monkeypatch, fault, reason):
    monkeypatch.setattr(segment_runner, "MEMORY_GROWTH_GIB", 0.1)
    worker = leaving()
    reasons = []
    for trial, leaves in enumerate(["memory", fault, fault]):  # 64 MiB, or 128 MiB once
        run(worker, trial, fault=leaves)
        reasons.append(worker.recycle_reason)
    assert reasons == ["", "", reason]


class Gpu:
    """What torch and NVML say of a GPU on which loaded kernels grow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used: int | None = 0
        self.processes = [SimpleNamespace(pid=1, usedGpuMemory=64 * GIB)]
        monkeypatch.setattr(resource_leaks, "is_cuda_in_use", lambda: True)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: SimpleNamespace(uuid="1-2"))
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", self.find)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: self.processes)

    def find(self, uuid: str) -> str:
        if self.used is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)  # as of a slice
        assert uuid == "GPU-1-2"
        return uuid

    def grow_to(self, size: int | None) -> None:
        self.used = size
        self.processes[1:] = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=size)]


def test_gpu_memory_that_torch_does_not_count_recycles_process(monkeypatch):
    gpu, memory = Gpu(monkeypatch), Memory(1.0)
    said = []
    for trials, size in enumerate([2 * GIB, 5 * GIB // 2, 4 * GIB], start=1):
        gpu.grow_to(size)
        said.append(memory.describe_growth(trials, lambda kind: 0))
    assert said == ["", "", "cuda memory of the process grew by 2.0 GiB over 3 trials"]
    assert memory.describe_growth(4, lambda kind: GIB if kind == "cuda" else 0) == "", "what the cache holds is meant"


@pytest.mark.parametrize("hidden", [None, "elsewhere"])
def test_gpu_memory_that_the_driver_hides_is_no_growth(monkeypatch, hidden):
    gpu, memory = Gpu(monkeypatch), Memory(1.0)
    gpu.grow_to(2 * GIB if hidden else None)
    if hidden:
        del gpu.processes[1:]  # a container, in which the process has another number
    assert measure_gpu_memory() is None
    assert memory.describe_growth(1, lambda kind: 0) == ""
