"""A neural circuit policy of closed-form cells (Lechner et al. 2020; Hasani et al. 2022)."""

import torch
from torch import Tensor, nn

from searchlight.models.liquid.cells.cell import Cell
from searchlight.models.liquid.cells.cfc import CfC
from searchlight.models.liquid.cells.wiring import draw_circuit


class NCP(Cell):
    """Inter, command and motor neurons: three sparse CfC layers, each fed with the outputs of the one before.

    Within a step, signals only run forward, so that each layer can process its whole sequence before the next layer.
    Outputs are the states of the motor neurons. The state is that of inter, command and motor neurons, concatenated.

    Args:
        inputs: Features F of the inputs.
        units: Total number of neurons U, the width of the state.
        outputs: Motor neurons, the width of the outputs; a quarter of the units if None.
        sparsity: Share of omitted synapses, 0..1, drawn from torch's global generator.
    """

    def __init__(self, inputs: int, units: int, outputs: int | None = None, sparsity: float = 0.5) -> None:
        super().__init__()
        outputs = max(1, units // 4) if outputs is None else outputs
        layers = draw_circuit(inputs, units, outputs, sparsity)
        self.inputs, self.outputs, self.state_size = inputs, outputs, units
        self.layers = nn.ModuleList(CfC(layer.inputs, layer.units, mask=layer.mask) for layer in layers)
        self.widths = [layer.units for layer in layers]

    def _run(self, x: Tensor, state: Tensor | None, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        starts: tuple[Tensor | None, ...] = (None,) * 3 if state is None else torch.split(state, self.widths, dim=1)
        ends = []
        for layer, start in zip(self.layers, starts, strict=True):
            x, end = layer(x, start, dt)
            ends.append(end)
        return x, torch.cat(ends, dim=1)
