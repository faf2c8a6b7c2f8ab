"""A curriculum that changes what is learned from, and never how much a loss counts as a whole.

One ratio, which moves over a warm-up, mixes two things: the loss of the grid's layout with that of its cells, and
puzzles of the current level with puzzles of all levels. A mere factor on the loss would be undone by Adam.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

WINDOW = 0.2


@dataclass(frozen=True)
class Curriculum:
    """How the ratio and the level go over the epochs. It has no state: an epoch says all.

    Attributes:
        start: Ratio in epoch 0, in 0..1.
        end: Ratio from `warmup` on, in 0..1. With start and end 0 there is no curriculum.
        warmup: Epochs from one to the other, at least 0; may be a fraction.

    Raises:
        ValueError: A number is out of range.
    """

    start: float
    end: float
    warmup: float

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            ratio = getattr(self, name)
            if not 0 <= ratio <= 1:
                raise ValueError(f"{name} must be between 0 and 1, but got {ratio}. Use 0 for no curriculum.")
        if not 0 <= self.warmup < math.inf:
            raise ValueError(f"warmup must be at least 0 epochs and finite, but got {self.warmup}. Use 0 for none.")

    def ratio(self, epoch: float) -> float:
        """From start to end in a straight line over the warm-up."""
        progress = self._progress(epoch)
        return (1 - progress) * self.start + progress * self.end

    def draw(self, levels: Tensor, samples: int, epoch: float, generator: torch.Generator) -> Tensor:
        """Draw what to learn from in an epoch.

        A share of `1 - ratio` is drawn uniformly, each index once before any is drawn twice, so that easy levels
        never vanish. The rest comes from a Gaussian window over the levels, which moves from the easiest to the
        hardest over the warm-up (as Parashar et al. 2025, arXiv 2506.06632, fade out easy tasks and do not drop
        them), and may repeat.

        Args:
            levels: Difficulty of what there is, float in 0..1, shape (N,).
            samples: How many to draw.
            epoch: May be a fraction.
            generator: The only source of randomness.

        Returns:
            Indices, int64 of shape (samples,), the uniform ones first.
        """
        focused = round(self.ratio(epoch) * samples)
        rounds = -(-(samples - focused) // len(levels))
        drawn = [torch.randperm(len(levels), generator=generator) for _ in range(rounds)]
        parts = [torch.cat(drawn)[: samples - focused]] if drawn else []
        if focused:
            distance = (levels.double() - self._progress(epoch)) / WINDOW
            window = (-0.5 * distance.square()).softmax(0)
            parts.append(torch.multinomial(window, focused, replacement=True, generator=generator))
        return torch.cat(parts)

    def _progress(self, epoch: float) -> float:
        return 1.0 if epoch >= self.warmup else max(0.0, epoch / self.warmup)


def mix(ratio: float, cell: Tensor, layout: Tensor) -> Tensor:
    """The loss of the cells and that of the layout, in the shares of `1 - ratio` and `ratio`."""
    return (1 - ratio) * cell + ratio * layout


UNIFORM = Curriculum(0.0, 0.0, 0.0)
