"""Show the ARC task's two updates per window, through the loop that every task has."""

import functools

import pytest

from tests.trainables.arc.small_arc import arc, moved, weights, window
from tests.trainables.toy_models import identical, state, timeless
from trainables.training.trainer import TrialTrainer

EVERYTHING = {
    **{"curriculum_start": 0.6, "curriculum_warmup": 2, "accumulation": 2, "epochs": 3},
    **{"ema_decay": 0.9, "dropout": 0.2, "loss_scale_growth": 3},
}
full_and_half_precision = pytest.mark.parametrize("precision", ["fp32", "fp16"])


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


@full_and_half_precision
def test_overflowing_rewards_stop_the_policy_alone(precision):  # C67, C74, C76
    training = TrialTrainer(arc(precision=precision, reward_scale=1e35, loss_scale=1024.0))
    before = weights(training, "policy")
    report = training.run_epoch()
    assert moved(training, "policy", before) == {False}
    assert (report["train/updates"], report["amp/skipped"], report["amp/skipped/policy"]) == (5, 0, 5)
    assert report["train/loss"] < 2
    assert "train/reward" not in report
    if precision == "fp16":  # a loss scale of its own
        assert report["amp/loss_scale"] == 2**5 * report["amp/loss_scale/policy"]


def test_large_rewards_are_clipped_and_learned_from():
    report = TrialTrainer(arc(precision="fp16", reward_scale=1e6)).run_epoch()
    assert report["amp/skipped/policy"] <= 1
    assert report["train/policy/grad_norm"] > 1e3


def test_ratio_goes_from_start_to_end_and_counts_in_the_loss():  # C83, C84
    task = arc(curriculum_start=0.6, curriculum_end=0.2, curriculum_warmup=2, episodes=8, epochs=4)
    training = TrialTrainer(task)
    ratios, losses = [], []
    for _ in range(4):
        training.run_epoch()
        ratios.append(task.ratio)
    assert ratios == pytest.approx([0.6, 0.4, 0.2, 0.2])
    (batch,) = window(training)
    for task.ratio in (0.0, 1.0):
        losses.append(task.loss(batch)[0].item())
    assert losses[0] != pytest.approx(losses[1], rel=0.01)


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
