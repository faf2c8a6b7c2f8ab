"""An applied window reads the device once, at its end: each further read would make a GPU wait."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainables.toy_models import IGNORED, Tokens, tokens
from trainables.precision import LossScale
from trainables.update import Ema, Updater

METHODS = [
    "item",
    "tolist",
    "cpu",
    "numpy",
    "__array__",
    "__bool__",
    "__float__",
    "__int__",
    "__index__",
    "__complex__",
]
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


WAYS_TO_READ: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.item(),
    "tolist": lambda x: x.tolist(),
    "tolist of many": lambda x: x.expand(3).tolist(),
    "cpu": lambda x: x.cpu(),
    "numpy": lambda x: x.numpy(),
    "bool": bool,
    "if": lambda x: 1 if x > 0 else 2,
    "float": float,
    "int": int,
    "index": lambda x: [1, 2, 3][x.long()],
    "format": lambda x: f"{x:.2f}",
    "comparison": lambda x: max(x, torch.zeros(())),
    "number among arguments": lambda x: torch.add(x, x, alpha=x),
    "length": lambda x: torch.zeros(x.long()),
    "equal": lambda x: torch.equal(x, x),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x.expand(3)[x.expand(3) > 0],
}


@pytest.mark.parametrize("way", WAYS_TO_READ)
def test_each_way_to_read_a_tensor_is_seen(reads, way):
    x = torch.ones(())
    with reads:
        torch.ones(3) * x + 1
        assert reads.count == 0
        WAYS_TO_READ[way](x)
    assert reads.count >= 1


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "clipped": {"max_grad_norm": 1e-3},
    "within-the-limit": {"max_grad_norm": 1e3},
    "clipped-by-optimizer": {"several": True, "max_grad_norm": {"body": 1e-3, "head": 1e-3}},
    "average": {"averaged": True},
    "several-optimizers": {"several": True},
    "all-of-it": {"precision": "fp16", "several": True, "averaged": True, "max_grad_norm": 1e-3},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("weights", ["numbers", "tensors", "mixed"])
def test_an_applied_window_is_read_once_and_its_micro_batches_never(reads, settings, size, weights):  # I87
    options = dict(settings)
    net = model()
    if options.pop("several", False):
        optimizers: dict[str, torch.optim.Optimizer] = {
            "body": torch.optim.SGD(net[:2].parameters(), lr=0.1, momentum=0.9),
            "head": torch.optim.AdamW(net[3].parameters(), lr=0.1, fused=True),
        }
    else:
        optimizers = {"all": torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)}
    if options.pop("averaged", False):
        options["ema"] = Ema(dict(net.named_parameters()), 0.9)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for optimizer in optimizers.values()]
    scale = LossScale(64.0, growth_interval=2)
    updater = Updater(optimizers, schedulers=schedulers, loss_scale=scale, modules={"net": net}, **options)
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
