"""A plain PyTorch classifier of handwritten digits: a learning rate, a weight decay and a width to search.

searchlight run examples/classifier.py:Classifier --trials 20

With --trials 8 --concurrency 1, on CPUs, it printed:

    2 completed, 6 pruned in 0:38
    best: trial 1, val/accuracy 0.8653 estimated over 2 new seeds, 90 % interval 0.7895 to 0.9363
      trial 1 beats the defaults by 0.08 (90 % interval 0 to 0.15, 2 seeds)
"""

import torch
from sklearn.datasets import load_digits

from searchlight import Task, TaskConfig, searchable


class ClassifierConfig(TaskConfig):
    micro_batch_field = "batch_size"  # a trial that runs out of memory continues with smaller micro-batches
    lr: float = searchable(1e-3, low=1e-4, high=1e-1, log=True)
    weight_decay: float = searchable(1e-2, low=1e-4, high=1.0, log=True)
    width: int = searchable(32, low=8, high=128, log=True)
    batch_size: int = 32


class Classifier(Task[ClassifierConfig]):
    objective, mode = "val/accuracy", "max"

    def build(self):
        images, labels = load_digits(return_X_y=True)
        x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
        self.train, self.held_out = (x[:600], y[:600]), (x[600:], y[600:])
        self.dataset("digits", list(self.train))  # which MLflow shows, with a digest
        self.dataset("digits", list(self.held_out), use="evaluation")
        width = self.config.width
        model = torch.nn.Sequential(
            torch.nn.Linear(64, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, 10),
        )
        self.modules = {"model": model}
        self.optimizers = {
            "model": torch.optim.AdamW(model.parameters(), self.config.lr, weight_decay=self.config.weight_decay)
        }

    def train_batches(self, epoch):
        return self.context.shard(self.train, self.config.batch_size)

    def loss(self, batch):
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.modules["model"](images), labels), len(labels)

    def evaluate(self):
        images, labels = (part.to(self.context.device) for part in self.held_out)
        return {"val/accuracy": (self.modules["model"](images).argmax(1) == labels).float().mean().item()}
