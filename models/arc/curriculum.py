"""A curriculum that changes what is learned from, and never how much a loss counts as a whole.

A share of an epoch's puzzles comes from a window over the levels of difficulty, the others from all levels. Over the
run, the window moves from the easiest to the hardest level, and its share falls to none: the last epoch is uniform.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

WINDOW = 0.2


@dataclass(frozen=True)
class Curriculum:
    """How the window and its share go over the epochs. It has no state: an epoch says all.

    Attributes:
        start: Share of the window in epoch 0, in 0..1; 0 for no curriculum.
        epochs: Of the run; in the last one the share is 0. With one epoch there is no curriculum.

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
        """Return the window's share: from `start` to 0 in a straight line over the run."""
        return self.start * (1 - self._progress(epoch))

    def draw(self, levels: Tensor, samples: int, epoch: float, generator: torch.Generator) -> Tensor:
        """Draw what to learn from in an epoch.

        A part of `1 - share` is drawn uniformly, each index once before any is drawn twice, so that no level ever
        vanishes. The rest comes from a Gaussian window over the levels and may repeat. (Parashar et al. 2025, arXiv
        2506.06632, fade out easy tasks and do not drop them.)

        Args:
            levels: Difficulty of what there is, float in 0..1, shape (N,).
            samples: How many to draw.
            epoch: May be a fraction.
            generator: The only source of randomness.

        Returns:
            Indices, int64 of shape (samples,), the uniform ones first.
        """
        focused = round(self.share(epoch) * samples)
        rounds = -(-(samples - focused) // len(levels))
        drawn = [torch.randperm(len(levels), generator=generator) for _ in range(rounds)]
        parts = [torch.cat(drawn)[: samples - focused]] if drawn else []
        if focused:
            distance = (levels.double() - self._progress(epoch)) / WINDOW
            window = (-0.5 * distance.square()).softmax(0)
            parts.append(torch.multinomial(window, focused, replacement=True, generator=generator))
        return torch.cat(parts)

    def _progress(self, epoch: float) -> float:
        return 1.0 if epoch >= self.epochs - 1 else max(0.0, epoch / (self.epochs - 1))


UNIFORM = Curriculum(0.0, 1)
