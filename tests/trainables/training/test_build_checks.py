"""Check what a task builds: what its updates are, and that all of it learns."""

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from searchlight.trainables import checkpoint
from searchlight.trainables.task import Task, TaskConfig
from searchlight.trainables.training import trainer
from searchlight.trainables.training.trainer import TrialTrainer
from tests.trainables.toy_models import Adversaries, Endless
from tests.trainables.training.trials import make_trial, run_epochs


class Parts(Task[TaskConfig]):  # an encoder, a head and a prompt; `wrong` says which of them the loss passes by
    objective = "val/loss"

    def __init__(self, wrong: str = "", **settings: Any) -> None:
        super().__init__(TaskConfig(**settings))
        self.wrong = wrong

    def build(self) -> None:
        self.modules = {"encoder": nn.Linear(3, 4), "head": nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))}
        self.modules["prompt"] = nn.ParameterDict({"used": nn.Parameter(torch.ones(3)), "spare": torch.zeros(2)})
        if self.wrong != "a parameter":
            del self.modules["prompt"]["spare"]
        self.optimizers = {
            "agent": torch.optim.SGD([*self.modules["encoder"].parameters(), *self.modules["head"].parameters()], 0.1),
            "prompt": torch.optim.SGD(self.modules["prompt"].parameters(), 0.1),
        }

    def train_batches(self, epoch: int) -> list[Tensor]:
        return [torch.ones(2, 3), torch.full((2, 3), 2.0)]

    def loss(self, batch: Tensor) -> tuple[Tensor, int]:
        prompt = self.modules["prompt"]["used"]
        if self.wrong == "the prompt":  # as from a cache
            prompt = prompt.detach()
        hidden = self.modules["encoder"](batch * prompt)
        if self.wrong == "the encoder, by zero":
            hidden = hidden * 0.0
        outputs = self.modules["head"](hidden)
        if self.wrong == "all":
            outputs = torch.zeros(2, 1, requires_grad=True) * 2
        if self.wrong == "graph":
            outputs = outputs.detach()
        if self.wrong == "an overflow" and self.updaters["train"].skipped < 2:
            outputs = outputs * math.inf
        return outputs.square().mean(), len(batch)

    def evaluate(self) -> dict[str, float]:
        return {"val/loss": 1.0}


@pytest.mark.parametrize(
    ("wrong", "check", "message"),
    [
        ("graph", "module", "loss must depend on a parameter that is trained, but got a constant"),
        ("a parameter", "parameter", r"gradient_check=parameter all parameters must .* 1 of 8 .*: prompt\.spare"),
        ("the prompt", "module", r"module 'prompt' must have a gradient in the first 2 updates, but its .* is none"),
        ("the prompt", "parameter", r"module 'prompt' must have a gradient in the first 2 updates, but its .* is none"),
        (
            "the encoder, by zero",
            "module",
            r"module 'encoder' must have a gradient .* is zero: it would not learn\. .*gradient_check=skip",
        ),
    ],
)
def test_part_that_does_not_learn_raises_value_error(wrong, check, message):  # C29, C31
    with pytest.raises(ValueError, match=message):
        TrialTrainer(Parts(wrong, gradient_check=check)).run_epoch()


@pytest.mark.parametrize(("precision", "check"), [("fp32", "module"), ("fp16", "parameter")])
def test_update_without_any_gradient_names_its_optimizers(precision, check):
    training = TrialTrainer(Parts("all", precision=precision, gradient_check=check))
    with pytest.raises(
        ValueError, match="loss of update 'train' must depend on what agent, prompt trains, but none of their param"
    ):
        training.run_epoch()
    updater = training.task.updaters["train"]
    assert (updater.steps, updater.empty) == (0, 1)
    assert updater.precision == precision, "nothing is turned off"


def test_parameter_without_gradient_is_logged_once(caplog):  # C30
    with caplog.at_level(logging.WARNING, logger="searchlight"):
        run_epochs(TrialTrainer(Parts("a parameter")), 3)
    assert caplog.messages == ["update 'train': 1 of 8 parameters got no gradient in the first 2 updates: prompt.spare"]


@pytest.mark.parametrize("wrong", ["the prompt", "the encoder, by zero", "a parameter", "all"])
def test_gradient_check_skip_allows_parts_without_gradient(wrong, caplog):
    with caplog.at_level(logging.WARNING, logger="searchlight"):
        report = TrialTrainer(Parts(wrong, gradient_check="skip")).run_epoch()
    assert report["train/updates"] == (0 if wrong == "all" else 2)
    assert caplog.records == []


def test_windows_that_are_skipped_are_not_counted_by_the_gradient_check():
    task = Parts("an overflow", precision="fp16", gradient_check="parameter")
    training = TrialTrainer(task)
    assert training.run_epoch(lambda: training.windows == 1) is None
    assert (task.updaters["train"].steps, task.updaters["train"].skipped) == (0, 1)
    task.loss = lambda batch: (0.01 * task.modules["head"](task.modules["encoder"](batch)).square().mean(), 2)
    assert training.run_epoch() is not None, "one update is not enough"
    with pytest.raises(ValueError, match="module 'prompt' must have a gradient in the first 3 updates"):
        training.run_epoch()


class Heads(Parts):  # its first windows are those of one head, and the layers below start with a gradient of zero
    windows = 8

    def build(self) -> None:
        super().build()
        nn.init.zeros_(self.modules["head"][1].weight)
        self.modules["other"] = nn.Linear(4, 1)
        self.optimizers["other"] = torch.optim.SGD(self.modules["other"].parameters(), 0.1)

    def train_batches(self, epoch: int) -> list[Any]:
        return [*[("head", torch.ones(2, 3))] * (self.windows - 1), ("other", torch.ones(2, 3))]

    def loss(self, batch: tuple[str, Tensor]) -> tuple[Tensor, int]:
        name, inputs = batch
        hidden = self.modules["encoder"](inputs * self.modules["prompt"]["used"])
        return (self.modules[name](hidden) - 1).square().mean(), 2


def test_module_may_get_its_gradient_in_a_later_update():
    reports = run_epochs(TrialTrainer(Heads(gradient_check="parameter")), 2)
    assert [report["train/updates"] for report in reports] == [8, 16]


def test_module_without_a_gradient_in_eight_updates_raises_value_error():
    class Late(Heads):
        windows = 9

    training = TrialTrainer(Late())
    with pytest.raises(ValueError, match="module 'other' must have a gradient in the first 8 updates"):
        training.run_epoch()
    assert training.task.updaters["train"].steps == 8


def test_resumed_trial_does_not_repeat_the_gradient_check(tmp_path):
    training = TrialTrainer(Heads())
    assert training.run_epoch(lambda: training.windows == 3) is None
    training.save(tmp_path / "state.pt")
    resumed = TrialTrainer(Heads())
    resumed.load(tmp_path / "state.pt")
    assert len(run_epochs(resumed, 2)) == 2


def test_trial_that_pauses_after_each_update_is_checked_as_one_that_does_not(tmp_path):
    training = TrialTrainer(Parts("the prompt", accumulation=2))  # an epoch is one update
    assert training.run_epoch()["train/updates"] == 1
    training.save(tmp_path / "state.pt")
    resumed = TrialTrainer(Parts("the prompt", accumulation=2))
    resumed.load(tmp_path / "state.pt")
    with pytest.raises(ValueError, match="module 'prompt' must have a gradient in the first 2 updates"):
        resumed.run_epoch()


def test_checkpoint_of_an_earlier_version_has_passed_the_gradient_check(tmp_path):
    training = TrialTrainer(Parts("the prompt", gradient_check="skip"))
    training.run_epoch()
    training.save(tmp_path / "state.pt")
    state = checkpoint.load(tmp_path / "state.pt")
    del state["gradient_checks"]
    checkpoint.save(state, tmp_path / "state.pt")
    resumed = TrialTrainer(Parts("the prompt"))
    resumed.load(tmp_path / "state.pt")
    assert resumed.run_epoch()["train/updates"] == 4


def test_batches_may_be_an_object_that_only_has_items():
    class Indexed(Parts):
        def train_batches(self, epoch: int) -> Any:
            batches = super().train_batches(epoch)
            return Subset(batches, range(len(batches)))

    assert TrialTrainer(Indexed()).run_epoch()["train/updates"] == 2


def test_later_windows_may_leave_a_module_out(tmp_path):
    """As a curriculum does that turns a part off; after a resume no window is the first."""

    class Curriculum(Parts):
        def loss(self, batch: Tensor) -> tuple[Tensor, int]:
            self.wrong = "the prompt" if self.updaters["train"].steps else ""
            return super().loss(batch)

    training = TrialTrainer(Curriculum())
    training.run_epoch()
    training.save(tmp_path / "state.pt")
    resumed = TrialTrainer(Curriculum())
    resumed.load(tmp_path / "state.pt")
    assert resumed.run_epoch()["train/updates"] == 4


def test_each_update_is_checked_by_itself():
    class OneSided(Adversaries):
        def generator_loss(self, batch: Tensor) -> tuple[Tensor, int]:
            return self.modules["discriminator"](batch).mean(), len(batch)

    with pytest.raises(ValueError, match="loss of update 'generator' must depend on what g trains"):
        make_trial(OneSided).run_epoch()


def test_transform_of_an_unknown_update_raises_value_error():
    class Transformed(Parts):
        def build(self) -> None:
            super().build()
            self.transforms = {"trian": lambda: None}

    with pytest.raises(
        ValueError, match=r"Transformed\.transforms must be for updates among \['train'\], but got \['trian'\]"
    ):
        TrialTrainer(Transformed())


class Transforming(Adversaries):  # changes the gradients of one of its updates
    def __init__(self, value: float, **settings: Any) -> None:
        super().__init__(TaskConfig(**settings))
        self.value = value

    def build(self) -> None:
        super().build()
        self.optimizers["g"] = torch.optim.SGD(self.modules["generator"].parameters(), lr=1.0)
        self.transforms = {"generator": self._fill}

    def _fill(self) -> None:
        for parameter in self.modules["generator"].parameters():
            assert parameter.grad is not None
            parameter.grad.fill_(self.value)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_transform_changes_the_gradients_of_its_update_alone(precision):
    task = Transforming(2.0, precision=precision, max_grad_norm=None, accumulation=3)
    training = TrialTrainer(task)
    before = task.weights()
    report = training.run_epoch()
    moved = [a - b for a, b in zip(task.weights()["generator"], before["generator"], strict=True)]
    assert all(torch.allclose(change, torch.full_like(change, -2.0)) for change in moved)
    assert report["train/generator/grad_norm"] == pytest.approx(2.0 * 6**0.5)
    assert report["train/discriminator/grad_norm"] != report["train/generator/grad_norm"]


@pytest.fixture
def rare(monkeypatch):
    """Makes a trial on a stream of which one batch in `every` has weight; ten windows without end it."""

    class Rare(Endless):
        def loss(self, batch: Any) -> tuple[Tensor, int]:
            loss, weight = super().loss(batch)
            return loss, weight if self.every and self.handed_out % self.every == 0 else 0

    def make(every: int, **settings: Any) -> TrialTrainer:
        monkeypatch.setattr(trainer, "ENDLESS", 10)
        training = make_trial(Rare, **settings)
        training.task.every = every
        return training

    return make


def test_stream_that_never_has_weight_raises_value_error(rare):
    training = rare(0, accumulation=2)
    with pytest.raises(ValueError, match=r"must give 10 samples, but 10 windows in a row had none"):
        training.run_epoch()
    assert training.task.handed_out == 20


def test_stream_may_have_windows_without_weight_in_between(rare):
    assert rare(10).run_epoch()["train/updates"] == 3


def wrong_parts(**attributes: Any) -> type[Parts]:
    return type("Wrong", (Parts,), attributes)


def single_schedule(task: Parts) -> None:
    Parts.build(task)
    task.schedulers = torch.optim.lr_scheduler.StepLR(task.optimizers["agent"], 1)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"build": single_schedule},
            r"Wrong\.build must make self\.schedulers a list, but got StepLR: write \[\.\.\.\]",
        ),
        ({"train_batches": lambda task, epoch: None}, "train_batches must return an iterable .* but got NoneType"),
        ({"loss": lambda task, batch: (Parts.loss(task, batch)[0], None)}, "weight of a micro-batch .* but got None"),
        ({"loss": lambda task, batch: (Parts.loss(task, batch)[0], np.ones(2))}, r"weight .* but got \[1\. 1\.\]"),
        (
            {"evaluate": lambda task: {"val/loss": 1.0, "train/loss": 2.0}},
            "evaluate must return other .* got train/loss",
        ),
    ],
)
def test_what_a_task_returns_wrongly_is_told_in_one_line(attributes, message):
    with pytest.raises(ValueError, match=message):
        TrialTrainer(wrong_parts(**attributes)("")).run_epoch()
