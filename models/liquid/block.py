"""A residual block with a liquid and a spiking branch."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from searchlight.models.liquid.cells import CELLS
from searchlight.models.liquid.plasticity import PlasticSynapses
from searchlight.models.liquid.spiking import LIF


class BlockState(NamedTuple):
    """States of sequences: of the liquid cell, (B, state size), and the membranes of both spiking layers, (B, S)."""

    liquid: Tensor
    first: Tensor
    second: Tensor


class LiquidSpikingBlock(nn.Module):
    """Adds the gated output of a liquid cell and of two spiking layers to its inputs.

    A step of the spikes is a step of the sequence (SpikeGPT, arXiv 2302.13939), without inner steps. The residual
    stream stays continuous.

    Args:
        width: Features of the residual stream.
        units: Of the liquid cell.
        spikes: Neurons of each spiking layer.
        cell: One of `searchlight.models.liquid.cells.CELLS`.
        neurons: Creates a layer with a number of neurons.
        synapses: Creates plastic synapses between both layers from their sizes, in addition to the trained ones. None:
            no plastic synapses.
        dropout: Of the added output.
    """

    def __init__(
        self,
        width: int,
        units: int,
        spikes: int,
        cell: str,
        neurons: Callable[[int], LIF],
        synapses: Callable[[int, int], PlasticSynapses] | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.cell = CELLS[cell](width, units)
        self.drive = nn.Linear(width, spikes)
        self.first = neurons(spikes)
        self.relay = nn.Linear(spikes, spikes)
        self.synapses = synapses(spikes, spikes) if synapses else None
        self.second = neurons(spikes)
        self.fuse = nn.Sequential(nn.Linear(self.cell.outputs + spikes, width), nn.GELU(), nn.Linear(width, width))
        self.gate = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, state: BlockState | None = None, dt: Tensor | None = None
    ) -> tuple[Tensor, BlockState, Tensor]:
        """Run sequences.

        Args:
            x: Shape (B, T, width).
            state: Initial states, or None for zeros.
            dt: Time that each step takes, shape (B, T, 1); 1 if None.

        Returns:
            The stream, shape (B, T, width), the last states, and the spikes per neuron and step of each layer, shape
                (2,).
        """
        before = state or (None, None, None)
        normed = self.norm(x)
        flow, liquid = self.cell(normed, before[0], dt)
        sent, first = self.first(self.drive(normed), before[1], dt)
        current = self.relay(sent)
        if self.synapses is not None:
            current = current + self.synapses(sent)
        received, second = self.second(current, before[2], dt)
        if self.synapses is not None and self.training and torch.is_grad_enabled():
            self.synapses.observe(sent, received)
        added = self.dropout(self.fuse(torch.cat([flow, received], dim=-1)))
        rates = torch.stack([sent.mean(), received.mean()])
        return x + torch.sigmoid(self.gate(normed)) * added, BlockState(liquid, first, second), rates
