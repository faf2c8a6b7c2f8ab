"""A small transformer on the handwritten digits of scikit-learn, whose training takes seconds on a CPU.

An image is a sequence of 16 patches of 2 x 2 pixels. Searches see the validation loss. The test loss is that of the
same checkpoint on images that no search saw.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trainables.task import Task, TaskConfig, searchable

from .digits import load

TRAINED, VALIDATED = 1000, 1400  # last images of training and validation; the others are the test
BATCH = 50


class TransformerConfig(TaskConfig):
    lr: float = searchable(3e-3, low=1e-4, high=0.1, log=True)
    weight_decay: float = searchable(1e-2, low=1e-4, high=1.0, log=True)
    dropout: float = searchable(0.1, low=0.0, high=0.5)
    smoothing: float = searchable(0.0, low=0.0, high=0.3)
    warmup: float = searchable(0.1, low=0.0, high=0.4)
    width: int = searchable(32, choices=[16, 32, 64])
    layers: int = searchable(2, choices=[1, 2])
    epochs: int = 27


class PatchTransformer(nn.Module):
    """A transformer from images of shape (batch, 64) to logits of shape (batch, 10)."""

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Linear(4, width)
        self.positions = nn.Parameter(0.02 * torch.randn(16, width))
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        patches = images.view(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, 16, 4)
        logits: Tensor = self.head(self.blocks(self.embedding(patches) + self.positions).mean(1))
        return logits


class TransformerTask(Task[TransformerConfig]):
    objective, mode = "val/loss", "min"

    def build(self) -> None:
        config = self.config
        self.x, self.y = self.context.cache("digits", load)
        model = PatchTransformer(config.width, config.layers, config.dropout)
        optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
        updates = config.epochs * TRAINED / (BATCH * config.accumulation)

        def share_of_peak(update: int) -> float:
            done = (update + 1) / updates
            if done < config.warmup:
                return done / config.warmup
            return (1 + math.cos(math.pi * min(1.0, (done - config.warmup) / (1 - config.warmup)))) / 2

        self.modules, self.optimizers = {"model": model}, {"model": optimizer}
        self.schedulers = [torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_peak)]

    def train_batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        return self.context.shard((self.x[:TRAINED], self.y[:TRAINED]), batch_size=BATCH)

    def loss(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, float]:
        x, y = batch
        logits = self.modules["model"](x)
        return nn.functional.cross_entropy(logits, y, label_smoothing=self.config.smoothing), len(x)

    def evaluate(self) -> dict[str, float]:
        """Return the losses without smoothing, since an objective must not depend on smoothing."""
        losses = nn.functional.cross_entropy(
            self.modules["model"](self.x[TRAINED:]).float(), self.y[TRAINED:], reduction="none"
        )
        held_out = VALIDATED - TRAINED
        return {"val/loss": losses[:held_out].mean().item(), "test/loss": losses[held_out:].mean().item()}
