"""Train trials in memory: epochs, reports, evaluation and several updates."""

import contextlib
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from searchlight.trainables.training import trainer
from tests.trainables.toy_models import FULL, Adversaries, Endless, Regression, identical, scramble, timeless
from tests.trainables.training.trials import FakeClock, load_trial, make_trial, run_epochs

NAN = math.nan


def test_seed_alone_determines_the_reports():
    settings = {**FULL, "epochs": 3}
    first = [timeless(report) for report in trainer.train(make_trial(Regression, **settings).task)]
    scramble()
    assert identical(run_epochs(make_trial(Regression, **settings), 3), first)
    (other,) = run_epochs(make_trial(Regression, **settings, seed=1), 1)
    assert other["train/loss"] != first[0]["train/loss"]
    assert len({report["val/draw"] for report in first}) == 3, "epochs draw different numbers"


def test_context_without_its_process_group_is_refused():
    with pytest.raises(ValueError, match=r"world_size must be that of the process group, 1, but got 2"):
        make_trial(Regression, world_size=2)


def test_epoch_trains_each_sample_once():
    settings = {"size": 22, "batch_size": 4, "accumulation": 4}
    report = make_trial(Regression, **settings).run_epoch()
    assert report["val/seen"] == 22
    assert report["train/updates"] == 2  # six micro-batches: a window of four and a tail of two
    assert report["amp/skipped"] == 0
    assert "amp/loss_scale" not in report
    assert report["sys/cpu_percent"] > 0
    half = make_trial(Regression, **settings, precision="fp16", loss_scale=128.0).run_epoch()
    assert half["amp/loss_scale"] == 128.0


def test_epoch_time_is_that_of_training_and_evaluation(monkeypatch):
    class Slow(Regression):
        def train_batches(self, epoch: int) -> Any:
            clock.sleep(2.0)
            yield from super().train_batches(epoch)

        def evaluate(self) -> dict[str, Any]:
            clock.sleep(1.0)
            return super().evaluate()

    clock = FakeClock()
    monkeypatch.setattr(trainer, "time", clock)
    training = make_trial(Slow, size=22)
    for _ in range(2):
        report = training.run_epoch()
        assert report["time/epoch_s"] == training.seconds == 3.0
        assert report["time/samples_per_s"] == 11.0
        assert training.samples == 22


@pytest.mark.parametrize("accumulation", [1, 4])
def test_reported_loss_is_the_mean_over_samples(accumulation):
    class Still(Regression):  # does not move, so that the loss of an epoch can be computed in one piece
        def build(self) -> None:
            super().build()
            self.modules["model"][1] = nn.Identity()  # batch norm would mix the samples of a batch
            self.optimizers = {"sgd": torch.optim.SGD(self.modules["model"].parameters(), lr=0.0)}
            self.schedulers = []

    report = make_trial(Still, accumulation=accumulation).run_epoch()
    assert report["train/loss"] == pytest.approx(report["val/loss"], rel=1e-6)


def test_endless_stream_ends_its_epoch_after_its_samples():
    training = make_trial(Endless, accumulation=2)
    for updates, batches in ((2, 4), (3, 2), (4, 2), (5, 2), (7, 4)):  # ten samples an epoch, eight a window
        assert training.run_epoch()["train/updates"] == updates
        assert training.task.handed_out == batches, "nothing more was taken from the stream"


def test_metrics_are_numbers_or_means_of_which_some_may_be_nan(monkeypatch):
    metrics = {"val/loss": 1.0, "val/other": NAN, "val/mean": (NAN, 0), "val/part": (2.0, 3)}
    monkeypatch.setattr(Regression, "evaluate", lambda task: metrics)
    report = make_trial(Regression).run_epoch()
    assert math.isnan(report["val/other"])
    assert math.isnan(report["val/mean"])
    assert report["val/part"] == 2.0
    metrics["val/other"] = None
    with pytest.raises(ValueError, match=r"a number or \(mean, weight\) for 'val/other', but got None"):
        make_trial(Regression).run_epoch()


def test_epoch_without_an_applied_window_reports_nan(monkeypatch):
    monkeypatch.setattr(Regression, "train_batches", lambda task, epoch: [])
    report = make_trial(Regression).run_epoch()
    assert math.isnan(report["train/loss"])
    assert math.isnan(report["train/grad_norm"])
    assert report["train/updates"] == 0


def test_noted_terms_are_reported_as_weighted_means():
    class Noting(Regression):
        def train_batches(self, epoch: int) -> Any:
            self.current = epoch
            return super().train_batches(epoch)

        def loss(self, batch: Any) -> tuple[Tensor, int]:
            loss, weight = super().loss(batch)
            self.log("mean", torch.tensor(float(weight), requires_grad=True), weight)
            self.log("plain", float(weight))
            self.log("epoch", float(self.current))
            self.log("masked", torch.tensor(NAN if weight == 2 else 5.0), torch.tensor(weight - 2))
            self.log("masked_plain", NAN if weight == 2 else 5.0, weight - 2)
            self.log("half", torch.tensor(1.0, dtype=torch.float16), 30_000)  # infinite in fp16, as a sum
            return loss, weight

    training = make_trial(Noting, size=22, batch_size=4, accumulation=2)
    for epoch in range(2):
        report = training.run_epoch()
        assert report["train/epoch"] == epoch  # the second one starts from nothing
        assert report["train/mean"] == pytest.approx((5 * 16 + 4) / 22)  # five batches of four and one of two
        assert report["train/plain"] == pytest.approx(22 / 6)
        assert report["train/masked"] == 5.0  # a mean over nothing counts for nothing
        assert report["train/masked_plain"] == 5.0
        assert report["train/half"] == 1.0
    assert not any(torch.is_tensor(total) and total.requires_grad for total, _ in training.task.noted.values())


def test_terms_of_evaluations_and_skipped_windows_do_not_count():
    class Spoiled(Regression):
        def loss(self, batch: Any) -> tuple[Tensor, int]:
            loss, weight = super().loss(batch)
            loss = loss * (NAN if weight == 2 else 1.0)  # the last of 22 samples in batches of 4
            self.log("term", loss)
            self.log("training", float(self.modules["model"].training))
            return loss, weight

        def after_update(self, report: Any) -> None:
            self.log("windows", 1.0)

        def evaluate(self) -> dict[str, Any]:
            self.loss((self.inputs, self.targets))
            return super().evaluate()

    training = make_trial(Spoiled)
    for epoch in (1, 2):
        report = training.run_epoch()
        assert report["amp/skipped"] == epoch
        assert math.isfinite(report["train/term"])
        assert report["train/training"] == report["train/windows"] == 1.0


@pytest.mark.parametrize("name", ["loss", "grad_norm", "updates"])
def test_term_with_a_reserved_name_raises_value_error(name):
    with pytest.raises(ValueError, match=f"log must get a name that is not reported already, but got '{name}'"):
        make_trial(Regression).task.log(name, 1.0)


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
def test_evaluation_uses_averages_and_restores_the_model(fails):  # F64
    class Watched(Regression):
        def build(self) -> None:
            super().build()
            self.modules["model"][2].eval()  # a part that is in evaluation mode all the time

        def after_update(self, report: Any) -> None:
            self.live = [p.detach().clone() for p in self.modules["model"].parameters()]

        def evaluate(self) -> dict[str, Any]:
            model = self.modules["model"]
            events.append("evaluated")
            with self.autocast():
                own_dtype = model(self.inputs).dtype
            modes = {part.training for part in model.modules()}
            self.found = [modes, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")]
            self.dtypes = [model(self.inputs).dtype, own_dtype]
            self.weights = [p.detach().clone() for p in model.parameters()]
            self.batches = model[1].num_batches_tracked.item()
            if fails:
                raise RuntimeError("evaluation failed")
            return super().evaluate()

    events: list[str] = []
    training = make_trial(Watched, precision="bf16", ema_decay=0.9, dropout=0.5)
    training.on_progress = lambda: events.append("progress")
    task, model = training.task, training.task.modules["model"]
    with pytest.raises(RuntimeError, match="evaluation failed") if fails else contextlib.nullcontext():
        training.run_epoch()
    assert events[:3] == ["progress", "evaluated", "progress"][: 2 if fails else 3]
    assert task.found == [{False}, False, False]
    assert task.dtypes == [torch.float32, torch.bfloat16]
    assert identical(task.weights, list(task.updaters["train"].ema.state_dict()["shadow"].values()))
    assert not identical(task.weights, task.live)
    assert task.batches == 6, "buffers are those of the training and no averages"
    assert identical([p.detach() for p in model.parameters()], task.live)
    assert [part.training for part in model.modules()] == [True, True, True, False, True, True]
    assert torch.is_grad_enabled()


class Cells(Regression):  # keeps a state in a buffer that is None at first and as long as the last batch then
    def build(self) -> None:
        super().build()
        self.modules["model"].register_buffer("state", None)

    def predict(self, inputs: Tensor) -> Tensor:
        model = self.modules["model"]
        outputs = super().predict(inputs)
        before = 0.0 if model.state is None else model.state.mean()
        model.state = 0.5 * before + outputs.detach()
        return outputs + 0.1 * before


@pytest.mark.parametrize("window", [None, 3], ids=["between-epochs", "in-an-epoch"])
def test_cell_state_survives_evaluation_and_checkpoint(tmp_path, window):
    expected = run_epochs(make_trial(Cells), 3)
    training = make_trial(Cells)
    reports = run_epochs(training, 1)
    model = training.task.modules["model"]
    before = model.state.clone()
    training.evaluate()
    assert torch.equal(model.state, before)
    assert len(before) == 2  # the last batch of 22 samples, and not the 22 of the evaluation
    if window:
        assert training.run_epoch(lambda: training.windows == window) is None
    training.save(tmp_path / "state.pt")
    assert identical(reports + run_epochs(load_trial(tmp_path / "state.pt", Cells), 2), expected)


def test_averages_of_a_layer_that_is_thawed_later_exist():
    class Thawing(Regression):
        def build(self) -> None:
            super().build()
            self.modules["model"][0].requires_grad_(False)

        def train_batches(self, epoch: int) -> Any:
            self.modules["model"][0].requires_grad_(epoch > 0)
            return super().train_batches(epoch)

    training = make_trial(Thawing, ema_decay=0.9)
    before = training.task.modules["model"][0].weight.detach().clone()
    run_epochs(training, 2)
    weight = training.task.modules["model"][0].weight
    average = training.task.updaters["train"].ema.state_dict()["shadow"]["model.0.weight"]
    assert not torch.equal(weight, before)
    assert not torch.equal(average, weight)


def test_modules_may_share_a_weight_and_have_any_name(tmp_path):
    class Tied(Regression):
        def build(self) -> None:
            super().build()
            self.modules["items"] = nn.Sequential(self.modules["model"][0])

    training = make_trial(Tied, ema_decay=0.9)
    training.run_epoch()
    training.save(tmp_path / "state.pt")
    modules = load_trial(tmp_path / "state.pt", Tied, ema_decay=0.9).task.modules
    assert modules["items"][0].weight is modules["model"][0].weight


def test_each_update_moves_its_own_parameters_only():
    training = make_trial(Adversaries, ema_decay=0.9)
    report = training.run_epoch()
    generator = ("generator", {"generator": True, "discriminator": False})
    discriminator = ("discriminator", {"generator": False, "discriminator": True})
    assert training.task.trace == [generator, discriminator] * 3
    assert training.task.left_over == [], "no gradient is left anywhere"
    assert {"train/generator/loss", "train/discriminator/grad_norm", "amp/skipped/generator"} <= report.keys()
    assert report["train/generator/updates"] == report["train/discriminator/updates"] == 3


def test_each_schedule_follows_the_update_of_its_optimizer():
    class OneSided(Adversaries):
        def build(self) -> None:
            super().build()
            self.schedulers = [torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5) for o in self.optimizers.values()]

        def update(self, window: Any) -> None:
            self.updaters["discriminator"].update(window, self.discriminator_loss)

    training = make_trial(OneSided)
    training.run_epoch()
    rates = {name: optimizer.param_groups[0]["lr"] for name, optimizer in training.task.optimizers.items()}
    assert rates == {"g": 1e-2, "d": 1e-2 / 8}
