"""A curriculum that changes which puzzles are drawn, and never the weight of a loss.

A share of an epoch's puzzles comes from a window over the levels of difficulty, and the others come from all levels.
Over the run, the window moves from the easiest to the hardest level, and its share falls to half.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

WINDOW = 0.2


@dataclass(frozen=True)
class Curriculum:
    """The window and its share as functions of the epoch, without a state.

    Attributes:
        start: The share of the window in epoch 0, in 0..1. 0: no curriculum.
        epochs: The number of epochs of the run. In the last epoch, the share is half of `start`.

    Raises:
        ValueError: A number is out of range.
    """

    start: float
    epochs: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= 1:
            raise ValueError(f"start must be between 0 and 1, but got {self.start}. Use 0 for no curriculum.")
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, but got {self.epochs}. Use those of the run.")

    def share(self, epoch: float) -> float:
        """Return the share of the window, which falls linearly from `start` to half of it over the run."""
        return self.start * (1 - self._compute_progress(epoch) / 2)

    def draw(self, levels: Tensor, samples: int, epoch: float, generator: torch.Generator) -> Tensor:
        """Draw the indices of an epoch.

        A part of `1 - share` is drawn uniformly, and no index twice before all are drawn, so that no level disappears.
        The other indices come from a Gaussian window over the levels and may repeat. Parashar et al. 2025 (arXiv
        2506.06632) also reduce easy tasks without dropping them.

        Args:
            levels: The difficulty of each item, float in 0..1, shape (N,).
            samples: The number of indices to draw.
            epoch: The epoch, counted from 0, possibly a fraction.
            generator: The only source of random numbers.

        Returns:
            The indices, int64 of shape (samples,), those drawn uniformly first.
        """
        focused = round(self.share(epoch) * samples)
        rounds = -(-(samples - focused) // len(levels))
        drawn = [torch.randperm(len(levels), generator=generator) for _ in range(rounds)]
        parts = [torch.cat(drawn)[: samples - focused]] if drawn else []
        if focused:
            distance = (levels.double() - self._compute_progress(epoch)) / WINDOW
            window = (-0.5 * distance.square()).softmax(0)
            parts.append(torch.multinomial(window, focused, replacement=True, generator=generator))
        return torch.cat(parts)

    def _compute_progress(self, epoch: float) -> float:
        return 1.0 if epoch >= self.epochs - 1 else max(0.0, epoch / (self.epochs - 1))
