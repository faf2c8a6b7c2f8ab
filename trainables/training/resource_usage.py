"""What an epoch takes of its machine."""

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean

import psutil
import torch
from pynvml import NVMLError

CPU, MEMORY, GPU, GPU_MEMORY = "sys/cpu_percent", "sys/memory_gib", "sys/gpu_percent", "sys/gpu_memory_gib"
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class ResourceUsage:
    """Of this process, from `begin` to `taken`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.begin()

    def begin(self) -> None:
        """What follows counts, and nothing before it."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._has_peak = _reset_peak_memory()
        self._cpu_s = _measure_cpu_s()
        self._since = time.perf_counter()

    def measure(self) -> dict[str, float]:
        """Metrics, as far as the system tells them.

        - `sys/cpu_percent`: of a core, on average, with the processes of data loaders;
        - `sys/memory_gib`: the most that the process held, in GiB;
        - `sys/gpu_percent`: of the last second, how long the GPU was busy;
        - `sys/gpu_memory_gib`: the most that torch had allocated there, in GiB.
        """
        seconds = time.perf_counter() - self._since
        metrics = {CPU: 100 * max(0.0, _measure_cpu_s() - self._cpu_s) / max(seconds, 1e-9)}
        if self._has_peak:
            held = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
            metrics[MEMORY] = int(held.split()[1]) / 2**20
        if self._device.type == "cuda":
            with suppress(NVMLError, RuntimeError):  # a slice of a GPU does not tell, nor does a machine without NVML
                metrics[GPU] = float(torch.cuda.utilization(self._device))
            metrics[GPU_MEMORY] = torch.cuda.max_memory_allocated(self._device) / 2**30
        return metrics


def aggregate_usage(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of a trial what its ranks have taken: CPU together, GPUs on average, memory of the one that needed most."""
    combine: dict[str, Callable[[Sequence[float]], float]] = {CPU: sum, MEMORY: max, GPU: mean, GPU_MEMORY: max}
    values = {name: [rank[name] for rank in ranks if name in rank] for name in combine}
    return {name: combine[name](known) for name, known in values.items() if known}


def _reset_peak_memory() -> bool:
    """Let Linux set the peak of this process back to what it holds now. Whether it did."""
    try:
        CLEAR.write_text("5")
    except OSError:  # another system, or a container in which it is forbidden
        return False
    return True


def _measure_cpu_s() -> float:
    """Seconds on a core, of this process and of those that it started."""
    ended = os.times()
    total = time.process_time() + ended.children_user + ended.children_system
    for child in multiprocessing.active_children():
        with suppress(psutil.NoSuchProcess):  # it ended just now
            times = psutil.Process(child.pid).cpu_times()
            total += times.user + times.system
    return total
