"""Consolidation and replay of learned tasks."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from searchlight.models.data import Samples
from searchlight.models.liquid.continual import (
    EWC,
    SI,
    Reservoir,
    compute_der_loss,
    compute_directions,
    mask_logits,
    sum_squared_gradients,
)
from searchlight.models.liquid.losses import draw_directions
from searchlight.models.liquid.network import LiquidNetwork
from searchlight.models.liquid.task_stream import Stream

ANSWERED = 64  # sequences per batch
FEW = 32  # most classes with an exact Fisher, which needs a backward pass per class


class ReplayBatch(NamedTuple):
    """Sequences of earlier tasks.

    Attributes:
        tasks: The task of each, (B,).
        logits: The outputs for each when its task had been learned, or None if they are not stored.
    """

    samples: Samples
    tasks: Tensor
    logits: Tensor | None


class ContinualStrategy:
    """Consolidation of weights and replay of samples over the tasks of a stream.

    Args:
        network: The network that is trained.
        stream: The stream of tasks.
        method: Elastic weight consolidation, synaptic intelligence, or none.
        strength: Of the penalty.
        decay: The factor of earlier Fishers for each task, for "ewc".
        remembered: The number of samples in memory; 0: no replay.
        balanced: Whether to store and replay the same number of samples of each task.
        with_logits: Whether to store the outputs for them.
    """

    def __init__(
        self,
        network: LiquidNetwork,
        stream: Stream,
        *,
        method: Literal["none", "ewc", "si"] = "none",
        strength: float = 0.0,
        decay: float = 1.0,
        remembered: int = 0,
        balanced: bool = True,
        with_logits: bool = False,
    ) -> None:
        self.network, self.stream = network, stream
        self.balanced, self.with_logits = balanced, with_logits
        self.parameters = {
            name: parameter for name, parameter in network.named_parameters() if not name.endswith(".log_rates")
        }
        self.hold: EWC | SI | None = None
        if method == "ewc":
            self.hold = EWC(self.parameters, strength, decay)
        elif method == "si":
            self.hold = SI(self.parameters, strength)
        self.reservoir = Reservoir(remembered, balanced) if remembered else None

    def begin_step(self) -> None:
        """Prepare an update, whose gradients are final."""
        if isinstance(self.hold, SI):
            self.hold.begin_step()

    def finish_step(self, applied: bool) -> None:
        """Finish an update, `applied` or skipped."""
        if not isinstance(self.hold, SI):
            return
        if applied:
            self.hold.finish_step()
        else:
            self.hold.forget_step()

    def compute_penalty(self) -> Tensor | None:
        """Return the penalty on changes of weights, or None without consolidation."""
        return None if self.hold is None else self.hold.compute_penalty()

    def recall(self, count: int, generator: torch.Generator) -> ReplayBatch | None:
        """Return `count` sequences of earlier tasks, or None if there are none."""
        if self.reservoir is None or not count or not self.reservoir.size:
            return None
        tasks, indices, slots = self.reservoir.draw(count, generator, self.balanced)
        logits = self.reservoir.get_logits(slots) if self.with_logits else None
        return ReplayBatch(self.stream.select_rows(tasks, indices), tasks, logits)

    def measure_distance(self, outputs: Tensor, logits: Tensor, allowed: Tensor) -> Tensor:
        """Return the distance of outputs from stored ones, for each sequence, (B,).

        Args:
            outputs: Shape (B, outputs) or (B, T, outputs).
            logits: Of the same shape.
            allowed: Which outputs count, bool of shape (B, outputs).
        """
        rows = allowed if outputs.dim() == 2 else allowed[:, None].expand_as(outputs)
        return compute_der_loss(outputs, logits, rows).view(len(outputs), -1).mean(1)

    def finish_task(
        self,
        task: int,
        samples: int,
        generator: torch.Generator,
        share: slice = slice(None),
        add_up: Callable[[list[Tensor]], None] = lambda tensors: None,
        seen: Tensor | None = None,
    ) -> None:
        """Consolidate and store a learned task. Call it on all ranks, with the same weights.

        Args:
            task: Its number.
            samples: The number of its sequences for a Fisher.
            generator: On the CPU, the same on all ranks.
            share: This rank's part of these sequences.
            add_up: Sums tensors over all ranks, in place.
            seen: Numbers of the sequences that were trained on, the same on all ranks: only these are stored and used
                for a Fisher. None: all.
        """
        seen = torch.arange(self.stream.count_sequences(task)) if seen is None else seen
        with _set_evaluation_mode(self.network):
            chosen = seen[torch.randperm(len(seen), generator=generator)[:samples]]
            # One seed per sequence, so that the draws do not depend on the number of ranks.
            seeds = torch.randint(2**62, (len(chosen),), generator=generator)
            if isinstance(self.hold, EWC):
                self.hold.consolidate(self._compute_fisher(task, chosen, seeds, share, add_up))
            elif isinstance(self.hold, SI):
                self.hold.consolidate()
            if self.reservoir is not None:
                self.reservoir.offer(task, len(seen), generator, seen)
                if self.with_logits:
                    self._answer(self.reservoir)

    def state_dict(self) -> dict[str, Any]:
        return {
            "hold": None if self.hold is None else self.hold.state_dict(),
            "reservoir": None if self.reservoir is None else self.reservoir.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state. Compute the logits of samples without them, if they are needed.

        Raises:
            ValueError: It is of another method, or of another kind of memory.
        """
        for name, kept in (("hold", "consolidates"), ("reservoir", "replays")):
            own = getattr(self, name)
            if set(own.state_dict() if own else ()) != set(state[name] or ()):
                raise ValueError(
                    f"the resumed state must be of a trial that {kept} as this one does, but got another. "
                    "Fix the parameter that changes it with --set."
                )
            if own is not None:
                own.load_state_dict(state[name])
        if self.reservoir is not None and self.with_logits:
            with _set_evaluation_mode(self.network):
                self._answer(self.reservoir)

    def _compute_fisher(
        self, task: int, chosen: Tensor, seeds: Tensor, share: slice, add_up: Callable[[list[Tensor]], None]
    ) -> dict[str, Tensor]:
        if self.stream.kind == "labels" and self.stream.outputs <= FEW:
            # All sequences on every rank, since negligible vectors are determined over all of them.
            logits = self._compute_outputs(self.stream.select_rows(task, chosen))
            directions = compute_directions(mask_logits(logits, self.stream.allowed[task].to(logits.device)))
            scalars = self._compute_exact_scalars(task, chosen[share], directions[share])
        else:
            scalars = self._compute_drawn_scalars(task, chosen[share], seeds[share])
        sums, count = sum_squared_gradients(self.parameters, scalars)
        total = torch.tensor(float(count), device=next(iter(sums.values())).device)
        add_up([*sums.values(), total])
        return {name: values / total for name, values in sums.items()}

    def _compute_exact_scalars(self, task: int, chosen: Tensor, directions: list[Tensor]) -> Iterator[Tensor]:
        for index, columns in zip(chosen, directions, strict=True):
            yield self._answer_one(task, index)[0] @ columns if columns.numel() else columns.flatten()

    def _compute_drawn_scalars(self, task: int, chosen: Tensor, seeds: Tensor) -> Iterator[Tensor]:
        for index, seed in zip(chosen, seeds.tolist(), strict=True):
            outputs = self._answer_one(task, index)
            allowed = self.stream.allowed[task].to(outputs.device)
            drawn = draw_directions(self.stream.kind, outputs, allowed, torch.Generator().manual_seed(seed))
            yield (outputs * drawn).sum().view(1)

    def _answer_one(self, task: int, index: Tensor) -> Tensor:
        sample = self.stream.select_rows(task, index[None]).to(next(self.network.parameters()).device)
        outputs: Tensor = self.network(sample.inputs, sample.dt).outputs
        return outputs

    @torch.no_grad()
    def _compute_outputs(self, samples: Samples) -> Tensor:
        """Return the outputs for sequences, computed in batches."""
        device = next(self.network.parameters()).device
        parts = [
            samples.select_rows(slice(start, start + ANSWERED)).to(device) for start in range(0, samples.size, ANSWERED)
        ]
        return torch.cat([self.network(part.inputs, part.dt).outputs for part in parts])

    def _answer(self, reservoir: Reservoir) -> None:
        """Store the logits of new samples in memory."""
        tasks, indices, slots = reservoir.list_missing()
        for start in range(0, len(slots), ANSWERED):
            part = slice(start, start + ANSWERED)
            reservoir.store(slots[part], self._compute_outputs(self.stream.select_rows(tasks[part], indices[part])))


@contextlib.contextmanager
def _set_evaluation_mode(network: LiquidNetwork) -> Iterator[None]:
    """Set the network to evaluation mode. Restore the mode of each module afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
