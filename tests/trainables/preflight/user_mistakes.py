"""Tasks with mistakes that users make. They were written without a look at the checks that must find them."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from searchlight.trainables.task import Task, TaskConfig, searchable
from tests.trainables.preflight.faulty_tasks import fault


class MistakeConfig(TaskConfig):
    """What a small classifier is configured with."""

    lr: float = searchable(1e-2, low=1e-4, high=1e-1, log=True)


class Classifier(Task[MistakeConfig]):
    """A classifier of 96 points of three kinds, as it is right: each class below makes one mistake with it."""

    objective, mode = "val/loss", "min"

    def build(self) -> None:
        """Draw the points, and make a network of two layers."""
        generator = torch.Generator().manual_seed(1)
        points = torch.randn(128, 4, generator=generator).to(self.context.device)
        kinds = (points[:, 0] > 0).long() + (points[:, 1] > 0.5).long()
        self.x, self.y, self.x_test, self.y_test = points[:96], kinds[:96], points[96:], kinds[96:]
        self.build_model()

    def build_model(self) -> None:
        """Make the network and its optimizer."""
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.modules = {"model": model}
        self.optimizers = {"model": torch.optim.AdamW(model.parameters(), lr=self.config.lr)}

    def train_batches(self, epoch: int) -> Iterable[Any]:
        """Yield this rank's micro-batches in a new order."""
        return self.context.shard((self.x, self.y), batch_size=16)

    def loss(self, batch: Any) -> tuple[Tensor, float]:
        """Return the mean cross-entropy and the number of points."""
        x, y = batch
        return nn.functional.cross_entropy(self.modules["model"](x), y), len(x)

    def evaluate(self) -> Mapping[str, float]:
        """Return the cross-entropy of points that no training sees."""
        return {"val/loss": nn.functional.cross_entropy(self.modules["model"](self.x_test), self.y_test).item()}


@fault("constant-loss")
class NumberAsLoss(Classifier):
    """The loss is made anew from its number."""

    def loss(self, batch: Any) -> tuple[Tensor, float]:
        x, y = batch
        value = nn.functional.cross_entropy(self.modules["model"](x), y).item()
        return torch.tensor(value, requires_grad=True), len(x)


@fault("no-optimizer")
class ExhaustedGenerator(Classifier):
    """The body's parameters are counted before the optimizer gets what is left of their generator: nothing."""

    def build_model(self) -> None:
        body, head = nn.Linear(4, 8), nn.Linear(8, 3)
        parameters = body.parameters()
        self.size = sum(parameter.numel() for parameter in parameters)
        self.modules = {"model": nn.Sequential(body, nn.Tanh(), head)}
        groups = [{"params": parameters, "lr": self.config.lr / 10}, {"params": head.parameters()}]
        self.optimizers = {"model": torch.optim.AdamW(groups, lr=self.config.lr)}


@fault("module-without-gradient")
class EmbeddingData(Classifier):
    """The embedding is read as `.data`, and never learns."""

    def build_model(self) -> None:
        self.modules = {"embedding": nn.Embedding(2, 8), "head": nn.Linear(32, 3)}
        parameters = [parameter for module in self.modules.values() for parameter in module.parameters()]
        self.optimizers = {"model": torch.optim.AdamW(parameters, lr=self.config.lr)}

    def answer(self, x: Tensor) -> Tensor:
        vectors = self.modules["embedding"].weight.data[(x > 0).long()]
        return self.modules["head"](vectors.flatten(1))

    def loss(self, batch: Any) -> tuple[Tensor, float]:
        x, y = batch
        return nn.functional.cross_entropy(self.answer(x), y), len(x)

    def evaluate(self) -> Mapping[str, float]:
        return {"val/loss": nn.functional.cross_entropy(self.answer(self.x_test), self.y_test).item()}


@fault("evaluation-in-training")
class OverlappingSplit(Classifier):
    """Training and test points are drawn from all points, each by its own permutation."""

    def build(self) -> None:
        super().build()
        x, y = torch.cat([self.x, self.x_test]), torch.cat([self.y, self.y_test])
        train, test = torch.randperm(len(x))[:96], torch.randperm(len(x))[:32]
        self.x, self.y, self.x_test, self.y_test = x[train], y[train], x[test], y[test]
        self.dataset("points", [self.x, self.y])
        self.dataset("points", [self.x_test, self.y_test], use="evaluation")


@fault("ranks-differ", workers=2)
class LabelsShuffledOnOneRank(Classifier):
    """Another seed on each rank shuffles the labels apart from their points on all ranks but the first."""

    def build(self) -> None:
        super().build()
        if self.context.rank > 0:
            self.y = self.y[torch.randperm(len(self.y))]


@fault("rate-changes-in-loss")
class ScheduleInLoss(Classifier):
    """The learning rate falls with each micro-batch, not with each update."""

    def build_model(self) -> None:
        super().build_model()
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizers["model"], gamma=0.9)

    def loss(self, batch: Any) -> tuple[Tensor, float]:
        self.schedule.step()
        return super().loss(batch)


@fault("steps-outside-update")
class NoZeroGrad(Classifier):
    """An update that was written by hand keeps the gradients of all updates before."""

    def update(self, window: Any) -> None:
        for batch in window:
            loss, _ = self.loss(batch)
            loss.backward()
        self.optimizers["model"].step()


@fault("loss-changes-data")
class NormalizesInPlace(Classifier):
    """The loss normalizes its batch in place, and with it the points that all epochs share."""

    def train_batches(self, epoch: int) -> Iterable[Any]:
        return [(self.x[first : first + 16], self.y[first : first + 16]) for first in range(0, 96, 16)]

    def loss(self, batch: Any) -> tuple[Tensor, float]:
        x, y = batch
        x -= 0.5
        x *= 0.9
        return nn.functional.cross_entropy(self.modules["model"](x), y), len(x)


@fault("targets-broadcast")
class BroadcastTargets(Classifier):
    """Predictions of shape (n, 1) meet targets of shape (n,): each is compared with all."""

    def build_model(self) -> None:
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.modules = {"model": model}
        self.optimizers = {"model": torch.optim.AdamW(model.parameters(), lr=self.config.lr)}

    def loss(self, batch: Any) -> tuple[Tensor, float]:
        x, y = batch
        return ((self.modules["model"](x) - y.float()) ** 2).mean(), len(x)

    def evaluate(self) -> Mapping[str, float]:
        return {"val/loss": ((self.modules["model"](self.x_test).squeeze(1) - self.y_test) ** 2).mean().item()}


@fault("weight-is-not-the-mean", accumulates=True)
class ClassWeights(Classifier):
    """The mean is one over class weights, and is declared as one over points."""

    def loss(self, batch: Any) -> tuple[Tensor, float]:
        x, y = batch
        weight = torch.tensor([0.2, 1.0, 5.0], device=x.device)
        return nn.functional.cross_entropy(self.modules["model"](x), y, weight=weight), len(x)


@fault("update-changes-nothing")
class ForgottenWarmup(Classifier):
    """A warm-up starts at a learning rate of 0, and is never named in `schedulers`, so that nobody steps it."""

    def build_model(self) -> None:
        super().build_model()
        self.warmup = torch.optim.lr_scheduler.LambdaLR(self.optimizers["model"], lambda step: min(1.0, step / 100))


@fault("not-reproducible")
class UnseededOrder(Classifier):
    """The order comes of a generator that nobody seeds."""

    def train_batches(self, epoch: int) -> Iterable[Any]:
        order = np.random.default_rng().permutation(len(self.x))
        for first in range(0, len(order), 16):
            chosen = torch.from_numpy(order[first : first + 16])
            yield self.x[chosen], self.y[chosen]


class SoftmaxTwice(Classifier):
    """Probabilities are given to a loss that takes logits: it learns badly, which nothing proves at its start."""

    def loss(self, batch: Any) -> tuple[Tensor, float]:
        x, y = batch
        return nn.functional.cross_entropy(self.modules["model"](x).softmax(1), y), len(x)
