"""The wiring of a neural circuit policy (Lechner et al. 2020, Nature Machine Intelligence 2:642)."""

from typing import NamedTuple

import torch
from torch import Tensor


class Layer(NamedTuple):
    """One layer of neurons and its synapses.

    Attributes:
        inputs: Neurons of the layer before.
        units: Neurons of this layer.
        mask: 0 or 1, float of shape (units, inputs + units): the inputs and units that each neuron receives.
    """

    inputs: int
    units: int
    mask: Tensor


def draw_circuit(inputs: int, units: int, outputs: int, sparsity: float) -> list[Layer]:
    """Draw a wiring of inter, command and motor neurons, in this order, from torch's global generator.

    Neurons of one layer receive only their own past state; command neurons also receive each other. Each neuron has at
    least one synapse to the next layer and at least one from the layer before.

    Args:
        inputs: Sensory neurons.
        units: All others, at least `outputs` + 2. Of those that are not motor neurons, 40 % are command and 60 % inter
            neurons.
        outputs: Motor neurons.
        sparsity: Share of omitted synapses between layers, and among command neurons; 0..1.
    """
    command = max(1, round(0.4 * (units - outputs)))
    inter = units - outputs - command
    density = 1 - sparsity
    among_commands = torch.maximum(torch.eye(command), _draw(command, command, density))
    return [
        Layer(inputs, inter, torch.cat([_draw_synapses(inter, inputs, density), torch.eye(inter)], dim=1)),
        Layer(inter, command, torch.cat([_draw_synapses(command, inter, density), among_commands], dim=1)),
        Layer(command, outputs, torch.cat([_draw_synapses(outputs, command, density), torch.eye(outputs)], dim=1)),
    ]


def _draw_synapses(post: int, pre: int, density: float) -> Tensor:
    """Connect each neuron to a share `density` of those before, and each of these to at least one neuron."""
    mask = _draw(post, pre, density)
    unheard = (mask.sum(0) == 0).nonzero().squeeze(1)
    mask[torch.randint(post, (len(unheard),)), unheard] = 1
    return mask


def _draw(post: int, pre: int, density: float) -> Tensor:
    """Draw a mask with the same number of ones in each row, at least one."""
    chosen = torch.rand(post, pre).argsort(dim=1)[:, : max(1, round(density * pre))]
    return torch.zeros(post, pre).scatter_(1, chosen, 1.0)
