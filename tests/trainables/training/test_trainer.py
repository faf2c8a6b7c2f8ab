"""A trial in memory: its epochs, reports and evaluation, and that a checkpoint loses nothing of it."""

import contextlib
import itertools
import math
import time
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainables.toy_models import (
    FULL,
    Adversaries,
    Endless,
    Regression,
    RegressionConfig,
    identical,
    scramble,
    state,
    timeless,
)
from trainables.checkpoint import CheckpointError
from trainables.context import Context
from trainables.precision import Diverged
from trainables.task import TaskConfig
from trainables.training.trainer import TrialTrainer, train

# Checkpoints


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"precision": "fp32"}, id="fp32"),
        pytest.param({"precision": "bf16"}, id="bf16"),
        pytest.param({"precision": "fp16"}, id="fp16"),
        pytest.param({"precision": "fp16", "loss_scale": 2.0**26}, id="fp16-after-skips-H81"),
        pytest.param({"precision": "fp32", "ema_decay": None, "max_grad_norm": None}, id="fp32-plain"),
    ],
)
@pytest.mark.parametrize("interrupted_after", [1, 3])
def test_an_interrupted_trial_is_the_uninterrupted_one_bit_for_bit(tmp_path, settings, interrupted_after):  # H76
    config = RegressionConfig(**{**FULL, **settings})
    straight = TrialTrainer(Regression(config))
    expected = [timeless(straight.run_epoch()) for _ in range(4)]
    if "loss_scale" in settings:
        assert expected[0]["amp/skipped"] > 0

    path = tmp_path / "state.pt"
    first = TrialTrainer(Regression(config))
    reports = [timeless(first.run_epoch()) for _ in range(interrupted_after)]
    first.save(path)
    scramble()
    second = TrialTrainer(Regression(config))
    second.load(path)
    assert second.epoch == interrupted_after
    reports += [timeless(second.run_epoch()) for _ in range(4 - interrupted_after)]

    assert identical(reports, expected)
    assert identical(state(second), state(straight))


def test_saving_changes_nothing(tmp_path):
    config = RegressionConfig(**FULL)
    saved, unsaved = TrialTrainer(Regression(config)), TrialTrainer(Regression(config))
    for _ in range(2):
        assert identical(timeless(saved.run_epoch()), timeless(unsaved.run_epoch()))
        saved.save(tmp_path / "state.pt")
    assert identical(state(saved), state(unsaved))


def test_a_corrupt_checkpoint_is_refused_and_the_trial_left_as_it_was(tmp_path):  # H84
    path = tmp_path / "state.pt"
    training = TrialTrainer(Regression(RegressionConfig()))
    training.run_epoch()
    training.save(path)
    training.run_epoch()
    before = state(training)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="it is corrupt"):
        training.load(path)
    assert identical(state(training), before)


def test_one_config_gives_one_result_and_another_seed_another():
    config = RegressionConfig(**FULL)
    first = [timeless(report) for report in train(Regression(config))]
    scramble()
    second = [timeless(report) for report in train(Regression(config))]
    other = [timeless(report) for report in train(Regression(config.model_copy(update={"seed": 1})))]
    assert len(first) == 4
    assert identical(first, second)
    assert first[0]["train/loss"] != other[0]["train/loss"]


def test_epochs_do_not_repeat_each_others_randomness():
    reports = list(train(Regression(RegressionConfig(dropout=0.5))))
    assert len({report["val/draw"] for report in reports}) == 3


# The epoch and its report


def test_an_epoch_trains_each_sample_once_and_says_so():
    task = Regression(RegressionConfig(size=22, batch_size=4, accumulation=4))
    report = TrialTrainer(task).run_epoch()
    assert report["val/seen"] == 22
    assert report["train/updates"] == 2  # six micro-batches: a window of four and a tail of two
    assert report["amp/skipped"] == 0
    assert "amp/loss_scale" not in report
    assert report["time/epoch_s"] > 0
    assert report["time/samples_per_s"] > 0


class Slow(Regression):
    """Takes 0.2 s to train an epoch, and 0.1 s to evaluate it."""

    def train_batches(self, epoch):
        time.sleep(0.2)
        yield from super().train_batches(epoch)

    def evaluate(self):
        time.sleep(0.1)
        return super().evaluate()


def test_an_epoch_takes_the_time_of_its_training_and_of_its_evaluation_once():
    task = Slow(RegressionConfig(size=22))
    training = TrialTrainer(task)
    training.run_epoch()  # it pays for what is loaded late
    start = time.perf_counter()
    report = training.run_epoch()
    assert 0.3 <= report["time/epoch_s"] == training.seconds <= time.perf_counter() - start
    assert report["time/samples_per_s"] <= 22 / 0.2
    assert training.samples == 22


def test_an_fp16_trial_reports_its_loss_scale():
    report = TrialTrainer(Regression(RegressionConfig(precision="fp16", loss_scale=128.0))).run_epoch()
    assert report["amp/loss_scale"] == 128.0


@pytest.mark.parametrize("accumulation", [1, 2, 6])
def test_the_reported_loss_is_the_mean_over_samples(accumulation):  # A16
    class Still(Regression):
        """Does not move, so that the loss of an epoch can be had in one piece."""

        def build(self) -> None:
            super().build()
            self.modules["model"][1] = nn.Identity()  # batch norm would mix the samples of a batch
            self.optimizers = {"sgd": torch.optim.SGD(self.modules["model"].parameters(), lr=0.0)}
            self.schedulers = []

    report = TrialTrainer(Still(RegressionConfig(accumulation=accumulation))).run_epoch()
    assert report["train/loss"] == pytest.approx(report["val/loss"], rel=1e-6)


def test_an_epoch_of_an_endless_stream_ends_after_its_samples():  # C15
    task = Endless(RegressionConfig(accumulation=2))
    training = TrialTrainer(task)
    for updates, batches in ((2, 4), (3, 2), (4, 2), (5, 2), (7, 4)):  # ten samples an epoch, eight a window
        report = training.run_epoch()
        assert report["train/updates"] == updates
        assert task.handed_out == batches, "nothing more was taken from the stream"


def test_a_stop_ends_the_epoch_at_the_next_window_without_a_report():  # A9, C15
    training = TrialTrainer(Regression(RegressionConfig()))
    asked = itertools.count()
    assert training.run_epoch(lambda: next(asked) == 2) is None
    assert training.epoch == 0
    assert training.task.updaters["train"].steps == 2
    assert all(p.grad is None for p in training.task.modules["model"].parameters())


def test_a_stopped_trial_goes_on_from_its_checkpoint_as_if_it_had_not_been_stopped(tmp_path):
    config = RegressionConfig(**FULL)
    expected = [timeless(report) for report in train(Regression(config))]
    training = TrialTrainer(Regression(config))
    training.run_epoch()
    training.save(tmp_path / "state.pt")
    asked = itertools.count()
    assert training.run_epoch(lambda: next(asked) == 1) is None
    training.load(tmp_path / "state.pt")
    assert identical([timeless(training.run_epoch()) for _ in range(3)], expected[1:])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_objective_that_is_not_finite_ends_the_trial(value):  # C105
    class Lost(Regression):
        def evaluate(self) -> dict[str, Any]:
            return {"val/loss": value, "val/other": 1.0}

    with pytest.raises(Diverged, match=f"val/loss is {value} after epoch 1"):
        TrialTrainer(Lost(RegressionConfig())).run_epoch()


def test_another_metric_may_be_nan():
    class Unsure(Regression):
        def evaluate(self) -> dict[str, Any]:
            return {"val/loss": 1.0, "val/other": math.nan, "val/mean": (math.nan, 0), "val/part": (2.0, 3)}

    report = TrialTrainer(Unsure(RegressionConfig())).run_epoch()
    assert math.isnan(report["val/other"])
    assert math.isnan(report["val/mean"])
    assert report["val/part"] == 2.0


def test_a_trial_whose_windows_are_all_skipped_ends_as_diverged():  # matrix 38, C38
    task = Regression(RegressionConfig(fault="nan loss", max_consecutive_skips=3))
    with pytest.raises(
        Diverged,
        match=r"4 windows in a row were not finite: at step 0 .* the gradient norm nan, first in model\.0\.weight",
    ):
        TrialTrainer(task).run_epoch()


def test_an_epoch_without_an_applied_window_reports_no_loss_instead_of_zero():  # C06
    class Idle(Regression):
        def train_batches(self, epoch: int) -> list[Any]:
            return []

    report = TrialTrainer(Idle(RegressionConfig())).run_epoch()
    assert math.isnan(report["train/loss"])
    assert math.isnan(report["train/grad_norm"])
    assert report["train/updates"] == 0


def test_a_noted_term_is_reported_as_its_weighted_mean():
    class Noting(Regression):
        def train_batches(self, epoch: int) -> Any:
            self.current = epoch
            return super().train_batches(epoch)

        def loss(self, batch: Any) -> tuple[torch.Tensor, int]:
            loss, weight = super().loss(batch)
            self.log("mean", torch.tensor(float(weight), requires_grad=True), weight)
            self.log("plain", float(weight))
            self.log("epoch", float(self.current))
            self.log("masked", torch.tensor(math.nan if weight == 2 else 5.0), torch.tensor(weight - 2))
            self.log("masked_plain", math.nan if weight == 2 else 5.0, weight - 2)
            self.log("half", torch.tensor(1.0, dtype=torch.float16), 30_000)  # infinite in fp16, as a sum
            return loss, weight

    training = TrialTrainer(Noting(RegressionConfig(size=22, batch_size=4, accumulation=2)))
    for epoch in range(2):
        report = training.run_epoch()
        assert report["train/epoch"] == epoch  # the second one starts from nothing
        assert report["train/mean"] == pytest.approx((5 * 16 + 4) / 22)  # five batches of four and one of two
        assert report["train/plain"] == pytest.approx(22 / 6)
        assert report["train/masked"] == 5.0  # a mean over nothing counts for nothing
        assert report["train/masked_plain"] == 5.0
        assert report["train/half"] == 1.0
    assert not any(torch.is_tensor(total) and total.requires_grad for total, _ in training.task.noted.values())


# Evaluation


class Watched(Regression):
    """Notes what evaluation finds, and may fail there."""

    fails = False

    def build(self) -> None:
        super().build()
        self.modules["model"][2].eval()  # a part that is in evaluation mode all the time
        self.found: dict[str, Any] = {}

    def evaluate(self) -> dict[str, Any]:
        model = self.modules["model"]
        self.found = {
            "training": [part.training for part in model.modules()],
            "grad": torch.is_grad_enabled(),
            "autocast": torch.is_autocast_enabled("cpu"),
            "output_dtype": model(self.inputs).dtype,
            "weights": [p.detach().clone() for p in model.parameters()],
        }
        with self.autocast():
            self.found["own_dtype"] = model(self.inputs).dtype
        if self.fails:
            raise RuntimeError("evaluation failed")
        return super().evaluate()


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
def test_evaluation_finds_averages_and_eval_mode_and_leaves_everything_as_it_was(fails):  # F65, C90
    training = TrialTrainer(Watched(RegressionConfig(precision="bf16", ema_decay=0.9, dropout=0.5)))
    task = training.task
    task.fails = fails
    live: list[torch.Tensor] = []

    def keep(report: Any) -> None:
        live[:] = [p.detach().clone() for p in task.modules["model"].parameters()]

    task.after_update = keep
    expected = pytest.raises(RuntimeError, match="evaluation failed") if fails else contextlib.nullcontext()
    with expected:
        training.run_epoch()

    model = task.modules["model"]
    shadow = task.updaters["train"].ema.state_dict()["shadow"].values()
    assert task.found["training"] == [False] * 6
    assert task.found["grad"] is False
    assert task.found["autocast"] is False
    assert (task.found["output_dtype"], task.found["own_dtype"]) == (torch.float32, torch.bfloat16)
    assert identical(task.found["weights"], list(shadow))
    assert not identical(task.found["weights"], live)

    assert identical([p.detach() for p in model.parameters()], live)
    assert [part.training for part in model.modules()] == [True, True, True, False, True, True]
    assert torch.is_grad_enabled()


def test_without_averages_evaluation_finds_the_weights_themselves():
    training = TrialTrainer(Watched(RegressionConfig()))
    training.run_epoch()
    assert identical(training.task.found["weights"], [p.detach() for p in training.task.modules["model"].parameters()])


def test_evaluation_does_not_change_what_is_trained_afterwards():
    class Thorough(Regression):
        def evaluate(self) -> dict[str, Any]:
            torch.randn(1000)
            next(self.context.shard(torch.arange(5), 2))
            return super().evaluate()

    config = RegressionConfig(**FULL)
    losses = [[report["train/loss"] for report in train(kind(config))] for kind in (Regression, Thorough)]
    assert losses[0] == losses[1]


# Several updates


def test_each_update_moves_its_own_parameters_and_leaves_no_gradient_anywhere():
    task = Adversaries(TaskConfig(ema_decay=0.9))
    report = TrialTrainer(task).run_epoch()
    assert (
        task.trace
        == [
            ("generator", {"generator": True, "discriminator": False}),
            ("discriminator", {"generator": False, "discriminator": True}),
        ]
        * 3
    )
    assert task.left_over == []
    assert {"train/generator/loss", "train/discriminator/grad_norm", "amp/skipped/generator"} <= report.keys()
    assert report["train/generator/updates"] == report["train/discriminator/updates"] == 3


def test_several_updates_go_on_from_a_checkpoint_bit_for_bit(tmp_path):
    config = TaskConfig(precision="fp16", ema_decay=0.9, accumulation=2)
    straight, first, second = (TrialTrainer(Adversaries(config)) for _ in range(3))
    expected = [timeless(straight.run_epoch()) for _ in range(2)]
    first.run_epoch()
    first.save(tmp_path / "state.pt")
    second.load(tmp_path / "state.pt")
    assert identical(timeless(second.run_epoch()), expected[1])
    assert identical(state(second), state(straight))


def test_each_schedule_follows_the_update_of_its_optimizer():
    class OneSided(Adversaries):
        def build(self) -> None:
            super().build()
            self.schedulers = [torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5) for o in self.optimizers.values()]

        def update(self, window: Any) -> None:
            self.updaters["discriminator"].update(window, self.discriminator_loss)

    task = OneSided(TaskConfig())
    TrialTrainer(task).run_epoch()
    rates = {name: optimizer.param_groups[0]["lr"] for name, optimizer in task.optimizers.items()}
    assert rates == {"g": 1e-2, "d": 1e-2 / 8}


def test_two_modules_may_share_a_weight():
    class Tied(Regression):
        def build(self) -> None:
            super().build()
            self.modules["again"] = nn.Sequential(self.modules["model"][0])

    task = Tied(RegressionConfig(ema_decay=0.9))
    training = TrialTrainer(task)
    training.run_epoch()
    assert task.modules["again"][0].weight is task.modules["model"][0].weight


def test_a_whole_trial_raises_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reports = list(train(Regression(RegressionConfig(**FULL, precision="fp16", loss_scale=2.0**26)), epochs=2))
    assert reports[0]["amp/skipped"] > 0


def test_what_build_draws_is_the_same_on_all_ranks_and_what_training_draws_is_not():
    class Splits(Regression):
        def build(self):
            super().build()
            self.split = torch.randperm(8).tolist()

        def train_batches(self, epoch):
            self.drawn = torch.rand(3).tolist()
            return list(super().train_batches(epoch))[:1]

    tasks = [Splits(RegressionConfig(), Context(rank=rank)) for rank in (0, 1)]
    for task in tasks:
        TrialTrainer(task).run_epoch()
    assert tasks[0].split == tasks[1].split
    assert tasks[0].drawn != tasks[1].drawn
