"""What a trial can leave in its process that nobody can take back: threads, files, processes, groups, memory."""

import ctypes
import gc
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from trainables.isolation.torch_settings import is_cuda_in_use

GRACE_S = 0.5  # how long threads and processes may take to end after their trial
GIB = 2**30
# Packages that start threads of their own once, for good.
LASTING_THREADS = ("ray", "torch", "grpc", "tqdm", "trainables")
# And processes.
LASTING_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "compile_worker", "torch_shm")
SYSTEM = ("/dev/", "/proc/", "/sys/", "/memfd:")
RAY_SESSION = "/session_20"  # in the path of each file of Ray itself, wherever its folder is


class ResourceLeaks:
    """Compares the process with what it was when this was made."""

    def __init__(self) -> None:
        self._threads = set(threading.enumerate())
        self._children = set(_find_children())
        self._files = _find_open_files()
        self._sockets = _find_open_sockets()
        self._groups = _find_process_groups()

    def find(self) -> str:
        """What is there that was not, or "". Waits for a moment for what is about to end."""
        deadline = time.monotonic() + GRACE_S
        while (threads := self._find_new_threads()) and time.monotonic() < deadline:
            threads[0].join(0.01)
        while (children := self._find_new_children()) and time.monotonic() < deadline:
            time.sleep(0.01)
        files = sorted((_find_open_files() - self._files).elements())
        left = [
            _format_leak("thread running", [thread.name for thread in threads]),
            _format_leak("process running", children),
            _format_leak("file open", files),
            _format_leak("socket open", self._find_new_sockets()),
            _format_leak("process group", [f"{group.size()} ranks" for group in _find_process_groups() - self._groups]),
        ]
        told = [f"the trial left {part}" for part in left if part]
        if self._groups - _find_process_groups():
            told.append("the trial destroyed the process group")
        return "; ".join(told)

    def _find_new_threads(self) -> list[threading.Thread]:
        known = self._threads | _find_compiler_threads()
        return [thread for thread in threading.enumerate() if thread not in known and not _is_lasting(thread)]

    def _find_new_children(self) -> list[str]:
        told = (_read_command(pid) for pid in _find_children() if pid not in self._children)
        return [command for command in told if command and not any(name in command for name in LASTING_PROCESSES)]

    def _find_new_sockets(self) -> list[str]:
        """Those that Python knows of: Ray opens and closes its own all the time."""
        new = _find_open_sockets() - self._sockets
        if not new:
            return []
        known = (item for item in gc.get_objects() if issubclass(type(item), socket.socket))
        return [str(item.getsockname()) for item in known if item.fileno() in new]


class Memory:
    """How much the process has grown since its first trial ended.

    Args:
        limit: GiB.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._first: dict[str, int] | None = None

    def describe_growth(self, trials: int, cached: Callable[[str], int]) -> str:
        """By how much, if that is more than the limit; else "".

        Args:
            trials: How many have ended.
            cached: Bytes on a type of device that are kept on purpose.
        """
        now = {kind: held - cached(kind) for kind, held in _measure_memory().items()}
        self._first = self._first or now
        for kind, held in now.items():
            growth = (held - self._first.get(kind, 0)) / GIB
            if growth > self.limit:
                what = "memory" if kind == "cpu" else f"{kind} memory"
                return f"{what} grew by {growth:.1f} GiB over {trials} trials"
        return ""


def end_data_loaders() -> None:
    """End the processes of data loaders. One that is left to the garbage collector waits five seconds for each."""
    if multiprocessing.active_children():
        for item in gc.get_objects():
            if type(item) is _MultiProcessingDataLoaderIter:
                item._shutdown_workers()


def release_free_memory() -> None:
    """Give back to the system what is free."""
    if trimming := _load_malloc_trim():
        trimming(0)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@cache
def _load_malloc_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def _measure_memory() -> dict[str, int]:
    """Bytes by type of device."""
    held = {}
    statm = Path("/proc/self/statm")
    if statm.exists():
        held["cpu"] = int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if is_cuda_in_use():
        held["cuda"] = torch.cuda.memory_allocated()
    return held


def _format_leak(what: str, names: Iterable[str]) -> str:
    """ "2 files open: a, b" of the names of some, or "" of none."""
    names = list(names)
    noun, _, rest = what.partition(" ")
    plural = {"process": "processes"}.get(noun, f"{noun}s") if rest != "group" else noun
    return f"{len(names)} {plural if len(names) != 1 else noun} {rest}: {', '.join(names)}" if names else ""


def _is_lasting(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    modules = {type(thread).__module__, getattr(target, "__module__", None) or ""}
    return any(module.partition(".")[0] in LASTING_THREADS for module in modules)


def _find_compiler_threads() -> set[threading.Thread]:
    """The threads in which Inductor compiles: it starts them once, for all trials."""
    inductor: Any = sys.modules.get("torch._inductor.async_compile")
    if inductor is None or not inductor.AsyncCompile.pool.cache_info().currsize:
        return set()
    return set(inductor.AsyncCompile.pool()._threads)


def _find_children() -> list[int]:
    if sys.platform != "linux":
        return [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # most of the time: reading what the system knows of each thread takes longer
        return []
    pids = []
    for task in Path("/proc/self/task").iterdir():
        try:
            pids += [int(pid) for pid in (task / "children").read_text().split()]
        except OSError:  # the thread has ended
            continue
    return pids


def _read_command(pid: int) -> str:
    """How a process was started, or "" if it has ended."""
    if sys.platform != "linux":
        return str(pid)
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
    return "" if state in "ZX" else command or str(pid)


def _read_descriptor_targets() -> dict[int, str]:
    """What each descriptor of this process is open on."""
    targets = {}
    try:
        descriptors = os.listdir("/proc/self/fd")
    except OSError:  # not on Linux
        return {}
    for descriptor in descriptors:
        try:
            targets[int(descriptor)] = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:  # closed in the meantime
            continue
    return targets


def _find_open_files() -> Counter[str]:
    paths = (
        path for path in _read_descriptor_targets().values() if path.startswith("/") and not path.startswith(SYSTEM)
    )
    return Counter(path for path in paths if RAY_SESSION not in path)


def _find_open_sockets() -> set[int]:
    return {descriptor for descriptor, target in _read_descriptor_targets().items() if target.startswith("socket:")}


def _find_process_groups() -> set[dist.ProcessGroup]:
    return set(distributed_c10d._world.pg_map) if dist.is_available() else set()
