"""Tasks with one fault each in their weights, precision, data or evaluation, by the finding that must name it."""

import random
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.trainables.preflight.faulty_tasks import Small, add_fault, fault, with_loss

# Exactness


class Tokens(Small):
    """A mean over the tokens that count, of which each sample has another number."""

    def build(self):
        super().build()
        lengths = torch.arange(len(self.x)) % 4 + 1
        self.mask = (torch.arange(4)[None] < lengths[:, None]).float().to(self.context.device)

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


for _name, _weight in (("SquaredWeight", lambda batch: len(batch[0]) ** 2), ("WeightOfOne", lambda batch: 1)):
    add_fault(
        "weight-is-not-the-mean",
        _name,
        request={"accumulates": True},
        loss=lambda task, batch, weight=_weight: (Small.loss(task, batch)[0], weight(batch)),
    )


@fault("loss-is-a-sum", accumulates=True)
class SummedLoss(Small):
    def loss(self, batch):
        x, y = batch
        return F.mse_loss(self.modules["model"](x), y, reduction="sum"), len(x)


@fault("loss-is-a-sum", accumulates=True)
class PenalizedSum(SummedLoss):
    """The penalty is part of each micro-batch's loss, so that the loss is not the sum of those of its parts."""

    def loss(self, batch):
        penalty = sum(p.square().sum() for p in self.modules["model"].parameters())
        return super().loss(batch)[0] + 0.1 * penalty, len(batch[0])


@fault("loss-is-a-sum", accumulates=True)
class SumOfSingleSamples(SummedLoss):
    def train_batches(self, epoch):
        return self.context.shard((self.x[:48], self.y[:48]), 1)


class Noisy(Small):
    """A regression with noise in its inputs, also in evaluation mode."""

    weight = staticmethod(len)

    def loss(self, batch):
        x, y = batch
        return F.mse_loss(self.modules["model"](x + torch.randn_like(x)), y), self.weight(x)


add_fault(
    "weight-is-not-the-mean", "NoisyOne", Noisy, request={"accumulates": True}, weight=staticmethod(lambda x: 48 / 6)
)


@fault("loss-is-a-sum", accumulates=True)
class NoisySum(Noisy):
    def loss(self, batch):
        loss, weight = super().loss(batch)
        return weight * loss, weight


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.factor * x.sum(1, keepdim=True)


# All gradients of a single number are parallel.
add_fault("loss-is-a-sum", "SumOfOneParameter", SummedLoss, {"accumulates": True}, make_model=lambda task: Scale())


@fault("weight-is-not-the-mean", accumulates=True)
class BucketedTokens(TokensAsSamples):
    """The samples of a micro-batch are equally long, so that only those of several show the wrong weight."""

    def train_batches(self, epoch):
        order = self.mask[: self.config.size].sum(1).sort(stable=True).indices
        batches = [(self.x[part], self.y[part], self.mask[part]) for part in order.split(self.config.batch_size)]
        return [batches[i] for i in (0, 4, 1, 6, 2, 5, 3, 7)][:: -1 if epoch % 2 else 1]


@fault("depends-on-batch")
class Contrastive(Small):
    def make_model(self):
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))

    def loss(self, batch):
        hidden = F.normalize(self.modules["model"](batch[0]), dim=1)
        return F.cross_entropy(hidden @ hidden.T / 0.1, torch.arange(len(hidden), device=hidden.device)), len(hidden)

    def evaluate(self):
        return {"val/loss": self.modules["model"](self.x[48:]).square().mean().item()}


add_fault(
    "depends-on-batch",
    "Normalized",
    make_model=lambda task: nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)),
)
add_fault(
    "random-loss",
    "WithDropout",
    make_model=lambda task: nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 1)),
)


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
        scores = scores.masked_fill(torch.arange(8, device=scores.device) > 5, -1e9).softmax(1).to(batch[0].dtype)
        return F.mse_loss(self.modules["model"][2](scores), batch[1]), len(batch[0])


@fault("mode-fails", modes=["bf16"])
class OtherDtype(Small):
    def loss(self, batch):
        hidden = self.modules["model"][0](batch[0])
        chosen = torch.zeros(len(hidden), 8, device=hidden.device)
        chosen[torch.arange(len(hidden))] = hidden
        return self.modules["model"][2](chosen).square().mean(), len(batch[0])


@fault("mode-fails", modes=["bf16"])
class BareAssert(Small):
    def loss(self, batch):
        predicted = self.modules["model"](batch[0])
        assert predicted.dtype == torch.float32
        return F.mse_loss(predicted, batch[1]), len(predicted)


@fault("mode-unsupported", modes=["fp32", "bf16"])
class WithoutKernel(Small):
    """An operation that this CPU lacks in half precision, such as an LSTM in bf16 without AVX-512."""

    def loss(self, batch):
        if torch.is_autocast_enabled(self.context.device.type):
            raise RuntimeError(
                "could not create a primitive descriptor for the LSTM forward propagation primitive. Run"
            )
        return super().loss(batch)


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


add_fault(
    "mode-underflows", "TinyLoss", request={"modes": ["fp16"]}, loss=with_loss(lambda task, loss, x: loss * 1e-12)
)


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
        with torch.autocast(self.context.device.type, enabled=False):
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


@fault("not-reproducible")
class Unseeded(Small):
    def loss(self, batch):
        x, y = batch
        noise = torch.tensor([[random.SystemRandom().random()] for _ in range(len(x))], device=x.device)
        return F.mse_loss(self.modules["model"](x) + noise, y), len(x)


@fault("depends-on-earlier-trial")
class GlobalState(Small):
    earlier: ClassVar[dict[int, Tensor]] = {}

    def build(self):
        super().build()
        seed = self.config.seed
        others = [value for key, value in self.earlier.items() if key != seed]
        self.shift = others[0] if others else torch.zeros(())
        self.earlier[seed] = torch.ones(())

    def loss(self, batch):
        return super().loss((batch[0] + self.shift, batch[1]))


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


add_fault(
    "order-never-changes",
    "FixedOrder",
    train_batches=lambda task, epoch: task.context.shard(
        (task.x[:48], task.y[:48]), task.config.batch_size, shuffle=False
    ),
)


@fault("repeated-samples")
class Oversampled(Small):
    def train_batches(self, epoch):
        order = torch.randint(self.config.size, (self.config.size,), generator=self.context.generator)
        return [(self.x[part], self.y[part]) for part in order.split(self.config.batch_size)]


add_fault(
    "evaluation-in-training",
    "LeakedEvaluation",
    evaluate=lambda task: {"val/loss": F.mse_loss(task.modules["model"](task.x[40:56]), task.y[40:56]).item()},
)
add_fault(
    "noisy-evaluation",
    "NoisyEvaluation",
    request={"corners": [("lr=0.001", {"lr": 0.001}), ("lr=0.1", {"lr": 0.1})]},
    evaluate=lambda task: {"val/loss": Small.evaluate(task)["val/loss"][0] + 100 * torch.rand(()).item()},
)
add_fault("evaluation-fails", "BrokenEvaluation", evaluate=lambda task: {"val/loss": task.y_missing.mean().item()})


@fault("evaluation-changes-weights")
class EvaluationThatTrains(Small):
    def evaluate(self):
        with torch.no_grad():
            self.modules["model"][2].bias += 0.1
        return super().evaluate()


add_fault("objective-missing", "OtherObjective", evaluate=lambda task: {"loss": 1.0})
add_fault("objective-not-finite", "MeanOfNothing", evaluate=lambda task: {"val/loss": torch.zeros(0).mean().item()})
add_fault("config-fails", "BatchSizeOfZero", request={"corners": [("batch_size=0", {"batch_size": 0})]})
add_fault("config-refused", "RefusedCorner", request={"corners": [("accumulation=0", {"accumulation": 0})]})
add_fault("does-not-fit", "TooLarge", request={"corners": [("size=10**9", {"size": 2**40})]})
