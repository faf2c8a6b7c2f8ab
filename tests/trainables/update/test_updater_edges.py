"""What a graph, a batch, a parameter or a buffer may also be, and that an update is right there too or says so."""

from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.checkpoint import checkpoint

from tests.trainables.toy_models import every_precision, samples, slope, slope_loss
from trainables.update import Ema, Updater

# Graphs


def test_a_reentrant_activation_checkpoint_is_refused_since_its_parameters_would_not_learn():
    block, head = nn.Linear(2, 2), nn.Linear(2, 1)
    updater = Updater({"sgd": torch.optim.SGD([*block.parameters(), *head.parameters()], lr=0.1)})

    def loss(x: Tensor) -> tuple[Tensor, int]:
        hidden = checkpoint(block, x.requires_grad_(), use_reentrant=True)
        return head(hidden).mean(), len(x)

    with pytest.raises(ValueError, match="activation checkpoints must not be reentrant"):
        updater.update([torch.ones(3, 2)], loss)


def test_an_activation_checkpoint_that_is_not_reentrant_trains():
    block, head = nn.Linear(2, 2), nn.Linear(2, 1)
    updater = Updater({"sgd": torch.optim.SGD([*block.parameters(), *head.parameters()], lr=0.1)})
    before = block.weight.detach().clone()
    updater.update([torch.ones(3, 2)], lambda x: (head(checkpoint(block, x, use_reentrant=False)).mean(), len(x)))
    assert not torch.equal(block.weight, before)


# Weights that are tensors


@pytest.mark.parametrize("nothing", [0.0, torch.tensor(0.0)], ids=["number", "tensor"])
def test_what_only_a_micro_batch_without_weight_uses_has_no_gradient_and_does_not_decay(nothing):  # A5, E58
    used, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    updater = Updater({"adam": torch.optim.AdamW([used, unused], lr=0.1, weight_decay=0.5)})
    weight = torch.tensor(2.0) if isinstance(nothing, Tensor) else 2.0
    losses = [((used * 3).sum(), weight), ((unused * 3).sum(), nothing)]
    report = updater.update([0, 1], lambda index: losses[index])
    assert (report.outcome, unused.item()) == ("applied", 1.0)
    assert used.item() < 1.0
    assert list(updater.gradient_norms()) == ["adam[0]"]


def test_an_empty_batch_may_have_a_constant_loss_and_a_weight_of_zero_that_is_a_tensor():  # C13
    weight, updater = slope()
    losses = [(torch.zeros(()), torch.tensor(0)), ((weight * 2).sum(), torch.tensor(4))]
    assert updater.update([0, 1], lambda index: losses[index]).weight == 4.0
    assert weight.item() == -2.0


def test_a_negative_weight_is_told_as_it_was_given():
    weight, updater = slope()
    with pytest.raises(ValueError, match=r"weight of a micro-batch .* but got -1\.0"):
        updater.update([samples(1)], lambda x: ((weight * x).sum(), torch.tensor(-1.0)))


# Parameters and modules


def test_a_parameter_that_took_the_place_of_another_is_trained():
    old, new = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([old], lr=1.0)
    updater = Updater({"sgd": optimizer})
    updater.update([samples(1)], slope_loss(old))
    optimizer.param_groups[0]["params"] = [new]
    updater.update([samples(2)], slope_loss(new))
    assert (old.item(), new.item()) == (-1.0, -2.0)


def test_complex_parameters_are_refused():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1, dtype=torch.complex64))], lr=1.0)
    with pytest.raises(ValueError, match=r"optimizer 'sgd' must be real numbers, but sgd\[0\] is complex"):
        Updater({"sgd": optimizer})


def test_a_module_may_have_any_name():
    modules = {"values": nn.Linear(1, 1), "a.b": nn.Linear(1, 1)}
    parameters = [parameter for module in modules.values() for parameter in module.parameters()]
    updater = Updater({"sgd": torch.optim.SGD(parameters, lr=1.0)}, modules=modules)
    assert updater.trainable_names() == ["values.weight", "values.bias", "a.b.weight", "a.b.bias"]


def test_a_window_must_be_whole():
    weight, updater = slope()
    with pytest.raises(ValueError, match=r"window must be a sequence of micro-batches, but got generator"):
        updater.update((samples(x) for x in (1, 2)), slope_loss(weight))


def test_a_schedule_that_raises_leaves_an_update_that_is_whole():
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=1)
    ema = Ema({"weight": weight}, 0.9)
    updater = Updater({"sgd": optimizer}, schedulers=[schedule], ema=ema)
    updater.update([samples(1)], slope_loss(weight))
    before = weight.item()
    with pytest.raises(ValueError, match="Tried to step 2 times"):
        updater.update([samples(1)], slope_loss(weight))
    assert weight.item() < before
    assert updater.steps == ema.updates == 2


# Batches


def test_a_batch_that_moves_itself_is_left_to_do_so():
    received: list[Any] = []
    weight, updater = slope()

    def loss(batch: Any) -> tuple[Tensor, int]:
        received.append(batch)
        return weight.sum(), 1

    class Named(dict[str, Tensor]):
        """A dict with attributes, as libraries have."""

    class Moving(UserDict[str, Tensor]):
        def to(self, device: torch.device) -> "Moving":
            return Moving({**self.data, "moved": samples(device.type == "cpu")})

    updater.update([pack_sequence([samples(1, 2), samples(3)]), Named(x=samples(1)), Moving(x=samples(1))], loss)
    packed, named, moving = received
    assert isinstance(packed, PackedSequence)
    assert (type(named), named["x"].item()) == (Named, 1.0)
    assert moving["moved"].item() == 1.0


# Buffers


class Cell(nn.Module):
    """Keeps a state that is as long as the batch, and none before the first."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1)
        self.register_buffer("state", None)

    def forward(self, x: Tensor) -> Tensor:
        before = torch.zeros_like(x) if self.state is None or len(self.state) != len(x) else self.state
        self.state = (before + x).detach()
        return self.head(self.state)


@every_precision
def test_a_state_that_a_skipped_window_made_is_gone_again(precision):  # matrix 35
    cell = Cell()
    updater = Updater({"sgd": torch.optim.SGD(cell.parameters(), lr=0.1)}, precision, modules={"cell": cell})

    def loss(x: Tensor) -> tuple[Tensor, int]:
        return cell(x).float().square().mean(), len(x)

    assert updater.update([torch.full((3, 2), torch.nan)], loss).outcome == "skipped"
    assert cell.state is None
    updater.update([torch.ones(3, 2)], loss)
    kept = cell.state.clone()
    assert updater.update([torch.full((5, 2), torch.nan)], loss).outcome == "skipped"
    assert torch.equal(cell.state, kept)


def test_a_buffer_whose_elements_share_memory_is_put_back():
    norm = nn.Linear(2, 1)
    norm.register_buffer("shared", torch.ones(1, 2).expand(3, 2))
    updater = Updater({"sgd": torch.optim.SGD(norm.parameters(), lr=0.1)}, modules={"norm": norm})
    report = updater.update([samples(torch.nan, 1)], lambda x: (norm(x).sum(), 1))
    assert report.outcome == "skipped"
    assert torch.equal(norm.shared, torch.ones(3, 2))


def test_a_transform_may_drop_a_gradient():
    kept, dropped = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1))

    def drop() -> None:
        dropped.grad = None

    updater = Updater({"sgd": torch.optim.SGD([kept, dropped], lr=1.0, weight_decay=0.5)}, transform=drop)
    updater.update([samples(2)], lambda x: ((kept * x + dropped * x).sum(), 1))
    assert (kept.item(), dropped.item()) == (-2.0, 1.0)
    assert list(updater.gradient_norms()) == ["sgd[0]"]
