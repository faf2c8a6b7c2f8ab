"""A regression that the agent of research.py edits: a line through a sine, which it cannot follow.

searchlight run examples/agent/task.py:Wave --trials 6
"""

import torch

from searchlight import Task, TaskConfig, searchable


class WaveConfig(TaskConfig):
    lr: float = searchable(3e-3, low=1e-3, high=1e-1, log=True)
    epochs: int = 4


class Wave(Task[WaveConfig]):
    objective, mode = "val/loss", "min"

    def build(self):
        generator = torch.Generator().manual_seed(0)  # the data are the same for each seed
        x = 6 * torch.rand(768, 1, generator=generator) - 3
        y = torch.sin(2 * x) + 0.1 * torch.randn(x.shape, generator=generator)
        self.train, self.held_out = (x[:512], y[:512]), (x[512:], y[512:])
        self.dataset("wave", list(self.train))
        self.dataset("wave", list(self.held_out), use="evaluation")
        model = torch.nn.Linear(1, 1)
        self.modules = {"model": model}
        self.optimizers = {"model": torch.optim.Adam(model.parameters(), self.config.lr)}

    def train_batches(self, epoch):
        return self.context.shard(self.train, 16)

    def loss(self, batch):
        x, y = batch
        return torch.nn.functional.mse_loss(self.modules["model"](x), y), len(y)

    def evaluate(self):
        x, y = (part.to(self.context.device) for part in self.held_out)
        return {"val/loss": torch.nn.functional.mse_loss(self.modules["model"](x), y).item()}
