"""Show the ARC task's two updates per window, through the loop that every task has."""

import functools

import pytest

from searchlight.trainables.training.trainer import TrialTrainer
from tests.trainables.arc.small_arc import arc, moved, weights, window
from tests.trainables.toy_models import identical, state, timeless

EVERYTHING = {
    **{"curriculum_start": 0.6, "accumulation": 2, "epochs": 3},
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
    training = TrialTrainer(
        arc(precision=precision, reward_scale=1e39, loss_scale=1024.0, least_spread=0.0, curriculum_start=0.6)
    )
    before = weights(training, "policy")
    report = training.run_epoch()
    assert moved(training, "policy", before) == {False}
    assert (report["train/updates"], report["amp/skipped"], report["amp/skipped/policy"]) == (5, 0, 5)
    assert report["train/loss"] < 2
    if precision == "fp16":  # a loss scale of its own
        assert report["amp/loss_scale"] == 2**5 * report["amp/loss_scale/policy"]


def test_large_rewards_are_clipped_and_learned_from():
    training = TrialTrainer(arc(precision="fp16", reward_scale=1e6))
    before = weights(training, "policy")
    report = training.run_epoch()
    assert report["amp/skipped/policy"] <= 1
    assert moved(training, "policy", before) == {True}
    assert report["train/policy/grad_norm"] < 100


def test_policy_trains_only_where_enough_rewards_differ(caplog):
    caplog.set_level("INFO")
    training = TrialTrainer(arc(least_spread=1.0))
    before = weights(training, "policy")
    report = training.run_epoch()
    updates = report.get("train/policy/updates", 0)
    assert updates < report["train/updates"]
    assert moved(training, "policy", before) == {bool(updates)}
    assert 0 < report["train/reward_spread"] < 1
    (line,) = [record.message for record in caplog.records if "policy" in record.message]
    assert line.startswith("policy does not train on windows in which fewer than 100 % of puzzles have rewards that d")
    training.run_epoch()
    assert sum("policy" in record.message for record in caplog.records) == 1


def test_curriculum_and_weight_of_sizes_are_parameters_of_their_own():  # C83, C84
    task = TrialTrainer(arc(curriculum_start=0.6, size_weight=0.3, epochs=4)).task
    assert [task.curriculum.share(epoch) for epoch in range(4)] == pytest.approx([0.6, 0.4, 0.2, 0.0])
    assert task._compute_loss_weights().size == 0.3


@pytest.mark.parametrize(
    ("precision", "train", "until"),
    [
        pytest.param("fp16", "frozen", 1, id="its first window, fp16"),
        pytest.param("bf16", "frozen", 3, id="its last window, bf16"),
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
    assert identical(state(resumed), state(straight))
