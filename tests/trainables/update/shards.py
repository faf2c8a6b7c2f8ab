"""Sharded models on several ranks, and what tests see of them."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from searchlight.trainables.context import Context
from searchlight.trainables.update.sharding import ShardedUpdater


def mesh(rank: int) -> Any:
    return context_of(rank).mesh


def context_of(rank: int) -> Context:
    """Return the context of one rank of nodes that have two each."""
    return Context(rank=rank, world_size=dist.get_world_size(), local_world_size=2)


def whole(tensors: Any) -> list[Tensor]:
    return [t.detach().full_tensor() if isinstance(t, DTensor) else t.detach().clone() for t in tensors]


def shard(model: nn.Sequential, rank: int, layout: str) -> nn.Sequential:
    """Shard a classifier: all of it, its first layer as a root of its own, or each layer within a root; or not."""
    over = context_of(rank).hybrid_mesh if layout == "hybrid" else mesh(rank)
    if layout in ("layers", "mixed", "hybrid"):
        fully_shard(model[0], mesh=over)
    return model if layout in ("none", "mixed") else fully_shard(model, mesh=over)


def updater_of(model: nn.Module, lr: float = 0.1) -> ShardedUpdater:
    return ShardedUpdater({"sgd": torch.optim.SGD(model.parameters(), lr=lr)}, modules={"net": model})


def record_gradients(optimizer: torch.optim.Optimizer) -> list[list[Tensor]]:
    seen: list[list[Tensor]] = []

    def record(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        seen.append(whole(p.grad for p in optimizer.param_groups[0]["params"] if p.grad is not None))

    optimizer.register_step_pre_hook(record)
    return seen
