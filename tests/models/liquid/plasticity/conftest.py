"""Spikes at random."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

Spikes = Callable[..., tuple[Tensor, Tensor]]


@pytest.fixture
def spikes() -> Spikes:
    """Independent spikes of two populations, shapes (B, T, pre) and (B, T, post)."""

    def draw(
        seed: int = 0, batch: int = 4, steps: int = 50, pre: int = 5, post: int = 3, rate: float = 0.2
    ) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return tuple((torch.rand(batch, steps, n, generator=generator) < rate).float() for n in (pre, post))

    return draw
