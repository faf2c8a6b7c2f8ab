"""Random numbers of a rank: seeded per epoch, saved and restored within one."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def seed(generator: torch.Generator, rank: int, *entropy: int) -> None:
    """Seed `generator`, which all ranks share, and the generators that must differ between ranks, e.g. for dropout.

    Args:
        generator: On the CPU, of this rank.
        rank: Rank of this process.
        entropy: Entropy of the seed, e.g. the trial's seed and the epoch.
    """
    shared, rank_seed = (int(part) for part in np.random.SeedSequence(entropy).generate_state(2))
    generator.manual_seed(shared)
    random.seed(rank_seed + rank)
    np.random.seed((rank_seed + rank) % 2**32)
    torch.manual_seed(rank_seed + rank)


@contextlib.contextmanager
def same_on_all_ranks(device: torch.device, *entropy: int) -> Iterator[None]:
    """Let torch draw the same numbers on all ranks inside the block. Restore its generators afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1)[0]))
        yield


@contextlib.contextmanager
def isolated(generator: torch.Generator, device: torch.device, *entropy: int) -> Iterator[None]:
    """Seed all generators with `place` inside the block. Restore their states afterwards."""
    before = get_state(generator, device)
    seed(generator, 0, *entropy)
    try:
        yield
    finally:
        set_state(before, generator, device)


def get_state(generator: torch.Generator, device: torch.device) -> dict[str, Any]:
    """Return the states of all generators of this rank, as tensors and plain values."""
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "torch": torch.get_rng_state(),
        "device": _get_device_state(device),
        "shared": generator.get_state(),
    }


def set_state(saved: dict[str, Any], generator: torch.Generator, device: torch.device) -> None:
    """Restore the states that `get_state` returned."""
    random.setstate(saved["python"])
    name, keys, *rest = saved["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(saved["torch"])
    if saved["device"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(saved["device"], device)
    elif saved["device"] is not None and device.type == "mps":
        torch.mps.set_rng_state(saved["device"])
    generator.set_state(saved["shared"])


def _get_device_state(device: torch.device) -> torch.Tensor | None:
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.mps.get_rng_state() if device.type == "mps" else None
