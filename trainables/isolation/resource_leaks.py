"""Detection of resources that a trial leaves in its process: threads, processes, files, groups, memory.

The functions import torch themselves, since the worker of a program needs none.
"""

import ctypes
import gc
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil
import pynvml

from searchlight.trainables import private_api
from searchlight.trainables.cuda import is_cuda_in_use

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

GRACE_S = 0.5  # how long threads and processes may take to end after their trial
GIB = 2**30
# Packages that start threads for the life of the process.
LASTING_THREADS = ("ray", "torch", "grpc", "tqdm", "searchlight")
# Parts of the commands of processes that libraries start in this way.
LASTING_PROCESSES = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "compile_worker",
    "torch_shm",
    "command/forking/forking.py",
)
SYSTEM = ("/dev/", "/proc/", "/sys/", "/memfd:")
RAY_SESSION = "/session_20"  # part of the path of each file of Ray


class ResourceLeaks:
    """Compares the resources of the process with those that it had when this object was created."""

    def __init__(self) -> None:
        self._before = {find: set(find()) for find in FINDERS}

    def find(self) -> str:
        """Return a description of resources that the trial left open, or "". Wait briefly for resources that close."""
        deadline = time.monotonic() + GRACE_S
        while (leaks := self._find_new()) and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._before[_find_process_groups] - _find_process_groups().keys():
            leaks.append("the trial destroyed the process group")
        return "; ".join(leaks)

    def _find_new(self) -> list[str]:
        leaks = []
        for find, (one, several) in FINDERS.items():
            names = [name for resource, name in find().items() if resource not in self._before[find]]
            if names:
                leaks.append(f"the trial left {len(names)} {one if len(names) == 1 else several}: {', '.join(names)}")
        return leaks


class ProgramLeftovers:
    """What trials leave in the worker of a program. They have settings of their own, so that none are restored here.

    To read all settings would import torch and its compiler, which takes seconds.
    """

    def __init__(self) -> None:
        gc.freeze()
        self._leaks = ResourceLeaks()

    def restore(self) -> str:
        """Release memory after a trial. Return why the process must be replaced, or ""."""
        gc.collect()
        release_free_memory()
        return self._leaks.find()


class Memory:
    """Measures how much the process has grown since its first trial ended. `limit` is in GiB."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._first: dict[str, int] = {}

    def describe_growth(self, trials: int, cached: Callable[[str], int]) -> str:
        """Return the growth of the process over `trials` trials if it exceeds the limit, else "".

        `cached` returns the bytes on a type of device that the process keeps intentionally.
        """
        held = {"memory": psutil.Process().memory_info().rss - cached("cpu")}
        if is_cuda_in_use():
            import torch

            held["cuda memory"] = torch.cuda.memory_allocated() - cached("cuda")
            used = measure_gpu_memory()
            if used is not None:  # it counts what torch does not: loaded kernels, NCCL, cuDNN
                held["cuda memory of the process"] = used - cached("cuda")
        for what, size in held.items():
            growth = (size - self._first.setdefault(what, size)) / GIB
            if growth > self.limit:
                return f"{what} grew by {growth:.1f} GiB over {trials} trials"
        return ""


def measure_gpu_memory() -> int | None:
    """Return the bytes that this process uses on its current GPU, or None where the driver does not tell it.

    It does not on a slice of a GPU, and in a container whose process numbers are not those of the machine.
    """
    import torch

    with suppress(pynvml.NVMLError, RuntimeError):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties().uuid}")
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                return int(process.usedGpuMemory)
    return None


def end_data_loaders() -> None:
    """End the processes of data loaders. The garbage collector would wait five seconds for each."""
    if multiprocessing.active_children():
        for item in gc.get_objects():
            if type(item) is private_api.DataLoaderIterator:
                private_api.shut_down_workers(item)


def allocate_workspaces(device: "torch.device") -> None:
    """Let cuBLAS allocate its workspaces, of forward and of backward, before a trial allocates its memory.

    Else it takes them from a large block that the trial has freed for a moment, and that does not fit there again.
    """
    if device.type == "cuda":
        import torch

        matrix = torch.ones(8, 8, device=device, requires_grad=True)
        torch.autograd.backward((matrix @ matrix).sum())


def release_free_memory() -> None:
    """Return free memory to the system."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # only glibc has it
            ctypes.CDLL(None).malloc_trim(0)
    if is_cuda_in_use():
        import torch

        with suppress(RuntimeError):  # an error of a kernel, which a probe of the device shows
            # cuBLAS's workspace may lie in a large block that the trial has freed, which else cannot be released.
            private_api.clear_cublas_workspaces()
            torch.cuda.empty_cache()
            torch.accelerator.empty_host_cache()  # pinned memory, of checkpoints and data loaders


def _find_threads() -> dict[threading.Thread, str]:
    compilers: set[threading.Thread] = set()  # Inductor starts them once, for all trials
    if "torch._inductor.async_compile" in sys.modules and private_api.async_compile.pool.cache_info().currsize:
        compilers = private_api.async_compile.pool()._threads
    return {
        thread: thread.name
        for thread in threading.enumerate()
        if thread not in compilers
        # A thread of C++ that ran Python once, as backward on a GPU does. It stays listed after its end.
        and not isinstance(thread, threading._DummyThread)
        and type(thread).__module__.partition(".")[0] not in LASTING_THREADS
        and str(getattr(getattr(thread, "_target", None), "__module__", "")).partition(".")[0] not in LASTING_THREADS
    }


def _find_children() -> dict[psutil.Process, str]:
    """Return the commands of the child processes."""
    if hasattr(os, "waitid"):
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # psutil would read files of all processes of the machine to find none
            return {}
    commands = {}
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # the process has ended
            command = " ".join(child.cmdline()).strip() or str(child.pid)
            if not any(name in command for name in LASTING_PROCESSES):
                commands[child] = command
    return commands


def _find_open_files() -> dict[tuple[str, int], str]:
    """Return the paths of the open files, by path and number: a file may be open several times."""
    paths: list[str] = []
    with suppress(OSError):  # only Linux has the folder
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the file was closed meanwhile
                paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    files = sorted(path for path in paths if path[0] == "/" and not path.startswith(SYSTEM) and RAY_SESSION not in path)
    return {(path, index - files.index(path)): path for index, path in enumerate(files)}


def _find_open_sockets() -> dict[int, str]:
    """Return the addresses of the sockets of Python code. Ray opens and closes its own all the time."""
    sockets = [item for item in gc.get_objects() if issubclass(type(item), socket.socket)]
    return {item.fileno(): str(item.getsockname()) for item in sockets if item.fileno() >= 0}


def _find_process_groups() -> "dict[ProcessGroup, str]":
    dist = sys.modules.get("torch.distributed")  # no group can exist without it
    groups = private_api.process_groups if dist is not None and dist.is_available() else ()
    return {group: f"{group.size()} ranks" for group in groups}


FINDERS: dict[Callable[[], dict[Any, str]], tuple[str, str]] = {
    _find_threads: ("thread running", "threads running"),
    _find_children: ("process running", "processes running"),
    _find_open_files: ("file open", "files open"),
    _find_open_sockets: ("socket open", "sockets open"),
    _find_process_groups: ("process group", "process groups"),
}
