"""A small memory of earlier tasks: which samples it holds, and the logits that the network had for them.

It holds sample numbers, not samples: the data set has those. Ranks that make the same calls have the same memory.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Draw(NamedTuple):
    """Samples to replay, each int64 of shape (count,).

    Attributes:
        tasks: The task of each.
        indices: Its number within that task.
        slots: Its index in the memory, for `Reservoir.logits`.
    """

    tasks: Tensor
    indices: Tensor
    slots: Tensor


class Reservoir:
    """A memory of samples of the tasks so far.

    Args:
        capacity: The number of samples that it can hold.
        balanced: Whether every task keeps an equal share, as far as it has enough samples. Otherwise, every sample has
            an equal chance (Vitter 1985, algorithm R).
    """

    def __init__(self, capacity: int, balanced: bool = False) -> None:
        self.capacity = capacity
        self.balanced = balanced
        self._offered: dict[int, int] = {}
        self._tasks = torch.full((capacity,), -1)  # -1: the slot is free
        self._indices = torch.full((capacity,), -1)
        self._logits: Tensor | None = None
        self._has_logits = torch.zeros(capacity, dtype=torch.bool)

    @property
    def size(self) -> int:
        """The number of samples in memory."""
        return int((self._tasks >= 0).sum())

    def offer(self, task: int, count: int, generator: torch.Generator, numbers: Tensor | None = None) -> None:
        """Offer `count` samples of a learned task to the memory, once per task.

        Args:
            task: At least 0.
            count: At least 1.
            generator: On the CPU, the only source of randomness.
            numbers: The samples' numbers within the task, shape (count,); None: 0..count-1.
        """
        if self.balanced:
            self._share(task, count, generator)
        else:
            self._pass_by(task, count, generator)
        self._offered[task] = count
        if numbers is not None:
            own = self._tasks == task
            self._indices[own] = numbers[self._indices[own]]

    def draw(self, count: int, generator: torch.Generator, balanced: bool = False) -> Draw:
        """Draw exactly `count` samples in random order, each once before any is repeated.

        Args:
            count: At least 0.
            generator: On the CPU, the only source of randomness.
            balanced: Whether to draw the same number from each task, or one more. Repetitions then count within a task.
        """
        used = (self._tasks >= 0).nonzero().flatten()
        if balanced:
            held = sorted(set(self._tasks[used].tolist()))
            shares = _deal_shares(torch.full((len(held),), count), count, generator).tolist()
            of_tasks = [used[self._tasks[used] == task] for task in held]
            parts = [_draw_rounds(slots, share, generator) for slots, share in zip(of_tasks, shares, strict=True)]
            slots = torch.cat(parts)[torch.randperm(count, generator=generator)]
        else:
            slots = _draw_rounds(used, count, generator)
        return Draw(self._tasks[slots], self._indices[slots], slots)

    def list_missing(self) -> Draw:
        """Return the samples without logits."""
        slots = ((self._tasks >= 0) & ~self._has_logits).nonzero().flatten()
        return Draw(self._tasks[slots], self._indices[slots], slots)

    def store(self, slots: Tensor, logits: Tensor) -> None:
        """Store the network's logits of the samples in `slots`, in fp32 on the CPU.

        Args:
            slots: Shape (N,).
            logits: Shape (N, ...), with the same shape except N in all calls.
        """
        slots = slots.cpu()
        if self._logits is None:
            self._logits = torch.zeros(self.capacity, *logits.shape[1:])
        self._logits[slots] = logits.detach().float().cpu()
        self._has_logits[slots] = True

    def get_logits(self, slots: Tensor) -> Tensor:
        """Return the stored logits of `slots`, shape (N, ...), in fp32 on the CPU.

        Raises:
            ValueError: A slot has none.
        """
        slots = slots.cpu()
        if self._logits is None or not bool(self._has_logits[slots].all()):
            raise ValueError(
                "slots must have logits, but got one without. Store those of list_missing() after each offer."
            )
        return self._logits[slots]

    def state_dict(self) -> dict[str, Any]:
        return {
            "capacity": self.capacity,
            "balanced": self.balanced,
            "offered": dict(self._offered),
            "tasks": self._tasks.clone(),
            "indices": self._indices.clone(),
            "logits": None if self._logits is None else self._logits.clone(),
            "has_logits": self._has_logits.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state. From a larger reservoir, keep the same number of samples of each task.

        Raises:
            ValueError: It is of another kind of reservoir.
        """
        if state["balanced"] != self.balanced:
            raise ValueError(f"a reservoir's state must have balanced={self.balanced}, but got {state['balanced']}.")
        tasks = state["tasks"].cpu()
        kept = _select_evenly(tasks, self.capacity) if state["capacity"] > self.capacity else torch.arange(len(tasks))
        free = self.capacity - len(kept)
        self._offered = dict(state["offered"])
        self._tasks = F.pad(tasks[kept], (0, free), value=-1)
        self._indices = F.pad(state["indices"].cpu()[kept], (0, free), value=-1)
        self._has_logits = F.pad(state["has_logits"].cpu()[kept], (0, free))
        self._logits = None
        if state["logits"] is not None:
            logits = state["logits"].float().cpu()[kept]
            self._logits = torch.cat([logits, logits.new_zeros(free, *logits.shape[1:])])

    def _pass_by(self, task: int, count: int, generator: torch.Generator) -> None:
        """Run algorithm R for all samples at once.

        Sample n takes slot n while slots are free, then a random one of n + 1 if it is below the capacity. If several
        samples take a slot, the last one stays.
        """
        first = sum(self._offered.values())
        numbers = torch.arange(first, first + count)
        chances = torch.rand(count, generator=generator, dtype=torch.float64)
        slots = torch.where(numbers < self.capacity, numbers, (chances * (numbers + 1)).long())
        takes = slots < self.capacity
        last = torch.full((self.capacity,), -1)
        last.scatter_reduce_(0, slots[takes], numbers[takes] - first, "amax")
        taken = (last >= 0).nonzero().flatten()
        self._put(taken, task, last[taken])

    def _share(self, task: int, count: int, generator: torch.Generator) -> None:
        """Free slots of earlier tasks until all have an equal share, and give them to the new task.

        Any slots can be freed, since a task's slots are a random sample in random order.
        """
        held = list(self._offered)
        limits = [int((self._tasks == old).sum()) for old in held] + [count]
        shares = _deal_shares(torch.tensor(limits), self.capacity, generator).tolist()
        for old, share in zip(held, shares, strict=False):
            self._tasks[(self._tasks == old).nonzero().flatten()[share:]] = -1
        free = (self._tasks < 0).nonzero().flatten()[: shares[-1]]
        self._put(free, task, torch.randperm(count, generator=generator)[: len(free)])

    def _put(self, slots: Tensor, task: int, indices: Tensor) -> None:
        self._tasks[slots] = task
        self._indices[slots] = indices
        self._has_logits[slots] = False


def compute_der_loss(logits: Tensor, stored: Tensor, allowed_rows: Tensor) -> Tensor:
    """Return the mean squared distance of logits from the stored ones (Buzzega et al. 2020, arXiv 2004.07211).

    DER weighs it by alpha. DER++ adds the loss of the labels of replayed samples, weighed by beta.

    Args:
        logits: Not masked; any floating dtype, shape (B, K).
        stored: Shape (B, K), on any device.
        allowed_rows: Bool of shape (B, K): the logits to compare, at least one per row.

    Returns:
        fp32 of shape (B,).
    """
    squares = (logits.float() - stored.to(logits.device).float()).square()
    return squares.masked_fill(~allowed_rows, 0.0).sum(-1) / allowed_rows.sum(-1)


def _deal_shares(limits: Tensor, total: int, generator: torch.Generator) -> Tensor:
    """Return shares of `total`, as equal as the limits allow. The remainder is assigned at random."""
    shares = torch.zeros_like(limits)
    order = torch.randperm(len(limits), generator=generator)
    order = order[limits[order].argsort(stable=True)]  # smallest limit first, which leaves the rest to others
    for place, who in enumerate(order.tolist()):
        shares[who] = min(int(limits[who]), (total - int(shares.sum())) // (len(order) - place))
    return shares


def _select_evenly(tasks: Tensor, count: int) -> Tensor:
    """Return the slots of `count` samples: the first of each task, then the second of each, and so on."""
    turns = torch.full(tasks.shape, len(tasks))  # free slots sort last
    for task in set(tasks[tasks >= 0].tolist()):
        own = (tasks == task).nonzero().flatten()
        turns[own] = torch.arange(len(own))
    return turns.argsort(stable=True)[:count].sort().values


def _draw_rounds(slots: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return `count` of `slots` in random order, each once before any is repeated."""
    rounds = -(-count // len(slots))
    drawn = [slots[torch.randperm(len(slots), generator=generator)] for _ in range(rounds)]
    return torch.cat([*drawn, slots[:0]])[:count]
