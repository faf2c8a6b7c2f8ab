"""Deterministic algorithms and fp32 without TF32, on GPUs, which use others by default."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from searchlight.trainables.isolation.settings import read_name, write_name

EXACT = {  # the values of settings with which a probe computes
    "torch.get_deterministic_debug_mode()": "warn",
    "torch.backends.cudnn.benchmark": False,
    **{f"torch.backends.{name}.fp32_precision": "ieee" for name in ("cuda.matmul", "cudnn.conv", "cudnn.rnn")},
}


def reserve_workspace() -> None:
    """Let cuBLAS use memory with which its sums do not depend on timing. Call this before the first use of a GPU.

    PyTorch reads the setting once. It asks for 8 buffers of 4096 KiB for each handle of cuBLAS.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def use_deterministic_algorithms() -> None:
    """Compute the same bits each time from now on. An operation without a deterministic algorithm raises an error."""
    reserve_workspace()
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False  # it chooses the fastest algorithm, which may be another each time


@contextmanager
def exact_arithmetic(device: torch.device) -> Iterator[None]:
    """Use deterministic algorithms and no TF32 inside, on a GPU. Warn of operations that have no such algorithm."""
    if device.type != "cuda":  # a CPU has neither
        yield
        return
    reserve_workspace()
    before = {name: read_name(name) for name in EXACT}
    try:
        for name, value in EXACT.items():
            write_name(name, value)
        yield
    finally:
        for name, value in before.items():
            write_name(name, value)
