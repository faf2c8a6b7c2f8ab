"""A module beside a task: it must travel to the workers with it."""

import torch


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(96, 4, generator=torch.Generator().manual_seed(0))
    return x, x @ torch.tensor([[0.5], [-0.4], [0.3], [0.2]])
