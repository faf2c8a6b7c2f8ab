"""Local rules in a trial: they change their synapses after an update that was applied, and after no other."""

from typing import Any

import pytest
import torch

from tests.trainables.liquid.small_liquid import liquid, pending, plastic
from tests.trainables.toy_models import every_precision, identical
from trainables.liquid import LiquidTask
from trainables.liquid.config import LiquidConfig
from trainables.liquid.task import Batch
from trainables.training.trainer import TrialTrainer
from trainables.update import UpdateReport

FULL = {"plasticity": {"rule": "pair"}, "continual": {"tasks": 2}, "epochs": 2}


class Watched(LiquidTask):
    """Notes what became of each window, and whether plastic weights moved in it."""

    def build(self) -> None:
        super().build()
        self.seen: list[tuple[str, bool]] = []
        self.reports: list[UpdateReport] = []

    def after_update(self, report: UpdateReport) -> None:
        before = plastic(self)
        super().after_update(report)
        self.reports.append(report)
        self.seen.append((report.outcome, not identical(before, plastic(self))))


class Spoilt(Watched):
    """Has an infinite loss in its first window."""

    def loss(self, batch: Batch) -> Any:
        loss, weight = super().loss(batch)
        updater = self.updaters["train"]
        return loss * (torch.inf if updater.steps + updater.skipped == 0 else 1.0), weight


class Empty(Watched):
    """Its first window has no weight."""

    def loss(self, batch: Batch) -> Any:
        loss, weight = super().loss(batch)
        updater = self.updaters["train"]
        return loss, weight if updater.steps + updater.empty else 0.0


@every_precision
@pytest.mark.parametrize("accumulation", [1, 2, 3, 4, 8])
def test_they_follow_applied_updates_alone(precision: str, accumulation: int) -> None:  # C99
    task = liquid(Spoilt, **FULL, precision=precision, accumulation=accumulation, samples=64)
    training = TrialTrainer(task)
    before = plastic(task)
    training.run_epoch()
    training.run_epoch()
    windows = 2 * -(-8 // accumulation)
    assert task.seen == [("skipped", False)] + [("applied", True)] * (windows - 1)
    assert (task.updaters["train"].steps, task.updaters["train"].skipped) == (windows - 1, 1)
    for synapses, start in zip(task.network.synapses(), before, strict=True):
        weight = synapses.weight
        assert not torch.equal(weight, start)
        assert ((weight >= 0) & (weight <= synapses.w_max)).all()
        assert (weight.dtype, weight.requires_grad, weight.grad_fn) == (torch.float32, False, None)
    assert not any(part.any() for part in pending(task))


def test_a_loss_scale_that_overflows_moves_none() -> None:  # C99
    task = liquid(Watched, **FULL, precision="fp16", loss_scale=2.0**24, samples=200)
    report = TrialTrainer(task).run_epoch()
    assert report is not None
    assert report["amp/skipped"] > 0
    assert task.seen[0] == ("skipped", False)
    assert set(task.seen) == {("skipped", False), ("applied", True)}


def test_a_window_without_weight_moves_none() -> None:  # C99
    task = liquid(Empty, **FULL)
    TrialTrainer(task).run_epoch()
    assert task.seen == [("empty", False)] + [("applied", True)] * 3


@pytest.mark.parametrize("rule", ["pair", "triplet", "homeostatic", "bcm"])
@pytest.mark.parametrize("meta", [False, True], ids=["fixed", "meta"])
def test_a_window_moves_them_alike_however_it_is_cut(rule: str, meta: bool) -> None:  # C99
    found = []
    for size in (8, 4, 3, 1):
        task = liquid(plasticity={"rule": rule, "meta": meta}, max_grad_norm=None)
        TrialTrainer(task)
        batch = next(iter(task.train_batches(0)))
        cuts = [slice(start, start + size) for start in range(0, 8, size)]
        task.update([Batch(batch.samples.rows(cut), batch.tasks[cut], 0, None) for cut in cuts])
        found.append([*plastic(task), *(p.detach() for p in task.network.parameters())])
    for other in found[1:]:
        for first, second in zip(found[0], other, strict=True):
            assert torch.allclose(first, second, atol=1e-5)


@every_precision
def test_neither_an_evaluation_nor_what_is_kept_of_a_task_moves_them(precision: str) -> None:  # C99
    task = liquid(**FULL, precision=precision, consolidation={"method": "ewc"}, replay={"logits_weight": 0.5})
    training = TrialTrainer(task)
    training.run_epoch()
    before = plastic(task)
    training.evaluate()
    task._consolidate(0)
    assert identical(plastic(task), before)
    assert not any(part.any() for part in pending(task))


@pytest.mark.parametrize("rule", ["pair", "triplet", "homeostatic", "bcm"])
def test_learned_rates_are_learned_and_their_rule_reports_what_it_did(rule: str) -> None:
    task = liquid(plasticity={"rule": rule, "meta": True}, continual={"tasks": 1}, epochs=2)
    training = TrialTrainer(task)
    (start,) = [synapses.log_rates for synapses in task.network.synapses()]
    assert start is not None
    assert not start.any()
    report = training.run_epoch()
    assert report is not None
    assert start.all()
    assert set(task.optimizers) == {"network", "rates"}
    assert len(task.schedulers) == 1
    for name in ("change", "capped", "weight", "bound", "rate_potentiation", "rate_depression"):
        assert f"train/plasticity_0_{name}" in report
    assert 0 < report["train/plasticity_0_change"] <= 0.1 + 1e-6
    assert 0 < report["train/plasticity_0_weight"] < 1


@pytest.mark.parametrize("layers", [1, 3])
def test_every_layer_has_synapses_of_its_own(layers: int) -> None:
    task = liquid(Watched, **FULL, layers=layers)
    training = TrialTrainer(task)
    before = plastic(task)
    training.run_epoch()
    assert len(before) == layers
    assert all(not torch.equal(a, b) for a, b in zip(before, plastic(task), strict=True))


class Poked(LiquidTask):
    """Remembers with which weights it was evaluated."""

    def evaluate(self) -> dict[str, float]:
        self.weights = {name: p.detach().clone() for name, p in self.network.named_parameters()}
        self.synapses = plastic(self)
        return super().evaluate()


def test_an_evaluation_has_averaged_weights_and_the_plastic_ones_as_they_are() -> None:  # C103
    task = liquid(Poked, **FULL, ema_decay=0.9)
    TrialTrainer(task).run_epoch()
    ema = task.updaters["train"].ema
    assert ema is not None
    shadow = ema.state_dict()["shadow"]
    for name, parameter in task.network.named_parameters():
        assert torch.equal(task.weights[name], shadow[f"network.{name}"])
        assert not torch.equal(task.weights[name], parameter)
    assert identical(task.synapses, plastic(task))


def test_weights_are_averaged_by_default() -> None:  # C103
    assert LiquidConfig().ema_decay is not None
