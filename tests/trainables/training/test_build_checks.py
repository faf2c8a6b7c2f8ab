"""What a task builds is checked: what its updates are, and that all of it learns."""

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.trainables.toy_models import Adversaries, Endless, Regression, RegressionConfig
from trainables.context import Context
from trainables.precision import Diverged, Precision
from trainables.task import Task, TaskConfig
from trainables.training.trainer import TrialTrainer, train


class Parts(Task[TaskConfig]):
    """An encoder, a head and a prompt; `wrong` says which of them the loss passes by."""

    objective = "val/loss"

    def __init__(self, wrong: str = "", context: Context | None = None, **settings: Any) -> None:
        super().__init__(TaskConfig(**settings), context)
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


# Whether it learns


def test_a_loss_without_a_graph_ends_the_trial_at_once():  # C29
    training = TrialTrainer(Parts("graph"))
    with pytest.raises(ValueError, match="loss must depend on a parameter that is trained, but got a constant"):
        training.run_epoch()
    assert training.task.updaters["train"].steps == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("check", ["module", "parameter"])
def test_an_update_whose_parameters_get_no_gradient_is_told_by_its_optimizers(precision, check):  # C29
    training = TrialTrainer(Parts("all", precision=precision, gradient_check=check))
    with pytest.raises(
        ValueError, match="loss of update 'train' must depend on what agent, prompt trains, but none of their param"
    ):
        training.run_epoch()
    updater = training.task.updaters["train"]
    assert (updater.steps, updater.empty) == (0, 1)
    assert updater.precision == precision, "nothing is turned off"


def test_parameters_without_a_gradient_are_named_in_the_log_once(caplog):  # C30
    with caplog.at_level(logging.WARNING, logger="trainables"):
        list(train(Parts("a parameter"), epochs=3))
    assert [record.getMessage() for record in caplog.records] == [
        "update 'train': 1 of 8 parameters got no gradient in the first update: prompt.spare"
    ]


def test_parameters_without_a_gradient_are_an_error_where_each_must_have_one():  # C30
    with pytest.raises(
        ValueError, match=r"gradient_check=parameter all parameters must get a gradient, but 1 of 8 .*: prompt\.spare"
    ):
        TrialTrainer(Parts("a parameter", gradient_check="parameter")).run_epoch()


@pytest.mark.parametrize("check", ["module", "parameter"])
def test_a_module_that_the_loss_passes_by_is_an_error(check):  # C31
    with pytest.raises(
        ValueError, match=r"module 'prompt' must have a gradient in the first update, but its .* is none"
    ):
        TrialTrainer(Parts("the prompt", gradient_check=check)).run_epoch()


def test_a_module_whose_gradient_is_zero_is_an_error():  # C31
    with pytest.raises(
        ValueError,
        match=r"module 'encoder' must have a gradient .* is zero: it would not learn\. .*gradient_check=skip",
    ):
        TrialTrainer(Parts("the encoder, by zero")).run_epoch()


@pytest.mark.parametrize("wrong", ["the prompt", "the encoder, by zero", "a parameter", "all"])
def test_what_is_meant_can_be_allowed(wrong, caplog):  # C29, C30, C31
    with caplog.at_level(logging.WARNING, logger="trainables"):
        report = TrialTrainer(Parts(wrong, gradient_check="skip")).run_epoch()
    assert report["train/updates"] == (0 if wrong == "all" else 2)
    assert caplog.records == []


def test_the_check_is_made_at_the_first_window_that_is_applied():  # C31
    task = Parts("an overflow", precision="fp16", gradient_check="parameter")
    training = TrialTrainer(task)
    training.run_epoch()
    assert (task.updaters["train"].steps, task.updaters["train"].skipped) == (0, 2)
    task.loss = lambda batch: (task.modules["head"](task.modules["encoder"](batch)).square().mean(), 2)
    with pytest.raises(ValueError, match="module 'prompt' must have a gradient"):
        training.run_epoch()
    assert task.updaters["train"].steps == 1


def test_later_windows_may_leave_a_module_out(tmp_path):  # C31
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


def test_each_update_is_checked_by_itself():  # C29, C31
    class OneSided(Adversaries):
        def generator_loss(self, batch: Tensor) -> tuple[Tensor, int]:
            return self.modules["discriminator"](batch).mean(), len(batch)

    with pytest.raises(ValueError, match="loss of update 'generator' must depend on what g trains"):
        TrialTrainer(OneSided(TaskConfig())).run_epoch()


# Transforms of an update


def test_a_transform_of_an_update_that_there_is_not_is_refused():
    class Transformed(Parts):
        def build(self) -> None:
            super().build()
            self.transforms = {"trian": lambda: None}

    with pytest.raises(
        ValueError, match=r"Transformed\.transforms must be for updates among \['train'\], but got \['trian'\]"
    ):
        TrialTrainer(Transformed())


class Transforming(Adversaries):
    """Changes the gradients of one of its updates."""

    def __init__(self, transform: Callable[[Tensor], Any], **settings: Any) -> None:
        super().__init__(TaskConfig(**settings))
        self.transform = transform

    def build(self) -> None:
        super().build()
        self.optimizers["g"] = torch.optim.SGD(self.modules["generator"].parameters(), lr=1.0)
        self.transforms = {"generator": self._change}

    def _change(self) -> None:
        for parameter in self.modules["generator"].parameters():
            assert parameter.grad is not None
            self.transform(parameter.grad)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_transform_changes_the_finished_gradients_of_its_update_alone(precision):
    task = Transforming(lambda gradient: gradient.fill_(2.0), precision=precision, max_grad_norm=None, accumulation=3)
    training = TrialTrainer(task)
    before = task.weights()
    report = training.run_epoch()
    moved = [a - b for a, b in zip(task.weights()["generator"], before["generator"], strict=True)]
    assert all(torch.allclose(change, torch.tensor(-2.0)) for change in moved)
    assert report["train/generator/grad_norm"] == pytest.approx(2.0 * 6**0.5)
    assert report["train/discriminator/grad_norm"] != report["train/generator/grad_norm"]


def test_what_a_transform_spoils_is_not_applied():
    task = Transforming(lambda gradient: gradient.fill_(math.nan), max_consecutive_skips=2)
    training = TrialTrainer(task)
    before = task.weights()["generator"]
    with pytest.raises(Diverged, match="3 windows in a row were not finite"):
        training.run_epoch()
    after = task.weights()["generator"]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


# Streams without weight


def test_an_endless_stream_that_never_has_weight_is_an_error():
    class Ignored(Endless):
        def loss(self, batch: Any) -> tuple[Tensor, int]:
            return super().loss(batch)[0], 0

    task = Ignored(RegressionConfig(accumulation=2))
    with pytest.raises(ValueError, match=r"must give 10 samples, but 1000 windows in a row had none"):
        TrialTrainer(task).run_epoch()
    assert task.handed_out == 2000


def test_an_endless_stream_may_have_windows_without_weight_in_between():
    class Rare(Endless):
        def loss(self, batch: Any) -> tuple[Tensor, int]:
            loss, weight = super().loss(batch)
            return loss, weight if self.handed_out % 900 == 0 else 0

    report = TrialTrainer(Rare(RegressionConfig())).run_epoch()
    assert report["train/updates"] == 3


# The precision that the device has


class Listening(Regression):
    def loss(self, batch: Any) -> tuple[Tensor, int]:
        self.dtype = self.predict(batch[0]).dtype
        return super().loss(batch)


def test_a_task_in_the_best_precision_of_its_device_says_which_it_is(caplog):  # C46
    task = Listening(RegressionConfig(precision="auto"))
    assert task.precision is Precision.BF16
    with caplog.at_level(logging.INFO, logger="trainables"):
        training = TrialTrainer(task)
    assert [record.getMessage() for record in caplog.records] == ["precision auto is bf16 on cpu"]
    training.run_epoch()
    assert task.dtype is torch.bfloat16
    with task.autocast():
        assert task.predict(task.inputs).dtype is torch.bfloat16
    assert task.config.precision == "auto"


def test_a_precision_that_was_named_is_not_spoken_of(caplog):
    with caplog.at_level(logging.INFO, logger="trainables"):
        TrialTrainer(Regression(RegressionConfig(precision="bf16")))
    assert caplog.records == []
