"""Tasks that run on a CPU and fail on a GPU, by a part of what CUDA says."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.trainables.preflight.faulty_tasks import Small

TWO = "found at least two devices"
FAULTS = []  # (what CUDA says, the function that the finding names, the task)


def fault(message, function):
    """Add a task for which CUDA says `message` in `function` of the user's code."""

    def add(task):
        FAULTS.append((message, function, task))
        return task

    return add


class Sized(Small):
    """A task with a module of its own, which `forward` is of."""

    def make_model(self):
        return self.Model()


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 1)


@fault(TWO, "evaluate")
class EvaluatesDataOfTheCpu(Small):
    def evaluate(self):
        x, y = self.x[48:].cpu(), self.y[48:]
        return {"val/loss": F.mse_loss(self.modules["model"](x), y).item()}


@fault(TWO, "forward")
class BufferIsAnAttribute(Sized):
    class Model(Body):
        def __init__(self):
            super().__init__()
            self.scale = torch.ones(5)

        def forward(self, x):
            return self.body(x * self.scale)


@fault(TWO, "forward")
class MaskIsMadeInForward(Sized):
    class Model(Body):
        def forward(self, x):
            return self.body(x.masked_fill(torch.zeros(x.shape, dtype=torch.bool), 0.0))


@fault("to numpy", "evaluate")
class NumpyOfTheGpu(Small):
    def evaluate(self):
        answer = self.modules["model"](self.x[48:])
        return {"val/loss": float(np.abs(answer.numpy()).mean())}


@fault("to numpy", "evaluate")
class NumpyFunctionOfTheGpu(Small):
    def evaluate(self):
        return {"val/loss": float(np.asarray(self.modules["model"](self.x[48:]).detach()).mean())}


@fault("device type for generator", "loss")
class GeneratorOfTheCpu(Small):
    def loss(self, batch):
        x, y = batch
        noise = torch.randn(x.shape, generator=self.context.generator, device=x.device)
        return super().loss((x + noise, y))


@fault(TWO, "loss")
class LabelsStayOnTheCpu(Small):
    def loss(self, batch):
        x = batch[0]
        logits = self.modules["model"](x).expand(-1, 3)
        return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long)), len(x)


@fault(TWO, "loss")
class TensorWithoutDeviceInLoss(Small):
    def loss(self, batch):
        x, y = batch
        weights = torch.tensor([1.0] * len(x))[:, None]
        return ((self.modules["model"](x) - y).square() * weights).mean(), len(x)


@fault(TWO, "loss")
class ArraysOfAGeneratorOfBatches(Small):
    """The trainer moves tensors and arrays of a micro-batch, but not those of an object of the task's own kind."""

    class Rows:
        def __init__(self, x):
            self.x = x

        def __len__(self):
            return len(self.x)

    def train_batches(self, epoch):
        return (self.Rows(np.ones((6, 5), np.float32)) for _ in range(8))

    def loss(self, batch):
        return self.modules["model"](torch.from_numpy(batch.x)).square().mean(), len(batch)


@fault("mm_cuda", "loss")
class ProductOfIntegers(Small):
    def loss(self, batch):
        x, y = batch
        counts = (x > 0).long() @ torch.ones(5, 1, dtype=torch.long, device=x.device)
        return F.mse_loss(self.modules["model"](x) + counts, y), len(x)


@fault(TWO, "loss")
class SumStartsOnTheCpu(Small):
    """A number on the CPU cannot be added to in place: only inputs of an operator may be on the CPU."""

    def loss(self, batch):
        total = torch.tensor(0.0)
        total += super().loss(batch)[0]
        return total, len(batch[0])


@fault(TWO, "loss")
class NumbersAreStacked(Small):
    """cat and stack check all tensors, also those without dimensions."""

    def loss(self, batch):
        loss, weight = super().loss(batch)
        return torch.stack([loss, torch.tensor(0.1)]).sum(), weight


@fault(TWO, "loss")
class LimitIsATensor(Small):
    """clamp with tensors has a generated check: see device_check in native_functions.yaml."""

    def loss(self, batch):
        loss, weight = super().loss(batch)
        return loss.clamp(min=torch.tensor(0.0)), weight


@fault(TWO, "load_state_dict")
class StateOfTheCpuAfterResume(Small):
    def build(self):
        super().build()
        self.mean = torch.zeros(5, device=self.context.device)

    def after_update(self, report):
        self.mean.add_(self.x.mean(0))

    def state_dict(self):
        return {"mean": self.mean.tolist()}

    def load_state_dict(self, state):
        self.mean = torch.tensor(state["mean"])
        self.mean = self.mean + self.x.mean(0)


@fault(TWO, "loss")
class ParameterThatNoModuleHas(Small):
    def build(self):
        super().build()
        self.temperature = nn.Parameter(torch.ones(5))
        self.optimizers["temperature"] = torch.optim.SGD([self.temperature], lr=0.1)

    def loss(self, batch):
        x, y = batch
        return super().loss((x * self.temperature, y))


@fault("lengths", "forward")
class LengthsOnTheGpu(Sized):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 1)

        def forward(self, x):
            lengths = torch.full((len(x),), 5, device=x.device)
            packed = nn.utils.rnn.pack_padded_sequence(x[..., None], lengths, batch_first=True)
            return self.head(self.lstm(packed)[1][0][-1])


@fault(TWO, "forward")
class PositionsWithoutDevice(Sized):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 1), nn.Linear(5, 1)

        def forward(self, x):
            return self.head(x + self.embed(torch.arange(5))[:, 0])


@fault("either on cpu or on the same device", "loss")
class TableOfTheCpu(Small):
    def loss(self, batch):
        x, y = batch
        table = torch.linspace(0, 1, 8)
        return super().loss((x + table[x.argmax(1)].to(x.device)[:, None], y))


@fault(TWO, "loss")
class RowsOfTheCpuAreWritten(Small):
    def loss(self, batch):
        x, y = batch
        x = x.clone()
        x[torch.tensor([0, 1])] = torch.zeros(2, 5)
        return super().loss((x, y))


@fault("forked subprocess", "")
class WorkersHaveTheGpu(Small):
    def train_batches(self, epoch):
        data = torch.utils.data.TensorDataset(self.x[:48], self.y[:48])
        yield from torch.utils.data.DataLoader(data, batch_size=6, num_workers=1)


@fault("cannot pin", "train_batches")
class PinnedMemoryOfTheGpu(Small):
    def train_batches(self, epoch):
        data = torch.utils.data.TensorDataset(self.x[:48], self.y[:48])
        yield from torch.utils.data.DataLoader(data, batch_size=6, pin_memory=True)


@fault("expected device|" + TWO, "")
class FunctionReturnsAGradientOfTheCpu(Small):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return torch.ones(gradient.shape) * 2

    def loss(self, batch):
        x, y = batch
        return F.mse_loss(self.Double.apply(self.modules["model"](x)), y), len(x)


@fault("Use Tensor.cpu", "state_dict")
class StateIsConverted(Small):
    def build(self):
        super().build()
        self.seen = torch.zeros((), device=self.context.device)

    def state_dict(self):
        return {"seen": self.seen.numpy().item()}


@fault("invalid device ordinal", "loss")
class SecondGpu(Small):
    def loss(self, batch):
        x, y = batch
        return super().loss((x.to("cuda:1"), y))
