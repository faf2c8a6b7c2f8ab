"""What a network keeps of the tasks that it has learned: a hold on its weights, and samples to learn again."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from models.liquid.continual import EWC, SI, Reservoir, der_loss, exact_directions, fisher_diagonal, masked_logits
from models.liquid.data import Samples
from models.liquid.losses import drawn_directions
from models.liquid.network import LiquidNetwork
from models.liquid.task_stream import Stream

ANSWERED = 64  # sequences at a time
FEW = 32  # classes, whose Fisher is computed exactly: more take too many backward passes


class ReplayBatch(NamedTuple):
    """Sequences of earlier tasks.

    Attributes:
        tasks: Of each, (B,).
        logits: What was answered to each when its task had been learned; None: it is not kept.
    """

    samples: Samples
    tasks: Tensor
    logits: Tensor | None


class ContinualStrategy:
    """Consolidation of weights and replay of samples over the tasks of a stream.

    Args:
        network: That learns.
        stream: What it learns.
        method: That holds weights: elastic weight consolidation, synaptic intelligence, or none.
        strength: Of the penalty.
        decay: What a task leaves of earlier Fishers, of "ewc".
        remembered: How many samples; 0: none.
        balanced: Remember and recall as many samples of each task.
        with_logits: Remember what was answered to them, too.
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

    def before_step(self) -> None:
        """Before each update, with its finished gradients."""
        if isinstance(self.hold, SI):
            self.hold.before_step()

    def after_step(self, applied: bool) -> None:
        """After each update, whether it was applied or not."""
        if not isinstance(self.hold, SI):
            return
        if applied:
            self.hold.after_step()
        else:
            self.hold.forget_step()

    def penalty(self) -> Tensor | None:
        """What moving away from earlier tasks costs; None: nothing holds the weights."""
        return None if self.hold is None else self.hold.penalty()

    def recall(self, count: int, generator: torch.Generator) -> ReplayBatch | None:
        """So many sequences of earlier tasks; None while there are none, or none are asked for."""
        if self.reservoir is None or not count or not self.reservoir.size:
            return None
        tasks, indices, slots = self.reservoir.draw(count, generator, self.balanced)
        logits = self.reservoir.logits(slots) if self.with_logits else None
        return ReplayBatch(self.stream.rows(tasks, indices), tasks, logits)

    def distance(self, outputs: Tensor, logits: Tensor, allowed: Tensor) -> Tensor:
        """How far answers are from remembered ones, of each sequence, (B,).

        Args:
            outputs: Shape (B, outputs) or (B, T, outputs).
            logits: Of the same shape.
            allowed: Which outputs count, bool of shape (B, outputs).
        """
        rows = allowed if outputs.dim() == 2 else allowed[:, None].expand_as(outputs)
        return der_loss(outputs, logits, rows).view(len(outputs), -1).mean(1)

    def learned(
        self,
        task: int,
        samples: int,
        generator: torch.Generator,
        share: slice = slice(None),
        add_up: Callable[[list[Tensor]], None] = lambda tensors: None,
        seen: Tensor | None = None,
    ) -> None:
        """A task has been learned. Called on all ranks, with the same weights.

        Args:
            task: Its number.
            samples: How many of its sequences a Fisher is measured on.
            generator: On the CPU, the same on all ranks.
            share: Of these sequences, what this rank measures.
            add_up: Gives tensors their sums over all ranks, in place.
            seen: Numbers of its sequences that it was learned from, the same on all ranks: no other is kept, or used
                for a Fisher. None: all.
        """
        seen = torch.arange(self.stream.size(task)) if seen is None else seen
        with _evaluating(self.network):
            chosen = seen[torch.randperm(len(seen), generator=generator)[:samples]]
            # Answers are drawn by a seed for each sequence, so that ranks together draw what one alone would.
            seeds = torch.randint(2**62, (len(chosen),), generator=generator)
            if isinstance(self.hold, EWC):
                self.hold.consolidate(self._fisher(task, chosen, seeds, share, add_up))
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
        """Go on from a state. What it remembers without logits is answered now, if they are asked for.

        Raises:
            ValueError: It is of another method, or of another kind of memory.
        """
        for name, kept in (("hold", "consolidates"), ("reservoir", "replays")):
            own = getattr(self, name)
            if set(own.state_dict() if own else ()) != set(state[name] or ()):
                raise ValueError(
                    f"what is taken up must be of a trial that {kept} as this one does, but got another. "
                    "Fix the parameter that changes it with --set."
                )
            if own is not None:
                own.load_state_dict(state[name])
        if self.reservoir is not None and self.with_logits:
            with _evaluating(self.network):
                self._answer(self.reservoir)

    def _fisher(
        self, task: int, chosen: Tensor, seeds: Tensor, share: slice, add_up: Callable[[list[Tensor]], None]
    ) -> dict[str, Tensor]:
        if self.stream.kind == "labels" and self.stream.outputs <= FEW:
            # Of all sequences on every rank: which vectors are negligible depends on all of them.
            logits = self._outputs(self.stream.rows(task, chosen))
            directions = exact_directions(masked_logits(logits, self.stream.allowed[task].to(logits.device)))
            scalars = self._exact_scalars(task, chosen[share], directions[share])
        else:
            scalars = self._drawn_scalars(task, chosen[share], seeds[share])
        sums, count = fisher_diagonal(self.parameters, scalars)
        total = torch.tensor(float(count), device=next(iter(sums.values())).device)
        add_up([*sums.values(), total])
        return {name: values / total for name, values in sums.items()}

    def _exact_scalars(self, task: int, chosen: Tensor, directions: list[Tensor]) -> Iterator[Tensor]:
        for index, columns in zip(chosen, directions, strict=True):
            yield self._answer_one(task, index)[0] @ columns if columns.numel() else columns.flatten()

    def _drawn_scalars(self, task: int, chosen: Tensor, seeds: Tensor) -> Iterator[Tensor]:
        for index, seed in zip(chosen, seeds.tolist(), strict=True):
            outputs = self._answer_one(task, index)
            allowed = self.stream.allowed[task].to(outputs.device)
            drawn = drawn_directions(self.stream.kind, outputs, allowed, torch.Generator().manual_seed(seed))
            yield (outputs * drawn).sum().view(1)

    def _answer_one(self, task: int, index: Tensor) -> Tensor:
        sample = self.stream.rows(task, index[None]).to(next(self.network.parameters()).device)
        outputs: Tensor = self.network(sample.inputs, sample.dt).outputs
        return outputs

    @torch.no_grad()
    def _outputs(self, samples: Samples) -> Tensor:
        """Answer sequences, some at a time."""
        device = next(self.network.parameters()).device
        parts = [samples.rows(slice(start, start + ANSWERED)).to(device) for start in range(0, samples.size, ANSWERED)]
        return torch.cat([self.network(part.inputs, part.dt).outputs for part in parts])

    def _answer(self, reservoir: Reservoir) -> None:
        """Answer what has just come into the memory."""
        tasks, indices, slots = reservoir.missing()
        for start in range(0, len(slots), ANSWERED):
            part = slice(start, start + ANSWERED)
            reservoir.store(slots[part], self._outputs(self.stream.rows(tasks[part], indices[part])))


@contextlib.contextmanager
def _evaluating(network: LiquidNetwork) -> Iterator[None]:
    """The network in evaluation mode inside, and each part of it in its own mode afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
