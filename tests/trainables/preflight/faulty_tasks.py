"""Tasks with one fault each in their modules, optimizers or loss, by the kind of finding that must name it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from searchlight.trainables.task import Task, TaskConfig, searchable


class SmallConfig(TaskConfig):
    lr: float = searchable(1e-2, low=1e-3, high=1e-1, log=True)
    batch_size: int = 6
    size: int = 48
    epochs: int = 2
    precision: str = "fp32"


class Small(Task[SmallConfig]):
    """A healthy regression: what the faults below are made of."""

    objective, mode = "val/loss", "min"

    def build(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(self.config.size + 16, 5, generator=generator).to(self.context.device)
        self.y = self.x.sum(1, keepdim=True).sin()
        self.modules = {"model": self.make_model()}
        self.optimizers = {"model": torch.optim.AdamW(self.modules["model"].parameters(), lr=self.config.lr)}

    def make_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

    def train_batches(self, epoch: int) -> Any:
        size = self.config.size
        return self.context.shard((self.x[:size], self.y[:size]), self.config.batch_size)

    def loss(self, batch: Any) -> Any:
        x, y = batch
        return F.mse_loss(self.modules["model"](x), y), len(x)

    def evaluate(self) -> dict[str, Any]:
        size, context = self.config.size, self.context
        mine = slice(size + context.rank, None, context.world_size)
        return {"val/loss": (F.mse_loss(self.modules["model"](self.x[mine]), self.y[mine]).item(), len(self.x[mine]))}


FAULTS: list[tuple[str, type[Any], dict[str, Any]]] = []


def fault(kind: str, **request: Any) -> Callable[[type[Any]], type[Any]]:
    """Add a task whose fault has the name `kind`."""

    def add(task: type[Any]) -> type[Any]:
        FAULTS.append((kind, task, request))
        return task

    return add


def add_fault(kind: str, name: str, base: type[Any] = Small, request: Any = None, **methods: Any) -> None:
    """Add a task that differs from `base` in `methods`, whose fault has the name `kind`."""
    FAULTS.append((kind, type(name, (base,), methods), request or {}))


def with_loss(change: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a loss that is what `change` makes of the task, its loss and its inputs."""
    return lambda task, batch: (change(task, Small.loss(task, batch)[0], batch[0]), len(batch[0]))


def built(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return a `build` that ends with `change`, which may return other optimizers."""

    def build(task: Any) -> None:
        Small.build(task)
        task.optimizers = change(task) or task.optimizers

    return build


def descend(parameters: Any, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr)


# The original systems


@fault("window-updated-twice")
class DoubledFlush(Small):
    def update(self, window):
        self.updaters["train"].update(window, self.loss)
        self.updaters["train"].update(window, self.loss)


add_fault("half-precision-parameter", "Fp16Parameters", make_model=lambda task: Small.make_model(task).half())
add_fault("constant-loss", "ConstantLoss", loss=with_loss(lambda task, loss, x: loss.detach()))


class Prompted(nn.Module):
    def __init__(self, frozen):
        super().__init__()
        self.prompt, self.body, self.frozen = nn.Linear(5, 8), nn.Linear(8, 1), frozen

    def forward(self, x):
        if self.frozen == "no_grad":
            with torch.no_grad():
                hidden = self.prompt(x)
        else:
            hidden = self.prompt(x)
        hidden = hidden.detach() if self.frozen == "detach" else hidden
        return self.body(torch.tanh(hidden))


@fault("module-under-no-grad")
class FrozenPrompt(Small):
    def make_model(self):
        return Prompted("no_grad")


add_fault("module-behind-detach", "DetachedPrompt", make_model=lambda task: Prompted("detach"))


class TwoModules(Small):
    def build(self):
        super().build()
        self.modules["policy"] = nn.Linear(5, 3)
        self.optimizers["policy"] = torch.optim.SGD(self.modules["policy"].parameters(), lr=0.1)


@fault("constant-loss")
class DetachedActions(TwoModules):
    """A policy whose stored log-probabilities were detached."""

    def build(self):
        super().build()
        self.updates = {"train": ["model"], "policy": ["policy"]}

    def update(self, window):
        self.updaters["train"].update(window, self.loss)
        self.updaters["policy"].update(window, self.policy_loss)

    def policy_loss(self, batch):
        stored = self.modules["policy"](batch[0]).log_softmax(1)[:, 0].detach()
        return -(stored * batch[1][:, 0]).mean(), len(batch[0])


add_fault(
    "loss-term-without-gradient",
    "DetachedTerm",
    loss=with_loss(lambda task, loss, x: loss + 0.1 * task.modules["model"](x).square().mean().detach()),
)
add_fault("constant-loss-term", "ConstantTerm", loss=with_loss(lambda task, loss, x: loss + x.square().mean()))
add_fault(
    "divides-by-accumulation",
    "DividedLoss",
    request={"accumulates": True},
    loss=with_loss(lambda task, loss, x: loss / task.config.accumulation),
)


# Modules and optimizers


@fault("build-fails")
class BrokenBuild(Small):
    def build(self):
        raise FileNotFoundError("no data")


class HalfBuilt(Small):
    def build(self):
        self.modules = {"model": self.make_model()}
        self.optimizers = {"model": torch.optim.SGD(self.modules["model"].parameters(), lr=-1.0)}


@fault("training-fails")
class BrokenLoss(Small):
    def loss(self, batch):
        return F.mse_loss(self.modules["model"](batch[0]), batch[1][:, :0].expand(7, 3)), 1


add_fault("no-batches", "NoBatches", train_batches=lambda task, epoch: iter(()))
add_fault("no-batches", "WeightOfZero", loss=lambda task, batch: (Small.loss(task, batch)[0], 0))


def freeze(task):
    task.modules["model"].requires_grad_(False)


def replace_head(task):
    task.modules["model"][2] = nn.Linear(8, 1)  # after the optimizer was made


def list_twice(task):
    parameters = list(task.modules["model"].parameters())
    return {"model": descend([{"params": parameters}, {"params": parameters[:1]}])}


def share_layer(task):
    return {**task.optimizers, "again": descend(task.modules["model"][2].parameters())}


add_fault("nothing-to-train", "AllFrozen", build=built(freeze))
add_fault(
    "no-optimizer", "ForgottenHead", build=built(lambda task: {"model": descend(task.modules["model"][0].parameters())})
)
add_fault("no-optimizer", "ReplacedHead", build=built(replace_head))
add_fault("two-optimizers", "SharedLayer", build=built(share_layer))
add_fault("two-optimizers", "SameParameterTwice", build=built(list_twice))


@fault("created-after-optimizer")
class LateHead(Small):
    def loss(self, batch):
        model = self.modules["model"]
        if len(model) == 3:
            model.append(nn.Linear(1, 1, device=batch[0].device))
        return super().loss(batch)


@fault("outside-modules")
class LooseTemperature(Small):
    def build(self):
        super().build()
        self.temperature = nn.Parameter(torch.ones(1, device=self.context.device))
        self.optimizers["temperature"] = torch.optim.SGD([self.temperature], lr=0.1)

    def loss(self, batch):
        x, y = batch
        return F.mse_loss(self.modules["model"](x) * self.temperature, y), len(x)


@fault("trained-by-none")
class LayersInAList(Small):
    def make_model(self):
        model = super().make_model()
        self.layers = [nn.Linear(5, 5).to(self.context.device) for _ in range(2)]
        return model

    def loss(self, batch):
        x, y = batch
        for layer in self.layers:
            x = x + layer(x)
        return F.mse_loss(self.modules["model"](x), y), len(x)


add_fault(
    "optimizer-needs-closure",
    "SecondOrder",
    build=built(lambda task: {"model": torch.optim.LBFGS(task.modules["model"].parameters())}),
)
add_fault("module-without-gradient", "UnusedModule", TwoModules)


@fault("module-without-gradient")
class LossOnlyInUpdate(TwoModules):
    """Its loss needs what `update` sets, so that the audit cannot compute the constant term again."""

    term: torch.Tensor | None = None

    def update(self, window):
        self.term = torch.tensor(0.5)
        super().update(window)
        self.term = None

    def loss(self, batch):
        loss, weight = super().loss(batch)
        return loss + self.term, weight


class Branches(nn.Module):
    def __init__(self, used):
        super().__init__()
        self.first, self.second, self.used = nn.Linear(5, 1), nn.Linear(5, 1), used
        if used == "extra":
            self.extra = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        if self.used == "zero":
            return self.first(x) + 0 * self.second(x)
        return self.first(x) + self.second(x) if self.used == "extra" else self.first(x)


add_fault("unused-module", "UnusedBranch", make_model=lambda task: Branches("first"))
add_fault("unused-parameter", "UnusedParameter", make_model=lambda task: Branches("extra"))
add_fault("zero-gradient", "FactorOfZero", make_model=lambda task: Branches("zero"))


@fault("zero-gradient")
class AllZeroWeights(Small):
    """Both layers start at 0, so that neither ever moves the other."""

    def make_model(self):
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return model


# The loss


@fault("non-finite-gradient")
class SquareRootOfZero(Small):
    def loss(self, batch):
        distance = (self.modules["model"](batch[0]) * 0).sqrt()
        return distance.mean(), len(batch[0])


add_fault(
    "non-finite-loss",
    "LogOfZero",
    loss=lambda task, batch: (-(task.modules["model"](batch[0]) * 0).log().mean(), len(batch[0])),
)
add_fault(
    "loss-is-no-number",
    "LossPerSample",
    loss=lambda task, batch: ((task.modules["model"](batch[0]) - batch[1]).square(), len(batch[0])),
)
add_fault("loss-is-no-number", "LossWithoutWeight", loss=lambda task, batch: Small.loss(task, batch)[0])


@fault("graph-freed")
class SharedGraph(TwoModules):
    """Both updates go through features that are computed once."""

    def build(self):
        super().build()
        self.updates = {"train": ["model"], "policy": ["policy"]}

    def update(self, window):
        for batch in window:
            hidden = (self.modules["policy"](batch[0]).sum(1, keepdim=True) * self.modules["model"](batch[0])).sin()
            value = (hidden - batch[1]).square().mean()
            for updater in self.updaters.values():
                updater.update([batch], lambda batch, value=value: (value, len(batch[0])))


@fault("changed-in-place")
class ChangedInPlace(Small):
    def loss(self, batch):
        hidden = torch.sigmoid(self.modules["model"][0](batch[0]))
        hidden += 1
        return self.modules["model"][2](hidden).square().mean(), len(batch[0])


@fault("reentrant-checkpoint")
class Reentrant(Small):
    def loss(self, batch):
        x = batch[0].clone().requires_grad_()
        answer = torch.utils.checkpoint.checkpoint(self.modules["model"], x, use_reentrant=True)
        return F.mse_loss(answer, batch[1]), len(x)


add_fault(
    "update-changes-nothing",
    "RateThatRoundsAway",
    build=built(lambda task: {"model": descend(task.modules["model"].parameters(), 1e-12)}),
)


def run_backward(task, loss, x):
    loss.backward(retain_graph=True)
    return loss


def before_loss(act):
    return lambda task, batch: (act(task), Small.loss(task, batch))[1]


add_fault("backward-in-loss", "OwnBackward", loss=with_loss(run_backward))
add_fault("steps-outside-update", "OwnStep", loss=before_loss(lambda task: task.optimizers["model"].step()))
add_fault(
    "gradients-dropped-in-loss", "ZeroGradInLoss", loss=before_loss(lambda task: task.optimizers["model"].zero_grad())
)


@fault("skips-windows")
class ForgottenUpdate(TwoModules):
    def build(self):
        super().build()
        self.updates = {"train": ["model"], "policy": ["policy"]}

    def update(self, window):
        self.updaters["train"].update(window, self.loss)
