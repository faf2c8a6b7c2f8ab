"""Test what an applied window costs: one read of the device at its end, and on two ranks one reduction."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from searchlight.trainables.precision import LossScale
from searchlight.trainables.update import Ema, Updater, windows
from tests.trainables.toy_models import IGNORED, Tokens, samples, slope, tokens

CONVERSIONS = ["array", "bool", "float", "int", "index", "complex"]
METHODS = ["item", "tolist", "cpu", "numpy", *(f"__{name}__" for name in CONVERSIONS)]
# What decides by values, or has a shape that depends on them, waits for the device too.
OPERATIONS = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "_unique2", "allclose"}


class HostReads(TorchDispatchMode):
    """Counts the reads of tensors on the host while it is entered.

    Not all of them are seen in one place: `tolist` reads memory without an operation, and operations read without a
    method of Python. What a method does inside is counted once.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.count = 0
        self._depth = 0
        for name in METHODS:
            monkeypatch.setattr(Tensor, name, self._counted(getattr(Tensor, name)))

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def read(tensor: Tensor, *args: Any, **options: Any) -> Any:
            self._note()
            self._depth += 1
            try:
                return method(tensor, *args, **options)
            finally:
                self._depth -= 1

        return read

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if name in OPERATIONS or masks:
            self._note()
        return func(*args, **(kwargs or {}))

    def _note(self) -> None:
        self.count += not self._depth


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> HostReads:
    return HostReads(monkeypatch)


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped-by-optimizer": {"max_grad_norm": {"body": 1e-3, "head": 1e-3}},
    "fp16-clipped": {"precision": "fp16", "max_grad_norm": 1e-3},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("weights", ["numbers", "tensors", "mixed"])
def test_applied_window_reads_the_device_once(reads, settings, size, weights):  # I87
    net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    optimizers: dict[str, torch.optim.Optimizer] = {
        "body": torch.optim.SGD(net[:2].parameters(), lr=0.1, momentum=0.9),
        "head": torch.optim.AdamW(net[3].parameters(), lr=0.1, fused=True),
    }
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for optimizer in optimizers.values()]
    ema, scale = Ema(dict(net.named_parameters()), 0.9), LossScale(64.0, growth_interval=2)
    updater = Updater(optimizers, schedulers=schedulers, ema=ema, loss_scale=scale, modules={"net": net}, **settings)
    before_each_micro_batch = []

    def loss(batch: Tokens) -> tuple[Tensor, float | Tensor]:
        before_each_micro_batch.append(reads.count)
        inputs, labels = batch
        mean = nn.functional.cross_entropy(net(inputs), labels, ignore_index=IGNORED)
        on_device = weights == "tensors" or (weights == "mixed" and len(before_each_micro_batch) % 2 == 0)
        return mean, (labels != IGNORED).sum() if on_device else len(labels)

    for step in range(1, 4):
        window = tokens([4, 3, 2, 5][:size], seed=step, ignored=False)
        reads.count = 0
        before_each_micro_batch.clear()
        with reads:
            report = updater.update(window, loss)
        assert report.outcome == "applied"
        assert before_each_micro_batch == [0] * size
        assert reads.count == 1


def train_and_count(rank: int, size: int, as_tensor: bool) -> tuple[float, list[int], list[str], int]:
    """The weight after nine micro-batches of 1 to 9, and ten more on rank 1, and what was exchanged and read."""
    calls: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(dist, name)

        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            return real(*arguments, **options)

        return call

    weight, updater = slope(precision="fp16", max_grad_norm=1e3)
    batches, count = [samples(x + 10 * rank) for x in range(1, 10)], torch.tensor(1) if as_tensor else 1
    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_reduce", "broadcast", "all_gather", "all_gather_object", "reduce", "barrier"):
            patch.setattr(dist, name, counted(name))
        with HostReads(patch) as reads:
            reports = [updater.update(w, lambda x: ((weight * x).mean(), count)) for w in windows(batches, size)]
    return weight.item(), [report.micro_batches for report in reports], calls, reads.count


@pytest.mark.parametrize("as_tensor", [True, False], ids=["tensor", "number"])
@pytest.mark.parametrize(
    ("size", "moved"),
    [(1, -sum(x + 5 for x in range(1, 10))), (4, -7.5 - 11.5 - 14.0)],  # by the means over both ranks
)
def test_window_of_ranks_costs_one_reduction_and_one_read(pair, size, moved, as_tensor):  # B21, B22, C55, C59, I87
    count = math.ceil(9 / size)  # the tail is reduced too
    expected = (moved, [1] * 9 if size == 1 else [4, 4, 1], ["all_reduce"] * count, count)
    assert pair.run(train_and_count, size, as_tensor) == [expected] * 2
