"""Show that local rules change their synapses after an update that was applied, and after no other."""

from typing import Any

import pytest
import torch

from searchlight.trainables.liquid import LiquidTask
from searchlight.trainables.liquid.config import LiquidConfig
from searchlight.trainables.liquid.task import Batch
from searchlight.trainables.training.trainer import TrialTrainer
from tests.trainables.liquid.small_liquid import Watched, config_of, has_pending, liquid, plastic
from tests.trainables.toy_models import identical

FULL = {"plasticity": {"rule": "pair"}, "continual": {"tasks": 2}, "epochs": 2, "layers": 2}


class Spoilt(Watched):
    spoilt = 1


class Empty(Watched):
    """Its first window has no weight."""

    def loss(self, batch: Batch) -> Any:
        loss, weight = super().loss(batch)
        return loss, weight if self.reports else 0.0


@pytest.mark.parametrize(
    ("first", "precision", "accumulation"),
    [(Spoilt, "fp32", 1), (Spoilt, "bf16", 3), (Spoilt, "fp16", 4), (Empty, "fp32", 3)],
)
def test_synapses_follow_applied_updates_alone(first, precision, accumulation):  # C99
    task = liquid(first, **FULL, precision=precision, accumulation=accumulation, samples=64)
    training = TrialTrainer(task)
    before = plastic(task)
    assert len(before) == 2
    training.run_epoch()
    training.run_epoch()
    windows = 2 * -(-8 // accumulation)
    assert task.seen == [("empty" if first is Empty else "skipped", False)] + [("applied", True)] * (windows - 1)
    for synapses, start in zip(task.network.list_synapses(), before, strict=True):
        weight = synapses.weight
        assert not torch.equal(weight, start)
        assert ((weight >= 0) & (weight <= synapses.w_max)).all()
        assert (weight.dtype, weight.requires_grad, weight.grad_fn) == (torch.float32, False, None)
    assert not has_pending(task)


@pytest.mark.parametrize(
    ("rule", "meta"), [("pair", False), ("pair", True), ("triplet", True), ("homeostatic", True), ("bcm", True)]
)
def test_synapses_move_alike_however_a_window_is_cut(rule, meta):  # C99
    found = []
    for size in (8, 3, 1):
        task = liquid(plasticity={"rule": rule, "meta": meta}, max_grad_norm=None)
        TrialTrainer(task)
        batch = next(iter(task.train_batches(0)))
        cuts = [slice(start, start + size) for start in range(0, 8, size)]
        task.update([Batch(batch.samples.select_rows(cut), batch.tasks[cut], 0, None) for cut in cuts])
        found.append([*plastic(task), *(p.detach() for p in task.network.parameters())])
    for other in found[1:]:
        for first, second in zip(found[0], other, strict=True):
            assert torch.allclose(first, second, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_evaluation_and_consolidation_move_no_synapse(precision):  # C99
    task = liquid(**FULL, precision=precision, consolidation={"method": "ewc"}, replay={"logits_weight": 0.5})
    training = TrialTrainer(task)
    training.run_epoch()
    before = plastic(task)
    training.evaluate()
    task._consolidate(0)
    assert identical(plastic(task), before)
    assert not has_pending(task)


@pytest.mark.parametrize("rule", ["pair", "bcm"])
def test_learned_rates_change_and_their_rule_is_reported(rule):
    task = liquid(plasticity={"rule": rule, "meta": True}, continual={"tasks": 1}, epochs=2)
    training = TrialTrainer(task)
    (start,) = [synapses.log_rates for synapses in task.network.list_synapses()]
    assert not start.any()
    report = training.run_epoch()
    assert start.all()
    assert set(task.optimizers) == {"network", "rates"}
    assert len(task.schedulers) == 1
    for name in ("change", "capped", "weight", "bound", "rate_potentiation", "rate_depression"):
        assert f"train/plasticity_0_{name}" in report
    assert 0 < report["train/plasticity_0_change"] <= 0.1 + 1e-6
    assert 0 < report["train/plasticity_0_weight"] < 1


@pytest.mark.parametrize(("level", "warned"), [(0.999, True), (0.5, False)])
def test_weights_at_a_bound_are_warned_about_once(level, warned, caplog):
    task = liquid(plasticity={"rule": "pair", "rate": 1e-6}, continual={"tasks": 1}, epochs=1)
    training = TrialTrainer(task)
    task.network.list_synapses()[0].weight.fill_(level)
    training.run_epoch()
    lines = [record.getMessage() for record in caplog.records if "at a bound" in record.getMessage()]
    assert len(lines) == warned
    assert not warned or lines[0].startswith("100 % of the plastic weights of layer 0 are at a bound")


@pytest.mark.parametrize(("rule", "lines"), [("none", 0), ("homeostatic", 1)])
def test_search_with_a_rule_says_that_no_benefit_is_shown(rule, lines, tmp_path, caplog):
    LiquidTask.prepare(config_of(plasticity={"rule": rule}), tmp_path)
    assert [record.getMessage() for record in caplog.records] == lines * [
        f"plasticity.rule={rule}: no rule has been shown to score higher than plastic synapses that never change."
    ]


class Poked(LiquidTask):
    """Remembers with which weights it was evaluated."""

    def evaluate(self) -> dict[str, float]:
        self.weights = {name: p.detach().clone() for name, p in self.network.named_parameters()}
        self.synapses = plastic(self)
        return super().evaluate()


def test_evaluation_averages_all_but_plastic_weights():  # C103
    assert LiquidConfig().ema_decay is not None
    task = liquid(Poked, **FULL, ema_decay=0.9)
    TrialTrainer(task).run_epoch()
    shadow = task.updaters["train"].ema.state_dict()["shadow"]
    for name, parameter in task.network.named_parameters():
        assert torch.equal(task.weights[name], shadow[f"network.{name}"])
        assert not torch.equal(task.weights[name], parameter)
    assert identical(task.synapses, plastic(task))
