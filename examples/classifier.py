"""A plain PyTorch classifier: two spirals, a small network, a learning rate, a weight decay and a width to search.

searchlight run examples/classifier.py:Classifier --trials 20
"""

import torch

from searchlight import Task, TaskConfig, searchable


class ClassifierConfig(TaskConfig):
    micro_batch_field = "batch_size"  # a trial that runs out of memory continues with smaller micro-batches
    lr: float = searchable(1e-3, low=1e-4, high=1e-1, log=True)
    weight_decay: float = searchable(1e-2, low=1e-4, high=1.0, log=True)
    width: int = searchable(32, low=8, high=128, log=True)
    batch_size: int = 32


def draw_spirals(samples, generator):
    """Return points of shape (samples, 2) on two spirals with noise, and the spiral of each point."""
    label = torch.randint(2, (samples,), generator=generator)
    angle = 1 + 8 * torch.rand(samples, generator=generator)
    turned = angle + torch.pi * label
    points = torch.stack([turned.cos(), turned.sin()], 1) * angle[:, None] / 9
    return points + 0.03 * torch.randn(points.shape, generator=generator), label


class Classifier(Task[ClassifierConfig]):
    objective, mode = "val/accuracy", "max"

    def build(self):
        # The data are the same for each seed, which changes the weights and the order of the samples.
        generator = torch.Generator().manual_seed(0)
        self.train, self.held_out = draw_spirals(1024, generator), draw_spirals(512, generator)
        self.dataset("spirals", list(self.train))
        self.dataset("spirals", list(self.held_out), use="evaluation")
        width = self.config.width
        model = torch.nn.Sequential(
            torch.nn.Linear(2, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, 2),
        )
        self.modules = {"model": model}
        self.optimizers = {
            "model": torch.optim.AdamW(model.parameters(), self.config.lr, weight_decay=self.config.weight_decay)
        }

    def train_batches(self, epoch):
        return self.context.shard(self.train, self.config.batch_size)

    def loss(self, batch):
        points, label = batch
        return torch.nn.functional.cross_entropy(self.modules["model"](points), label), len(label)

    def evaluate(self):
        points, label = (part.to(self.context.device) for part in self.held_out)
        return {"val/accuracy": (self.modules["model"](points).argmax(1) == label).float().mean().item()}
