"""How much memory an epoch takes at its peak."""

from pathlib import Path

import torch

PEAK = "memory/peak_gib"
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak(device: torch.device) -> None:
    """The peak is from now on that of what follows."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif CLEAR.exists():
        CLEAR.write_text("5")  # Linux sets the peak of this process back to what it holds now


def peak_gib(device: torch.device) -> float | None:
    """What was allocated on the GPU at most since `forget_peak`, in GiB; on the CPU what the whole process held.

    None where the system does not tell.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    if not CLEAR.exists():
        return None
    held = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(held.split()[1]) / 2**20
