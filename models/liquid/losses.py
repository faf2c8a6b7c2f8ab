"""Losses and scores of a network's outputs."""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from searchlight.models.data import Kind, Samples
from searchlight.models.liquid.block import BlockState
from searchlight.models.liquid.continual import draw_direction, draw_signs, mask_logits
from searchlight.models.liquid.network import LiquidNetwork

BITS = 8.0  # per byte

Sums = tuple[float, float]


def compute_losses(kind: Kind, outputs: Tensor, targets: Tensor, allowed: Tensor) -> Tensor:
    """Return the loss of each sequence, (B,): cross-entropy in nats or mean squared error, as a mean over steps.

    Args:
        kind: The kind of targets.
        outputs: Shape (B, outputs) or (B, T, outputs).
        targets: Shape (B,), (B, T) or (B, T, outputs).
        allowed: The outputs that count, bool of shape (B, outputs).
    """
    if kind == "values":
        return (outputs - targets).square().mean((1, 2))
    if kind == "labels":
        return F.cross_entropy(mask_logits(outputs, allowed), targets, reduction="none")
    each = F.cross_entropy(outputs.flatten(0, 1), targets.flatten().long(), reduction="none")
    return each.view(targets.shape).mean(1)


def draw_directions(kind: Kind, outputs: Tensor, allowed: Tensor, generator: torch.Generator) -> Tensor:
    """Draw factors for the outputs of one sequence: the squared gradient of the sum estimates its Fisher.

    Values are modeled as Gaussian with variance 1. The Fisher of T steps is the mean over steps, as the loss is.

    Args:
        kind: The kind of targets.
        outputs: Of one sequence, shape (1, outputs) or (1, T, outputs).
        allowed: The outputs that count, bool of shape (outputs,).
        generator: The only source of randomness.

    Returns:
        The shape of `outputs`, without a graph.
    """
    rows = outputs.detach().flatten(0, -2)
    drawn = draw_signs(rows, generator) if kind == "values" else draw_direction(mask_logits(rows, allowed), generator)
    return drawn.view(outputs.shape) / math.sqrt(len(rows))


@torch.no_grad()
def measure_errors(kind: Kind, network: LiquidNetwork, samples: Samples, allowed: Tensor, batch_size: int) -> Sums:
    """Return the network's total error and the number of its parts: wrong labels, bits of bytes, or squared errors.

    Windows of bytes in `samples` are consecutive: they are processed in parallel lanes, and each window starts with the
    state of the one before it in its lane. Non-finite outputs make the sum NaN, since argmax would accept a NaN as a
    label.
    """
    totals, count = list[Tensor](), 0
    for outputs, targets in _answer_batches(kind, network, samples, batch_size):
        if kind == "labels":
            error = (mask_logits(outputs, allowed).argmax(-1) != targets).sum().to(outputs.dtype)
        elif kind == "bytes":
            error = F.cross_entropy(outputs.flatten(0, 1), targets.flatten().long(), reduction="sum")
        else:
            error = (outputs - targets).square().sum()
        totals.append(torch.where(outputs.isfinite().all(), error, math.nan))
        count += targets.numel()
    total = sum(torch.stack(totals).tolist()) if totals else 0.0  # the only wait for the GPU
    return (total / math.log(2) if kind == "bytes" else total), count


def compute_score(kind: Kind, error: float) -> float:
    """Return the score of a mean error, higher is better, at most 1.

    The score is the accuracy of labels, the saved share of a byte's 8 bits, or the explained share of the variance of
    standardized values.
    """
    return 1 - error / BITS if kind == "bytes" else 1 - error


def _answer_batches(
    kind: Kind, network: LiquidNetwork, samples: Samples, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    device = next(network.parameters()).device
    batches: Callable[[Samples, int], Iterator[tuple[Samples, bool]]] = (
        _iterate_lanes if kind == "bytes" else _iterate_batches
    )
    state: list[BlockState] | None = None
    for batch, goes_on in batches(samples, batch_size):
        inputs, targets = batch.inputs.to(device), batch.targets.to(device)
        if goes_on and state is not None:
            state = [BlockState(*(part[: len(inputs)] for part in layer)) for layer in state]
        else:
            state = None
        answer = network(inputs, None if batch.dt is None else batch.dt.to(device), state)
        state = answer.state
        yield answer.outputs, targets


def _iterate_batches(samples: Samples, batch_size: int) -> Iterator[tuple[Samples, bool]]:
    for start in range(0, samples.size, batch_size):
        yield samples.select_rows(slice(start, start + batch_size)), False


def _iterate_lanes(samples: Samples, lanes: int) -> Iterator[tuple[Samples, bool]]:
    """Yield the next window of each lane, and whether it continues the window before."""
    steps = math.ceil(samples.size / lanes)
    for step in range(steps):
        yield samples.select_rows(torch.arange(step, samples.size, steps)), step > 0
