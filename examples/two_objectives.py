"""Quality and latency: the result is a front of models, of which none is both more accurate and faster than another.

One trial at a time, because trials beside each other would slow each other down.

    searchlight run examples/two_objectives.py:Digits --objective val/accuracy --objective val/latency_ms:min \
        --concurrency 1 --trials 24
    searchlight run examples/two_objectives.py:Digits --concurrency 1 --constraint 'val/latency_ms<=0.2'

With --trials 8 --concurrency 1, on CPUs, it printed:

    2 completed, 6 pruned in 1:29
    best: trial 1, val/accuracy 0.8087 after epoch 9
    front: 3 trials, marked *
"""

import statistics
import time

import torch
from sklearn.datasets import load_digits
from torch import nn

from searchlight import Task, TaskConfig, searchable


class DigitsConfig(TaskConfig):
    lr: float = searchable(3e-3, low=1e-4, high=3e-2, log=True)
    width: int = searchable(16, low=4, high=64, log=True)
    depth: int = searchable(2, low=1, high=6)
    epochs: int = 9


class Digits(Task[DigitsConfig]):
    objective, mode = "val/accuracy", "max"

    def build(self):
        images, labels = load_digits(return_X_y=True)
        x, y = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels)
        self.train, self.held_out = (x[:600], y[:600]), (x[600:], y[600:])
        width, layers = self.config.width, []
        for channels in [1] + [width] * (self.config.depth - 1):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 10))
        self.modules = {"model": model}
        self.optimizers = {"model": torch.optim.AdamW(model.parameters(), self.config.lr)}

    def train_batches(self, epoch):
        return self.context.shard(self.train, batch_size=32)

    def loss(self, batch):
        images, labels = batch
        return nn.functional.cross_entropy(self.modules["model"](images), labels), len(labels)

    def evaluate(self):
        model, device = self.modules["model"], self.context.device
        images, labels = (part.to(device) for part in self.held_out)
        times = []
        for image in images[:50].split(1):
            start = time.perf_counter()
            model(image).argmax(1).item()  # which waits for a GPU
            times.append(1000 * (time.perf_counter() - start))
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
        return {"val/accuracy": accuracy, "val/latency_ms": statistics.median(times)}
