"""CPU, GPU and memory usage of an epoch. Only with a GPU, torch is imported."""

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import psutil
from pynvml import NVMLError

if TYPE_CHECKING:
    import torch

CPU, MEMORY, GPU, GPU_MEMORY = "sys/cpu_percent", "sys/memory_gib", "sys/gpu_percent", "sys/gpu_memory_gib"
CPU_SHARE = 0.8  # of the memory that is free
GPU_SHARE = 0.9  # the rest is for the context of CUDA, its libraries and fragments
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class ResourceUsage:
    """The usage of this process since the last `begin`."""

    def __init__(self, device: "torch.device") -> None:
        self._device = device
        self.begin()

    def begin(self) -> None:
        """Reset the counters."""
        if self._device.type == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats(self._device)
        self._has_peak = _reset_peak_memory()
        self._cpu_s = _measure_cpu_s()
        self._since = time.perf_counter()

    def measure(self) -> dict[str, float]:
        """Return those metrics that the system provides.

        - `sys/cpu_percent`: mean load in percent of one core, including the processes of data loaders.
        - `sys/memory_gib`: peak memory of the process, in GiB.
        - `sys/gpu_percent`: share of the last second in which the GPU was busy.
        - `sys/gpu_memory_gib`: peak memory that torch allocated on the GPU, in GiB.
        """
        seconds = time.perf_counter() - self._since
        metrics = {CPU: 100 * max(0.0, _measure_cpu_s() - self._cpu_s) / max(seconds, 1e-9)}
        if self._has_peak:
            held = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
            metrics[MEMORY] = int(held.split()[1]) / 2**20
        if self._device.type == "cuda":
            import torch

            with suppress(NVMLError, RuntimeError):  # not available on a GPU slice, or without NVML
                metrics[GPU] = float(torch.cuda.utilization(self._device))
            metrics[GPU_MEMORY] = torch.cuda.max_memory_allocated(self._device) / 2**30
        return metrics


def limit_gpu_memory(device: "torch.device", gpus: float) -> None:
    """Limit this process to its part of a GPU that it shares, so that no neighbor runs out of memory for it.

    Args:
        gpus: The GPUs of the process, e.g. 0.5.
    """
    if device.type == "cuda" and 0 < gpus < 1:
        import torch

        torch.cuda.set_per_process_memory_fraction(gpus * GPU_SHARE, device)


def measure_usable_memory(device: "torch.device") -> int:
    """Return the bytes that a trial of this process may use, its present ones on a GPU included."""
    if device.type != "cuda":
        return int(psutil.virtual_memory().available * CPU_SHARE)
    import torch

    free, total = torch.cuda.mem_get_info(device)
    limit = torch.cuda.get_per_process_memory_fraction(device) * total  # of `limit_gpu_memory`, else all
    return int(min(limit, (free + torch.cuda.memory_reserved(device)) * GPU_SHARE))


def aggregate_usage(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combine the usage of all ranks: the sum of CPU, the mean of GPU load, the maximum of memory."""
    combine: dict[str, Callable[[Sequence[float]], float]] = {CPU: sum, MEMORY: max, GPU: mean, GPU_MEMORY: max}
    values = {name: [rank[name] for rank in ranks if name in rank] for name in combine}
    return {name: combine[name](known) for name, known in values.items() if known}


def _reset_peak_memory() -> bool:
    """Reset the peak memory of this process on Linux. Return whether it was reset."""
    try:
        CLEAR.write_text("5")
    except OSError:  # another system, or a container in which it is forbidden
        return False
    return True


def _measure_cpu_s() -> float:
    """Return the CPU seconds of this process and its children."""
    running = multiprocessing.active_children()  # first, since it waits for those that have ended, and they count then
    ended = os.times()
    total = time.process_time() + ended.children_user + ended.children_system
    for child in running:
        with suppress(psutil.NoSuchProcess):  # it ended just now
            times = psutil.Process(child.pid).cpu_times()
            total += times.user + times.system
    return total
