"""Resume trials, saved between any two windows or epochs, exactly as if they had never been interrupted."""

import itertools
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, MultiStepLR
from torch.utils.data import DataLoader, TensorDataset

from searchlight.trainables import checkpoint
from searchlight.trainables.checkpoint import CheckpointError
from searchlight.trainables.checkpoint.selection import find_resume_checkpoint
from searchlight.trainables.precision import Diverged
from tests.trainables.toy_models import FULL, Adversaries, Augmented, Endless, Regression, identical, scramble, state
from tests.trainables.training import trials
from tests.trainables.training.trials import assert_continues, flip_bit, load_trial, make_trial

FP16 = {**FULL, "precision": "fp16"}


class OwnOrder(Augmented):  # draws the order of its data from torch's global generator
    def train_batches(self, epoch: int) -> Iterator[Any]:
        for indices in torch.randperm(self.config.size).split(self.config.batch_size):
            yield self.inputs[indices] + 0.1 * torch.randn(len(indices), 3), self.targets[indices]


class Noisy(TensorDataset):
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        inputs, targets = super().__getitem__(index)
        return inputs + 0.1 * torch.randn(3), targets


class Prefetched(Augmented):  # its batches come from worker processes that are far ahead of the training
    def train_batches(self, epoch: int) -> Iterator[Any]:
        data = Noisy(self.inputs, self.targets)
        yield from DataLoader(data, self.config.batch_size, shuffle=True, num_workers=2, prefetch_factor=4)


class Streamed(Endless, Augmented):
    pass


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.pt"


def test_loading_an_epoch_undoes_the_one_under_way(path):
    expected = trials.run_uninterrupted(Augmented, 2, **FULL)
    training = make_trial(Augmented, **FULL)
    training.run_epoch()
    training.save(path)
    training.run_epoch(lambda: training.windows >= 2)
    training.load(path)
    assert training.windows == 0
    assert_continues(training, expected)


@pytest.mark.parametrize(
    ("precision", "epoch", "window"), [("fp32", 0, 0), ("fp32", 1, 3), ("bf16", 0, 2), ("fp16", 1, 1), ("fp16", 0, 3)]
)
def test_trial_resumes_exactly_inside_an_epoch(path, precision, epoch, window):  # F66, H76
    settings = {**FULL, "precision": precision}
    expected = trials.run_uninterrupted(Augmented, 3, **settings)
    first = trials.stop_in_epoch(make_trial(Augmented, **settings), epoch, window)
    first.save(path)
    held = state(first)
    scramble()
    second = load_trial(path, Augmented, **settings)
    assert identical(state(second), held)
    assert_continues(second, expected)


def test_trial_saved_and_resumed_at_every_window_is_exact(path):
    settings = {**FP16, "loss_scale": 2.0**26}  # some windows are skipped
    expected, at_the_end = trials.run_uninterrupted(Augmented, 3, **settings)
    assert expected[0]["amp/skipped"] > 1
    reports: list[dict[str, float]] = []
    make_trial(Augmented, **settings).save(path)
    while len(reports) < 3:
        training = load_trial(path, Augmented, **settings)
        report = training.run_epoch(lambda trained=training, goal=training.windows + 1: trained.windows >= goal)
        reports += [] if report is None else [report]
        training.save(path)
    for report, wanted in zip(reports, expected, strict=True):
        assert identical({name: report[name] for name in wanted}, wanted)
    assert identical(state(training), at_the_end)


@pytest.mark.parametrize(
    ("task", "window"), [(OwnOrder, 1), (Prefetched, 2), (Streamed, 0), (Streamed, 2), (Adversaries, 1)]
)
def test_resumed_trial_draws_the_next_window_of_its_data(path, task, window):  # H78
    if task is Prefetched and torch.get_default_device().type != "cpu":
        pytest.skip("a DataLoader draws its order on the CPU, which PyTorch refuses with another default device")
    settings = {"precision": "fp16", "ema_decay": 0.9, "accumulation": 1} if task is Adversaries else FULL
    expected = trials.run_uninterrupted(task, 2, **settings)
    stopped = trials.stop_in_epoch(make_trial(task, **settings), 0, window)
    stopped.save(path)
    stopped.close()
    scramble()
    assert_continues(load_trial(path, task, **settings), expected)


def test_stop_inside_a_window_takes_effect_after_it(path):  # H77, C51
    """There is no state between two micro-batches that a checkpoint could hold."""

    class Interrupted(Augmented):
        def loss(self, batch: Any) -> tuple[Tensor, int]:
            stopping.set()
            return super().loss(batch)

    stopping = threading.Event()
    settings = {**FULL, "accumulation": 4}
    expected = trials.run_uninterrupted(Augmented, 1, **settings)
    training = make_trial(Interrupted, **settings)
    assert training.run_epoch(stopping.is_set) is None
    assert (training.windows, training.task.updaters["train"].steps, training.task.seen) == (1, 1, 16)
    assert training.task.drawn == 4, "what is drawn and not trained would be lost"
    assert all(p.grad is None for p in training.task.modules["model"].parameters())
    training.save(path)
    assert_continues(load_trial(path, Augmented, **settings), expected)


def test_autosaved_trial_continues_exactly(tmp_path):  # H85
    settings = {**FP16, "accumulation": 1}
    expected = trials.run_uninterrupted(Augmented, 2, **settings)
    first = make_trial(Augmented, **settings)
    first.autosave = (tmp_path / "auto.pt", 0.0)
    trials.stop_in_epoch(first, 0, 3).save(tmp_path / "asked.pt")  # after the other one is written
    own, asked = (checkpoint.load(tmp_path / name) for name in ("auto.pt", "asked.pt"))
    for saved in (own, asked):
        saved["midway"].pop("seconds")
    assert identical(own, asked)
    first.autosave = None
    assert_continues(first, expected)
    second = load_trial(tmp_path / "auto.pt", Augmented, **settings)
    assert second.windows == 3
    assert_continues(second, expected)


def test_autosave_waits_for_its_interval(path):
    training = make_trial(Augmented, **FULL)
    training.autosave = (path, 3600.0)
    training.run_epoch()
    assert not path.exists()


@pytest.mark.parametrize(("value", "windows"), [(math.inf, 0), (math.nan, 1)])
def test_non_finite_weight_never_replaces_a_good_checkpoint(path, value, windows):  # H86
    training = make_trial(Augmented, **FULL)
    training.run_epoch()
    if windows:
        training.run_epoch(lambda: training.windows >= windows)
    training.save(path)
    good = path.read_bytes()
    with torch.no_grad():
        training.task.modules["model"][4].weight[0, 3] = value
    with pytest.raises(Diverged, match=rf"model\.4\.weight is not finite after epoch 1, window {windows}"):
        training.save(path)
    assert path.read_bytes() == good


class Masked(Augmented):  # has what is no sign of a divergence
    def build(self) -> None:
        super().build()
        model = self.modules["model"]
        model.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))
        model.register_buffer("lowest", torch.tensor(math.nan))  # until it is measured
        model.bias = nn.Parameter(torch.full((2, 2), -math.inf), requires_grad=False)
        self.optimizers["adam"].add_param_group({"params": [model.bias]})


def test_only_what_training_makes_nan_or_weights_infinite_counts_as_diverged(path):
    training = make_trial(Masked, **{**FULL, "precision": "fp16", "loss_scale": 2.0**40})  # some windows are skipped
    training.run_epoch()
    assert training.task.updaters["train"].skipped > 0
    training.save(path)
    load_trial(path, Masked, **FULL)


@pytest.mark.parametrize("name", ["1.running_var", "mask", "bias"])
def test_nan_in_a_buffer_or_frozen_parameter_is_not_saved(path, name):
    training = make_trial(Masked, **FULL)
    training.run_epoch()
    training.task.modules["model"].state_dict()[name].view(-1)[0] = math.nan
    with pytest.raises(Diverged, match=rf"model\.{name} is not finite"):
        training.save(path)


def test_odd_state_of_an_optimizer_is_named_and_not_saved(path):
    training = make_trial(Augmented, **FULL)
    (optimizer,) = training.task.optimizers.values()
    optimizer.param_groups[0]["closure"] = itertools.count()
    with pytest.raises(CheckpointError, match=r"updaters/train/optimizers/\w+/param_groups/0/closure \(count\)"):
        training.save(path)
    assert not path.exists()


def test_state_that_cannot_be_loaded_again_is_not_saved(path):
    class Odd(Augmented):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "counter": itertools.count()}

    training = trials.stop_in_epoch(make_trial(Odd, **FULL), 0, 1)
    with pytest.raises(CheckpointError, match=r"must hold tensors and plain Python values only.*counter \(count\)"):
        training.save(path)
    assert not path.exists()


def test_state_with_numbers_of_numpy_resumes_exactly(path):
    class Computed(Augmented):  # as if its rates were computed with numpy
        def build(self) -> None:
            super().build()
            for optimizer in self.optimizers.values():
                optimizer.param_groups[0]["lr"] = np.sqrt(np.float64(1e-3))
                rates = LambdaLR(optimizer, lambda step: 0.5 * (1 + np.cos(np.pi * step / 50)))
                self.schedulers += [rates, MultiStepLR(optimizer, np.array([3, 6]))]

        def loss(self, batch: Any) -> tuple[Tensor, int]:
            loss, weight = super().loss(batch)
            self.log("weight", np.float64(weight), np.float64(1))
            return loss, weight

    expected = trials.run_uninterrupted(Computed, 3, **FULL)
    trials.stop_in_epoch(make_trial(Computed, **FULL), 1, 3).save(path)
    assert_continues(load_trial(path, Computed, **FULL), expected)


@pytest.mark.parametrize("ranks", [0, 2])
def test_refused_checkpoint_leaves_the_trial_unchanged(path, ranks):
    training = trials.stop_in_epoch(make_trial(Augmented, **FULL), 0, 1)
    training.save(path)
    before = state(training)
    saved = checkpoint.load(path)
    saved["midway"]["ranks"] *= ranks
    message = f"from the middle of epoch 1 must be resumed by as many ranks as saved it, {ranks}, but got 1"
    with pytest.raises(CheckpointError, match=message):
        training.restore(saved)
    flip_bit(path)
    with pytest.raises(CheckpointError, match="it is corrupt"):
        training.load(path)
    assert identical(state(training), before)


def test_other_number_of_ranks_resumes_after_an_epoch(tmp_path):
    training = make_trial(Regression)
    training.run_epoch()
    training.save(tmp_path / "epoch-1-a.pt")
    training.run_epoch(lambda: training.windows == 2)
    training.save(tmp_path / "midway-a.pt")
    candidates = [str(tmp_path / "epoch-1-a.pt")]
    assert find_resume_checkpoint(tmp_path, 1, candidates, ranks=1)[0] == tmp_path / "midway-a.pt"
    assert find_resume_checkpoint(tmp_path, 1, candidates, ranks=2)[0] == tmp_path / "epoch-1-a.pt"


class Counted(nn.Module):  # keeps what no state dict has in a usual form, and writes to one buffer by another name
    def __init__(self) -> None:
        super().__init__()
        self.details = {"calls": 0}
        self.register_buffer("seen", torch.zeros(3), persistent=False)
        self.register_buffer("last", None, persistent=False)
        self.register_buffer("mask", torch.ones(100), persistent=False)
        self.register_buffer("unknown", torch.full((2,), torch.nan), persistent=False)
        zeros = torch.zeros(3)
        self.register_buffer("first", zeros, persistent=False)  # which share their memory only at first
        self.register_buffer("second", zeros, persistent=False)
        with torch.inference_mode():
            self.register_buffer("fixed", torch.zeros(3), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.details["calls"] += 1
            self.last = inputs.mean(0)
            self.first, self.second = self.first + self.last, self.second - 2 * self.last
        inputs = inputs + self.fixed + 0.1 * self.first + 0.01 * self.second
        return inputs + 0.1 * self.seen + (0 if self.last is None else 0.1 * self.last) + 0.01 * self.details["calls"]

    def get_extra_state(self) -> dict[str, Any]:
        return dict(self.details)

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.details = state


class Counting(Augmented):
    def build(self) -> None:
        super().build()
        self.modules["model"].insert(0, Counted())
        self.queue = self.modules["model"][0].seen
        self.unknown = self.modules["model"][0].unknown

    def loss(self, batch: Any) -> tuple[Tensor, int]:
        self.queue += batch[0].detach().mean(0)
        self.unknown *= 2
        assert self.unknown is self.modules["model"][0].unknown
        return super().loss(batch)


@pytest.mark.parametrize(("epoch", "window"), [(2, 0), (1, 2)])
def test_trial_with_buffers_and_state_beside_the_state_dict_resumes_exactly(path, epoch, window):
    expected = trials.run_uninterrupted(Counting, 3, **FULL)
    first = make_trial(Counting, **FULL)
    if window:
        trials.stop_in_epoch(first, epoch, window)
    else:
        trials.run_epochs(first, epoch)
    first.save(path)
    second = load_trial(path, Counting, **FULL)
    assert_continues(second, expected)


def test_buffers_that_build_makes_again_are_in_no_checkpoint(path):
    training = make_trial(Counting, **FULL)
    training.save(path)
    assert checkpoint.load(path)["buffers"] == {}
    training.run_epoch()
    training.save(path)
    assert sorted(checkpoint.load(path)["buffers"]) == [
        f"model.0.{name}" for name in ("first", "last", "second", "seen", "unknown")
    ]


def test_lazy_layers_train_from_the_first_window_on():
    class Lazy(Augmented):
        def build(self) -> None:
            super().build()
            self.modules["model"].insert(0, nn.LazyLinear(3))
            self.optimizers["adam"] = torch.optim.AdamW(self.modules["model"].parameters(), lr=self.config.lr)
            self.schedulers = []

    assert make_trial(Lazy, **{**FULL, "ema_decay": None}).run_epoch() is not None


class Unfreezing(Augmented):  # trains its first layer from the second epoch on
    re_adds = True

    def build(self) -> None:
        super().build()
        first = self.modules["model"][0].requires_grad_(False)
        self.optimizers["adam"] = torch.optim.AdamW(self.modules["model"][1:].parameters(), lr=self.config.lr)
        self.schedulers = []
        self.frozen = list(first.parameters())

    def unfreeze(self) -> None:
        if self.frozen:
            for parameter in self.frozen:
                parameter.requires_grad_(True)
            self.optimizers["adam"].add_param_group({"params": self.frozen, "lr": 0.5 * self.config.lr})
        self.frozen = []

    def train_batches(self, epoch: int) -> Iterator[Any]:
        if epoch:
            self.unfreeze()
        return super().train_batches(epoch)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "is_frozen": bool(self.frozen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not state["is_frozen"] and self.re_adds:
            self.unfreeze()
        super().load_state_dict(state)


@pytest.mark.parametrize(("epoch", "window"), [(1, 2), (2, 1)])
def test_trial_with_a_group_that_training_added_resumes_exactly(path, epoch, window):
    settings = {**FULL, "ema_decay": None}
    expected = trials.run_uninterrupted(Unfreezing, 3, **settings)
    trials.stop_in_epoch(make_trial(Unfreezing, **settings), epoch, window).save(path)
    assert_continues(load_trial(path, Unfreezing, **settings), expected)


def test_group_that_is_not_added_again_refuses_the_checkpoint(path, monkeypatch):
    trials.stop_in_epoch(make_trial(Unfreezing, **FULL), 1, 2).save(path)
    monkeypatch.setattr(Unfreezing, "re_adds", False)
    with pytest.raises(ValueError, match="AdamW must have the 2 parameter groups of its checkpoint, but has 1"):
        load_trial(path, Unfreezing, **FULL)


@pytest.mark.parametrize("in_background", [False, True])
def test_trial_with_a_sparse_buffer_resumes_exactly(path, in_background):
    class Connected(Augmented):
        def build(self) -> None:
            super().build()
            self.modules["model"].register_buffer("graph", torch.eye(3).to_sparse())

        def loss(self, batch: Any) -> tuple[Tensor, int]:
            inputs, targets = batch
            return super().loss(((self.modules["model"].graph @ inputs.T).T, targets))

    expected = trials.run_uninterrupted(Connected, 2, **FULL)
    first = make_trial(Connected, **FULL)
    first.run_epoch()
    if in_background:
        first.begin_save(path)
        first.finish_save()
    else:
        first.save(path)
    assert_continues(load_trial(path, Connected, **FULL), expected)
    first.task.modules["model"].graph = (torch.eye(3) * math.nan).to_sparse()
    with pytest.raises(Diverged, match=r"model\.graph is not finite"):
        first.save(path)
