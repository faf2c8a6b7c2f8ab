"""The base class of the cells."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from searchlight.models.liquid.sequence_inputs import check_sequence


class Cell(nn.Module, ABC):
    """A recurrent layer in continuous time.

    Attributes:
        inputs: Features F of its inputs.
        outputs: Width of its outputs.
        state_size: Width of its state.
    """

    inputs: int
    outputs: int
    state_size: int

    def forward(self, x: Tensor, state: Tensor | None = None, dt: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run sequences.

        Args:
            x: Inputs, shape (B, T, F).
            state: Initial state, shape (B, state_size); zeros if None.
            dt: Time that each step takes, 0 or more, shape (B, T, 1); 1 if None.

        Returns:
            Outputs, shape (B, T, outputs), and the last state, shape (B, state_size), both fp32 also under autocast.

        Raises:
            ValueError: If a shape is wrong.
        """
        check_sequence(x, self.inputs, state, self.state_size, dt)
        return self._run(x, state, dt)

    @abstractmethod
    def _run(self, x: Tensor, state: Tensor | None, dt: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run sequences whose shapes `forward` has checked."""
