"""Tasks with one fault each, by the kind of finding that must name it."""

import itertools
import random
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainables.task import Task, TaskConfig, searchable


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
        self.x = torch.randn(self.config.size + 16, 5, generator=generator)
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


FAULTS: list[tuple[str, type[Small], dict[str, Any]]] = []


def fault(kind: str, **request: Any) -> Callable[[type[Small]], type[Small]]:
    """Add a task whose fault has the name `kind`."""

    def add(task: type[Small]) -> type[Small]:
        FAULTS.append((kind, task, request))
        return task

    return add


# The original systems


@fault("window-updated-twice")
class DoubledFlush(Small):
    def update(self, window):
        self.updaters["train"].update(window, self.loss)
        self.updaters["train"].update(window, self.loss)


@fault("half-precision-parameter")
class Fp16Parameters(Small):
    def make_model(self):
        return super().make_model().half()


@fault("constant-loss")
class ConstantLoss(Small):
    def loss(self, batch):
        return super().loss(batch)[0].detach(), len(batch[0])


@fault("constant-loss")
class ReplacedLoss(Small):
    def loss(self, batch):
        loss, weight = super().loss(batch)
        return (loss if loss.isnan() else torch.tensor(0.0)), weight


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


@fault("module-behind-detach")
class DetachedPrompt(Small):
    def make_model(self):
        return Prompted("detach")


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


@fault("loss-term-without-gradient")
class DetachedTerm(Small):
    def loss(self, batch):
        loss, weight = super().loss(batch)
        penalty = self.modules["model"](batch[0]).square().mean().detach()
        return loss + 0.1 * penalty, weight


@fault("constant-loss-term")
class ConstantTerm(Small):
    def loss(self, batch):
        loss, weight = super().loss(batch)
        return loss + batch[0].square().mean(), weight


@fault("divides-by-accumulation", accumulates=True)
class DividedLoss(Small):
    def loss(self, batch):
        loss, weight = super().loss(batch)
        return loss / self.config.accumulation, weight


# Modules and optimizers


@fault("build-fails")
class BrokenBuild(Small):
    def build(self):
        raise FileNotFoundError("no data")


@fault("training-fails")
class BrokenLoss(Small):
    def loss(self, batch):
        return F.mse_loss(self.modules["model"](batch[0]), batch[1][:, :0].expand(7, 3)), 1


@fault("no-batches")
class NoBatches(Small):
    def train_batches(self, epoch):
        return iter(())


@fault("no-batches")
class WeightOfZero(Small):
    def loss(self, batch):
        return super().loss(batch)[0], 0


@fault("nothing-to-train")
class AllFrozen(Small):
    def build(self):
        super().build()
        self.modules["model"].requires_grad_(False)


@fault("no-optimizer")
class ForgottenHead(Small):
    def build(self):
        super().build()
        self.optimizers = {"model": torch.optim.SGD(self.modules["model"][0].parameters(), lr=0.1)}


@fault("two-optimizers")
class SharedLayer(Small):
    def build(self):
        super().build()
        self.optimizers["again"] = torch.optim.SGD(self.modules["model"][2].parameters(), lr=0.1)


@fault("two-optimizers")
class SameParameterTwice(Small):
    def build(self):
        super().build()
        own = list(self.modules["model"].parameters())
        self.optimizers = {"model": torch.optim.SGD([{"params": own}, {"params": own[:1]}], lr=0.1)}


@fault("no-optimizer")
class ReplacedHead(Small):
    """The head is replaced after the optimizer was made."""

    def build(self):
        super().build()
        self.modules["model"][2] = nn.Linear(8, 1)


@fault("created-after-optimizer")
class LateHead(Small):
    def loss(self, batch):
        model = self.modules["model"]
        if len(model) == 3:
            model.append(nn.Linear(1, 1))
        return super().loss(batch)


@fault("outside-modules")
class LooseTemperature(Small):
    def build(self):
        super().build()
        self.temperature = nn.Parameter(torch.ones(1))
        self.optimizers["temperature"] = torch.optim.SGD([self.temperature], lr=0.1)

    def loss(self, batch):
        x, y = batch
        return F.mse_loss(self.modules["model"](x) * self.temperature, y), len(x)


@fault("optimizer-needs-closure")
class SecondOrder(Small):
    def build(self):
        super().build()
        self.optimizers = {"model": torch.optim.LBFGS(self.modules["model"].parameters())}


@fault("module-without-gradient")
class UnusedModule(TwoModules):
    pass


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


@fault("unused-module")
class UnusedBranch(Small):
    def make_model(self):
        return Branches("first")


@fault("unused-parameter")
class UnusedParameter(Small):
    def make_model(self):
        return Branches("extra")


@fault("zero-gradient")
class FactorOfZero(Small):
    def make_model(self):
        return Branches("zero")


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


@fault("non-finite-loss")
class LogOfZero(Small):
    def loss(self, batch):
        return -(self.modules["model"](batch[0]) * 0).log().mean(), len(batch[0])


@fault("loss-is-no-number")
class LossPerSample(Small):
    def loss(self, batch):
        return (self.modules["model"](batch[0]) - batch[1]).square(), len(batch[0])


@fault("loss-is-no-number")
class LossWithoutWeight(Small):
    def loss(self, batch):
        return super().loss(batch)[0]


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


@fault("update-changes-nothing")
class RateOfZero(Small):
    def build(self):
        super().build()
        self.optimizers = {"model": torch.optim.SGD(self.modules["model"].parameters(), lr=0.0)}


@fault("update-changes-nothing")
class RateThatRoundsAway(Small):
    def build(self):
        super().build()
        self.optimizers = {"model": torch.optim.SGD(self.modules["model"].parameters(), lr=1e-12)}


@fault("steps-outside-update")
class OwnStep(Small):
    def loss(self, batch):
        self.optimizers["model"].step()
        return super().loss(batch)


@fault("backward-in-loss")
class OwnBackward(Small):
    def loss(self, batch):
        loss, weight = super().loss(batch)
        loss.backward(retain_graph=True)
        return loss, weight


@fault("gradients-dropped-in-loss")
class ZeroGradInLoss(Small):
    def loss(self, batch):
        self.optimizers["model"].zero_grad()
        return super().loss(batch)


@fault("skips-windows")
class ForgottenUpdate(TwoModules):
    def build(self):
        super().build()
        self.updates = {"train": ["model"], "policy": ["policy"]}

    def update(self, window):
        self.updaters["train"].update(window, self.loss)


# Exactness


class Tokens(Small):
    """A mean over the tokens that count, of which each sample has another number."""

    def build(self):
        super().build()
        lengths = torch.arange(len(self.x)) % 4 + 1
        self.mask = (torch.arange(4)[None] < lengths[:, None]).float()

    def make_model(self):
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))

    def train_batches(self, epoch):
        size = self.config.size
        return self.context.shard((self.x[:size], self.y[:size], self.mask[:size]), self.config.batch_size)

    def loss(self, batch):
        x, y, mask = batch
        errors = (self.modules["model"](x) - y).square() * mask
        return errors.sum() / mask.sum(), self.weight(x, mask)

    def weight(self, x, mask):
        return mask.sum()

    def evaluate(self):
        size = self.config.size
        return {"val/loss": (self.modules["model"](self.x[size:]) - self.y[size:]).square().mean().item()}


@fault("weight-is-not-the-mean", accumulates=True)
class TokensAsSamples(Tokens):
    def weight(self, x, mask):
        return len(x)


@fault("weight-is-not-the-mean", accumulates=True)
class SquaredWeight(Small):
    def loss(self, batch):
        return super().loss(batch)[0], len(batch[0]) ** 2


@fault("weight-is-not-the-mean", accumulates=True)
class WeightOfOne(Small):
    def loss(self, batch):
        return super().loss(batch)[0], 1


@fault("loss-is-a-sum", accumulates=True)
class SummedLoss(Small):
    def loss(self, batch):
        x, y = batch
        return F.mse_loss(self.modules["model"](x), y, reduction="sum"), len(x)


@fault("depends-on-batch")
class Contrastive(Small):
    def make_model(self):
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))

    def loss(self, batch):
        hidden = F.normalize(self.modules["model"](batch[0]), dim=1)
        return F.cross_entropy(hidden @ hidden.T / 0.1, torch.arange(len(hidden))), len(hidden)

    def evaluate(self):
        return {"val/loss": self.modules["model"](self.x[48:]).square().mean().item()}


@fault("depends-on-batch")
class Normalized(Small):
    def make_model(self):
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


@fault("random-loss")
class WithDropout(Small):
    def make_model(self):
        return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 1))


@fault("stateful-loss")
class CountingLoss(Small):
    def loss(self, batch):
        self.calls = getattr(self, "calls", 0) + 1
        loss, weight = super().loss(batch)
        return loss * (1 + 0.1 * self.calls), weight


# Precision


@fault("half-precision-constant", modes=["fp16"])
class MaskConstant(Small):
    def loss(self, batch):
        scores = self.modules["model"][0](batch[0])
        scores = scores.masked_fill(torch.arange(8) > 5, -1e9).softmax(1).to(batch[0].dtype)
        return F.mse_loss(self.modules["model"][2](scores), batch[1]), len(batch[0])


@fault("mode-fails", modes=["bf16"])
class OtherDtype(Small):
    def loss(self, batch):
        hidden = self.modules["model"][0](batch[0])
        chosen = torch.zeros(len(hidden), 8)
        chosen[torch.arange(len(hidden))] = hidden
        return self.modules["model"][2](chosen).square().mean(), len(batch[0])


@fault("mode-not-finite", modes=["fp16"])
class LargeValues(Small):
    def loss(self, batch):
        hidden = self.modules["model"][0](batch[0]) * 1e5
        return self.modules["model"][2](hidden).float().square().mean(), len(batch[0])


@fault("mode-overflows", modes=["fp16"])
class SaturatedValues(Small):
    def loss(self, batch):
        x, y = batch
        hidden = torch.tanh(self.modules["model"][0](x) * 1e6)
        return F.mse_loss(self.modules["model"][2](hidden), y), len(x)


@fault("mode-underflows", modes=["fp16"])
class TinyLoss(Small):
    def loss(self, batch):
        loss, weight = super().loss(batch)
        return loss * 1e-12, weight


@fault("mode-inaccurate", modes=["bf16"])
class Cancellation(Small):
    def loss(self, batch):
        x, y = batch
        answer = self.modules["model"](x + 1000) - self.modules["model"](x.new_full(x.shape, 1000))
        return F.mse_loss(answer.float(), y), len(x)

    def make_model(self):
        return nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 1))


@fault("mode-does-not-run", modes=["bf16"])
class AutocastDisabled(Small):
    def loss(self, batch):
        with torch.autocast("cpu", enabled=False):
            return super().loss(batch)


@fault("mode-without-gain", modes=["bf16"])
class MostlyFp32(Small):
    """Casts cost more than the products save, and what is kept for the backward pass is in fp32."""

    def loss(self, batch):
        x, y = batch
        hidden = self.modules["model"][0](x).float()
        for _ in range(40):
            hidden = torch.tanh(hidden)
        return F.mse_loss(self.modules["model"][2](hidden).float(), y), len(x)


# Determinism and data

STEP = itertools.count()


@fault("not-reproducible")
class Unseeded(Small):
    def loss(self, batch):
        x, y = batch
        noise = torch.tensor([random.SystemRandom().random() for _ in range(len(x))])[:, None]
        return F.mse_loss(self.modules["model"](x) + noise, y), len(x)


@fault("depends-on-earlier-trial")
class GlobalState(Small):
    earlier: ClassVar[dict[int, Tensor]] = {}

    def build(self):
        super().build()
        seed = self.config.seed
        others = [value for key, value in self.earlier.items() if key != seed]
        self.shift = others[0] if others else torch.zeros(1)
        self.earlier[seed] = torch.ones(1)

    def loss(self, batch):
        return super().loss((batch[0] + self.shift, batch[1]))


@fault("overlapping-shards", workers=2)
class NoShards(Small):
    def train_batches(self, epoch):
        order = torch.randperm(self.config.size, generator=self.context.generator)
        return [(self.x[part], self.y[part]) for part in order.split(self.config.batch_size)]


@fault("overlapping-shards", workers=2)
class PaddedShards(Small):
    def train_batches(self, epoch):
        share = 3 * self.config.size // 4
        start = self.context.rank * self.config.size // 4
        order = torch.randperm(share, generator=torch.Generator().manual_seed(epoch)) + start
        return [(self.x[part], self.y[part]) for part in order.split(self.config.batch_size)]


@fault("ranks-differ", workers=2)
class LocalEvaluation(Small):
    """Each rank evaluates its share, and the share of rank 0 is taken for all."""

    def evaluate(self):
        return {"val/loss": super().evaluate()["val/loss"][0]}


@fault("ranks-differ", workers=2)
class DroppedShare(Small):
    def train_batches(self, epoch):
        size = self.config.size - self.config.size // 4 * (self.context.world_size > 1)
        return self.context.shard((self.x[:size], self.y[:size]), self.config.batch_size)


@fault("order-never-changes")
class FixedOrder(Small):
    def train_batches(self, epoch):
        return self.context.shard((self.x[:48], self.y[:48]), self.config.batch_size, shuffle=False)


@fault("repeated-samples")
class Oversampled(Small):
    def train_batches(self, epoch):
        order = torch.randint(self.config.size, (self.config.size,), generator=self.context.generator)
        return [(self.x[part], self.y[part]) for part in order.split(self.config.batch_size)]


@fault("evaluation-in-training")
class LeakedEvaluation(Small):
    def evaluate(self):
        return {"val/loss": F.mse_loss(self.modules["model"](self.x[40:56]), self.y[40:56]).item()}


@fault("noisy-evaluation", corners=[("lr=0.001", {"lr": 0.001}), ("lr=0.1", {"lr": 0.1})])
class NoisyEvaluation(Small):
    def evaluate(self):
        return {"val/loss": super().evaluate()["val/loss"][0] + 100 * torch.rand(()).item()}


@fault("evaluation-fails")
class BrokenEvaluation(Small):
    def evaluate(self):
        return {"val/loss": self.y_missing.mean().item()}


@fault("evaluation-changes-weights")
class EvaluationThatTrains(Small):
    def evaluate(self):
        with torch.no_grad():
            self.modules["model"][2].bias += 0.1
        return super().evaluate()


@fault("objective-missing")
class OtherObjective(Small):
    def evaluate(self):
        return {"loss": 1.0}


@fault("objective-not-finite")
class MeanOfNothing(Small):
    def evaluate(self):
        return {"val/loss": torch.zeros(0).mean().item()}


@fault("config-fails", corners=[("batch_size=0", {"batch_size": 0})])
class BatchSizeOfZero(Small):
    pass


@fault("config-refused", corners=[("accumulation=0", {"accumulation": 0})])
class RefusedCorner(Small):
    pass


@fault("does-not-fit", corners=[("size=10**9", {"size": 2**40})])
class TooLarge(Small):
    pass
