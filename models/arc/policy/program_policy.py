"""A network from what is known of a puzzle to a distribution over operations."""

from typing import cast

import torch
from torch import Tensor, nn

CLIP = 4.0  # standard deviations of a statistic
LEAST_DEVIATION = 0.05  # of a statistic: one that hardly differs between puzzles says little


class ProgramPolicy(nn.Module):
    """A distribution over the operations of a program, given the statistics of a puzzle and possibly a prompt.

    Dropout of the statistics and of hidden units keeps a few hundred puzzles from being learned by heart.

    Args:
        statistics: The statistics of the training puzzles, shape (puzzles, S). The network sees each statistic in
            standard deviations from its mean.
        operations: The number of operations, A.
        prompt_dim: The length of a prompt, 0 without prompts.
        width: The number of hidden units of each of two layers.
        dropout: The share of entries that are dropped in training.
    """

    def __init__(self, statistics: Tensor, operations: int, prompt_dim: int, width: int, dropout: float) -> None:
        super().__init__()
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", statistics.mean(0))
        self.register_buffer("deviation", statistics.std(0, correction=0).clamp(min=LEAST_DEVIATION))
        self.layers = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(statistics.shape[1] + prompt_dim, width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Dropout(dropout),
        )
        self.head = nn.Linear(width, operations)
        # Nearly uniform at first. With weights of zero, the layers below would get no gradient in the first update.
        nn.init.normal_(self.head.weight, std=1e-3)
        nn.init.zeros_(self.head.bias)

    def forward(self, statistics: Tensor, prompt: Tensor | None, is_valid: Tensor) -> Tensor:
        """Compute the log-probabilities of all operations.

        Args:
            statistics: See `compute_statistics`, shape (B, S).
            prompt: The prompts, shape (B, prompt_dim), or None without prompts.
            is_valid: Which operations apply to each puzzle, bool of shape (B, A). The others are not sampled.

        Returns:
            Float32 of shape (B, A), about -3e38 where an operation is not valid. Without any valid operation, all
            have the same probability.
        """
        state = ((statistics - self.mean) / self.deviation).clamp(-CLIP, CLIP)
        if prompt is not None:
            state = torch.cat([state, prompt], dim=1)
        logits = self.head(self.layers(state))
        with torch.autocast(logits.device.type, enabled=False):
            masked = logits.float().masked_fill(~is_valid, torch.finfo(torch.float32).min)
            return cast(Tensor, masked.log_softmax(-1))
