"""Random numbers of a rank: seeded per epoch, saved and restored in the middle of one."""

import random
from typing import Any

import numpy as np
import torch

from trainables.context import Context


def seed_epoch(seed: int, epoch: int, context: Context, rank: int) -> None:
    """Seed what the ranks share, `context.generator`, and what must differ between them, as dropout."""
    shared, own = (int(part) for part in np.random.SeedSequence([seed, epoch]).generate_state(2))
    context.generator.manual_seed(shared)
    random.seed(own + rank)
    np.random.seed((own + rank) % 2**32)
    torch.manual_seed(own + rank)


def state(context: Context) -> dict[str, Any]:
    """The state of every generator of this rank, in tensors and plain values."""
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "torch": torch.get_rng_state(),
        "device": _device_module(context.device).get_rng_state() if context.device.type != "cpu" else None,
        "shared": context.generator.get_state(),
    }


def restore(saved: dict[str, Any], context: Context) -> None:
    """Put every generator of this rank where `state` found it."""
    random.setstate(saved["python"])
    name, keys, *rest = saved["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(saved["torch"])
    if saved["device"] is not None and context.device.type != "cpu":
        _device_module(context.device).set_rng_state(saved["device"])
    context.generator.set_state(saved["shared"])


def _device_module(device: torch.device) -> Any:
    return torch.get_device_module(device)
