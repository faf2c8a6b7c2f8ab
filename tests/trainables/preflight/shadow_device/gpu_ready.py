"""Tasks that run on a GPU, of kinds that a simulation may take for faulty ones."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.trainables.preflight.faulty_tasks import Small
from tests.trainables.preflight.shadow_device.gpu_faults import Body, Sized

READY = []


def ready(task):
    """Add a task."""
    READY.append(task)
    return task


def with_output(name, change):
    """Add a task whose outputs are what `change` makes of them and of the inputs."""

    def loss(task, batch):
        x, y = batch
        return F.mse_loss(change(task.modules["model"](x), x), y), len(x)

    ready(type(name, (Small,), {"loss": loss}))


# CUDA takes numbers of the CPU as inputs of a TensorIterator.
with_output("NumberOfTheCpu", lambda out, x: out * torch.tensor(2.0) + torch.tensor(math.pi) / 2)
with_output("WhereWithNumbers", lambda out, x: torch.where(out > 100, torch.tensor(0.0), out))
with_output("FillWithNumber", lambda out, x: out.masked_fill(out > 100, torch.tensor(0.0)))
# Its kernels of indexing move indices and masks of the CPU.
with_output("IndexOfTheCpu", lambda out, x: out[torch.arange(len(out))] + x[:, torch.tensor([0])])
with_output("MaskOfTheCpu", lambda out, x: out[torch.ones(len(out), dtype=torch.bool)])
with_output("ListIndex", lambda out, x: out[[*range(len(out))]] + x[:, [0, 2]].sum(1, keepdim=True))
with_output("OneHot", lambda out, x: out + F.one_hot(x.argmax(1), 5).float().mean(1, keepdim=True))
with_output("Scatter", lambda out, x: out + torch.zeros_like(x).scatter(1, x.argmax(1, keepdim=True), 1.0)[:, :1])
with_output("MaskFromShape", lambda out, x: out.masked_fill(torch.arange(len(x), device=x.device)[:, None] < 0, 0.0))
with_output("SortAndQuantile", lambda out, x: out + x.sort(1)[0].cumsum(1)[:, :1] + torch.quantile(x, 0.5))
with_output("FourierTransform", lambda out, x: out + torch.fft.irfft(torch.fft.rfft(x), 5)[:, :1])
with_output("Complex", lambda out, x: out + torch.view_as_real(torch.polar(x.abs() + 1, x)).mean((1, 2))[:, None])
with_output("SparseProduct", lambda out, x: out + torch.sparse.mm(x.to_sparse(), x.T @ out))
with_output("CopyByNumpy", lambda out, x: out + torch.from_numpy(x.cpu().numpy()).to(x)[:, :1])
with_output("NewTensors", lambda out, x: out + x.new_tensor([1.0]) + x.new_zeros(1) + torch.full_like(out, 1.0))
with_output("PaddedList", lambda out, x: out + nn.utils.rnn.pad_sequence([*x], batch_first=True)[:, :1])
with_output("OutArgument", lambda out, x: out + torch.add(x.detach(), 1, out=torch.empty_like(x))[:, :1])
with_output(
    "LinearSystem", lambda out, x: out + torch.linalg.solve(x.T @ x + torch.eye(5, device=x.device), x.T).T[:, :1]
)
with_output("Einsum", lambda out, x: out + torch.einsum("bi,bj->bij", x, x).flatten(1)[:, :1])
with_output("Histogram", lambda out, x: out + torch.histc(x.detach(), 4)[:1] + torch.bincount(x.argmax(1))[:1])
with_output("Interpolation", lambda out, x: out + F.interpolate(x[:, None], 7)[:, 0, :1])
with_output(
    "Vmapped", lambda out, x: out + torch.func.vmap(lambda row: row.sum() + torch.zeros_like(row)[0])(x)[:, None]
)
with_output("NormalizedText", lambda out, x: out + len(f"{out.detach().mean():.3f} {x[:1]}"))


@ready
class MixedPrecision(Small):
    def loss(self, batch):
        with torch.autocast(self.context.device.type, dtype=torch.bfloat16):
            return super().loss(batch)


@ready
class PackedSequences(Sized):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(1, 4, batch_first=True, bidirectional=True), nn.Linear(8, 1)

        def forward(self, x):
            lengths = torch.randint(1, 6, (len(x),))
            packed = nn.utils.rnn.pack_padded_sequence(x[..., None], lengths, batch_first=True, enforce_sorted=False)
            padded, lengths = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            mask = torch.arange(padded.shape[1], device=x.device) < lengths.to(x.device)[:, None]
            return self.head((padded * mask[..., None]).sum(1))


@ready
class Attention(Sized):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.embed, self.body, self.head = nn.Linear(1, 8), nn.TransformerEncoder(layer, 2), nn.Linear(8, 1)
            self.register_buffer("position", torch.randn(5, 8), persistent=False)

        def forward(self, x):
            hidden = self.embed(x[..., None]) + self.position
            mask = nn.Transformer.generate_square_subsequent_mask(5, device=x.device)
            hidden = self.body(hidden, mask=mask, is_causal=True)
            return self.head(F.scaled_dot_product_attention(hidden, hidden, hidden)[:, -1])


@ready
class ConvolutionsAndNorms(Sized):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Unflatten(1, (1, 5, 1)), nn.Conv2d(1, 4, (3, 1), padding="same"), nn.BatchNorm2d(4), nn.GELU(),
                nn.GroupNorm(2, 4), nn.MaxPool2d((2, 1)), nn.ConvTranspose2d(4, 4, 1), nn.Flatten(), nn.LazyLinear(1),
            )  # fmt: skip
            self.body(torch.zeros(2, 5))

        def forward(self, x):
            return self.body(x)


@ready
class Checkpointed(Sized):
    class Model(Body):
        def block(self, x):
            return self.body(x + torch.zeros(5, device=x.device))

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=False)


@ready
class CustomFunction(Small):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * torch.full(x.shape, 2.0, device=x.device)

    def loss(self, batch):
        x, y = batch
        return F.mse_loss(self.Double.apply(self.modules["model"](x)), y), len(x)


@ready
class LoaderWithPinnedMemory(Small):
    def train_batches(self, epoch):
        data = torch.utils.data.TensorDataset(self.x[:48].cpu(), self.y[:48].cpu())
        loader = torch.utils.data.DataLoader(
            data, 6, shuffle=True, pin_memory=True, num_workers=epoch % 2, generator=self.context.generator
        )
        for batch in loader:
            yield [part.to(self.context.device, non_blocking=True) for part in batch]


@ready
class GeneratorOfTheGpu(Small):
    def build(self):
        super().build()
        self.noise = torch.Generator(self.context.device).manual_seed(1)

    def loss(self, batch):
        x, y = batch
        x = x + 0.1 * torch.randn(x.shape, generator=self.noise, device=x.device)
        chosen = torch.multinomial(x.softmax(1), 1, generator=self.noise)
        return F.mse_loss(self.modules["model"](x) + x.gather(1, chosen), y), len(x)


@ready
class AverageOfWeights(Small):
    def build(self):
        super().build()
        model = self.modules["model"].to(self.context.device)
        self.average = torch.optim.swa_utils.AveragedModel(model)
        self.teacher = copy.deepcopy(model).requires_grad_(False)

    def after_update(self, report):
        self.average.update_parameters(self.modules["model"])

    def loss(self, batch):
        loss, weight = super().loss(batch)
        return loss + 0.1 * F.mse_loss(self.modules["model"](batch[0]), self.teacher(batch[0])), weight


@ready
class StateInTensors(Small):
    """Its own tensors return to the device, and its numbers to the CPU."""

    def build(self):
        super().build()
        self.mean, self.count = torch.zeros(5, device=self.context.device), torch.zeros(())

    def after_update(self, report):
        self.mean.lerp_(self.x.mean(0), 0.1)
        self.count += 1

    def state_dict(self):
        return {"mean": self.mean, "count": self.count}

    def load_state_dict(self, state):
        self.mean, self.count = state["mean"].to(self.context.device), state["count"].cpu()


@ready
class GradientPenalty(Small):
    def loss(self, batch):
        x, y = batch
        x = x.detach().requires_grad_()
        out = self.modules["model"](x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return F.mse_loss(out, y) + 0.1 * slope.square().mean(), len(x)


@ready
class HooksAndClipping(Small):
    def build(self):
        super().build()
        for parameter in self.modules["model"].parameters():
            parameter.register_hook(lambda gradient: gradient.clamp(-1.0, 1.0) + torch.zeros_like(gradient))
        self.modules["model"].register_forward_hook(lambda module, inputs, out: out + out.new_zeros(1))


@ready
class ModelOnTheCpuToo(Small):
    """A second model trains on the CPU, in the same optimizer."""

    def build(self):
        super().build()
        self.small = nn.Linear(5, 1)
        parameters = [*self.modules["model"].parameters(), *self.small.parameters()]
        self.optimizers = {"both": torch.optim.AdamW(parameters, lr=1e-2)}

    def loss(self, batch):
        x, y = batch
        return F.mse_loss(self.modules["model"](x) + self.small(x.cpu()).to(x.device), y), len(x)


@ready
class SparseBuffer(Sized):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(5, 1)
            self.register_buffer("graph", torch.eye(5).to_sparse())

        def forward(self, x):
            return self.head(torch.sparse.mm(self.graph, x.T).T)


@ready
class DistributionsAndLabels(Sized):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(5, 3)

        def forward(self, x):
            policy = torch.distributions.Categorical(logits=self.head(x))
            noise = torch.distributions.Normal(0.0, 1.0).sample((len(x), 1)).to(x.device)
            label = torch.tensor([0] * len(x), device=x.device)
            return policy.log_prob(policy.sample())[:, None] + noise + F.cross_entropy(self.head(x), label)


@ready
class DefaultDevice(Small):
    def make_model(self):
        with torch.device(self.context.device):
            return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))


@ready
class TiedAndParametrized(Sized):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(5, 5), nn.utils.parametrizations.weight_norm(nn.Linear(5, 5))
            self.first.bias = self.second.bias
            self.head = nn.utils.parametrizations.orthogonal(nn.Linear(5, 1))

        def forward(self, x):
            return self.head(self.second(self.first(x)))


@ready
class ScaledLoss(Small):
    """A GradScaler of its own, for a loss that is not updated with."""

    def loss(self, batch):
        scaler = torch.amp.GradScaler(self.context.device.type)
        loss, weight = super().loss(batch)
        return scaler.scale(loss) / scaler.get_scale(), weight
