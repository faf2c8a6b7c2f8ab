"""The liquid spiking network: from bytes or numbers to an output per sequence or per step."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from searchlight.models.liquid.block import BlockState, LiquidSpikingBlock
from searchlight.models.liquid.plasticity import PlasticSynapses
from searchlight.models.liquid.spiking import LIF

BYTES = 256


class Answer(NamedTuple):
    """The results of a network for sequences.

    Attributes:
        outputs: fp32; one output per sequence (B, outputs), or one per step (B, T, outputs).
        state: The last states by layer, from which the next part of the sequences starts.
        rates: Spikes per neuron and step, of all spiking layers.
    """

    outputs: Tensor
    state: list[BlockState]
    rates: Tensor


class LiquidNetwork(nn.Module):
    """Causal residual liquid spiking blocks between an embedding and a linear head.

    Args:
        features: Numbers in each step of the inputs; 0 for bytes.
        outputs: Numbers of an output.
        answers: One output for each "sequence", from the mean over its steps, or one for each "step".
        width: Features of the residual stream.
        layers: Blocks.
        units, spikes, cell, neurons, synapses, dropout: Of each block.
    """

    def __init__(
        self,
        features: int,
        outputs: int,
        answers: Literal["sequence", "step"],
        *,
        width: int,
        layers: int,
        units: int,
        spikes: int,
        cell: str,
        neurons: Callable[[int], LIF],
        synapses: Callable[[int, int], PlasticSynapses] | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.answers = answers
        self.features = features
        self.embed: nn.Module = nn.Linear(features, width) if features else nn.Embedding(BYTES, width)
        self.blocks = nn.ModuleList(
            LiquidSpikingBlock(width, units, spikes, cell, neurons, synapses, dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, inputs: Tensor, dt: Tensor | None = None, state: Sequence[BlockState] | None = None) -> Answer:
        """Run sequences.

        Args:
            inputs: Shape (B, T, features), or (B, T) of bytes.
            dt: Time that each step takes, shape (B, T, 1); 1 if None.
            state: Initial states, from an earlier Answer; zeros if None.
        """
        x = self.embed(inputs.float() if self.features else inputs.int()).float()
        states, rates = list[BlockState](), list[Tensor]()
        for layer, block in enumerate(self.blocks):
            x, reached, spikes = block(x, None if state is None else state[layer], dt)
            states.append(reached)
            rates.append(spikes)
        x = self.norm(x)
        if self.answers == "sequence":
            x = x.mean(1)
        return Answer(self.head(x).float(), states, torch.cat(rates))

    def list_synapses(self) -> list[PlasticSynapses]:
        """Return all plastic synapses, by layer."""
        return [block.synapses for block in self.blocks if isinstance(block.synapses, PlasticSynapses)]
