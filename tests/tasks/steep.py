"""A task of a user that diverges for real: in fp32 where its learning rate is high, in fp16 at a far lower one."""

import torch

from searchlight import Task, TaskConfig, searchable


class SteepConfig(TaskConfig):
    lr: float = searchable(1e-2, low=1e-2, high=1e4, log=True)
    noise: float = searchable(0.0, low=0.0, high=0.1, description="of the targets; not what it diverges by")
    epochs: int = 2


class Steep(Task[SteepConfig]):
    objective, mode = "val/loss", "min"

    def build(self):
        generator = torch.Generator().manual_seed(0)
        x, noise = torch.randn(64, 4, generator=generator), torch.randn(64, 1, generator=generator)
        self.x = x.to(self.context.device)
        self.y = (x.sum(1, keepdim=True) + self.config.noise * noise).to(self.context.device)
        self.modules = {"model": torch.nn.Linear(4, 1)}
        self.optimizers = {"model": torch.optim.Adam(self.modules["model"].parameters(), lr=self.config.lr)}

    def train_batches(self, epoch):
        return self.context.shard((self.x, self.y), batch_size=1)

    def loss(self, batch):
        x, y = batch
        hidden = self.modules["model"](x) * 1e3  # a sum over many, which fp16 holds up to 65504
        return torch.nn.functional.mse_loss(hidden / 1e3, y), len(x)

    def evaluate(self):
        return {"val/loss": torch.nn.functional.mse_loss(self.modules["model"](self.x), self.y).item()}
