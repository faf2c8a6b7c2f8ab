"""A language model that is sharded over the GPUs of a trial (FSDP2), for models that do not fit on one.

searchlight run examples/sharded.py:Sharded --workers 2 --trials 6    # on CPUs
searchlight run examples/sharded.py:Sharded --workers 8 --gpus-per-worker 1 --trials 20

With --trials 6 --concurrency 1, on CPUs, it printed:

    2 completed, 4 pruned in 4:42
    best: trial 1, val/loss 2.665 estimated over 2 new seeds, 90 % interval 2.518 to 2.834
      trial 1 beats the defaults by 0.39 (90 % interval 0.27 to 0.48, 2 seeds)
"""

from pydoc_data.topics import topics

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from searchlight import Task, TaskConfig, searchable

LENGTH = 64  # bytes of a sample


class ShardedConfig(TaskConfig):
    lr: float = searchable(3e-4, low=1e-4, high=3e-2, log=True)
    dropout: float = searchable(0.0, low=0.0, high=0.3)
    width: int = 64
    depth: int = 2
    batch_size: int = 16  # of one worker, per micro-batch
    recompute: bool = False  # activations in the backward pass: less memory, a third more time


class Model(nn.Module):
    """Predicts each byte of texts (batch, time) from those before it, and returns the mean loss."""

    def __init__(self, config):
        super().__init__()
        self.recompute = config.recompute
        self.bytes, self.places = nn.Embedding(256, config.width), nn.Embedding(LENGTH, config.width)
        sizes = {"d_model": config.width, "nhead": 4, "dim_feedforward": 4 * config.width, "dropout": config.dropout}
        layers = (nn.TransformerEncoderLayer(**sizes, batch_first=True, norm_first=True) for _ in range(config.depth))
        self.blocks = nn.ModuleList(layers)
        self.out = nn.Linear(config.width, 256)

    def forward(self, text):
        text, following = text[:, :-1], text[:, 1:]
        x = self.bytes(text) + self.places.weight
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=text.device)
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False) if self.recompute else block(x, mask)
        return nn.functional.cross_entropy(self.out(x).float().flatten(0, 1), following.flatten())


class Sharded(Task[ShardedConfig]):
    objective, mode = "val/loss", "min"

    def build(self):
        text = "\n".join(topics[name] for name in sorted(topics)).encode()  # the manual of Python
        samples = torch.tensor(list(text[: 320 * (LENGTH + 1)])).view(320, LENGTH + 1)
        self.train, self.held_out = (samples[:256],), (samples[256:],)
        model = Model(self.config)
        for block in model.blocks:
            fully_shard(block, mesh=self.context.mesh)  # self.context.hybrid_mesh: a replica on each node
        fully_shard(model, mesh=self.context.mesh)
        self.modules = {"model": model}
        self.optimizers = {"model": torch.optim.AdamW(model.parameters(), self.config.lr)}  # after the sharding

    def train_batches(self, epoch):
        return self.context.shard(self.train, self.config.batch_size)

    def loss(self, batch):
        (text,) = batch
        return self.modules["model"](text), text[:, 1:].numel()

    def evaluate(self):
        total, count = 0.0, 0
        for batch in self.context.shard(self.held_out, batch_size=32, shuffle=False):  # the share of this worker
            loss, weight = self.loss([part.to(self.context.device) for part in batch])
            total, count = total + loss.item() * weight, count + weight
        return {"val/loss": (total / max(count, 1), count)}
