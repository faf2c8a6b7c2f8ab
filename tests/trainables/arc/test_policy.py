"""Show the ARC task's two updates per window, through the loop that every task has."""

import functools

import pytest
import torch
import torch.nn.functional as F

from tests.trainables.arc.small_arc import arc, moved, weights, window
from tests.trainables.toy_models import identical, state, timeless
from trainables.arc import ArcTask
from trainables.training.trainer import TrialTrainer

EVERYTHING = {
    "curriculum_start": 0.6,
    "curriculum_warmup": 2,
    "accumulation": 2,
    "ema_decay": 0.9,
    "dropout": 0.2,
    "epochs": 3,
    "loss_scale_growth": 3,
}
full_and_half_precision = pytest.mark.parametrize("precision", ["fp32", "fp16"])


def test_window_updates_agent_and_policy_once():  # C67
    training = TrialTrainer(arc(accumulation=2))
    training.run_epoch()
    assert {name: updater.steps for name, updater in training.task.updaters.items()} == {"train": 3, "policy": 3}


@full_and_half_precision
def test_update_moves_all_of_its_own_parameters_alone(precision):  # C65, C66
    training = TrialTrainer(arc(precision=precision))
    task = training.task
    for update, loss, own in ("policy", task.policy_loss, {"policy"}), ("train", task.loss, {"agent", "prompt"}):
        before = {name: weights(training, name) for name in task.modules}
        assert task.updaters[update].update(window(training), loss).outcome == "applied"
        for name, values in before.items():
            assert moved(training, name, values) == {name in own}
        assert all(p.grad is None for module in task.modules.values() for p in module.parameters())


class Spoilt(ArcTask):
    """Its policy has an infinite loss in the second window."""

    def policy_loss(self, batch):
        loss, weight = super().policy_loss(batch)
        second = self.updaters["policy"].steps == 1 and not self.updaters["policy"].skipped
        return loss * (torch.inf if second else 1.0), weight


@full_and_half_precision
def test_infinite_policy_loss_skips_that_step_alone(precision):  # C74, C76
    report = TrialTrainer(arc(Spoilt, precision=precision)).run_epoch()
    assert (report["train/updates"], report["train/policy/updates"]) == (5, 4)
    assert (report["amp/skipped"], report["amp/skipped/policy"]) == (0, 1)
    assert all(value == value for value in report.values())
    if precision == "fp16":
        assert report["amp/loss_scale"] == 2 * report["amp/loss_scale/policy"]


@full_and_half_precision
def test_overflowing_rewards_stop_the_policy_alone(precision):  # C74
    training = TrialTrainer(arc(precision=precision, reward_scale=1e35, loss_scale=1024.0))
    before = weights(training, "policy")
    report = training.run_epoch()
    assert moved(training, "policy", before) == {False}
    assert (report["amp/skipped"], report["amp/skipped/policy"]) == (0, 5)
    assert report["train/loss"] < 2
    assert "train/reward" not in report


def test_large_rewards_are_clipped_and_learned_from():
    report = TrialTrainer(arc(precision="fp16", reward_scale=1e6)).run_epoch()
    assert report["amp/skipped/policy"] <= 1
    assert report["train/policy/grad_norm"] > 1e3


def test_policy_has_rates_clipping_and_loss_scale_of_its_own():  # C76
    task = arc(precision="fp16", policy_lr=5e-3)
    TrialTrainer(task)
    train, policy = task.updaters["train"], task.updaters["policy"]
    assert (list(policy.optimizers), list(train.optimizers)) == (["policy"], ["agent", "prompt"])
    assert policy.loss_scale is not train.loss_scale
    assert [scheduler.base_lrs for scheduler in policy.schedulers] == [[5e-3]]


def test_curriculum_changes_the_direction_of_the_gradient():  # C83
    training = TrialTrainer(arc())
    (batch,) = window(training)

    def direction(ratio):
        torch.manual_seed(0)
        training.task.ratio = ratio
        agent = list(training.task.modules["agent"].parameters())
        gradients = torch.autograd.grad(training.task.loss(batch)[0], agent)
        return F.normalize(torch.cat([gradient.flatten() for gradient in gradients]), dim=0)

    low, high = direction(0.3), direction(0.6)
    assert low @ direction(0.3) == pytest.approx(1.0, abs=1e-5)
    assert 0 < low @ high < 0.99


def test_ratio_goes_from_start_to_end_over_the_warmup():  # C84
    training = TrialTrainer(arc(curriculum_start=0.6, curriculum_end=0.2, curriculum_warmup=2, episodes=8, epochs=4))
    ratios = []
    for _ in range(4):
        training.run_epoch()
        ratios.append(training.task.ratio)
    assert ratios == pytest.approx([0.6, 0.4, 0.2, 0.2])


@pytest.mark.parametrize(
    ("precision", "train", "until"),
    [
        pytest.param("fp16", "frozen", 1, id="its first window, fp16"),
        pytest.param("bf16", "prefix", 3, id="its last window, bf16 and a soft prefix"),
        pytest.param("fp32", "full", 0, id="the end of an epoch, fp32 and a language model that learns"),
    ],
)
def test_resumed_trial_equals_one_never_interrupted(tmp_path, precision, train, until):  # C84
    make = functools.partial(arc, **EVERYTHING, precision=precision, prompt={"train": train})
    straight, stopped, resumed = (TrialTrainer(make()) for _ in range(3))
    expected = [timeless(straight.run_epoch()) for _ in range(3)]
    assert expected[0]["train/reward"] != expected[1]["train/reward"]
    stopped.run_epoch()
    if until:
        assert stopped.run_epoch(lambda: stopped.windows == until) is None
    stopped.save(tmp_path / "middle.pt")
    resumed.load(tmp_path / "middle.pt")
    assert identical([timeless(resumed.run_epoch()) for _ in range(2)], expected[1:])
    assert resumed.task.ratio == straight.task.ratio
    assert identical(state(resumed), state(straight))
