"""Healthy tasks of kinds that an audit must not take for faulty ones."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from tests.trainables.preflight.faulty_data import BucketedTokens, Noisy, Tokens
from tests.trainables.preflight.faulty_tasks import Small


class ConvolutionalNetwork(Small):
    def make_model(self):
        return nn.Sequential(
            nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(),
            nn.Linear(20, 1),
        )  # fmt: skip


class Transformer(Tokens):
    """Causal attention over token ids, with a mask, and a mean over the tokens that count."""

    def build(self):
        super().build()
        self.x = torch.randint(12, (len(self.x), 4), generator=torch.Generator().manual_seed(2)).to(self.context.device)

    def make_model(self):
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        return nn.ModuleDict(
            {"embed": nn.Embedding(12, 8), "body": nn.TransformerEncoder(layer, 2), "head": nn.Linear(8, 12)}
        )

    def answer(self, x):
        parts = self.modules["model"]
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return parts["head"](parts["body"](parts["embed"](x), mask=mask, is_causal=True))

    def loss(self, batch):
        x, _, mask = batch
        losses = F.cross_entropy(self.answer(x).flatten(0, 1), (x + 1).flatten() % 12, reduction="none")
        return (losses * mask.flatten()).sum() / mask.sum(), mask.sum()

    def evaluate(self):
        x = self.x[self.config.size :]
        return {"val/loss": F.cross_entropy(self.answer(x).flatten(0, 1), (x + 1).flatten() % 12).item()}


class MaskedLanguageModel(Transformer):
    """A mean over the tokens that are hidden at random."""

    def loss(self, batch):
        x = batch[0]
        hidden = torch.rand(x.shape, device=x.device) < 0.5
        losses = F.cross_entropy(self.answer(x.masked_fill(hidden, 0)).flatten(0, 1), x.flatten(), reduction="none")
        return (losses * hidden.flatten()).sum() / hidden.sum(), hidden.sum()


class Bucketed(BucketedTokens):
    weight = Tokens.weight


class Mixup(Small):
    """Each sample is mixed with another one of its micro-batch, and noise is added."""

    def loss(self, batch):
        (x, y), other = batch, torch.randperm(len(batch[0]), device=batch[0].device)
        share = torch.distributions.Beta(0.4, 0.4).sample()
        answer = self.modules["model"](share * x + (1 - share) * x[other] + 0.1 * torch.randn_like(x))
        return F.mse_loss(F.dropout(answer, 0.1), share * y + (1 - share) * y[other]), len(x)


class Penalized(Small):
    def loss(self, batch):
        loss, weight = super().loss(batch)
        return loss + 0.1 * sum(p.square().sum() for p in self.modules["model"].parameters()), weight


class GenerativeAdversarialNetwork(Small):
    """Two optimizers; the generator is updated with every third window."""

    def build(self):
        super().build()
        self.modules = {"g": nn.Linear(3, 5), "d": nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))}
        self.optimizers = {key: torch.optim.Adam(module.parameters(), 1e-3) for key, module in self.modules.items()}
        self.updates = {"discriminator": ["d"], "generator": ["g"]}
        self.count = 0

    def fake(self, count):
        return self.modules["g"](torch.randn(count, 3, device=self.context.device))

    def update(self, window):
        self.count += 1
        self.updaters["discriminator"].update(window, self.discriminator_loss)
        if self.count % 3 == 0:
            self.updaters["generator"].update(window, self.generator_loss)

    def discriminator_loss(self, batch):
        d, x = self.modules["d"], batch[0]
        return (F.softplus(-d(x)) + F.softplus(d(self.fake(len(x)).detach()))).mean(), len(x)

    def generator_loss(self, batch):
        return F.softplus(-self.modules["d"](self.fake(len(batch[0])))).mean(), len(batch[0])

    loss = discriminator_loss

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]

    def evaluate(self):
        return {"val/loss": self.modules["d"](self.x[self.config.size :]).mean().item()}


class ActorCritic(Small):
    """Two heads, an advantage without a gradient, and actions that are sampled."""

    def make_model(self):
        return nn.ModuleDict({"body": nn.Linear(5, 8), "actor": nn.Linear(8, 3), "critic": nn.Linear(8, 1)})

    def loss(self, batch):
        parts, (x, y) = self.modules["model"], batch
        hidden = torch.tanh(parts["body"](x))
        policy = torch.distributions.Categorical(logits=parts["actor"](hidden))
        action = policy.sample()
        reward = (action == 0).float() * y[:, 0]
        value = parts["critic"](hidden)[:, 0]
        advantage = (reward - value).detach()
        loss = -(policy.log_prob(action) * advantage) + 0.5 * (value - reward).square() - 0.01 * policy.entropy()
        self.log("reward", reward.mean(), len(x))
        return loss.mean(), len(x)

    def evaluate(self):
        parts, x = self.modules["model"], self.x[self.config.size :]
        return {"val/loss": parts["actor"](torch.tanh(parts["body"](x))).square().mean().item()}


class FrozenBackbone(Small):
    def build(self):
        super().build()
        model = self.modules["model"]
        model[0].requires_grad_(False)
        self.optimizers = {"head": torch.optim.SGD(model[2].parameters(), lr=0.1)}

    def loss(self, batch):
        x, y = batch
        model = self.modules["model"]
        with torch.no_grad():
            hidden = model[1](model[0](x))
        return F.mse_loss(model[2](hidden), y), len(x)


class TiedWeights(Transformer):
    def make_model(self):
        model = super().make_model()
        model["head"].weight = model["embed"].weight
        return model


class Experts(nn.Module):
    """A mixture of experts, of which the router never chooses the last one at first."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(5, 4), nn.ModuleList(nn.Linear(5, 1) for _ in range(4))
        with torch.no_grad():
            self.router.bias[3] = -100.0

    def forward(self, x):
        gates = self.router(x).softmax(1)
        weight, chosen = gates.max(1)
        answer = torch.zeros(len(x), 1, device=x.device)
        for index, expert in enumerate(self.experts):
            mine = (chosen == index).nonzero()[:, 0]
            if len(mine):
                answer = answer.index_add(0, mine, (expert(x[mine]) * weight[mine, None]).to(answer.dtype))
        return answer


class MixtureOfExperts(Small):
    def make_model(self):
        return Experts()


class SparseEmbedding(Small):
    def build(self):
        super().build()
        self.x = torch.randint(1000, (len(self.x), 4), generator=torch.Generator().manual_seed(3)).to(
            self.context.device
        )
        embedding, head = nn.EmbeddingBag(1000, 8, sparse=True), nn.Linear(8, 1)
        self.modules = {"model": nn.Sequential(embedding, head)}
        self.optimizers = {
            "embedding": torch.optim.SparseAdam(embedding.parameters(), lr=0.01),
            "head": torch.optim.Adam(head.parameters(), lr=0.01),
        }


class LastState(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 8, 2, batch_first=True, dropout=0.1), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.lstm(x[..., None])[0][:, -1])


class RecurrentNetwork(Small):
    def make_model(self):
        return LastState()


class TimeFirst(Small):
    """Series as (steps, samples, features), of one length, so that the number of samples is a right weight."""

    def train_batches(self, epoch):
        for x, y in super().train_batches(epoch):
            yield torch.stack([x, x.flip(1), -x, x + 1]), torch.stack([y, y, -y, (x + 1).sum(1, keepdim=True).sin()])

    def loss(self, batch):
        x, y = batch
        return F.mse_loss(self.modules["model"](x), y), x.shape[1]


class EmaTeacher(Small):
    """A student that also follows its own average, which no optimizer has."""

    def build(self):
        super().build()
        self.modules["teacher"] = copy.deepcopy(self.modules["model"]).requires_grad_(False)

    def loss(self, batch):
        x, y = batch
        answer = self.modules["model"](x)
        with torch.no_grad():
            target = self.modules["teacher"](x)
        return F.mse_loss(answer, y) + 0.1 * F.mse_loss(answer, target), len(x)

    def after_update(self, report):
        with torch.no_grad():
            pairs = zip(self.modules["teacher"].parameters(), self.modules["model"].parameters(), strict=True)
            for mean, live in pairs:
                mean.lerp_(live, 0.1)


class Adapter(nn.Module):
    """A low-rank change of a frozen layer, whose second factor starts at 0: so does the gradient of the first."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, layer.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(layer.out_features, 2))

    def forward(self, x):
        return self.layer(x) + x @ self.a.T @ self.b.T


class LoraAdapters(Small):
    def build(self):
        super().build()
        model = nn.Sequential(Adapter(nn.Linear(5, 8)), nn.Tanh(), Adapter(nn.Linear(8, 1)))
        self.modules = {"model": model}
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizers = {"lora": torch.optim.AdamW(trained, lr=1e-2)}


class WarmUp(Small):
    """A learning rate that starts at 0."""

    def build(self):
        super().build()
        rate = torch.optim.lr_scheduler.LambdaLR(self.optimizers["model"], lambda step: min(1.0, step / 100))
        self.schedulers = [rate]


class TextInLists(Small):
    """Micro-batches that are dicts with lists in them."""

    def train_batches(self, epoch):
        data = {"x": self.x[:48], "y": self.y[:48], "name": [f"sample {i}" for i in range(48)]}
        return self.context.shard(data, self.config.batch_size)

    def loss(self, batch):
        assert len(batch["name"]) == len(batch["x"])
        return super().loss((batch["x"], batch["y"]))


HEALTHY = [
    ConvolutionalNetwork, Transformer, GenerativeAdversarialNetwork, ActorCritic, FrozenBackbone, TiedWeights,
    MixtureOfExperts, SparseEmbedding, RecurrentNetwork, EmaTeacher, LoraAdapters, WarmUp, TextInLists,
    Noisy, Mixup, MaskedLanguageModel, Bucketed, Penalized,
]  # fmt: skip
